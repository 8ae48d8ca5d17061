"""`helenus-connector worker.properties table.properties …`, and what an operator needs beside it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import structlog

from helenus_connector.config import ConnectorSettings, WorkerSettings
from helenus_schemas import __version__, logs
from helenus_schemas.errors import HelenusError, Kind


class _Commands(click.Group):
    """What is no command is the worker's properties file of `run`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["run", *args])


_WORKER = click.argument("worker_properties", type=click.Path(path_type=Path))
_CONNECTORS = click.argument("connector_properties", type=click.Path(path_type=Path), nargs=-1, required=True)


@click.group(cls=_Commands, subcommand_metavar="COMMAND | WORKER_PROPERTIES CONNECTOR_PROPERTIES ...")
@click.version_option(__version__)
def main() -> None:
    """Turn the events of Cassandra tables into clean topics: one properties file per table.

    `helenus-connector worker.properties table.properties ...` runs a worker. Exit status: 0 after a signal, 2 for a
    configuration that cannot work, 1 for an error that stopped it.
    """


@main.command("run")
@_WORKER
@_CONNECTORS
def _run(worker_properties: Path, connector_properties: tuple[Path, ...]) -> None:
    """Run a worker until SIGTERM or Ctrl-C: what `helenus-connector WORKER_PROPERTIES ...` does."""
    with _told():
        _work(worker_properties, connector_properties)


@main.command("replay")
@_WORKER
@_CONNECTORS
def _replay(worker_properties: Path, connector_properties: tuple[Path, ...]) -> None:
    """Append the dead letters of connectors to their events topics again.

    For when the cause is gone: a limit was raised, a newer version can read the events. Each goes to the partition it
    came from. What was replayed is noted in the consumer group helenus-replay-NAME, so a second call goes on behind it;
    one that is interrupted replays some again, which does no harm. Connectors may run or not.
    """
    from helenus_connector.replay import replay

    with _told():
        worker = WorkerSettings.load(worker_properties)
        logs.configure(worker.log_level, worker.log_format)
        for path in connector_properties:
            settings = ConnectorSettings.load(path)
            count = replay(worker, settings)
            click.echo(f"{settings.name}: {count} events replayed from {settings.dead_letters} to {settings.events}")


@contextmanager
def _told() -> Iterator[None]:
    """Ends the process with one clear line for an error of ours."""
    try:
        yield
    except HelenusError as error:
        click.echo(f"helenus-connector: {error}", err=True)
        sys.exit(2 if error.kind is Kind.CONFIG else 1)


def _work(worker_properties: Path, connector_properties: tuple[Path, ...]) -> None:
    worker = WorkerSettings.load(worker_properties)
    logs.configure(worker.log_level, worker.log_format)
    connectors = [ConnectorSettings.load(path) for path in connector_properties]
    for unique in ("name", "events"):
        values = [getattr(c, unique) for c in connectors]
        twice = next((v for v in values if values.count(v) > 1), None)
        if twice is not None:
            raise HelenusError(Kind.CONFIG, f"two connectors have the same {unique}: {twice}")
    from helenus_connector.worker import Worker

    running = Worker(worker, connectors)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: running.stop())
    structlog.get_logger().info("worker.starting", connectors=[c.name for c in connectors], listeners=worker.listeners)
    running.run()
    structlog.get_logger().info("worker.stopped")
