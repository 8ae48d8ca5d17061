"""`helenus-agent agent.properties`"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from pathlib import Path

import click
import structlog

from helenus_agent import decoder, metrics
from helenus_agent.agent import Agent
from helenus_agent.config import AgentSettings, raw_directory
from helenus_agent.discovery import Cassandra, Node
from helenus_agent.positions import State
from helenus_agent.transfer import delete
from helenus_schemas import __version__, logs, monitoring
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka import KafkaLog

_GRACE = 10.0
_log = structlog.get_logger()


@click.command()
@click.argument("properties", type=click.Path(path_type=Path))
@click.version_option(__version__)
def main(properties: Path) -> None:
    """Read a Cassandra node's commit log and append every change of its CDC tables to a topic.

    PROPERTIES is the agent's configuration file. Run it beside the node, as a user that may read and delete in cdc_raw.
    """
    try:
        run(AgentSettings.load(properties))
    except HelenusError as error:
        click.echo(f"helenus-agent: {error}", err=True)
        sys.exit(2 if error.kind in (Kind.CONFIG, Kind.CDC_DISABLED) else 1)


def run(settings: AgentSettings) -> None:
    """Run the agent until SIGTERM or SIGINT. Raises HelenusError."""
    logs.configure(settings.log_level, settings.log_format)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _stop(stop))
    directory = raw_directory(settings)
    state = State(settings.state_dir)
    cassandra = Cassandra(settings)
    log = KafkaLog({"bootstrap.servers": settings.kafka_bootstrap_servers, **settings.kafka_producer})
    try:
        node = cassandra.node()
        _check(node, directory)
        positions = state.load(str(node.host_id))
        agent = Agent(settings, directory, cassandra, log, state, positions, delete)
        monitor = monitoring.serve(settings.http_host, settings.http_port, agent.ready) if settings.http_port else None
        agent.start()
        metrics.DECODER.info({"compiled": str(decoder.COMPILED).lower()})
        metrics.RAW_LIMIT.set(node.raw_limit or 0)
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
        agent.run(stop)
        _log.info("agent.stopped")
        if monitor is not None:
            monitor.shutdown()
    finally:
        log.close()
        cassandra.close()
        state.close()


def _check(node: Node, directory: Path) -> None:
    """What the running node says of itself counts for more than its file."""
    if node.settings.get("cdc_enabled") == "false":
        raise HelenusError(Kind.CDC_DISABLED, "the node runs with cdc_enabled: false", str(node.host_id))
    theirs = node.settings.get("cdc_raw_directory")
    if theirs and Path(theirs).resolve() != directory.resolve():
        _log.warning("directory.differs", ours=str(directory), node=theirs, advice="is this the node of cdc.raw.dir?")


def _stop(stop: threading.Event) -> None:
    """Stop soon; and should something hang, without it: what is saved is safe."""
    stop.set()
    timer = threading.Timer(_GRACE, _leave)
    timer.daemon = True
    timer.start()


def _leave() -> None:
    _log.warning("agent.stopped", waited_s=_GRACE, then="what is not acknowledged is read again at the next start")
    os._exit(0)


if __name__ == "__main__":
    main()
