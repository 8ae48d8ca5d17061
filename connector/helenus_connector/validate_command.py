"""`helenus-connector validate`: what this machine, and with --connect the servers, would refuse at a start."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.fences import owner
from helenus_connector.control.keyspaces import each
from helenus_connector.control.tables import TableDefinitions
from helenus_connector.control.topics import TopicQueries, reach
from helenus_connector.group.state_directories import check_state_directory
from helenus_connector.query.spark_session import check_java as check_java
from helenus_connector.rest.listener import listen
from helenus_schemas.errors import HelenusError
from helenus_schemas.service.ownership import check_directory
from helenus_schemas.service.span_exporter import check_traces
from helenus_schemas.settings.properties import ConfigError, Problem, together
from helenus_schemas.settings.shared import NO_PULSAR
from helenus_sinks.kafka.rights import UNASKED

# Of the extra `connector`, and of `pulsar`, as pyproject.toml has them.
_CONNECTOR = ("pyspark", "pyarrow", "pandas", "fastavro", "authlib", "cachetools", "starlette", "uvicorn")
_PULSAR = ("pulsar", "google_crc32c")


def check_installed() -> None:
    """Raise ModuleNotFoundError if the extra `connector` is not installed. Loads nothing: PySpark takes a second."""
    if (missing := _missing(_CONNECTOR)) is not None:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)


def check_machine(
    worker: WorkerSettings, source: Path, connectors: Iterable[tuple[Path, ConnectorSettings]]
) -> str | None:
    """Raise one ConfigError for what a worker or a connector would end for at its start on this machine:
    checkpoint.dir, state.checkpoint.dir, files of certificates, the extra `pulsar`, the address of the listener.

    Returns a warning if a worker runs with this checkpoint.dir: it may well have the address, and be about to end.
    """
    running = owner(worker.checkpoint_dir.absolute())
    together(
        lambda: worker.check_directory(str(source), "checkpoint_dir"),
        lambda: worker.check_files(str(source)),
        lambda: _check_pulsar(worker, source),
        *(partial(settings.check_files, str(path)) for path, settings in connectors),
        *(() if running else (lambda: _check_listener(worker, source),)),
    )
    check_directory(worker.checkpoint_dir.absolute(), "checkpoint.dir")
    check_state_directory(worker)
    check_traces(worker)
    return running and f"checkpoint.dir={worker.checkpoint_dir}: stop the worker that has it first: {running}"


def _check_listener(worker: WorkerSettings, source: Path) -> None:
    try:
        listen(worker).close()
    except HelenusError as error:
        raise ConfigError(
            [Problem(str(source), "listeners", worker.listeners, f"{error.what}: {error.advice}")]
        ) from None


def _check_pulsar(worker: WorkerSettings, source: Path) -> None:
    for key, log in {"log": worker.log, "data.log": worker.data_log}.items():
        if log == "pulsar" and (missing := _missing(_PULSAR)) is not None:
            raise ConfigError([Problem(str(source), key, log, f"there is no module {missing!r}: {NO_PULSAR}")])


def _missing(modules: Iterable[str]) -> str | None:
    return next((name for name in modules if find_spec(name) is None), None)


def refusals(worker: WorkerSettings, connectors: Sequence[ConnectorSettings]) -> Iterator[tuple[str, HelenusError]]:
    """Yield what prevents a start of the worker, as "worker", and of its connectors, by name. It changes nothing.

    The message broker is queried, and for each connector its registry, Cassandra, and every table that it matches, with
    its topics and the rights on them; `unasked` returns what is not.
    """
    topics: TopicQueries | None = None
    try:
        reach(worker.model_copy(update={"startup_timeout_ms": 0}))
        topics = TopicQueries(worker)
    except HelenusError as error:
        yield "worker", error
    with closing(TableDefinitions()) as tables, tempfile.TemporaryDirectory() as directory:
        for connector in connectors:
            try:
                for settings in each(connector, tables):
                    errors = tables.scan(settings, Path(directory))
                    yield from ((connector.name, error) for error in errors.values() if error is not None)
                    publishable = [settings.of_table(table) for table, error in errors.items() if error is None]
                    yield from ((connector.name, error) for error in (topics.refusals(publishable) if topics else ()))
            except HelenusError as error:
                yield connector.name, error
    if topics is not None:
        topics.close()


def unasked(worker: WorkerSettings, connectors: Sequence[ConnectorSettings]) -> str:
    """Return what the servers were not asked, though a start may meet it."""
    questions = []
    if "kafka" in (worker.log, worker.log_of_data):
        questions.append(UNASKED)
    if "pulsar" in (worker.log, worker.log_of_data):
        questions.append("whether this login may use Pulsar's topics, or make them")
    if any(connector.needs_registry and connector.is_avro for connector in connectors):
        questions.append("whether the registry takes their schemas")
    if any(connector.has_transforms for connector in connectors):
        questions.append("what transforms make of records, and the rights on topics that they name")
    return "; ".join(questions)
