"""The version of a table that a stage goes by: its definition, what makes its records, and where they go."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import structlog

from helenus_connector.cassandra_rows.table_definition import read_definition
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.state import marker_topic
from helenus_connector.interfaces.shape import Shape
from helenus_connector.shape.choice import make_shape
from helenus_connector.shape.encoding.record_schemas import RecordSchemas
from helenus_connector.shape.row.row import shown_table
from helenus_connector.shape.schemas import topic_schemas
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.log import DeclaredSchemas, Log

_log = structlog.get_logger(__name__)
_UUID_EPOCH = 0x01B21DD213814000  # 1970 in the clock of a version 1 UUID, 100 ns


class TableVersion(NamedTuple):
    """One version of a table, as records show it. They go to `topic`, which declares the `schemas`, if any."""

    table: Table
    codec: KeyCodec
    topic: str
    shape: Shape
    schemas: DeclaredSchemas | None

    @property
    def created_at(self) -> float:
        """Return when the table was created, s since the epoch, if its id says so; else 0."""
        return (self.table.id.time - _UUID_EPOCH) / 1e7 if self.table.id.version == 1 else 0.0

    @property
    def key_identity(self) -> object:
        """Return what the bytes of the table's keys depend on, and the table that they are keys of."""
        return self.table.id, [(c.kind, c.type) for c in self.table.primary_key]


class TableVersions:
    """Follows a table's definition. `current` is set by the first `follow`.

    Its methods raise HelenusError as `read_definition`, `RowShape` and the Log's `create` and `declare`; then `current`
    stays.
    """

    current: TableVersion

    def __init__(self, settings: ConnectorSettings, session: Any, registry: RecordSchemas | None) -> None:
        self._settings = settings
        self._session = session
        self._registry = registry
        self._schema_state: object = None  # of the cluster's schema
        self._is_topic_forgotten = False

    def follow(self, log: Log, version_request: Any = None, is_repeated: bool = False) -> None:
        """Apply a new definition: one small read, which may be running already as `version_request`, says whether any
        schema changed. One whose schemas waited for the registry is applied again when they may be registered. After a
        batch that failed, `is_repeated`, a data topic that `make_shape_for` made is looked for again: nobody else makes
        it anew when it was deleted.
        """
        if is_repeated and self._schema_state is not None and self.current.topic != self._settings.data:
            self._is_topic_forgotten = True
        force = self._is_topic_forgotten or (self._registry is not None and self._registry.is_registration_due)
        if force:
            # Until it is applied: if this fails, the registry's schemas do not know any more that they waited.
            self._schema_state, version_request = None, None
        definition = read_definition(self._session, self._settings, self._schema_state, version_request)
        self._apply_definition(definition, log, force)
        self._is_topic_forgotten = False

    def declare(self, log: Log) -> None:
        """Declare the schemas of the topics that records go to, where the Log keeps schemas."""
        if self.current.schemas is not None:
            log.declare(self.current.topic, self.current.schemas)
            if not self._settings.markers:
                log.declare(marker_topic(self._settings.data), self.current.schemas)

    def preparation(self, log: Log, version_request: Any) -> Callable[[], None] | None:
        """Return the first `follow` as a function that a thread may call while the Log is used; None if that uses it
        too. What it raises, the next `follow` raises again.
        """
        uses_log = self._registry is None or self._settings.schema_on_incompatible == "new-topic"
        return None if uses_log else partial(self.follow, log, version_request)

    def is_altered(self) -> bool:
        """Return whether a row that was just read may be of another definition: of a table that was recreated, or with
        a column of another type. A column that was added or dropped meanwhile is noticed when someone writes it.
        """
        definition = read_definition(self._session, self._settings, self._schema_state)
        if definition is None:
            return False
        table = shown_table(definition[1], self._settings)
        types = {c.name: c.type for c in table.columns}
        return table.id != self.current.table.id or any(
            types.get(c.name, c.type) != c.type for c in self.current.table.columns
        )

    def renew(self, log: Log) -> None:
        """Read the definition once more, in the middle of a batch. Raises HelenusError BATCH_FAILED too if the batch
        was admitted, and read, as one of another table, or of keys of another form.
        """
        former_identity = self.current.key_identity
        self._apply_definition(read_definition(self._session, self._settings, None), log, force=True)
        if self.current.key_identity != former_identity:
            problem = "the table was recreated, or its key altered, while a batch of it was under way"
            raise HelenusError(Kind.BATCH_FAILED, problem, self.current.table.full_name)

    def make_shape_for(self, table: Table, log: Log) -> tuple[str, Shape]:
        """Return the data topic, and what makes its records. Where the topic's schemas refuse the table's,
        `schema.on.incompatible=new-topic` goes on in a topic named by the id of the table's latest creation, and stays
        there.
        """
        topic, table_topic = self._settings.data, f"{self._settings.data}-{str(table.id)[:8]}"
        has_schemas = self._settings.is_avro or log.keeps_schemas
        may_move = self._settings.schema_on_incompatible == "new-topic" and has_schemas
        if may_move and table_topic in log.topics():
            return table_topic, self._declare_shape(table, table_topic, log)
        try:
            return topic, self._declare_shape(table, topic, log)
        except HelenusError as error:
            if error.kind is not Kind.REGISTRY_REFUSED or not may_move:
                raise
            return table_topic, self._move_to_topic(table, topic, table_topic, log, error)

    def _is_changed(self, table: Table) -> bool:
        return (table.id, table.cql) != (self.current.table.id, self.current.table.cql)

    def _apply_definition(self, definition: tuple[object, Table] | None, log: Log, force: bool) -> None:
        if definition is None:
            return
        schema_state, table = definition[0], shown_table(definition[1], self._settings)
        if force or self._schema_state is None or self._is_changed(table):
            topic, shape = self.make_shape_for(table, log)
            # All or nothing: rows of one definition are none of another's.
            self.current = TableVersion(table, KeyCodec(table), topic, shape, self._schemas_of(table))
        self._schema_state = schema_state

    def _move_to_topic(self, table: Table, topic: str, new_topic: str, log: Log, error: HelenusError) -> Shape:
        """Create another topic, once its schemas are accepted: when it exists, there is no way back."""
        partitions = log.topics().get(topic)
        if partitions is None:
            raise HelenusError(Kind.TOPIC_MISSING, "the data topic is gone", topic)
        if self._registry is not None:
            self._shape(table, new_topic)
        log.create(new_topic, partitions, *self._settings.data_creation)
        shape = self._declare_shape(table, new_topic, log)
        _log.warning("data.new_topic", topic=new_topic, reason=str(error))
        return shape

    def _declare_shape(self, table: Table, topic: str, log: Log) -> Shape:
        shape = self._shape(table, topic)
        if (schemas := self._schemas_of(table)) is not None:
            log.declare(topic, schemas)
        return shape

    def _schemas_of(self, table: Table) -> DeclaredSchemas | None:
        """Return the schemas to declare for a topic, if its Log keeps schemas itself."""
        return topic_schemas(table, self._settings) if self._registry is None else None

    def _shape(self, table: Table, topic: str) -> Shape:
        cluster = getattr(self._session.cluster.metadata, "cluster_name", None)
        return make_shape(table, self._settings, self._registry, topic, cluster)
