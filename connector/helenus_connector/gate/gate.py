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
from typing import NamedTuple

from cassandra import ConsistencyLevel

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate.cache import BY_AGE, MAY, PUBLISHED, SETTLED, ChangeCache, Entry, change_id
from helenus_connector.reread.pending import Name, Pending
from helenus_connector.reread.proof import (
    ALL_COLUMNS,
    Awaited,
    Deletion,
    Row,
    Witness,
    block_for,
    is_proven,
    level,
    packed,
    unpacked,
    witness,
)
from helenus_connector.reread.ranges import Bounds
from helenus_connector.reread.reader import Image, routing_key
from helenus_connector.reread.replicas import Replicas
from helenus_schemas.codec.avro_long import long_bytes
from helenus_schemas.codec.key import Key, KeyCodec, Outgrown
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Bound, Change, Effect, Scope
from helenus_schemas.event.own_format import log_position, match_own_format, parse_match
from helenus_schemas.event.wire import decode, without_frames

_MD5 = re.compile(r"[0-9a-f]{32}")
_LIVE, _GONE, _DELETES = int(Effect.LIVE), int(Effect.GONE), int(Effect.GONE | Effect.DELETES)
_WHOLE = 5  # the kind of a row's deletion, apart from those of columns of it
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
    that the read proves nothing of, and `by_age` those that it proves by the time that they waited, of which so many
    were `contradicted` by their row to the end. `rest` is for how many seconds no read can prove more. Of a marker,
    `oldest` is the write time in µs of the oldest cell of the rows that live in its scope, and `timeless` says that
    some of them show no time.
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
    by_age: set[bytes] = field(default_factory=set)
    contradicted: int = 0
    rest: float = 0.0
    oldest: int | None = None
    timeless: bool = False
    published: bool = False
    dead_lettered: bool = False
    is_outdated: bool = False
    bounds: Bounds | None = None
    parts: int = 1

    def saw(self, image: Image | None) -> None:
        """Take note of what lives in a marker's scope; None if it can't be told."""
        oldest = image.oldest() if image else None
        if image is None or oldest is None or image.timed.many or image.timed.untold:
            self.timeless = True  # of many cells the newest alone is told
        if oldest is None:
            return
        if self.oldest is None or oldest < self.oldest:
            self.oldest = oldest

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
        for event in events:
            admitted.read += 1
            try:
                self._admit(event, admitted, codec)
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

    def _admit(self, event: Event, admitted: Admitted, codec: KeyCodec) -> None:
        cache = self._cache(event.topic, event.partition)
        match = match_own_format(event.value) if event.value and event.key is not None else None
        copied: tuple[int, bytes, bytes, bytes] | None = None
        if match is not None and event.key is not None:
            key = codec.current(event.key)
            digest, node, scope = match.group(1, 2, 3)
            copied = event.partition, key, digest, scope
            met = self._met.get(copied)
            if met is not None:
                entry, work = met
                bit = cache.bit(node)
                if not entry.nodes & bit:
                    entry.nodes |= bit
                    cache.last[node] = match
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
        bit = cache.bit(node)
        is_again = entry.nodes & bit and cache.is_new(node, log_position(match or change))
        if is_again or not entry.nodes & bit:
            cache.last[node] = match or change  # what is sent again lies before
        if entry.flags and is_again:
            # Not sent again, but written again, with the very same bytes: what is known is of the write before.
            entry.nodes = entry.flags = 0
        elif entry.flags & SETTLED:
            if entry.nodes & bit or not entry.flags & BY_AGE:
                admitted.settled += 1
                return
            entry.flags &= ~(SETTLED | BY_AGE)  # until its key is read, also if this batch is done again
        if match is not None:
            change = parse_match(match)
        elif change.scope is Scope.TABLE:
            # Rows go whatever their write times: who writes one again with its own may write the very same bytes.
            cache.clear()
            self._met.clear()
        awaited: Awaited | None = None
        if identity is not None:
            cache.report(identity, entry, node)
            awaited = _awaited(change)
            if change.expires_at is not None:
                cache.note_expiry()
            if change.effect & _DELETES or change.scope is Scope.TABLE:
                self._note_deletion(cache, change, key)
        went = self._go_on(event, change, key, identity, awaited, entry, admitted, codec)
        if went is not None and copied is not None:
            self._met[copied] = entry, went

    @staticmethod
    def _note_deletion(cache: ChangeCache, change: Change, key: bytes) -> None:
        """Remember what deletes: a row that shows older cells later on is not what it will be. Of what writes too it is
        not known which columns it deletes, and a truncation takes rows whatever their times: these may explain.
        """
        effect, time = change.effect, change.write_time
        if time is None:
            return
        if change.scope is Scope.TABLE:
            cache.delete(MAY + change.scope, key, Deletion(time, ALL_COLUMNS))
        elif effect & _DELETES:
            columns = 0 if effect & _GONE else effect & ALL_COLUMNS
            kind = _WHOLE if change.scope is Scope.ROW and not columns else change.scope
            cache.delete(kind + (MAY if effect & _LIVE else 0), key, Deletion(time, columns or ALL_COLUMNS))

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
            # What was never read has to be published first: a higher level may not be had for long.
            consistency = self.consistency if pending.unread else level(self.consistency, nodes, self._replication())
            work = Work(pending.topic, pending.partition, key, values, scope, consistency, bounds=pending.bounds)
            admitted.works[name] = work
        work.scope = max(work.scope, scope)
        work.pending = pending
        work.awaited = {**awaited, **work.awaited}

    def unproven(self, work: Work) -> dict[bytes, Awaited]:
        """The Changes of a key for which its read proves no image. Notes `by_age`, `contradicted`, `rest`."""
        work.by_age, work.contradicted, work.rest = set(), 0, 0.0
        if work.read_at is None:
            return work.awaited
        if work.scope is Scope.TABLE:
            return {}  # each node tells its own truncation: after the last one's, no replica holds the rows
        found: dict[bytes, Awaited] = {}
        factor, image = self._replication(), work.image
        is_all = work.consistency == ConsistencyLevel.ALL
        least = -1 if is_all else factor - block_for(work.consistency, factor)
        cache = self._cache(work.topic, work.partition)
        deleted = cache.has_deletions
        may_show = image is not None and not deleted and not work.is_marked
        row: Row | None = None
        deletions: list[Deletion] = []
        handed = work.pending.handed if work.pending else 0.0
        rest = math.inf
        for change, awaited in work.awaited.items():
            met = self._nodes(work, work.values, change) > least
            effect = awaited.effect
            if may_show and (not effect or effect & _LIVE) and image.shows(awaited.write_time, effect):  # type: ignore[union-attr]
                if met:
                    continue  # the ordinary case, by its bytes
                said = Witness.SHOWN
            else:
                if row is None:
                    row = _row(image)
                    deletions = self._deletions(cache, work) if deleted else []
                said = self._witness(work, awaited, row, deletions, cache)
            waited = awaited.waited(handed)
            if met and is_proven(said, waited, self._min_age):
                if said in (Witness.SILENT, Witness.AGAINST):
                    work.by_age.add(change)
                    work.contradicted += said is Witness.AGAINST
                continue
            found[change] = awaited
            rest = min(rest, self._min_age - waited if met and said is Witness.SILENT else 0.0)
        if work.pending and rest < math.inf:
            work.rest = max(0.0, rest)
        return found

    def _witness(
        self, work: Work, awaited: Awaited, row: Row, deletions: Sequence[Deletion], cache: ChangeCache
    ) -> Witness:
        now = time.time()
        # What is not of the whole scope is of a partition's static columns.
        of_statics = work.scope is Scope.PARTITION and awaited.effect and not awaited.effect & _GONE
        if work.is_marked and self._has_rows and not of_statics:
            return _of_scope(work, awaited, row)
        if row.exists and any(deletion.undone_by(row) for deletion in deletions):
            return Witness.AGAINST  # cells that are there will go
        said = witness(awaited, row, deletions, now)
        if said is Witness.AGAINST and self._is_unsure(work, awaited, deletions, cache, now):
            return witness(awaited, row, deletions, now, unsure=True)
        return said

    def _is_unsure(
        self, work: Work, awaited: Awaited, deletions: Sequence[Deletion], cache: ChangeCache, now: float
    ) -> bool:
        """Whether something that was written since may have taken away what a Change wrote: a range that held it,
        nulls among other values, deletions of its columns one by one, a truncation, a cell that has expired.
        """
        if awaited.write_time is None:
            return False
        found = [*deletions, self._of_partition(cache, Scope.RANGE, work), cache.deletion(MAY + Scope.TABLE, b"")]
        kinds = (Scope.ROW, Scope.STATIC, Scope.PARTITION, _WHOLE)
        found += [cache.deletion(MAY + kind, work.key) for kind in kinds]
        if any(one is not None and one.time >= awaited.write_time for one in found):
            return True
        return any(other.may_hide(awaited, now) for other in work.awaited.values() if other is not awaited)

    def _deletions(self, cache: ChangeCache, work: Work) -> list[Deletion]:
        """The newest deletions that were reported of a row's columns, of it, and of its whole partition."""
        kinds: tuple[int, ...] = (work.scope,)
        if not self._has_rows:
            kinds = (Scope.ROW, _WHOLE, Scope.PARTITION)
        elif work.scope is Scope.ROW:
            kinds = (Scope.ROW, _WHOLE)
        elif work.scope is Scope.PARTITION:
            kinds = (Scope.STATIC, Scope.PARTITION)
        found = [cache.deletion(kind, work.key) for kind in kinds]
        if not work.is_marked:
            found.append(self._of_partition(cache, Scope.PARTITION, work))
        return [one for one in found if one is not None]

    def _of_partition(self, cache: ChangeCache, scope: Scope, work: Work) -> Deletion | None:
        """The newest deletion of this scope that was reported of a row's partition."""
        if not self._has_rows or not cache.deletes(scope):
            return None
        n = self._codec.partition_columns
        return cache.deletion(scope, self._codec.encode([*work.values[:n], *[None] * (len(work.values) - n)]))

    @property
    def has_expiring(self) -> bool:
        """Whether cells with a TTL were written in any of the partitions of this process, as far as is known."""
        return any(cache.has_expiring for cache in self._caches.values())

    @property
    def _has_rows(self) -> bool:
        """Whether a partition has rows, more than one of them."""
        return self._codec.partition_columns < self._codec.columns

    def mark(self, work: Work) -> None:
        """Note in the cache that a key's Changes are published, or settled: only after the flush is acknowledged."""
        cache = self._cache(work.topic, work.partition)
        for change in work.awaited:
            settled = SETTLED | BY_AGE if change in work.by_age else SETTLED
            cache.mark(change, PUBLISHED if change in work.unproven else PUBLISHED | settled)

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
            groups = cache.nodes(entry)
            if any(len(nodes) > 1 for nodes in groups):
                # Of nodes that share a bit, one of another data centre may be the one that reported.
                everywhere = self._replicas.holders(routing_key(key) if key else None)
                groups = [nodes for nodes in groups if nodes & everywhere <= replicas]
            reported = sum(not nodes.isdisjoint(replicas) for nodes in groups)
            count = self._counts[name] = max(int(self._replicas.alone()), reported)
        return count

    def _cache(self, topic: str, partition: int) -> ChangeCache:
        cache = self._caches.get((topic, partition))
        if cache is None:
            path = self._directory / f"{topic}-{partition}.cache"
            expire_s = self._settings.cache_expire_after_ms / 1000
            cache = self._caches[topic, partition] = ChangeCache(path, self._settings.cache_max_capacity, expire_s)
        return cache


def _awaited(change: Change) -> Awaited:
    """What a Change waits with; numbers that no agent writes are none."""
    effect, expired = change.effect, change.all_expired_at
    if not 0 <= effect < 1 << 32:
        effect = 0
    if expired is not None and not 0 < expired < 1 << 32:
        expired = None
    return Awaited(change.write_time, math.nan, effect, expired)


def _row(image: Image | None) -> Row:
    """A row as its proof has it."""
    if image is None:
        return Row(False)
    times = [None if time is None else int.from_bytes(time, "big", signed=True) for time in image.times]
    return Row(True, times, image.timed) if len(times) == len(image.timed.bits) else Row(True)


def _of_scope(work: Work, awaited: Awaited, row: Row) -> Witness:
    """What the rows that live in a marker's scope, and a partition's static `row`, say of a Change."""
    written, effect = awaited.write_time, awaited.effect
    if written is None or not effect:
        return Witness.SILENT
    statics = row.times if work.scope is Scope.PARTITION else ()  # a range has none
    oldest = min((time for time in (work.oldest, *statics) if time is not None), default=None)
    if oldest is not None and oldest <= written:
        return Witness.AGAINST
    # Of a range no bounds are remembered: rows of before it that come late are found by a second look.
    return Witness.SILENT if work.timeless or work.scope is Scope.RANGE else Witness.ABSENT


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
    key, value = without_frames(event.key, event.value or b"")
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
    ends = codec.same_microsecond(values)
    if ends is None:
        return change, key
    start, end = (Bound(True, values) for values in ends)
    whole = codec.encode([*values[: codec.partition_columns], *[None] * (len(values) - codec.partition_columns)])
    return change._replace(scope=Scope.RANGE, start=start, end=end), whole


def asks_for(work: Work) -> Scope:
    """What the event of a work asks for by itself: others of its key may ask for more."""
    value = work.event.value if work.event and work.event.value else b""
    match = match_own_format(value)
    return _scope(parse_match(match) if match else decode(without_frames(None, value)[1]), work.values)


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
