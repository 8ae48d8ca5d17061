"""The resolver `reread`: asks Cassandra what a key's row is now. `interfaces.resolver` has the contract.

1. take     `_key_reads`: the changes of a key become one read
2. resolve  `_batch`: truncations, then markers, then rows; no record shows an older read than one before
3. confirm  `_batch`: what a read does not prove waits with its key, and is read again
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from cassandra import ConsistencyLevel

from helenus_connector.cassandra_rows.budget import ReadBudget
from helenus_connector.cassandra_rows.row_reader import RowReader
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate.cache import Caches
from helenus_connector.gate.levels import read_level
from helenus_connector.gate.replicas import Replicas
from helenus_connector.interfaces.admitted_change import AdmittedChange
from helenus_connector.interfaces.gate import Gate
from helenus_connector.reread._batch import RereadBatch, RereadResources
from helenus_connector.reread._evidence import Evidence, is_unprovable, note_deletion
from helenus_connector.reread._key_reads import KeyReads
from helenus_connector.reread._proof import lowest_level
from helenus_connector.reread._unread_keys import StuckKeys
from helenus_connector.unconfirmed.unconfirmed_key import UnconfirmedKey
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.table import Table


class RereadResolver:
    """The resolver of one table in one process. Keeps its statements between batches.

    `count_partitions` says how many partitions the data topic has.
    """

    def __init__(
        self,
        settings: ConnectorSettings,
        session: Any,
        gate: Gate,
        replicas: Replicas,
        caches: Caches,
        budget: ReadBudget,
        count_partitions: Callable[[], int],
    ) -> None:
        self.consistency: int = getattr(ConsistencyLevel, settings.query_consistency)
        self._settings = settings
        self._session = session
        self._gate = gate
        self._replicas = replicas
        self._caches = caches
        self._budget = budget
        self._reader: RowReader | None = None
        self._resources = RereadResources(
            settings, self.consistency, gate, caches, StuckKeys(), count_partitions, self._open_reader
        )

    @property
    def reader(self) -> RowReader:
        """Return the reader of the table's newest version."""
        assert self._reader is not None, "begin_batch() comes first"
        return self._reader

    def begin_batch(
        self,
        table: Table,
        codec: KeyCodec,
        changes: Iterable[AdmittedChange],
        due_keys: Sequence[UnconfirmedKey],
        created_at: float,
    ) -> RereadBatch:
        reader = self._open_reader(table, False)
        min_age_s = self._settings.settle_min_age_ms / 1000
        evidence = Evidence(self._gate, self._replicas, self._caches, codec, min_age_s)
        key_reads = KeyReads(codec, self.consistency, read_level(self._settings))
        key_reads.take(changes, partial(note_deletion, self._caches))
        key_reads.add_due(due_keys, partial(self._confirming_level, evidence))
        return RereadBatch(self._resources, reader, codec, key_reads, evidence, created_at)

    def note_past(self, admitted: AdmittedChange) -> bool:
        note_deletion(self._caches, admitted)
        return is_unprovable(admitted.change)

    def close(self) -> None:
        self._budget.close()

    def _open_reader(self, table: Table, is_current: bool) -> RowReader:
        """Return the reader of this version of the table. `is_current` says that the definition was read just now."""
        if self._reader is None or self._reader.table is not table:
            self._reader = RowReader(self._session, table, self._settings)
            self._reader.budget = self._budget
        self._reader.is_current = is_current
        return self._reader

    def _confirming_level(
        self, evidence: Evidence, unconfirmed: UnconfirmedKey, values: Key, changes: Iterable[bytes]
    ) -> int:
        """Return the level at which a read of a due key confirms all of its changes."""
        topic, partition = unconfirmed.topic_partition
        nodes = min((self._gate.count_replicas(topic, partition, values, change) for change in changes), default=1)
        return lowest_level(self.consistency, nodes, evidence.factor)
