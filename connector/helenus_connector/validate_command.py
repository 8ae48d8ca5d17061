"""`helenus-connector validate --connect`: what the servers would refuse."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.keyspaces import each
from helenus_connector.control.tables import Tables
from helenus_connector.control.topics import reach
from helenus_schemas.errors import HelenusError


def refusals(worker: WorkerSettings, connectors: Sequence[ConnectorSettings]) -> Iterator[tuple[str, HelenusError]]:
    """What speaks against the worker, as "worker", and against its connectors, by name. It changes nothing.

    The message broker is asked, and for each connector its registry, Cassandra, and every table that it matches.
    """
    try:
        reach(worker.model_copy(update={"startup_timeout_ms": 0}))
    except HelenusError as error:
        yield "worker", error
    with closing(Tables()) as tables, tempfile.TemporaryDirectory() as directory:
        for connector in connectors:
            try:
                for settings in each(connector, tables):
                    found = tables.look(settings, Path(directory))
                    yield from ((connector.name, error) for error in found.values() if error is not None)
            except HelenusError as error:
                yield connector.name, error
