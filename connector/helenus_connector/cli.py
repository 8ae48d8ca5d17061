"""`helenus-connector worker.properties table.properties …`"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click
import structlog

from helenus_connector.config import ConnectorSettings, WorkerSettings
from helenus_schemas import __version__, logs
from helenus_schemas.errors import HelenusError, Kind


@click.command()
@click.argument("worker_properties", type=click.Path(path_type=Path))
@click.argument("connector_properties", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.version_option(__version__)
def main(worker_properties: Path, connector_properties: tuple[Path, ...]) -> None:
    """Turn the events of Cassandra tables into clean topics: one properties file per table.

    Runs until SIGTERM or Ctrl-C. Exit status: 0 after a signal, 2 for a configuration that cannot work, 1 for an error
    that stopped it.
    """
    try:
        _run(worker_properties, connector_properties)
    except HelenusError as error:
        click.echo(f"helenus-connector: {error}", err=True)
        sys.exit(2 if error.kind is Kind.CONFIG else 1)


def _run(worker_properties: Path, connector_properties: tuple[Path, ...]) -> None:
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
