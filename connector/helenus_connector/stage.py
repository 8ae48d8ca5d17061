"""What is done with one batch of one table's events: gate → resolve → shape → append → flush → mark. Knows no Spark.

Order matters for promise 1: nothing is marked in the cache before the flush is acknowledged, and whatever raises before
leaves the same events to be done again.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cassandra import ConsistencyLevel, DriverException, OperationTimedOut
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException

from helenus_connector.cache import PUBLISHED, SETTLED, ChangeCache, change_id
from helenus_connector.config import ConnectorSettings
from helenus_connector.registry import Registry
from helenus_connector.reread import Image, Partition, Reader, SchemaChanged
from helenus_connector.settle import Awaited, Pending, Report, level, proven
from helenus_connector.shape import Record, RowShape
from helenus_schemas.change import Change, Scope, decode
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.failpoints import reach
from helenus_schemas.key import Key, KeyCodec
from helenus_schemas.table import Table, read_tables
from helenus_sinks import dead_letters
from helenus_sinks.log import Log

FLUSH_TIMEOUT_S = 60.0
_MD5 = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Event:
    """A record of an events topic; `timestamp` in ms since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


@dataclass(slots=True)
class Outcome:
    """What became of a batch. Events: read = published + unchanged + settled + dead_lettered + those that now wait.

    `found` and `resolved` are the keys that wait for a proven read from now on, and no longer. `copies` of a key say
    how many events wait with it.
    """

    connector: str
    read: int = 0
    published: int = 0
    unchanged: int = 0
    settled: int = 0
    dead_lettered: int = 0
    records: int = 0
    keys_read: int = 0
    statements: int = 0
    newest_write_time: int | None = None
    found: list[Pending] = field(default_factory=list)
    resolved: list[Pending] = field(default_factory=list)
    error: HelenusError | None = None


@dataclass(slots=True)
class _Work:
    """A key to read: the events of this batch that touch it, and the pending entry that is due."""

    topic: str
    partition: int
    key: bytes
    values: Key
    scope: Scope
    event: Event | None
    awaited: dict[bytes, Awaited] = field(default_factory=dict)
    write_time: int | None = None
    events: int = 0
    pending: Pending | None = None
    consistency: int = ConsistencyLevel.LOCAL_QUORUM
    read_at: float | None = None
    image: Image | None = None
    partition_rows: Partition | None = None
    digest: bytes = b""
    published: bool = False


_Works = dict[tuple[str, bytes], _Work]
_Waiting = dict[tuple[str, bytes], Pending]


class Stage:
    """The work on one connector's events in one process. Keeps its sessions and statements between batches."""

    def __init__(self, settings: ConnectorSettings, session: Any, log: Log, directory: Path) -> None:
        self.settings = settings
        self.session = session
        self.log = log
        self._directory = directory
        self._registry = Registry(settings, directory / "schemas.json")
        self._caches: dict[tuple[str, int], ChangeCache] = {}
        self._schema_version: object = None
        self._table: Table | None = None
        self._reader: Reader
        self._shape: RowShape
        self._codec: KeyCodec
        self._consistency: int = getattr(ConsistencyLevel, settings.query_consistency)

    def run(self, events: Iterable[Event], due: Sequence[Pending], trust_images: bool) -> Outcome:
        """Do one batch. `due` are pending keys of the same partitions, to be read again. `trust_images` says that no
        earlier attempt at this batch can have published something newer than a due key's image.

        Raises HelenusError; then nothing is marked, and the batch is to be done again or the connector stopped.
        """
        outcome = Outcome(self.settings.name)
        self._refresh(force=False)
        poison: list[tuple[Event, HelenusError]] = []
        works, waiting = self._gate(events, outcome, poison)
        self._add_due(works, waiting, due)
        outcome.found.extend(waiting.values())
        start = self._reader.statements
        try:
            self._resolve(works)
        except SchemaChanged:
            self._refresh(force=True)
            start = self._reader.statements
            self._resolve(works)
        outcome.statements = self._reader.statements - start
        self._append(works, outcome, poison, trust_images)
        self.log.flush(FLUSH_TIMEOUT_S)
        reach("connector.after-flush")
        self._mark(works, outcome)
        reach("connector.after-mark")
        return outcome

    def _refresh(self, force: bool) -> None:
        """Follow the table's definition: one small read a batch tells whether any schema changed."""
        try:
            version = self.session.execute("SELECT schema_version FROM system.local").one().schema_version
            if version == self._schema_version and not force:
                return
            tables = read_tables(self.session, self.settings.keyspace).values()
        except (DriverException, NoHostAvailable, OperationTimedOut, ConnectionException) as error:
            raise HelenusError(
                Kind.CASSANDRA_READ, f"cannot read the schema: {error}", self.settings.keyspace
            ) from None
        name = f"{self.settings.keyspace}.{self.settings.table}"
        table = next((t for t in tables if t.full_name == name), None)
        if table is None:
            raise HelenusError(Kind.TABLE_MISSING, "there is no such table", name)
        if self._table is None or (table.id, table.cql) != (self._table.id, self._table.cql) or force:
            self._shape = RowShape(table, self.settings.data, self._registry)
            self._reader = Reader(self.session, table, self.settings)
            self._codec = KeyCodec(table)
            self._table = table
        self._schema_version = version

    def _gate(
        self, events: Iterable[Event], outcome: Outcome, poison: list[tuple[Event, HelenusError]]
    ) -> tuple[_Works, _Waiting]:
        """Drop the copies of settled Changes, let copies of published ones wait, and group the rest by key."""
        works: _Works = {}
        waiting: _Waiting = {}
        now = time.time()
        for event in events:
            outcome.read += 1
            try:
                change, key = self._decode(event)
            except ValueError as error:
                where = f"topic {event.topic}, partition {event.partition}, offset {event.offset}"
                poison.append((event, HelenusError(Kind.POISON_EVENT, str(error), where)))
                continue
            name = (event.topic, key)
            awaited: Awaited | None = None
            if change.node and change.digest and _MD5.fullmatch(change.digest):
                change_name = change_id(key, change.scope, change.digest)
                entry = self._cache(event.topic, event.partition).report(change_name, change.node)
                if entry.flags & SETTLED:
                    outcome.settled += 1
                    continue
                awaited = Awaited(change_name, change.write_time, now, change.node)
                if entry.flags & PUBLISHED and name not in works:
                    held = waiting.setdefault(name, Pending(event.topic, event.partition, key, change.scope))
                    held.awaited[change_name] = awaited
                    held.copies += 1
                    continue
            work = works.get(name)
            if work is None:
                try:
                    values = self._codec.decode(key)
                except ValueError as error:
                    where = f"topic {event.topic}, partition {event.partition}, offset {event.offset}"
                    poison.append((event, HelenusError(Kind.POISON_EVENT, str(error), where)))
                    continue
                work = works[name] = _Work(event.topic, event.partition, key, values, change.scope, event)
                work.consistency = self._consistency
            work.scope = _wider(work.scope, change.scope)
            work.events += 1
            work.write_time = max(filter(None, (work.write_time, change.write_time)), default=None)
            if awaited is not None:
                work.awaited.setdefault(awaited.change, awaited)
        return works, waiting

    def _decode(self, event: Event) -> tuple[Change, bytes]:
        if event.value is None or event.key is None:
            raise ValueError("an event without key or value")
        change = decode(event.value)
        if change.scope in (Scope.RANGE, Scope.TABLE):
            raise ValueError(f"an event of scope {change.scope.name}, which this version does not resolve")
        return change, event.key

    def _add_due(self, works: _Works, waiting: _Waiting, due: Sequence[Pending]) -> None:
        rf = self._replicas()
        for pending in due:
            newer = waiting.pop(pending.name, None)
            if newer is not None:
                pending.awaited.update(newer.awaited)
                pending.copies += newer.copies
            work = works.get(pending.name)
            if work is None:
                values = self._codec.decode(pending.key)
                scope = Scope(pending.scope)
                work = works[pending.name] = _Work(pending.topic, pending.partition, pending.key, values, scope, None)
                nodes = min((self._nodes(pending, a) for a in pending.awaited.values()), default=1)
                work.consistency = level(self._consistency, nodes, rf)
            work.scope = _wider(work.scope, Scope(pending.scope))
            work.pending = pending
            work.awaited = {**pending.awaited, **work.awaited}

    def _resolve(self, works: _Works) -> None:
        """Read the current image of every key, partitions before rows: a row's record never shows an older read."""
        width = len(self._reader.table.partition_key)
        wiped: dict[Key, _Work] = {}
        by_level: dict[int, list[_Work]] = {}
        for work in works.values():
            whole = work.scope in (Scope.PARTITION, Scope.STATIC) and bool(self._reader.table.clustering)
            if whole and (work.scope is Scope.PARTITION or self._reader.table.statics):
                work.read_at = time.time()
                try:
                    work.partition_rows = self._reader.partition(work.values, work.consistency)
                    work.image = work.partition_rows.statics
                except HelenusError:
                    if work.events:
                        raise
                    work.read_at = None
                if work.scope is Scope.PARTITION:
                    wiped[work.values[:width]] = work
            else:
                by_level.setdefault(work.consistency, []).append(work)
        for consistency, members in by_level.items():
            read_at = time.time()
            try:
                found = self._reader.rows([w.values for w in members], consistency)
            except HelenusError:
                # A level above the configured one is asked for the proof alone: without it, the keys go on waiting.
                if any(w.events for w in members):
                    raise
                continue
            for work in members:
                work.read_at = read_at
                work.image = found.get(work.values)

    def _append(
        self,
        works: _Works,
        outcome: Outcome,
        poison: list[tuple[Event, HelenusError]],
        trust_images: bool,
    ) -> None:
        for work in sorted(works.values(), key=lambda w: w.scope is not Scope.PARTITION):
            if work.read_at is None:
                continue
            outcome.keys_read += 1
            try:
                records = self._records(work)
            except HelenusError as error:
                if work.event is None or error.kind is not Kind.POISON_EVENT:
                    raise
                poison.extend([(work.event, error)] * work.events)
                work.read_at = None
                continue
            work.digest = hashlib.md5(b"\0".join(r.value or b"" for r in records), usedforsecurity=False).digest()
            same = work.pending is not None and trust_images and work.pending.image == work.digest
            if work.events == 0 and same:
                continue
            for record in records:
                self.log.append(self.settings.data, work.partition, record.key, record.value, record.headers)
            work.published = True
            outcome.records += len(records)
            newest = max(filter(None, (work.write_time, outcome.newest_write_time)), default=None)
            outcome.newest_write_time = newest
        for event, cause in poison:
            if self.settings.errors_tolerance == "none":
                raise cause
            dead_letters.append(self.log, self.settings.dead_letters, self.settings.name, event, cause)
            outcome.dead_lettered += 1

    def _records(self, work: _Work) -> list[Record]:
        write_time = work.image.write_time if work.image and work.image.write_time is not None else work.write_time
        if work.partition_rows is None or work.scope is not Scope.PARTITION:
            return [self._shape.row(work.key, work.image, write_time)]
        live = [
            self._shape.row(self._codec.encode(key), image, image.write_time) for key, image in work.partition_rows.rows
        ]
        return [self._shape.marker(work.key, work.image, work.write_time), *live]

    def _mark(self, works: _Works, outcome: Outcome) -> None:
        """After the flush: settle what is proven, and hand the rest back as pending."""
        rf = self._replicas()
        for work in works.values():
            pending = work.pending
            copies = pending.copies if pending else 0
            if work.published:
                outcome.published += work.events + copies
                copies = 0
            if work.read_at is not None and self._is_proven(work, rf):
                outcome.unchanged += copies
                flags = SETTLED | PUBLISHED
                if pending:
                    outcome.resolved.append(pending)
            else:
                flags = PUBLISHED
                if pending or work.awaited:
                    attempts = pending.attempts + 1 if pending else 0
                    image = work.digest or (pending.image if pending else None)
                    outcome.found.append(
                        Pending(work.topic, work.partition, work.key, work.scope, work.awaited, image, copies, attempts)
                    )
            if work.read_at is not None:
                cache = self._cache(work.topic, work.partition)
                for change in work.awaited:
                    cache.mark(change, flags)

    def _is_proven(self, work: _Work, rf: int) -> bool:
        shown = work.image.write_time if work.image else None
        if work.scope is Scope.PARTITION:
            shown = None
        min_age = self.settings.settle_min_age_ms / 1000
        assert work.read_at is not None
        return all(
            proven(
                Report(self._nodes(work, awaited), awaited.write_time, awaited.seen),
                work.consistency,
                rf,
                work.read_at,
                shown,
                min_age,
            )
            for awaited in work.awaited.values()
        )

    def _nodes(self, place: _Work | Pending, awaited: Awaited) -> int:
        """How many current replicas reported a Change; at least the one whose event is at hand."""
        cache = self._cache(place.topic, place.partition)
        return max(1, len(cache.nodes(cache.look(awaited.change)) & self._local_nodes()))

    def _local_nodes(self) -> set[str]:
        hosts = self.session.cluster.metadata.all_hosts()
        dc = self.settings.cassandra_local_dc or next((h.datacenter for h in hosts if h.is_up), None)
        return {str(h.host_id) for h in hosts if h.datacenter == dc}

    def _replicas(self) -> int:
        """The replication factor of the keyspace, in the data centre that is read."""
        keyspace = self.session.cluster.metadata.keyspaces.get(self.settings.keyspace)
        strategy = keyspace.replication_strategy if keyspace else None
        factors = getattr(strategy, "dc_replication_factors", None)
        if factors:
            dc = self.settings.cassandra_local_dc
            return int(factors[dc] if dc in factors else max(factors.values()))
        return int(getattr(strategy, "replication_factor", None) or 1)

    def _cache(self, topic: str, partition: int) -> ChangeCache:
        cache = self._caches.get((topic, partition))
        if cache is None:
            path = self._directory / f"{topic}-{partition}.cache"
            expire_s = self.settings.cache_expire_after_ms / 1000
            cache = self._caches[topic, partition] = ChangeCache(path, self.settings.cache_max_capacity, expire_s)
        return cache


def _wider(one: Scope, other: Scope) -> Scope:
    """The scope that covers both, for Changes with the same key."""
    return max(one, other)
