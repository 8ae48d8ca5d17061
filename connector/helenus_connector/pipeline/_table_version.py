"""The version of a table that a stage goes by: its definition, what makes its records, and where they go."""

from __future__ import annotations

from typing import Any, NamedTuple

import structlog

from helenus_connector.cassandra_rows.table_definition import read_definition
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.shape import Shape
from helenus_connector.shape.choice import make_shape
from helenus_connector.shape.encoding.registry import Registry
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
    def made_at(self) -> float:
        """When the table was created, s since the epoch, if its id says so; else 0."""
        return (self.table.id.time - _UUID_EPOCH) / 1e7 if self.table.id.version == 1 else 0.0

    @property
    def keyed(self) -> object:
        """What the bytes of the table's keys depend on, and what they are keys of."""
        return self.table.id, [(c.kind, c.type) for c in self.table.primary_key]


class TableVersions:
    """Follows a table's definition. `now` is there after the first `follow`.

    Its methods raise HelenusError as `read_definition`, `RowShape` and the Log's `create` and `declare`; then `now`
    stays.
    """

    now: TableVersion

    def __init__(self, settings: ConnectorSettings, session: Any, registry: Registry | None) -> None:
        self._settings = settings
        self._session = session
        self._registry = registry
        self._known: object = None  # of the cluster's schema

    def follow(self, log: Log, asked: Any = None) -> None:
        """Take over a new definition: one small read says whether any schema changed, which may be `asked` already."""
        self._take(read_definition(self._session, self._settings, self._known, asked), log, force=False)

    def is_altered(self) -> bool:
        """Return whether a row that was just read may be of another definition: of a table that was recreated, or with
        a column of another type. A column that was added or dropped meanwhile is noticed when someone writes it.
        """
        found = read_definition(self._session, self._settings, self._known)
        if found is None:
            return False
        table = shown_table(found[1], self._settings)
        types = {c.name: c.type for c in table.columns}
        return table.id != self.now.table.id or any(types.get(c.name, c.type) != c.type for c in self.now.table.columns)

    def renew(self, log: Log) -> None:
        """Read the definition once more, in the middle of a batch. Raises HelenusError BATCH_FAILED too if the batch
        was admitted, and read, as one of another table, or of keys of another form.
        """
        before = self.now.keyed
        self._take(read_definition(self._session, self._settings, None), log, force=True)
        if self.now.keyed != before:
            what = "the table was recreated, or its key altered, while a batch of it was under way"
            raise HelenusError(Kind.BATCH_FAILED, what, self.now.table.full_name)

    def shaped(self, table: Table, log: Log) -> tuple[str, Shape]:
        """The data topic, and what makes its records. Where the topic's schemas refuse the table's,
        `schema.on.incompatible=new-topic` goes on in a topic of the table as it was created last, and stays there.
        """
        topic, other = self._settings.data, f"{self._settings.data}-{str(table.id)[:8]}"
        has_schemas = self._settings.is_avro or log.keeps_schemas
        may_move = self._settings.schema_on_incompatible == "new-topic" and has_schemas
        if may_move and other in log.topics():
            return other, self._accepted(table, other, log)
        try:
            return topic, self._accepted(table, topic, log)
        except HelenusError as error:
            if error.kind is not Kind.REGISTRY_REFUSED or not may_move:
                raise
            return other, self._moved(table, topic, other, log, error)

    def _is_other(self, table: Table) -> bool:
        return (table.id, table.cql) != (self.now.table.id, self.now.table.cql)

    def _take(self, found: tuple[object, Table] | None, log: Log, force: bool) -> None:
        if found is None:
            return
        known, table = found[0], shown_table(found[1], self._settings)
        if force or self._known is None or self._is_other(table):
            topic, shape = self.shaped(table, log)
            # All or nothing: rows of one definition are none of another's.
            self.now = TableVersion(table, KeyCodec(table), topic, shape, self._declared(table))
        self._known = known

    def _moved(self, table: Table, topic: str, other: str, log: Log, why: HelenusError) -> Shape:
        """Make another topic. Only where its schemas are there: once it is, there is no way back."""
        partitions = log.topics().get(topic)
        if partitions is None:
            raise HelenusError(Kind.TOPIC_MISSING, "the data topic is gone", topic)
        if self._registry is not None:
            self._shape(table, other)
        log.create(other, partitions, {"cleanup.policy": self._settings.cleanup_policy})
        shape = self._accepted(table, other, log)
        _log.warning("data.new_topic", topic=other, reason=str(why))
        return shape

    def _accepted(self, table: Table, topic: str, log: Log) -> Shape:
        shape = self._shape(table, topic)
        if (schemas := self._declared(table)) is not None:
            log.declare(topic, schemas)
        return shape

    def _declared(self, table: Table) -> DeclaredSchemas | None:
        """The schemas of a topic of a Log that keeps them itself."""
        return topic_schemas(table, self._settings) if self._registry is None else None

    def _shape(self, table: Table, topic: str) -> Shape:
        cluster = getattr(self._session.cluster.metadata, "cluster_name", None)
        return make_shape(table, self._settings, self._registry, topic, cluster)
