"""`helenus-agent agent.properties`, and the other commands for operators."""

from __future__ import annotations

import helenus_agent.lean_libraries  # noqa: F401

# isort: split

import contextlib
import json
import os
import sys
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
import structlog

from helenus_agent import status
from helenus_agent.agent_run import AgentRun, check_pulsar, open_log, with_raw_directory
from helenus_agent.config import AgentSettings, check
from helenus_agent.control.configured_agent import ConfiguredAgent, read_effective_settings
from helenus_agent.control.statements import StatementSession
from helenus_agent.monitor import Monitor, busy_port
from helenus_agent.node_directories import check_places, raw_directory
from helenus_agent.node_yaml import read_yaml
from helenus_agent.own_properties import OwnProperties, load_settings
from helenus_agent.resend.source_choice import open_source
from helenus_agent.resend_command import resend_segments
from helenus_agent.segments.reprocess import reprocess
from helenus_agent.segments.transfer import transfer_of
from helenus_agent.sql_command import log_in, prompt, read_statements, run_statements
from helenus_agent.validate_command import refusals, unasked
from helenus_schemas import __version__
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import descriptors, ending, logs
from helenus_schemas.service.ownership import check_directory
from helenus_schemas.service.span_exporter import check_traces
from helenus_schemas.settings import masking
from helenus_schemas.settings.properties import check_properties, together

_STOP_LIMIT_S = 10.0
_FLUSH_LIMIT_S = 5.0  # s for the broker, of those
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
_OPTIONAL_PROPERTIES = click.argument("properties", type=click.Path(path_type=Path), required=False)


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
@_OPTIONAL_PROPERTIES
def _run_command(properties: Path | None) -> None:
    """Run the agent until SIGTERM, as `helenus-agent PROPERTIES` does. Without a file, variables of the environment are
    its settings: HELENUS_STATE_DIR is state.dir.

    It stops within ten seconds, and what was not acknowledged by then is read again at the next start.
    """
    with _errors_in_one_line():
        settings = load_settings(properties)
        try:
            if settings.config_store == "cassandra":
                run_configured(OwnProperties.load(properties), settings)
            else:
                check(settings, str(properties or "the environment"))
                run(settings)
        except HelenusError as error:
            if settings.log_format != "json":
                raise
            _log.error("agent.failed", kind=error.kind.value, error=str(error))
            sys.exit(_exit_code(error))


@main.command("drain", short_help="Send what is left in cdc_raw, and end.")
@_OPTIONAL_PROPERTIES
@click.option("--offline", is_flag=True, help="Without Cassandra, by what the agent saved in state.dir.")
def _drain(properties: Path | None, offline: bool) -> None:
    """Send what is left in cdc_raw, and end: exit code 0 if all of it is acknowledged.

    With --offline for a node that will not start again, before its disk goes; stop the agent first. What can't be
    decoded by the tables as they were saved goes to quarantine, and the exit code is 1.
    """
    with _errors_in_one_line():
        settings = _effective_settings(properties, load_settings(properties))
        check(settings, str(properties or "the environment"))
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
            lambda: check(settings, source) if settings.bootstrap_servers else None,
            lambda: read_yaml(settings.cassandra_config) if settings.cassandra_config else None,
        )
        check_directory(settings.state_dir, "state.dir")
        check_pulsar(settings)
        check_traces(settings)
        if settings.config_store == "file" or settings.cassandra_config or settings.cdc_raw_dir:
            check_places(settings, raw_directory(settings), {}, source)
        transfer_of(settings.segment_transfer, settings.segment_archive_dir)
        if settings.segment_source:
            open_source(settings)
        host, port = settings.listener
        if port and (busy := busy_port(host, port)):
            address = f"listeners={settings.listeners}" if settings.listeners else f"http.port={port}"
            click.echo(f"{properties}: warning: {address}: {busy}", err=True)
        click.echo(f"{properties} is valid")
        if connect:
            effective = _effective_settings(properties, settings)
            _ask_servers(effective, raw_directory(effective))


def _effective_settings(properties: Path | None, settings: AgentSettings) -> AgentSettings:
    """Return the settings that an agent has now, with those of Cassandra if it follows them. Raises HelenusError."""
    if settings.config_store == "cassandra":
        settings = read_effective_settings(OwnProperties.load(properties), settings)
    return _with_raw_directory(settings)


def _with_raw_directory(settings: AgentSettings) -> AgentSettings:
    """Return settings with the cdc_raw that the node names, where they have none, if it answers."""
    if settings.cassandra_config is None and settings.cdc_raw_dir is None:
        with contextlib.suppress(HelenusError):
            return with_raw_directory(settings)
    return settings


def _ask_servers(settings: AgentSettings, directory: Path) -> None:
    """End the process with a line for each thing that a server refuses."""
    codes = []
    with contextlib.closing(open_log(settings)) as log:
        for error in refusals(settings, directory, log):
            click.echo(f"helenus-agent: {error}", err=True)
            codes.append(_exit_code(error))
    if codes:
        sys.exit(max(codes))
    click.echo(f"the servers refuse nothing; not asked: {unasked(settings)}")


@main.command("status", short_help="Show where the agent stands.")
@_OPTIONAL_PROPERTIES
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def _status(properties: Path | None, as_json: bool) -> None:
    """Show where the agent stands: its segments, cdc_raw and the room left in it, quarantine.

    It reads the agent's state file and looks into cdc_raw, so it works while the agent runs and when it is stopped.
    With listeners set it also shows what a running agent says of itself. The exit code is 0 if an agent runs and is
    healthy, 1 if not.
    """
    with _errors_in_one_line():
        agent_status = status.read_status(_with_raw_directory(load_settings(properties)))
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
        settings = _with_raw_directory(AgentSettings.load(properties))
        paths = reprocess(settings.state_dir, raw_directory(settings), segments)
        click.echo("\n".join(map(str, paths)) or "nothing is in quarantine")


@main.command("resend", short_help="Send archived segments again.")
@_PROPERTIES
@click.argument("segments", nargs=-1)
@click.option("--offline", is_flag=True, help="Without Cassandra, by what the agent saved in state.dir.")
@click.option("--host-id", type=click.UUID, help="The node whose segments they are, if it is another one.")
def _resend(properties: Path, segments: tuple[str, ...], offline: bool, host_id: uuid.UUID | None) -> None:
    """Send archived SEGMENTS (ids or file names, all if none is named) again, from where segment.source says.

    Events go without cells, so connectors read the rows as they are now. The archive is only read, an agent may run
    meanwhile, and a second run sends the same once more. The exit code is 1 if something could not be read.
    """
    with _errors_in_one_line():
        settings = _effective_settings(properties, AgentSettings.load(properties))
        check(settings, str(properties))
        is_complete = resend_segments(settings, segments, host_id, offline, click.echo)
    sys.exit(0 if is_complete else 1)


@main.command("sql", short_help="Name data sinks, and publish tables to them.")
@_OPTIONAL_PROPERTIES
@click.option("-e", "--execute", "statements", multiple=True, metavar="STATEMENT", help="Execute this, and end.")
@click.option(
    "-f", "--file", "files", multiple=True, type=click.Path(path_type=Path), help="Execute the statements of a file."
)
@click.option("-u", "--username", metavar="ROLE", help="Another role of Cassandra than the agent's.")
@click.option(
    "--password", metavar="REFERENCE", help="Its password as '${env:NAME}' or '${file:PATH:KEY}'; by default a prompt."
)
def _sql(
    properties: Path | None,
    statements: tuple[str, ...],
    files: tuple[Path, ...],
    username: str | None,
    password: str | None,
) -> None:
    """Execute CEP-44's statements: CREATE, DROP and DESCRIBE of DATA_SINK and DATA_SOURCE.

    With the agent's PROPERTIES, or the variables HELENUS_… that it has, it reaches the node; without statements in
    options or from a pipe it asks for them. All others are for cqlsh. Exit status: 1 if a statement is wrong or fails,
    and then none that follows is executed.
    """
    is_terminal = sys.stdin.isatty()
    with _errors_in_one_line():
        if password is not None and not masking.refers(password):
            message = "--password: a process list shows it: give '${env:NAME}' or '${file:PATH:KEY}', or leave it out"
            raise HelenusError(Kind.CONFIG, message, advice="correct the option")
        texts = read_statements(files, statements, None if is_terminal else sys.stdin)
        if username is not None and password is None:
            password = click.prompt(f"Password of {username}", hide_input=True, err=True)
        own = log_in(OwnProperties.load(properties), username, password)
        session = StatementSession(own, AgentSettings.from_properties(own.properties, own.source))
        with contextlib.closing(session):
            try:
                status = run_statements(session, texts) if texts else prompt(session)
            except KeyboardInterrupt:
                click.echo("helenus-agent: stopped", err=True)
                status = 130
    sys.exit(status)


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
    agent_run = AgentRun(settings, stop, drain, offline)
    ending.handle_signals(lambda: _stop(stop, agent_run, drain))
    monitor = Monitor(settings)
    try:
        monitor.serve(agent_run.ready)
        return agent_run.run()
    finally:
        monitor.close()


def run_configured(own: OwnProperties, settings: AgentSettings) -> None:
    """Run the agent by its own settings and those in Cassandra until SIGTERM or SIGINT. Raises HelenusError."""
    logs.configure(settings.log_level, settings.log_format)
    descriptors.raise_limit()
    agent = ConfiguredAgent(own, settings)
    ending.handle_signals(lambda: _stop(agent.stop, agent, False))
    monitor = Monitor(settings, agent.answer)
    try:
        monitor.serve(agent.ready)
        agent.run()
        _log.info("agent.stopped")
    finally:
        monitor.close()
        agent.close()


def _stop(stop: threading.Event, running: AgentRun | ConfiguredAgent, drain: bool) -> None:
    """Stop soon, and kill the process if something hangs: the saved positions are safe."""
    timer = threading.Timer(_STOP_LIMIT_S, _kill, (1 if drain else 0,))
    timer.daemon = True
    timer.start()
    stop.set()
    running.hurry(_FLUSH_LIMIT_S)


def _kill(code: int) -> None:
    """End the process, whatever hangs. A drain that is stopped has not sent all: its code is 1."""
    _log.warning(
        "agent.stopped", waited_s=_STOP_LIMIT_S, then="what is not acknowledged is read again at the next start"
    )
    os._exit(code)


if __name__ == "__main__":
    main()
