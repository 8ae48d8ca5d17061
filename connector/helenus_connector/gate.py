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
from typing import Any, NamedTuple

from cassandra import ConsistencyLevel

from helenus_connector.cache import PUBLISHED, SETTLED, ChangeCache, Entry, change_id
from helenus_connector.config import ConnectorSettings
from helenus_connector.proof import Awaited, level, packed, proven, unpacked
from helenus_connector.ranges import Bounds
from helenus_connector.reread import Image, routing_key
from helenus_connector.settle import Name, Pending
from helenus_schemas.change import Bound, Change, Scope, decode, gist, matched, unframed
from helenus_schemas.cqlvalue import Malformed
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.key import Key, KeyCodec, Outgrown
from helenus_schemas.transcode import long_bytes

_MD5 = re.compile(r"[0-9a-f]{32}")
_LARGEST_KEY = 0xFFFF  # bytes that Cassandra takes of a partition key; a byte of Avro may stand for 12 of them


class Event(NamedTuple):
    """A record of an events topic; `timestamp` in ms since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class Gap(NamedTuple):
    """A gap in a node's log, `until` a write time in µs, as an agent reports it: in each partition of a topic."""

    partition: int
    offset: int
    node: str | None
    until: int | None


@dataclass(slots=True)
class Work:
    """A key to read, or the scope of a marker: the events of this batch that touch it, and its pending entry if due.

    Of a TABLE there are `parts`, each to be done by the task of its topic partition. The resolver fills in `read_at`,
    when the read began in s since the epoch, and `image`. `write_time` in µs is the newest of its changes, `expires` in
    s when the first of their cells does. `awaited` are its changes by their ids in the cache, `unproven` those of them
    that the read proves nothing of.
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
    expires: int | None = None
    awaited: dict[bytes, Awaited] = field(default_factory=dict)
    pending: Pending | None = None
    read_at: float | None = None
    image: Image | None = None
    digest: bytes = b""
    unproven: dict[bytes, Awaited] = field(default_factory=dict)
    published: bool = False
    dead_lettered: bool = False
    is_outdated: bool = False
    bounds: Bounds | None = None
    parts: int = 1

    @property
    def is_marked(self) -> bool:
        """Whether it takes a marker, and the live rows of its scope."""
        return self.scope in (Scope.PARTITION, Scope.RANGE, Scope.TABLE)


@dataclass(slots=True)
class Admitted:
    """What the gate made of a batch: keys to read, keys that wait for what is `awaited`, events that cannot be decoded,
    and counts.

    `gaps` are among the settled. `gone` are due keys that the table can't have any more, and `outdated` counts such
    events: it was made anew, or a type in its partition key got a field, which rows of before lack for ever.
    """

    read: int = 0
    settled: int = 0
    outdated: int = 0
    gone: list[Pending] = field(default_factory=list)
    works: dict[Name, Work] = field(default_factory=dict)
    waiting: dict[Name, Pending] = field(default_factory=dict)
    awaited: dict[Name, dict[bytes, Awaited]] = field(default_factory=dict)
    poison: list[tuple[Event, HelenusError]] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


class Replicas:
    """Who holds the rows of a keyspace where they are read, as the driver knows it now.

    That is in one data centre, but for level QUORUM in all of them. Raises HelenusError CONFIG if it is not said which.
    """

    def __init__(self, session: Any, settings: ConnectorSettings) -> None:
        self._metadata = session.cluster.metadata
        self._keyspace = settings.keyspace
        self._everywhere = settings.query_consistency == "QUORUM"
        known = {h.datacenter for h in self._metadata.all_hosts()}
        self._dc = settings.cassandra_local_dc or next(iter(known), None)
        if not settings.cassandra_local_dc and len(known) > 1:
            what = f"cassandra.local.dc: say which to read of {', '.join(sorted(map(str, known)))}"
            raise HelenusError(Kind.CONFIG, what, settings.name)

    def nodes(self, partition_key: bytes | None) -> set[str]:
        """Host ids of the nodes that hold a partition, by its key as it is hashed; of all nodes if it is None.

        While nodes come and go, one that is none of them may have logged a write too: a read does not meet it.
        """
        hosts = self._metadata.all_hosts()
        if partition_key is not None:
            hosts = self._metadata.get_replicas(self._keyspace, partition_key)
        return {str(h.host_id) for h in hosts if self._everywhere or h.datacenter == self._dc}

    def some(self) -> bool:
        """Whether a partition is held by some of the nodes, not by all."""
        return len(self.nodes(None)) > self.factor()

    def alone(self) -> bool:
        """Whether no node holds rows but those that are read: one that reported and is gone was one of them."""
        return self._everywhere or all(h.datacenter == self._dc for h in self._metadata.all_hosts())

    def factor(self) -> int:
        """The replication factor, with replicas that are transient. Where it is not known, or the strategy is another
        than Cassandra's two, all nodes: then what is proven is so by any.
        """
        keyspace = self._metadata.keyspaces.get(self._keyspace)
        strategy = keyspace.replication_strategy if keyspace else None
        if by_dc := getattr(strategy, "dc_replication_factors_info", None):
            factors = {dc: int(factor.all_replicas) for dc, factor in by_dc.items()}
            return sum(factors.values()) if self._everywhere else factors.get(self._dc) or max(factors.values())
        if factor := getattr(strategy, "replication_factor_info", None):
            return int(factor.all_replicas)
        return max(1, len(self.nodes(None)))


class Gate:
    """The gate of one connector in one process; its caches lie in `directory` and are shared by the host."""

    def __init__(self, settings: ConnectorSettings, replicas: Replicas, directory: Path) -> None:
        self._settings = settings
        self._replicas = replicas
        self._directory = directory
        self._caches: dict[tuple[str, int], ChangeCache] = {}
        self._counts: dict[tuple[str, int, int, Key], int] = {}
        self._codec: KeyCodec
        self._partition_columns: int | None = None
        self._factor: int | None = None
        self._min_age = settings.settle_min_age_ms / 1000
        self._met: dict[tuple[int, bytes, bytes, bytes], tuple[Entry, Work]] = {}
        self.consistency: int = getattr(ConsistencyLevel, settings.query_consistency)

    def close(self) -> None:
        """Let go of the caches."""
        for cache in self._caches.values():
            cache.close()
        self._caches.clear()

    def admit(self, events: Iterable[Event], due: Sequence[Pending], codec: KeyCodec, made_at: float = 0.0) -> Admitted:
        """Sort a batch's events, and add the pending keys that are due.

        The table was made at `made_at`, s since the epoch: a key that it can't have is poison only since then.
        """
        admitted = Admitted()
        self._counts.clear()
        self._codec, self._partition_columns, self._factor = codec, None, None
        self._met.clear()
        for cache in self._caches.values():
            cache.begin()
        now = time.time()
        for event in events:
            admitted.read += 1
            try:
                self._admit(event, admitted, codec, now)
            except Malformed as error:
                if isinstance(error, Outgrown) or written_at(event) < made_at:
                    admitted.outdated += 1
                    continue
                where = f"topic {event.topic}, partition {event.partition}, offset {event.offset}"
                admitted.poison.append((event, HelenusError(Kind.POISON_EVENT, str(error), where)))
        for pending in due:
            try:
                self._add_due(pending, admitted, codec)
            except Malformed:
                admitted.gone.append(pending)
        for name, waiting in admitted.waiting.items():
            waiting.awaited = packed(admitted.awaited[name])
        return admitted

    def _admit(self, event: Event, admitted: Admitted, codec: KeyCodec, now: float) -> None:
        cache = self._cache(event.topic, event.partition)
        match = matched(event.value) if event.value and event.key is not None else None
        copied: tuple[int, bytes, bytes, bytes] | None = None
        if match is not None and event.key is not None:
            key = codec.current(event.key)
            digest, node, scope = match.group(1, 2, 3)
            copied = event.partition, key, digest, scope
            met = self._met.get(copied)
            if met is not None:
                entry, work = met
                entry.nodes |= cache.bit(node)
                work.events += 1
                return
            identity: bytes | None = change_id(key, scope, digest)
        else:
            change, key = _decode(event, codec)
            if change.scope is Scope.GAP:
                admitted.gaps.append(Gap(event.partition, event.offset, change.node, change.write_time))
                admitted.settled += 1
                return
            node, identity = (change.node or "").encode(), _identity(change, key)
        entry = cache.look(identity) if identity is not None else Entry()
        if entry.flags & SETTLED:
            admitted.settled += 1
            return
        if match is not None:
            change = gist(match)
        elif change.scope is Scope.TABLE:
            # Rows go whatever their write times: who writes one again with its own may write the very same bytes.
            cache.clear()
            self._met.clear()
        awaited: Awaited | None = None
        if identity is not None:
            cache.report(identity, entry, node)
            awaited = Awaited(change.write_time, now)
        went = self._go_on(event, change, key, identity, awaited, entry, admitted, codec)
        if went is not None and copied is not None:
            self._met[copied] = entry, went

    def _go_on(
        self,
        event: Event,
        change: Change,
        key: bytes,
        identity: bytes | None,
        awaited: Awaited | None,
        entry: Entry,
        admitted: Admitted,
        codec: KeyCodec,
    ) -> Work | None:
        """The work of a Change's key; None if it waits with its key."""
        bounds = (change.start, change.end) if change.scope is Scope.RANGE else None
        name = (event.topic, event.partition, key, bounds)
        work = admitted.works.get(name)
        if work is None:
            values = () if change.scope is Scope.TABLE else _values(codec, key)
            _check(codec, values, bounds)
            if identity is not None and awaited is not None and entry.flags & PUBLISHED:
                scope, since = _scope(change, values), event.timestamp / 1000
                new = Pending(event.topic, event.partition, key, scope, bounds=bounds, since=since)
                held = admitted.waiting.setdefault(name, new)
                admitted.awaited.setdefault(name, {})[identity] = awaited
                held.scope = max(held.scope, scope)
                held.copies += 1
                return None
            work = Work(event.topic, event.partition, key, values, change.scope, self.consistency, event)
            work.bounds, work.parts = bounds, change.parts
            admitted.works[name] = work
        work.scope = max(work.scope, _scope(change, work.values))
        work.events += 1
        if change.write_time is not None and (work.write_time is None or change.write_time > work.write_time):
            work.write_time = change.write_time
        if change.expires_at is not None and (work.expires is None or change.expires_at < work.expires):
            work.expires = change.expires_at
        if identity is not None and awaited is not None:
            work.awaited.setdefault(identity, awaited)
        return work

    def _add_due(self, pending: Pending, admitted: Admitted, codec: KeyCodec) -> None:
        scope = Scope(pending.scope)
        key = pending.key if scope is Scope.TABLE else codec.current(pending.key)
        name = (pending.topic, pending.partition, key, pending.bounds)
        values = () if scope is Scope.TABLE else _values(codec, key)
        _check(codec, values, pending.bounds)
        awaited = unpacked(pending.awaited)
        newer = admitted.waiting.pop(name, None)
        if newer is not None:
            awaited.update(admitted.awaited[name])
            pending.copies += newer.copies
            pending.since = min(pending.since, newer.since)
        work = admitted.works.get(name)
        if work is None:
            nodes = min((self._nodes(pending, values, change) for change in awaited), default=1)
            consistency = level(self.consistency, nodes, self._replication())
            work = Work(pending.topic, pending.partition, key, values, scope, consistency, bounds=pending.bounds)
            admitted.works[name] = work
        work.scope = max(work.scope, scope)
        work.pending = pending
        work.awaited = {**awaited, **work.awaited}

    def unproven(self, work: Work) -> dict[bytes, Awaited]:
        """The Changes of a key for which its read proves no image."""
        if work.read_at is None:
            return work.awaited
        if work.scope is Scope.TABLE:
            return {}  # each node tells its own truncation: after the last one's, no replica holds the rows
        # What lives again, or still, shows nothing of a deletion.
        image = None if work.is_marked else work.image
        factor = self._replication()
        found = {}
        for change, awaited in work.awaited.items():
            nodes = self._nodes(work, work.values, change)
            shows = image is not None and image.shows(awaited.write_time)
            if not proven(nodes, awaited.seen, work.consistency, factor, work.read_at, shows, self._min_age):
                found[change] = awaited
        return found

    def mark(self, work: Work) -> None:
        """Note in the cache that a key's Changes are published, or settled: only after the flush is acknowledged."""
        cache = self._cache(work.topic, work.partition)
        for change in work.awaited:
            cache.mark(change, PUBLISHED if change in work.unproven else PUBLISHED | SETTLED)

    def save(self) -> None:
        """Keep for later batches and other processes what this one reported and marked."""
        for cache in self._caches.values():
            cache.save()

    def _replication(self) -> int:
        """The replication factor, as it was when the batch began."""
        if self._factor is None:
            self._factor = self._replicas.factor()
        return self._factor

    def _nodes(self, place: Work | Pending, values: Key, change: bytes) -> int:
        """How many current replicas reported a Change. The event at hand is of one, unless of another data centre."""
        cache = self._cache(place.topic, place.partition)
        entry = cache.look(change)
        if self._partition_columns is None:
            self._partition_columns = self._codec.partition_columns if self._replicas.some() else 0
        key = values[: self._partition_columns]
        name = (place.topic, place.partition, entry.nodes, key)
        count = self._counts.get(name)
        if count is None:
            replicas = self._replicas.nodes(routing_key(key) if key else None)
            count = self._counts[name] = max(int(self._replicas.alone()), len(cache.nodes(entry) & replicas))
        return count

    def _cache(self, topic: str, partition: int) -> ChangeCache:
        cache = self._caches.get((topic, partition))
        if cache is None:
            path = self._directory / f"{topic}-{partition}.cache"
            expire_s = self._settings.cache_expire_after_ms / 1000
            cache = self._caches[topic, partition] = ChangeCache(path, self._settings.cache_max_capacity, expire_s)
        return cache


def _identity(change: Change, key: bytes) -> bytes | None:
    """What names a Change; None if nothing is known of copies: without a node, or with a digest that is no MD5, as a
    backfill's. Such a one always goes on.
    """
    if not change.node or not change.digest or not _MD5.fullmatch(change.digest):
        return None
    within = key if change.scope is not Scope.RANGE else key + repr((change.start, change.end)).encode()
    return change_id(within, long_bytes(change.scope), change.digest.encode())


def _decode(event: Event, codec: KeyCodec) -> tuple[Change, bytes]:
    """The Change of an event, whichever agent wrote it, and its key in today's form."""
    key, value = unframed(event.key, event.value or b"")
    change = decode(value)
    if change.scope in (Scope.TABLE, Scope.GAP):
        return change, key or b""
    if key is None:
        raise Malformed("an event without key")
    key = codec.current(key, change.foreign)
    return _scoped(change, key, codec) if change.foreign else (change, key)


def _scoped(change: Change, key: bytes, codec: KeyCodec) -> tuple[Change, bytes]:
    """Another agent's key with a time stands for all rows of its microsecond."""
    values = codec.decode(key)
    ends = codec.microsecond(values)
    if ends is None:
        return change, key
    start, end = (Bound(True, values) for values in ends)
    whole = codec.encode([*values[: codec.partition_columns], *[None] * (len(values) - codec.partition_columns)])
    return change._replace(scope=Scope.RANGE, start=start, end=end), whole


def asks_for(work: Work) -> Scope:
    """What the event of a work asks for by itself: others of its key may ask for more."""
    value = work.event.value if work.event and work.event.value else b""
    match = matched(value)
    return _scope(gist(match) if match else decode(unframed(None, value)[1]), work.values)


def _scope(change: Change, key: Key) -> Scope:
    """Another agent tells no scope: its key without clustering values may be of statics, or of a partition deleted.

    Of ours it is a row's whose clustering values all have no bytes: the partition has it, as it has the statics.
    """
    return Scope.PARTITION if change.scope is Scope.ROW and None in key else change.scope


def _values(codec: KeyCodec, key: bytes) -> Key:
    """The CQL bytes of a key's columns. A null among clustering values that are none stands for no bytes."""
    values = codec.decode(key)
    if len(key) > _LARGEST_KEY // 12:
        size = sum(len(value or b"") for value in values[: codec.partition_columns])
        if size > _LARGEST_KEY:
            raise Malformed(f"a partition key of {size} bytes, where {_LARGEST_KEY} are allowed")
    if None not in values or not any(value is not None for value in values[codec.partition_columns :]):
        return values
    return tuple([value or b"" for value in values])


def _check(codec: KeyCodec, values: Key, bounds: Bounds | None) -> None:
    """Raises Malformed for bounds that are none of this table's: it was made anew with other clustering columns."""
    for bound in bounds or ():
        if bound is not None and bound.values:
            partition = values[: codec.partition_columns]
            missing = len(values) - len(partition) - len(bound.values)
            if missing < 0:
                raise Malformed(f"a bound of {len(bound.values)} clustering values, {-missing} more than there are")
            codec.encode([*partition, *bound.values, *[None] * missing])


def written_at(event: Event) -> float:
    """When an event, and what it tells of, was written, s since the epoch; infinite if it does not say."""
    try:
        written = decode(event.value or b"").write_time
    except ValueError:
        return math.inf
    return min(event.timestamp / 1000, math.inf if written is None else written / 1e6)
