"""`helenus-agent agent.properties`, and the other commands for operators."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import structlog
from prometheus_client import REGISTRY
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_fixed
from tenacity.nap import sleep_using_event

from helenus_agent import metrics, status
from helenus_agent.agent import Agent, may_pass
from helenus_agent.commitlog import decoder
from helenus_agent.config import AgentSettings, check, check_places, raw_directory, read_yaml
from helenus_agent.monitor import Monitor, busy_port
from helenus_agent.node import identity
from helenus_agent.node.cassandra import Cassandra
from helenus_agent.node.offline import SavedNode
from helenus_agent.segments.reprocess import reprocess
from helenus_agent.segments.segment_queue import list_segment_ids
from helenus_agent.segments.transfer import transfer_of
from helenus_agent.state import StateDirectory, note_cdc_off, owned
from helenus_agent.validate_command import refusals, unasked
from helenus_schemas import __version__
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import descriptors, logs
from helenus_schemas.service.ownership import check_directory
from helenus_schemas.settings.properties import check_properties, together
from helenus_schemas.settings.shared import NO_PULSAR
from helenus_sinks.kafka.log import KafkaLog

if TYPE_CHECKING:
    from helenus_sinks.pulsar.log import PulsarLog

_STOP_LIMIT_S = 10.0
_FLUSH_LIMIT_S = 5.0  # s for the broker, of those
_RETRY_S = 1.0  # s between two tries to reach a server at the start
_REPORT_S = 30.0  # s between two log lines that say why it waits
_QUEUE = {"queue.buffering.max.messages": "20000"}  # 8 MB less than the 50,000 of a connector, and as fast
_log = structlog.get_logger(__name__)


class _Commands(click.Group):
    """`run` is the default command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # A word that is neither a command nor a file is a command with a slip in it.
        is_command = args[0] in self.commands or (args[0].isalpha() and not Path(args[0]).exists())
        return super().resolve_command(ctx, args if is_command else ["run", *args])


_PROPERTIES = click.argument("properties", type=click.Path(path_type=Path))


@click.group(
    cls=_Commands,
    subcommand_metavar="[COMMAND] PROPERTIES",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__)
def main() -> None:
    """Read a Cassandra node's commit log and append every change of its CDC tables to a topic.

    `helenus-agent agent.properties` runs the agent: on the node's machine, as a user that may read and
    delete in cdc_raw. Errors go to standard error in one line; the exit code is 2 for a wrong configuration, 1 for
    anything else.
    """
    logs.configure()
    # What a command writes, and what the processes that it starts write, is for its user alone.
    click.get_current_context().call_on_close(partial(os.umask, os.umask(0o077)))


@main.command("run", short_help="Run the agent.")
@_PROPERTIES
def _run_command(properties: Path) -> None:
    """Run the agent until SIGTERM, as `helenus-agent PROPERTIES` does.

    It stops within ten seconds, and what was not acknowledged by then is read again at the next start.
    """
    with _errors_in_one_line():
        settings = AgentSettings.load(properties)
        check(settings, str(properties))
        try:
            run(settings)
        except HelenusError as error:
            if settings.log_format != "json":
                raise
            _log.error("agent.failed", kind=error.kind.value, error=str(error))
            sys.exit(_exit_code(error))


@main.command("drain", short_help="Send what is left in cdc_raw, and end.")
@_PROPERTIES
@click.option("--offline", is_flag=True, help="Without Cassandra, by what the agent saved in state.dir.")
def _drain(properties: Path, offline: bool) -> None:
    """Send what is left in cdc_raw, and end: exit code 0 if all of it is acknowledged.

    With --offline for a node that will not start again, before its disk goes; stop the agent first. What can't be
    decoded by the tables as they were saved goes to quarantine, and the exit code is 1.
    """
    with _errors_in_one_line():
        settings = AgentSettings.load(properties)
        check(settings, str(properties))
        if offline:  # no sync marker will follow the last entries any more
            settings = settings.model_copy(update={"read_mode": "eager"})
        unsent = run(settings, drain=True, offline=offline)
    if unsent:
        click.echo(f"helenus-agent: not all could be sent: {unsent}", err=True)
        sys.exit(1)


@main.command("validate", short_help="Check a properties file.")
@_PROPERTIES
@click.option("--connect", is_flag=True, help="Ask the servers too: the node and its tables, the message broker.")
def _validate(properties: Path, connect: bool) -> None:
    """Check a properties file: names all wrong values at once, and keys of other products with ours; once they are
    right, what librdkafka and this machine refuse.

    Run it on the agent's machine, as its user: cdc_raw and files of certificates have to be there, state.dir has to be
    writable, and the extra `pulsar` installed for log=pulsar. Without --connect it reaches no server.
    """
    with _errors_in_one_line():
        source = str(properties)
        settings, _ = together(lambda: AgentSettings.load(properties), lambda: check_properties(properties))
        assert settings is not None
        archives = settings.segment_transfer == "archive"
        together(
            lambda: settings.check_files(source),
            lambda: settings.check_directory(source, "state_dir"),
            lambda: settings.check_directory(source, "segment_archive_dir") if archives else None,
            lambda: check(settings, source),
            lambda: read_yaml(settings.cassandra_config) if settings.cassandra_config else None,
        )
        check_directory(settings.state_dir, "state.dir")
        _check_pulsar(settings)
        directory = raw_directory(settings)
        check_places(settings, directory, {}, source)
        transfer_of(settings.segment_transfer, settings.segment_archive_dir)
        host, port = settings.listener
        if port and (busy := busy_port(host, port)):
            address = f"listeners={settings.listeners}" if settings.listeners else f"http.port={port}"
            click.echo(f"{properties}: warning: {address}: {busy}", err=True)
        click.echo(f"{properties} is valid")
        if connect:
            _ask_servers(settings, directory)


def _ask_servers(settings: AgentSettings, directory: Path) -> None:
    """End the process with a line for each thing that a server refuses."""
    codes = []
    with contextlib.closing(_open_log(settings)) as log:
        for error in refusals(settings, directory, log):
            click.echo(f"helenus-agent: {error}", err=True)
            codes.append(_exit_code(error))
    if codes:
        sys.exit(max(codes))
    click.echo(f"the servers refuse nothing; not asked: {unasked(settings)}")


@main.command("status", short_help="Show where the agent stands.")
@_PROPERTIES
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def _status(properties: Path, as_json: bool) -> None:
    """Show where the agent stands: its segments, cdc_raw and the room left in it, quarantine.

    It reads the agent's state file and looks into cdc_raw, so it works while the agent runs and when it is stopped.
    With listeners set it also shows what a running agent says of itself. The exit code is 0 if an agent runs and is
    healthy, 1 if not.
    """
    with _errors_in_one_line():
        agent_status = status.read_status(AgentSettings.load(properties))
    click.echo(json.dumps(agent_status.as_json()) if as_json else status.format_status(agent_status))
    sys.exit(0 if agent_status.healthy else 1)


@main.command("reprocess", short_help="Put quarantined segments back to be read again.")
@_PROPERTIES
@click.argument("segments", nargs=-1)
def _reprocess(properties: Path, segments: tuple[str, ...]) -> None:
    """Put quarantined SEGMENTS (ids or file names, all if none is named) back to be read again.

    For when a newer version can read them, or the table is known again. Stop the agent first; its next start reads
    them from their beginning, so events that were published the first time arrive twice.
    """
    with _errors_in_one_line():
        settings = AgentSettings.load(properties)
        paths = reprocess(settings.state_dir, raw_directory(settings), segments)
        click.echo("\n".join(map(str, paths)) or "nothing is in quarantine")


@contextlib.contextmanager
def _errors_in_one_line() -> Iterator[None]:
    """End the process with one clear line for an error of ours."""
    try:
        yield
    except HelenusError as error:
        click.echo(f"helenus-agent: {error}", err=True)
        sys.exit(_exit_code(error))


def _exit_code(error: HelenusError) -> int:
    return 2 if error.kind in (Kind.CONFIG, Kind.CDC_DISABLED) else 1


def run(settings: AgentSettings, drain: bool = False, offline: bool = False) -> str | None:
    """Run the agent until SIGTERM or SIGINT; with `drain`, until everything in cdc_raw is acknowledged. Return why
    something is not, or None. `offline`: without Cassandra. Raises HelenusError.
    """
    logs.configure(settings.log_level, settings.log_format)
    descriptors.raise_limit()
    stop = threading.Event()
    log = _open_log(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _stop(stop, log, drain))
    waiting = _startup_retries(settings.startup_timeout_ms / 1000, stop)
    cassandra = agent = None
    locks = contextlib.ExitStack()
    monitor = Monitor(*settings.listener)
    try:
        monitor.serve(lambda: agent.ready() if agent else "the agent is starting")
        if settings.log == "kafka":
            log.start()  # a producer needs up to a second before its first record: Cassandra is asked meanwhile
        directory = waiting(_raw_directory, settings, offline)  # a new node makes it at its first start
        check_places(settings, directory, {})
        transfer = transfer_of(settings.segment_transfer, settings.segment_archive_dir)
        state = StateDirectory(settings.state_dir)
        locks.callback(state.close)
        locks.enter_context(owned(directory))
        cassandra = SavedNode(state) if offline else waiting(Cassandra, settings)
        node = waiting(cassandra.node)
        identity.check(node, settings, directory)
        check_places(settings, directory, node.settings)
        positions = state.load(str(node.host_id), node.cluster, list_segment_ids(directory))
        agent = Agent(settings, directory, cassandra, log, state, positions, transfer)
        waiting(agent.start)
        if settings.log == "pulsar":
            log.start()
        address = node.addresses.get("broadcast_address") or node.addresses.get("listen_address")
        metrics.NODE.info(
            {
                "version": __version__,
                "address": address or settings.cassandra_contact_points[0],
                "host_id": str(node.host_id),
                "data_center": node.data_center,
                "cassandra": node.release,
            }
        )
        metrics.DECODER.info({"compiled": str(decoder.COMPILED).lower()})
        if settings.metrics_other_products:
            REGISTRY.register(metrics.AgentMetricAliases(directory, settings.topic_prefix))
        _log.info(
            "agent.started",
            version=__version__,
            decoder="compiled" if decoder.COMPILED else "plain",
            node=str(node.host_id),
            cassandra=node.release,
            directory=str(directory),
        )
        # Batches come and go by the thousand and hold no cycles: let the collector look less often.
        gc.freeze()
        gc.set_threshold(100_000, 20, 20)
        agent.run(stop, drain)
        _log.info("agent.drained" if agent.drained else "agent.stopped")
        return agent.ready() if agent.drained else "it was stopped"
    except HelenusError as error:
        if not stop.is_set() or not _is_startup_error(error):
            raise
        _log.info("agent.stopped", waited_for=str(error))
        return "it was stopped"
    finally:
        log.close()
        monitor.close()
        if cassandra is not None:
            cassandra.close()
        locks.close()


def _open_log(settings: AgentSettings) -> KafkaLog | PulsarLog:
    """Return where events go. Raises HelenusError(CONFIG)."""
    if settings.log == "kafka":
        log = KafkaLog(
            {"bootstrap.servers": settings.bootstrap_servers, **_QUEUE, **settings.kafka, **settings.producer}
        )
        log.replication_factor = settings.topic_creation_default_replication_factor
        return log
    _check_pulsar(settings)
    from helenus_sinks.pulsar.config import PulsarConfig
    from helenus_sinks.pulsar.log import PulsarLog

    return PulsarLog(PulsarConfig.from_settings(settings))


def _check_pulsar(settings: AgentSettings) -> None:
    """Raise HelenusError(CONFIG) for log=pulsar without the extra `pulsar`."""
    if settings.log != "pulsar":
        return
    try:
        import helenus_sinks.pulsar.log  # noqa: F401
    except ImportError as error:
        raise HelenusError(Kind.CONFIG, f"log=pulsar: {error}", advice=NO_PULSAR) from None


def _startup_retries(seconds: float, stop: threading.Event) -> Retrying:
    """Repeat a call until its server is up, `stop` is set, or so many seconds from now have passed."""
    deadline = time.monotonic() + seconds
    last = "", 0.0

    def report(state: RetryCallState) -> None:
        """Log why it waits: when that changes, and every half minute."""
        nonlocal last
        now, reason = time.monotonic(), str(state.outcome and state.outcome.exception())
        if reason != last[0] or now > last[1] + _REPORT_S:
            last = reason, now
            _log.info("agent.waiting", reason=reason, seconds_left=round(max(0.0, deadline - now)))

    return Retrying(
        retry=retry_if_exception(_is_startup_error),
        stop=lambda _: stop.is_set() or time.monotonic() > deadline,
        wait=wait_fixed(_RETRY_S),
        sleep=sleep_using_event(stop),
        before_sleep=report,
        reraise=True,
    )


def _raw_directory(settings: AgentSettings, offline: bool = False) -> Path:
    """Return the node's cdc_raw. If CDC is off that is noted: writes until it is on again are a gap."""
    try:
        return raw_directory(settings, offline)
    except HelenusError as error:
        if error.kind is Kind.CDC_DISABLED:
            with contextlib.suppress(HelenusError):  # the error to report is why there is no start
                note_cdc_off(settings.state_dir)
        raise


def _is_startup_error(error: BaseException) -> bool:
    """True for errors that pass while a machine boots, or a node starts for the first time."""
    return may_pass(error) or (isinstance(error, HelenusError) and error.kind is Kind.CDC_DIRECTORY)


def _stop(stop: threading.Event, log: KafkaLog | PulsarLog, drain: bool) -> None:
    """Stop soon, and kill the process if something hangs: the saved positions are safe."""
    stop.set()
    log.hurry(_FLUSH_LIMIT_S)
    timer = threading.Timer(_STOP_LIMIT_S, _kill, (1 if drain else 0,))
    timer.daemon = True
    timer.start()


def _kill(code: int) -> None:
    """End the process, whatever hangs. A drain that is stopped has not sent all: its code is 1."""
    _log.warning(
        "agent.stopped", waited_s=_STOP_LIMIT_S, then="what is not acknowledged is read again at the next start"
    )
    os._exit(code)


if __name__ == "__main__":
    main()
