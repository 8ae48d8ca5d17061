"""The gate `ONE`: which events of a batch go on, and when a Change is done with.

A Change goes on at once. Copies of a settled one are dropped; copies of one that is published but not proven wait with
its key. What goes on is grouped by key: the resolver reads each key once.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from cassandra import ConsistencyLevel

from helenus_connector.cache import PUBLISHED, SETTLED, ChangeCache, change_id
from helenus_connector.config import ConnectorSettings
from helenus_connector.ranges import Bounds
from helenus_connector.reread import Image
from helenus_connector.settle import Awaited, Name, Pending, Report, level, proven
from helenus_schemas.change import Change, Scope, decode
from helenus_schemas.cqlvalue import Malformed
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.key import Key, KeyCodec

_log = structlog.get_logger()
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
class Work:
    """A key to read, or the scope of a marker: the events of this batch that touch it, and its pending entry if due.

    Of a TABLE there are `parts`, each to be done by the task of its topic partition. The resolver fills in `read_at`,
    when the read began in s since the epoch, and `image`.
    """

    topic: str
    partition: int
    key: bytes
    values: Key
    scope: Scope
    consistency: int
    event: Event | None = None
    events: int = 0
    write_time: int | None = None
    awaited: dict[bytes, Awaited] = field(default_factory=dict)
    pending: Pending | None = None
    read_at: float | None = None
    image: Image | None = None
    digest: bytes = b""
    published: bool = False
    dead_lettered: bool = False
    bounds: Bounds | None = None
    parts: int = 1

    @property
    def is_marked(self) -> bool:
        """Whether it takes a marker, and the live rows of its scope."""
        return self.scope in (Scope.PARTITION, Scope.RANGE, Scope.TABLE)


@dataclass(slots=True)
class Admitted:
    """What the gate made of a batch: keys to read, keys that wait, events that cannot be decoded, and counts.

    `gone` are due keys that the table can't have any more, and `outdated` counts such events: it was made anew.
    """

    read: int = 0
    settled: int = 0
    outdated: int = 0
    gone: list[Pending] = field(default_factory=list)
    works: dict[Name, Work] = field(default_factory=dict)
    waiting: dict[Name, Pending] = field(default_factory=dict)
    poison: list[tuple[Event, HelenusError]] = field(default_factory=list)


class Replicas:
    """Who holds the rows of a keyspace in the data centre that is read, as the driver knows it now."""

    def __init__(self, session: Any, settings: ConnectorSettings) -> None:
        self._metadata = session.cluster.metadata
        self._keyspace = settings.keyspace
        self._dc = settings.cassandra_local_dc

    def nodes(self) -> set[str]:
        """Host ids of the data centre's nodes."""
        hosts = self._metadata.all_hosts()
        dc = self._dc or next((h.datacenter for h in hosts if h.is_up), None)
        return {str(h.host_id) for h in hosts if h.datacenter == dc}

    def factor(self) -> int:
        """The replication factor."""
        keyspace = self._metadata.keyspaces.get(self._keyspace)
        strategy = keyspace.replication_strategy if keyspace else None
        factors = getattr(strategy, "dc_replication_factors", None)
        if factors:
            return int(factors[self._dc] if self._dc in factors else max(factors.values()))
        return int(getattr(strategy, "replication_factor", None) or 1)


class Gate:
    """The gate of one connector in one process; its caches lie in `directory` and are shared by the host."""

    def __init__(self, settings: ConnectorSettings, replicas: Replicas, directory: Path) -> None:
        self._settings = settings
        self._replicas = replicas
        self._directory = directory
        self._caches: dict[tuple[str, int], ChangeCache] = {}
        self._counts: dict[tuple[str, int, int], int] = {}
        self._consistency: int = getattr(ConsistencyLevel, settings.query_consistency)

    def admit(self, events: Iterable[Event], due: Sequence[Pending], codec: KeyCodec, made_at: float = 0.0) -> Admitted:
        """Sort a batch's events, and add the pending keys that are due.

        The table was made at `made_at`, s since the epoch: a key that it can't have is poison only since then.
        """
        admitted = Admitted()
        self._counts.clear()
        now = time.time()
        for event in events:
            admitted.read += 1
            try:
                self._admit(event, admitted, codec, now)
            except ValueError as error:
                if _written_at(event) < made_at:
                    admitted.outdated += 1
                    continue
                where = f"topic {event.topic}, partition {event.partition}, offset {event.offset}"
                admitted.poison.append((event, HelenusError(Kind.POISON_EVENT, str(error), where)))
        for pending in due:
            try:
                self._add_due(pending, admitted, codec)
            except Malformed:
                admitted.gone.append(pending)
        return admitted

    def _admit(self, event: Event, admitted: Admitted, codec: KeyCodec, now: float) -> None:
        change, key = _decode(event)
        if change.scope is Scope.GAP:
            where = {"topic": event.topic, "partition": event.partition, "offset": event.offset}
            _log.warning(
                "events.gap", **where, node=change.node, until_us=change.write_time, advice="copy the table anew"
            )
            admitted.settled += 1
            return
        bounds = (change.start, change.end) if change.scope is Scope.RANGE else None
        name = (event.topic, event.partition, key, bounds)
        awaited: Awaited | None = None
        # Without a node or with a digest that is no MD5 (a backfill's) nothing is known of copies: it always goes on.
        if change.node and change.digest and _MD5.fullmatch(change.digest):
            change_name = change_id(key if bounds is None else key + repr(bounds).encode(), change.scope, change.digest)
            entry = self._cache(event.topic, event.partition).report(change_name, change.node)
            if entry.flags & SETTLED:
                admitted.settled += 1
                return
            awaited = Awaited(change_name, change.write_time, now)
            if entry.flags & PUBLISHED and name not in admitted.works:
                new = Pending(
                    event.topic, event.partition, key, change.scope, bounds=bounds, since=event.timestamp / 1000
                )
                held = admitted.waiting.setdefault(name, new)
                held.awaited[change_name] = awaited
                held.copies += 1
                return
        work = admitted.works.get(name)
        if work is None:
            values = () if change.scope is Scope.TABLE else codec.decode(key)
            work = Work(event.topic, event.partition, key, values, change.scope, self._consistency, event)
            work.bounds, work.parts = bounds, change.parts
            admitted.works[name] = work
        work.scope = max(work.scope, _scope(change, work.values))
        work.events += 1
        if change.write_time is not None and (work.write_time is None or change.write_time > work.write_time):
            work.write_time = change.write_time
        if awaited is not None:
            work.awaited.setdefault(awaited.change, awaited)

    def _add_due(self, pending: Pending, admitted: Admitted, codec: KeyCodec) -> None:
        newer = admitted.waiting.pop(pending.name, None)
        if newer is not None:
            pending.awaited.update(newer.awaited)
            pending.copies += newer.copies
            pending.since = min(pending.since, newer.since)
        scope = Scope(pending.scope)
        work = admitted.works.get(pending.name)
        if work is None:
            nodes = min((self._nodes(pending, a) for a in pending.awaited.values()), default=1)
            consistency = level(self._consistency, nodes, self._replicas.factor())
            values = () if scope is Scope.TABLE else codec.decode(pending.key)
            work = Work(
                pending.topic, pending.partition, pending.key, values, scope, consistency, bounds=pending.bounds
            )
            admitted.works[pending.name] = work
        work.scope = max(work.scope, scope)
        work.pending = pending
        work.awaited = {**pending.awaited, **work.awaited}

    def proven(self, work: Work) -> bool:
        """Whether the read of a key proves its image for all Changes it stands for."""
        if work.read_at is None:
            return False
        if work.scope is Scope.TABLE:
            return True  # each node tells its own truncation: after the last one's, no replica holds the rows
        # What lives again, or still, shows nothing of a deletion.
        shown = work.image.write_time if work.image and not work.is_marked else None
        factor = self._replicas.factor()
        min_age = self._settings.settle_min_age_ms / 1000
        return all(
            proven(
                Report(self._nodes(work, a), a.write_time, a.seen),
                work.consistency,
                factor,
                work.read_at,
                shown,
                min_age,
            )
            for a in work.awaited.values()
        )

    def mark(self, work: Work, settled: bool) -> None:
        """Note in the cache that a key's Changes are published, or settled: only after the flush is acknowledged."""
        cache = self._cache(work.topic, work.partition)
        for change in work.awaited:
            cache.mark(change, PUBLISHED | SETTLED if settled else PUBLISHED)

    def _nodes(self, place: Work | Pending, awaited: Awaited) -> int:
        """How many current replicas reported a Change; at least the one whose event is at hand."""
        cache = self._cache(place.topic, place.partition)
        entry = cache.look(awaited.change)
        name = (place.topic, place.partition, entry.nodes)
        count = self._counts.get(name)
        if count is None:
            count = self._counts[name] = max(1, len(cache.nodes(entry) & self._replicas.nodes()))
        return count

    def _cache(self, topic: str, partition: int) -> ChangeCache:
        cache = self._caches.get((topic, partition))
        if cache is None:
            path = self._directory / f"{topic}-{partition}.cache"
            expire_s = self._settings.cache_expire_after_ms / 1000
            cache = self._caches[topic, partition] = ChangeCache(path, self._settings.cache_max_capacity, expire_s)
        return cache


def _decode(event: Event) -> tuple[Change, bytes]:
    change = decode(event.value or b"")
    if event.key is None and change.scope not in (Scope.TABLE, Scope.GAP):
        raise ValueError("an event without key")
    return change, event.key or b""


def _written_at(event: Event) -> float:
    """When an event, and what it tells of, was written, s since the epoch."""
    try:
        written = decode(event.value or b"").write_time
    except ValueError:
        return math.inf
    return min(event.timestamp / 1000, math.inf if written is None else written / 1e6)


def _scope(change: Change, key: Key) -> Scope:
    """Another agent tells no scope: its key without clustering values may be of statics, or of a partition deleted."""
    return Scope.PARTITION if change.scope is Scope.ROW and None in key else change.scope
