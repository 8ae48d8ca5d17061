"""A worker's file and its connectors' files, read at once: one worker file, one file per connector, as with
connect-standalone. A file of Debezium's is the worker's and a connector's in one.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.model import Model
from helenus_connector.config.worker import WorkerSettings
from helenus_schemas.settings import debezium
from helenus_schemas.settings.properties import (
    ConfigError,
    Problem,
    check_properties,
    parsed,
    read_properties,
    together,
)
from helenus_sinks.kafka.settings import shown, wrong_settings

_CONNECTOR_KEYS = {"keyspace", "table"}
_SOURCE_KEYS = ("name", "keyspace", "table")
_COLUMN_KEYS = re.compile(
    r"columns|(column|field)\.(exclude\.list|blacklist)|column\.(mask|truncate)\..*|where\..*", re.DOTALL
)
"""Keys that keep columns from being published: of two, the first would not count."""


def load(worker: Path, connectors: Sequence[Path]) -> tuple[WorkerSettings, list[ConnectorSettings]]:
    """Load a worker's file and its connectors' files. Raises one ConfigError with all that is wrong in any."""
    model = Model(ConnectorSettings)

    def load_worker() -> WorkerSettings | ConnectorSettings:
        nonlocal model
        with contextlib.suppress(OSError, ValueError):  # `load` says what is wrong with it
            _check_kind(dict(parsed(worker)), worker, connectors)
        settings = WorkerSettings.load(worker)
        model = settings.model
        read_template(settings)
        return settings

    def load_connector(path: Path) -> WorkerSettings | ConnectorSettings:
        properties = read_properties(path)
        _check_kind(properties, path, connectors)
        check_properties(path, _COLUMN_KEYS)
        if not debezium.is_theirs(properties):
            return model.read_settings(properties, str(path), properties)
        debezium.report(properties, str(path))
        return _translate(properties, path).make(
            lambda translated: model.read_settings(translated, str(path), translated)
        )

    paths = [*_combined_file(worker), *connectors]
    settings_read = together(load_worker, *(partial(load_connector, path) for path in paths))
    loaded = [settings for settings in settings_read if isinstance(settings, ConnectorSettings)]
    by_name: dict[str, Path] = {}
    problems = []
    for path, settings in zip(paths, loaded, strict=True):
        if settings.name in by_name:
            problems.append(Problem(str(path), "name", settings.name, f"{by_name[settings.name]} has the same"))
        by_name.setdefault(settings.name, path)
    if problems:
        raise ConfigError(problems)
    assert isinstance(settings_read[0], WorkerSettings)
    template = settings_read[0].data_source_template
    settings_read[0].refuse_to_connectors([*connectors, *filter(None, [template])])
    return settings_read[0], loaded


def read_template(worker: WorkerSettings) -> dict[str, str] | None:
    """Return the properties that connectors of data sources have in common, None if the worker makes none. Raises
    ConfigError.
    """
    path = worker.data_source_template
    if path is None:
        return None
    properties = read_properties(path)
    own_keys = {ConnectorSettings.key_of(key): key for key in properties}
    reason = "leave it out: a template is for the data sources of many tables"
    if problems := [Problem(str(path), own_keys[key], None, reason) for key in _SOURCE_KEYS if key in own_keys]:
        raise ConfigError(problems)
    completed = {**properties, "name": "cdc-ks.t", "keyspace": "ks", "table": "t"}
    worker.model.read_settings(completed, str(path), completed)
    return properties


def _check_kind(properties: Mapping[str, str], path: Path, connectors: Sequence[Path]) -> None:
    """Raise ConfigError, of one line, for a worker's file in a connector's place, the other way round, and for an
    agent's.
    """
    is_worker, is_connector = "checkpoint.dir" in properties, properties.keys() >= _CONNECTOR_KEYS
    if debezium.is_theirs(properties):
        return
    if not (is_worker or is_connector) and "state.dir" in properties:
        reason = "it is an agent's file, which helenus-agent reads: give a worker's, and then its connectors'"
        raise ConfigError([Problem(str(path), "", None, reason)])
    if is_worker == is_connector:
        return
    if is_worker and path in connectors:
        reason = "it is a worker's file, in the place of a connector's: the worker's comes first, and once"
        raise ConfigError([Problem(str(path), "", None, reason)])
    if is_connector and path not in connectors:
        reason = "it is a connector's file, in the place of the worker's, which comes first"
        raise ConfigError([Problem(str(path), "", None, reason)])


def properties_of(worker: Path, connectors: Sequence[Path]) -> list[Mapping[str, str]]:
    """Return the properties of each connector that `load` returns, as they were written. Raises ConfigError."""
    files = ((path, read_properties(path)) for path in [*_combined_file(worker), *connectors])
    return [
        _translate(properties, path).properties if debezium.is_theirs(properties) else properties
        for path, properties in files
    ]


def check(worker: WorkerSettings, source: Path, connectors: Sequence[Path]) -> None:
    """Raise one ConfigError for keys that are given twice, and for settings that librdkafka does not take."""
    together(*(partial(check_properties, path) for path in (source, *connectors)), lambda: check_kafka(worker, source))


def check_kafka(worker: WorkerSettings, source: Path) -> None:
    """Raise ConfigError for settings that librdkafka does not take, and for logins and certificates that it would not
    use: it would connect without TLS.
    """
    if "kafka" not in (worker.log, worker.log_of_data):
        return
    problems: dict[str, Problem] = {}
    clients = {
        "producer.": (worker.producer_config, worker.producer),
        "consumer.": (worker.consumer_config, worker.consumer),
    }
    for prefix, (config, own) in clients.items():
        for name, reason in wrong_settings(config, {**worker.kafka, **own}, prefix == "consumer.").items():
            key = worker.name_in_file((prefix if name in own else "kafka.") + (name or "*"))
            problem = Problem(str(source), key, shown(key, name, config, reason), reason)
            problems.setdefault(key, problem)  # both may refuse one of kafka.*
    if problems:
        raise ConfigError(list(problems.values()))


def _combined_file(worker: Path) -> list[Path]:
    """Return the worker's file, if it is a connector's too."""
    try:
        return [worker] if debezium.is_theirs(read_properties(worker)) else []
    except ConfigError:
        return []  # `load` raises it


def _translate(properties: Mapping[str, str], path: Path) -> debezium.Translated:
    return debezium.translate(properties, "connector", str(path), lambda key: not WorkerSettings.knows(key))
