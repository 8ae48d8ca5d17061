"""Which connectors can't run on one worker together, because of the topics that they read and write."""

from __future__ import annotations

from collections.abc import Iterable

from helenus_connector.config.connector import ConnectorSettings
from helenus_schemas.settings.properties import ConfigError, Problem


def conflict(settings: ConnectorSettings, other: ConnectorSettings, source: str = "") -> Problem | None:
    """Why a table of one connector can't run next to that of another connector; None if it can.

    Two that read a topic in one query would get a part of it each; where two write a topic, order per key is lost.
    `source` is what names the first: its file, or by default its connector.
    """
    source = source or settings.name
    same_data = settings.data == other.data
    if settings.query_group == other.query_group and settings.events == other.events:
        advice = f"give one of them another query.group{' and another data.topic' if same_data else ''}"
        why = f"connector {other.name} reads {settings.events} already; {advice}"
        return Problem(source, "table", settings.table, why)
    if same_data:
        why = f"connector {other.name} writes {settings.data} already; give one of them another data.topic"
        return Problem(source, "data.topic", settings.data_topic or None, why)
    return None


def check_conflicts(connectors: Iterable[tuple[str, ConnectorSettings]]) -> None:
    """Raise ConfigError if any two connectors conflict, each with its source, as far as they name tables."""
    problems: list[Problem] = []
    seen: list[ConnectorSettings] = []
    for source, settings in connectors:
        tables = [settings.of_table(table) for table in settings.tables]
        found = (conflict(table, other, source) for table in tables for other in seen)
        problems += [problem for problem in found if problem]
        seen += tables
    if problems:
        raise ConfigError(problems)


def matching(settings: ConnectorSettings, topics: Iterable[str]) -> set[str]:
    """The events topics of tables that match a connector's patterns, also of tables that are not known yet."""
    mark = "table"
    before, found, after = settings.of_table(mark).events.rpartition(mark)
    if not found or settings.of_table(mark * 2).events != before + mark * 2 + after:
        return set()
    ours = [topic for topic in topics if topic.startswith(before) and topic.endswith(after)]
    return {topic for topic in ours if settings.matches(topic[len(before) : len(topic) - len(after)])}
