"""`helenus-connector worker.properties table.properties …`, and what else an operator needs."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import structlog

from helenus_connector import replication_commands
from helenus_connector._command_line import FiniteFloat, errors_shown, exit_status
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.files import check, check_kafka, load, properties_of
from helenus_connector.config.worker import WorkerSettings
from helenus_schemas import __version__
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.names import counted
from helenus_schemas.service import descriptors, ending, logs
from helenus_schemas.settings import masking
from helenus_schemas.settings.properties import together

_OVER_REST = {"pause": "PUT", "resume": "PUT", "stop": "PUT", "restart": "POST"}


class _Commands(click.Group):
    """`run` is the default command: its worker properties file may come first."""

    def invoke(self, ctx: click.Context) -> Any:
        """Says which extra is missing where only the agent is installed."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("helenus"):
                raise
            message = f"only the agent is installed here: pip install '.[connector]' in a checkout ({error.msg})"
            click.echo(f"helenus-connector: {message}", err=True)
            sys.exit(2)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # A word that is neither a command nor a file is a command with a slip in it.
        is_command = args[0] in self.commands or (args[0].isalpha() and not Path(args[0]).exists())
        if is_command and args[0] in _OVER_REST:
            name = quote(args[1], safe="") if len(args) > 1 else "NAME"
            call = f"curl -X {_OVER_REST[args[0]]} http://localhost:8083/connectors/{name}/{args[0]}"
            raise click.UsageError(f"No such command {args[0]!r}; over REST: {call}", ctx)
        return super().resolve_command(ctx, args if is_command else ["run", *args])


_WORKER = click.argument("worker_properties", type=click.Path(path_type=Path))
_ANY = click.argument("connector_properties", type=click.Path(path_type=Path), nargs=-1)


@click.group(
    cls=_Commands,
    subcommand_metavar="COMMAND | WORKER_PROPERTIES [CONNECTOR_PROPERTIES ...]",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__)
def main() -> None:
    """Turn the events of Cassandra tables into clean topics: one properties file per table.

    `helenus-connector worker.properties table.properties ...` runs a worker. Exit status: 0 after a signal, 2 for a
    configuration that cannot work, 1 for an error that stopped it.
    """
    # What a command writes, and what the processes that it starts write, is for its user alone.
    click.get_current_context().call_on_close(partial(os.umask, os.umask(0o077)))


@main.command("run", short_help="Run a worker.")
@_WORKER
@_ANY
def _run(worker_properties: Path, connector_properties: tuple[Path, ...]) -> None:
    """Run a worker until SIGTERM or Ctrl-C: what `helenus-connector WORKER_PROPERTIES ...` does.

    Connectors may be made over its REST API too, and are kept in `checkpoint.dir`.
    """
    with errors_shown():
        _run_files(worker_properties, connector_properties)


@main.command("validate", short_help="Check properties files.")
@_WORKER
@_ANY
@click.option(
    "--connect", is_flag=True, help="Ask the servers too: message broker, registry, Cassandra and its tables."
)
def _validate(worker_properties: Path, connector_properties: tuple[Path, ...], connect: bool) -> None:
    """Check properties files: names all wrong values in any of them at once; once they are right, what librdkafka
    and this machine refuse.

    Run it on the worker's machine, as its user: checkpoint.dir has to be writable, certificates have to be there, the
    address of listeners free, and Java and what the settings need installed. It warns of a worker that runs with this
    checkpoint.dir. Without --connect it reaches no server.
    """
    from helenus_connector.control.conflict import check_conflicts
    from helenus_connector.validate_command import check_installed, check_java, check_machine

    check_installed()
    with errors_shown():
        worker, connectors = load(worker_properties, connector_properties)
        # A file of Debezium's is the worker's and the first connector's in one.
        paths = [worker_properties, *connector_properties][-len(connectors) :] if connectors else []
        of_files = list(zip(paths, connectors, strict=True))
        _, running = together(
            lambda: check(worker, worker_properties, connector_properties),
            lambda: check_machine(worker, worker_properties, of_files),
        )
        check_conflicts((str(path), settings) for path, settings in of_files)
        if running:
            click.echo(f"{worker_properties}: warning: {running}", err=True)
        for path, settings in of_files:
            for warning in settings.warnings:
                click.echo(f"{path}: warning: {warning}", err=True)
        for path in (worker_properties, *connector_properties):
            click.echo(f"{path} is valid")
        check_java()
        if connect:
            _ask_servers(worker, connectors)


def _ask_servers(worker: WorkerSettings, connectors: Sequence[ConnectorSettings]) -> None:
    """Ends the process with a line for each thing that a server refuses."""
    from helenus_connector.validate_command import refusals, unasked

    codes = []
    for name, error in refusals(worker, connectors):
        click.echo(f"helenus-connector: {name}: {error}", err=True)
        codes.append(exit_status(error))
    if codes:
        sys.exit(max(codes))
    click.echo(f"the servers refuse nothing; not asked: {unasked(worker, connectors)}")


@main.command("replay", short_help="Append dead letters to their events topics again.")
@_WORKER
@_ANY
def _replay(worker_properties: Path, connector_properties: tuple[Path, ...]) -> None:
    """Append the dead letters of connectors, of all their tables, to their events topics again.

    For when the cause is gone: a limit was raised, a newer version can read the events. Each goes to the partition it
    came from. What was replayed is noted in the consumer group helenus-replay-NAME, so a second call goes on after it;
    one that is interrupted replays some again, which does no harm. Connectors may run or not.
    """
    from helenus_connector.replay import replay

    with errors_shown():
        worker, connectors = load(worker_properties, connector_properties)
        check_kafka(worker, worker_properties)
        logs.configure(worker.log_level, worker.log_format)
        for settings in _each(connectors):
            for table, count in replay(worker, settings):
                click.echo(
                    f"{table.name}: {counted(count, 'event')} replayed from {table.dead_letters} to {table.events}"
                )


@main.command("rebuild", short_help="Write a data topic again from the rows of state=rows.")
@_WORKER
@click.argument("connector_properties", type=click.Path(path_type=Path))
@click.option("--to", metavar="TOPIC", help="Another topic than the connector's; made if it is not there.")
def _rebuild(worker_properties: Path, connector_properties: Path, to: str | None) -> None:
    """Append a record of each row that lives to a connector's data topic, from the rows that state=rows keeps.

    No row of Cassandra is read. Stop the worker first: two would write the topic.
    """
    from helenus_connector.state.rows.rebuild import rebuild

    with errors_shown():
        worker, (settings,) = load(worker_properties, (connector_properties,))
        check_kafka(worker, worker_properties)
        logs.configure(worker.log_level, worker.log_format)
        _make_checkpoint(worker.checkpoint_dir.absolute())
        records = rebuild(worker, settings, to)
        click.echo(f"{settings.name}: {counted(records, 'record')} appended to {to or settings.data}")


@main.command("schemas", short_help="Print the schemas of records.")
@_WORKER
@_ANY
def _schemas(worker_properties: Path, connector_properties: tuple[Path, ...]) -> None:
    """Print the schemas of connectors' records, as JSON objects of subject and schema, or topic and schema on Pulsar.

    For value.converter.auto.register.schemas=false, or a namespace of Pulsar with isAllowAutoUpdateSchema=false: have
    them there before the connector starts, those of events before the agent does, and again after a table was altered.
    The subject ending in -truncation is of the keys of markers that a TRUNCATE leaves.
    """
    from helenus_connector.schemas_command import subjects

    with errors_shown():
        worker, connectors = load(worker_properties, connector_properties)
        for settings in _each(connectors):
            for line in subjects(worker, settings):
                click.echo(line)


def _each(connectors: Sequence[ConnectorSettings]) -> list[ConnectorSettings]:
    """The same, but one for each keyspace of those that stand for several."""
    from helenus_connector.control.keyspaces import each
    from helenus_connector.control.tables import TableDefinitions

    if not connectors:
        raise click.UsageError("Missing argument 'CONNECTOR_PROPERTIES...'.")
    with closing(TableDefinitions()) as tables:
        return [settings for of_file in connectors for settings in each(of_file, tables)]


_PEM = click.Path(path_type=Path, exists=True, dir_okay=False)


def _of_a_worker(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a command that asks a running worker; it gets them as one argument, `worker`."""

    @click.option("--url", default="http://127.0.0.1:8083", show_default=True, help="The worker's listener.")
    @click.option(
        "--user", help="USER:PASSWORD; best as '${file:PATH:KEY}' or '${env:NAME}', which no process list shows."
    )
    @click.option("--cafile", type=_PEM, help="A PEM file of authorities, for an https listener.")
    @click.option("--certfile", type=_PEM, help="A PEM file of a certificate to show to it.")
    @click.option("--keyfile", type=_PEM, help="A PEM file of that certificate's key.")
    @wraps(command)
    def asking(
        url: str, user: str | None, cafile: Path | None, certfile: Path | None, keyfile: Path | None, **more: Any
    ) -> None:
        from helenus_connector.rest.client import WorkerClient

        with errors_shown():
            try:
                login = None if user is None else masking.resolve(user)
            except ValueError as error:
                raise HelenusError(
                    Kind.CONFIG, f"--user: {error}", advice="correct the reference, or give user:password"
                ) from None
            command(worker=WorkerClient(url, login, cafile, certfile, keyfile), **more)

    return asking


@main.command("top", short_help="Show rates, lag and errors of a running worker.")
@_of_a_worker
@click.option("--interval", type=FiniteFloat(min=0.1), default=2.0, show_default=True, help="Seconds to look at.")
@click.option("--once", is_flag=True, help="Print one table, of one interval, and end.")
def _top(worker: Any, **how: Any) -> None:
    """Show how the tables of a running worker fare: rates, lag, latency, errors.

    \b
    lag        events that are not fully processed yet
    latency    from the newest write to its record
    behind     for how long the oldest of these events is there
    waiting    events that are not confirmed yet
    events/s   read by the connector
    records/s  written to the data topic
    copies     share of the events that are copies, which are dropped
    query      from a read statement to its answer
    errors     failed attempts since the worker's start
    dead       dead-lettered events since then
    lost       events that were lost since then

    Tables whose gate holds changes back, and snapshots that run, are shown below.
    """
    from helenus_connector.top import show

    with suppress(KeyboardInterrupt):
        show(worker, **how)


@main.command("snapshot", short_help="Publish the rows that are in tables now.")
@click.argument("name")
@_of_a_worker
@click.option("--table", "tables", multiple=True, help="A table of the connector; by default all. May be repeated.")
@click.option(
    "--token-range",
    metavar="AFTER:UNTIL,…",
    help="Only partitions with tokens above the first, up to the second; of one range or several.",
)
@click.option("--key", metavar="JSON", help="""Only one partition: '{"id": 5}'.""")
@click.option("--where", metavar="CQL", help='Only some partitions: "id IN (5, 6)", of the partition key\'s columns.')
@click.option("--wait", is_flag=True, help="Show how far it is until it is over; exit status 1 unless it is complete.")
@click.option("--show", is_flag=True, help="Begin none; show the last one of each table.")
@click.option("--stop", is_flag=True, help="Begin none; stop those that are under way.")
@click.option("--pause", is_flag=True, help="Begin none; pause all of the connector.")
@click.option("--resume", is_flag=True, help="Begin none; let all of the connector go on.")
def _snapshot(worker: Any, show: bool, stop: bool, pause: bool, resume: bool, **how: Any) -> None:
    """Publish the rows that are in the tables of connector NAME now, in a running worker.

    Rows are read as after a change, so a record never shows an older row than the one before. Changes go on meanwhile.
    After a restart of the worker the snapshot goes on where it was.
    """
    from helenus_connector.snapshot_command import chosen, snapshot

    action = chosen({"show": show, "stop": stop, "pause": pause, "resume": resume}, how)
    sys.exit(snapshot(worker, action=action, **how))


@main.command("verify", short_help="Compare data topics with their tables.")
@click.argument("name")
@_of_a_worker
@click.option("--table", "tables", multiple=True, help="A table of the connector; by default all. May be repeated.")
@click.option("--repair", is_flag=True, help="Have the connector read the keys again in which topic and table differ.")
@click.option(
    "--token-range",
    metavar="AFTER:UNTIL,…",
    help="Only partitions with tokens above the first, up to the second; of one range or several.",
)
@click.option(
    "--sample", type=FiniteFloat(), help="Only this share of the ring, 0.1 for a tenth; another one each time."
)
@click.option("--limit", type=int, help="How many keys of each kind to name; 10 by default.")
@click.option(
    "--patience", type=FiniteFloat(), help="For how many seconds to see if a difference passes; 30 by default."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each table.")
def _verify(worker: Any, **how: Any) -> None:
    """Compare the data topics of connector NAME with their tables, in a running worker, and name what differs.

    \b
    missing    a row without record
    stale      a record that is not the row
    ghost      a record of a row that is gone
    foreign    a record with a key that the table can't have
    misplaced  a record in another partition than the key's last one

    Exit status: 0 if topic and table are equal, 3 if they differ, 1 if a table could not be verified, 2 for a request
    that is refused.
    """
    from helenus_connector.verify_command import verify

    sys.exit(verify(worker, **how))


@main.command("lost-node", short_help="Show, and publish, what may be missing since a node was lost.")
@click.argument("name")
@click.argument("node")
@_of_a_worker
@click.option("--table", "tables", multiple=True, help="A table of the connector; by default all. May be repeated.")
@click.option("--replaced-by", metavar="NODE", help="The node that has its tokens since, once it has left the ring.")
@click.option("--since", metavar="TIME", help="When its agent stopped sending, if not with its last event.")
@click.option("--until", metavar="TIME", help="When it was lost, as 2026-11-29T09:02:11Z; by default now.")
@click.option("--dry-run", is_flag=True, help="Report no gap.")
@click.option("--repair", is_flag=True, help="Publish what is missing: as verify --repair, or by snapshots.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each table.")
def _lost_node(worker: Any, **how: Any) -> None:
    """Show what connector NAME may miss since NODE was lost with its disk, and report it as a gap.

    NODE is its host id, or its address while nodetool status lists it. Best called before it is removed or replaced:
    later, without --replaced-by, nobody knows which tokens it had.

    Exit status: 0, but 3 if --repair found that topic and table differed, 1 if that failed, 2 for a request that is
    refused.
    """
    from helenus_connector.lost_node_command import lost_node

    sys.exit(lost_node(worker, **how))


main.add_command(replication_commands.replicate)
main.add_command(replication_commands.compare)


def _run_files(worker_properties: Path, connector_properties: tuple[Path, ...]) -> None:
    worker, connectors = load(worker_properties, connector_properties)
    logs.configure(worker.log_level, worker.log_format)
    written = properties_of(worker_properties, connector_properties)
    files = {c.name: properties for c, properties in zip(connectors, written, strict=True)}
    descriptors.raise_limit()
    try:
        check_kafka(worker, worker_properties)
        _run_worker(worker, files)
    except HelenusError as error:
        if worker.log_format != "json":
            raise
        structlog.get_logger(__name__).error("worker.failed", kind=error.kind.value, error=str(error))
        sys.exit(exit_status(error))


def _make_checkpoint(directory: Path) -> None:
    """Raises HelenusError CONFIG if the worker can't write there."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        problem = (
            f"checkpoint.dir: {error.strerror}: create it, owned by the user that runs the worker, or name another"
        )
        raise HelenusError(Kind.CONFIG, problem, str(directory)) from None


def _run_worker(worker: WorkerSettings, files: Mapping[str, Mapping[str, str]]) -> None:
    from helenus_connector import metrics
    from helenus_connector.control.topics import reach
    from helenus_connector.query.batch_spans import BatchSpans
    from helenus_connector.query.small_batches import SmallBatches
    from helenus_connector.worker import Worker
    from helenus_schemas.service.span_exporter import SpanQueue, traced_ratio

    _make_checkpoint(worker.checkpoint_dir.absolute())
    small_batches, small_row_batches = SmallBatches(worker), SmallBatches(worker)
    if not worker.group_id:  # one that stands by needs none
        small_batches.fork()  # before anything has a thread
        if any(properties.get("state") == "rows" for properties in files.values()):
            small_row_batches.fork()
    reach(worker)
    span_queue, ratio = None, traced_ratio(worker)
    if ratio is not None:
        span_queue = SpanQueue(worker, "helenus-connector", metrics.SPANS)
    spans = None if span_queue is None else BatchSpans(span_queue, ratio or 0.0)
    running = Worker(worker, files, spans, small_batches, small_row_batches)
    metrics.TWINS.is_on = worker.metrics_other_products
    is_to_end = ending.handle_signals(running.stop)
    structlog.get_logger(__name__).info("worker.starting", connectors=list(files), listeners=worker.listeners)
    try:
        is_replaced = running.run()
    finally:
        if span_queue is not None:
            span_queue.close()
    if is_replaced:
        for number in ending.SIGNALS:
            signal.signal(number, signal.SIG_DFL)  # there is no worker any more that it could stop
        if not is_to_end():
            # A process of which nothing is left over stands by. It has its id, so that its supervisor sees no end.
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    structlog.get_logger(__name__).info("worker.stopped")
