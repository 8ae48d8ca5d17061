"""The schemas of a table's records, as `schema.store` and `*.schema.registration` say."""

from __future__ import annotations

import threading
from pathlib import Path

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.schema_registration._deferred import DeferredSchemas, is_key
from helenus_connector.schema_registration._outage import RegistryOutage
from helenus_connector.schema_registration._schema_topic import SchemaTopic
from helenus_connector.schema_registration._store_schemas import StoreSchemas
from helenus_connector.schema_registration._topic_store import TopicSchemaStore
from helenus_connector.schema_store.store_class import find_store_class
from helenus_connector.shape.encoding.record_schemas import RecordSchemas
from helenus_connector.shape.encoding.registry import Registry
from helenus_schemas.errors import HelenusError, Kind

_lock = threading.Lock()
_topics: dict[tuple[object, ...], SchemaTopic] = {}
_outages: dict[object, RegistryOutage] = {}


def record_schemas(
    worker: WorkerSettings, settings: ConnectorSettings, memory: Path, registered: Path | None = None
) -> RecordSchemas:
    """Return the schemas of a table's records on Kafka; `memory` and `registered` are as in `Registry`. Raises
    HelenusError CONFIG.
    """
    if settings.schema_store == "topic":
        is_compatible = settings.schema_store_config.get("compatibility", "BACKWARD") != "NONE"
        topic = schema_topic(worker, settings)
        return StoreSchemas(TopicSchemaStore(topic, is_compatible), topic.where)
    if settings.schema_store != "confluent":
        try:
            store = find_store_class(settings.schema_store)(dict(settings.schema_store_config))
        except Exception as error:  # whatever the class raises for its properties
            problem = f"schema.store={settings.schema_store}: {error}"
            raise HelenusError(Kind.CONFIG, problem, settings.name, "correct schema.store, or its config") from None
        return StoreSchemas(store, settings.schema_store)
    registry = Registry(settings, memory, registered)
    if not settings.defers_schemas:
        return registry
    outage = _outage(settings, memory)
    return DeferredSchemas(
        registry,
        schema_topic(worker, settings),
        outage,
        lambda subject: settings.defers_keys if is_key(subject) else settings.defers_values,
        lambda subject: _data_topic(settings, subject),
    )


def schema_topic(worker: WorkerSettings, settings: ConnectorSettings) -> SchemaTopic:
    """Return this process's topic of schemas: all tables share its connections."""
    name = worker.bootstrap_servers, *sorted(worker.consumer_config.items()), settings.schema_store_topic
    with _lock:
        if name not in _topics:
            _topics[name] = SchemaTopic(worker, settings.schema_store_topic)
        return _topics[name]


def _outage(settings: ConnectorSettings, memory: Path) -> RegistryOutage:
    def probe() -> None:
        registry = Registry(settings, memory)  # one of its own: another thread may use, or close, the table's
        try:
            registry.check()
        finally:
            registry.close()

    with _lock:
        key = Registry(settings, memory).identity
        if key not in _outages:
            _outages[key] = RegistryOutage(probe)
        return _outages[key]


def _data_topic(settings: ConnectorSettings, subject: str) -> str:
    """Return the topic of a subject's records: the table's, or the one with which `schema.on.incompatible` goes on."""
    if settings.shares_data_topic:
        return settings.data
    suffixes = "-key-nullable", "-value-nullable", "-truncation", "-key", "-value"
    return next(subject.removesuffix(suffix) for suffix in suffixes if subject.endswith(suffix))
