"""Runs `helenus-connector replicate` and `helenus-connector compare`."""

from __future__ import annotations

import time
from pathlib import Path

import click
import structlog

from helenus_connector.config.replication import ReplicationSettings
from helenus_connector.replicate.comparison import ComparedTable, compare, key_text
from helenus_connector.replicate.replicator import (
    InitialCopy,
    Replicator,
    Stopped,
    begin_patiently,
    both_sessions,
    refuse_loops,
)
from helenus_schemas.names import counted
from helenus_schemas.service import ending, logs
from helenus_schemas.settings.properties import ConfigError, Problem
from helenus_sinks.kafka.settings import shown, wrong_settings

_PROGRESS_S = 10.0


def _load(properties: Path) -> ReplicationSettings:
    """Load the file. Raises ConfigError, also for settings that librdkafka does not take, or would not use: it would
    connect without TLS.
    """
    settings = ReplicationSettings.load(properties)
    config, checked = settings.consumer_config, {**settings.kafka, **settings.consumer}
    problems = []
    for name, reason in wrong_settings(config, checked, consumer=True).items():
        key = settings.name_in_file(("consumer." if name in settings.consumer else "kafka.") + (name or "*"))
        problems.append(Problem(str(properties), key, shown(key, name, config, reason), reason))
    if problems:
        raise ConfigError(problems)
    logs.configure(settings.log_level, settings.log_format)
    return settings


def run_replicator(properties: Path, once: bool, snapshot: Path | None, token_range: tuple[int, int]) -> None:
    """Replicate until SIGTERM or Ctrl-C; with `once` to the topics' end. Raises HelenusError."""
    settings = _load(properties)
    with both_sessions(settings, once) as sessions:
        request = None if snapshot is None else InitialCopy(snapshot, *token_range)

        def begin() -> Replicator:
            refuse_loops(settings, sessions)
            return Replicator(settings, sessions, once, request)

        replicator = begin_patiently(begin, once)

        def stop() -> None:
            replicator.is_stopping = True

        ending.handle_signals(stop)
        structlog.get_logger(__name__).info("replicate.started", tables=list(settings.table), group=settings.group)
        try:
            changes = replicator.run()
        except Stopped:
            changes = replicator.applied
        click.echo(f"{counted(changes, 'change')} applied")


def compare_tables(
    properties: Path, level: str, patience: float, limit: int, repair: bool, token_range: tuple[int, int]
) -> int:
    """Compare tables; print what differs. Returns 0 if nothing does, else 3. Raises HelenusError."""
    settings = _load(properties)
    shown_at = time.monotonic()

    def note(name: str, share: float, rows: int) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at > _PROGRESS_S:
            shown_at = time.monotonic()
            click.echo(f"{name}: {share:.1%} of the ring, {counted(rows, 'row')}", err=True)

    is_equal = True
    with both_sessions(settings, once=True) as sessions:
        for result in compare(settings, sessions, level, patience, repair, token_range, note):
            _show(result, limit)
            is_equal &= result.is_equal
    return 0 if is_equal else 3


def _show(result: ComparedTable, limit: int) -> None:
    for line in result.columns:
        click.echo(f"{result.name}: {line}")
    for difference in result.differences[:limit]:
        columns = f": {', '.join(difference.columns)}" if difference.columns else ""
        click.echo(f"{result.name}: {difference.kind} {key_text(result.table, difference.key)}{columns}")
    repaired = f", {counted(result.repaired, 'row')} repaired" if result.repaired else ""
    many = "" if result.is_complete else " at least; the rest was not compared"
    differences = f"{counted(len(result.differences), 'difference')}{many}"
    click.echo(f"{result.name}: {counted(result.rows, 'row')}, {differences}{repaired}")
