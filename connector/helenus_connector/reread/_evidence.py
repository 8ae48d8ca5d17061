"""Judges which changes of its key a read proves: by who reported them, what the row shows, and reported deletions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence

from cassandra import ConsistencyLevel

from helenus_connector.gate.cache import MAY, Caches, ChangeCache
from helenus_connector.gate.replicas import Replicas
from helenus_connector.interfaces.admitted_change import AdmittedChange
from helenus_connector.interfaces.gate import Gate
from helenus_connector.interfaces.image import Image
from helenus_connector.reread._key_read import PROVEN, KeyRead, Proof
from helenus_connector.reread._proof import (
    ALL_COLUMNS,
    ANY_REPORTER,
    NEVER_ENOUGH,
    ReportedDeletion,
    RowEvidence,
    Verdict,
    is_proven,
    judge_row,
    required_replicas,
)
from helenus_connector.unconfirmed.unconfirmed_key import TopicPartition
from helenus_connector.unconfirmed.unproven_changes import UnprovenChange
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.event.change import Change, Effect, Scope

_COUNTER = int(Effect.COUNTER)
_LIVE, _GONE, _DELETES = int(Effect.LIVE), int(Effect.GONE), int(Effect.GONE | Effect.DELETES)
_TABLE = Scope.TABLE  # an enum's members are slow to look up
_ROW_DELETION = 5
"""The kind of a whole row's deletion in `ChangeCache`; other kinds are scopes, 0 to 4, of which Scope.ROW has the
deletions of some columns of a row."""


def note_deletion(caches: Caches, admitted: AdmittedChange) -> None:
    """Note in the cache that a change deletes, or writes what expires: a row that is read later, and has cells which
    the deletion shadows, is out of date.

    Of a change that both writes and deletes, it is not known which columns it deletes, and a truncation deletes rows
    whatever their write times: these are noted as deletions that MAY explain why something is missing.
    """
    change = admitted.change
    effect, write_time = change.effect, change.write_time
    if not effect & _DELETES and change.expires_at is None and change.scope is not _TABLE:
        return  # the ordinary case
    cache = caches.cache_for(admitted.event.topic, admitted.event.partition)
    if change.expires_at is not None:
        cache.note_expiry()
    if write_time is None:
        return
    if change.scope is Scope.TABLE:
        cache.delete(MAY + change.scope, admitted.key, write_time, ALL_COLUMNS)
    elif effect & _DELETES:
        columns = 0 if effect & _GONE else effect & ALL_COLUMNS
        kind = _ROW_DELETION if change.scope is Scope.ROW and not columns else change.scope
        cache.delete(kind + (MAY if effect & _LIVE else 0), admitted.key, write_time, columns or ALL_COLUMNS)


def is_unprovable(change: Change) -> bool:
    """Return whether no row shows a change: then it is believed when it is old enough."""
    return (
        change.foreign
        or change.scope in (Scope.RANGE, Scope.TABLE)
        or not change.effect
        or bool(change.effect & _COUNTER)
    )


class Evidence:
    """Judges the reads of one batch, of one version of a table; `min_age_s` is `settle.min.age.ms` in s."""

    def __init__(self, gate: Gate, replicas: Replicas, caches: Caches, codec: KeyCodec, min_age_s: float) -> None:
        self._gate = gate
        self._replicas = replicas
        self._caches = caches
        self._codec = codec
        self._min_age = min_age_s
        self._factor: int | None = None
        self._min_reporters: dict[int, int] = {}  # by consistency level
        self._has_rows = codec.partition_columns < codec.columns

    @property
    def count_replicas(self) -> Callable[[str, int, Key, bytes], int]:
        """Return `Gate.count_replicas`: how many replicas of a key reported a change."""
        return self._gate.count_replicas

    @property
    def factor(self) -> int:
        """Return the replication factor, as it was when the batch began."""
        if self._factor is None:
            self._factor = self._replicas.factor()
        return self._factor

    def min_reporters(self, consistency: int) -> int:
        """Return how many replicas have to report a change, so that each read at this level meets one of them. May be
        ANY_REPORTER or NEVER_ENOUGH.
        """
        min_reporters = self._min_reporters.get(consistency)
        if min_reporters is None:
            min_reporters = self._min_reporters[consistency] = self._compute_min_reporters(consistency)
        return min_reporters

    def _compute_min_reporters(self, consistency: int) -> int:
        if consistency == ConsistencyLevel.ALL:
            return ANY_REPORTER  # the read meets every replica
        if consistency == ConsistencyLevel.QUORUM and not self._replicas.counts_everywhere:
            return NEVER_ENOUGH  # replicas are counted in one data centre, and the quorum may be of others
        min_reporters = self.factor - required_replicas(consistency, self.factor) + 1
        # If each node is one that is read, there is always one reporter: the node whose event it is.
        return ANY_REPORTER if min_reporters == 1 and self._replicas.are_all_read() else min_reporters

    def has_deletions(self, topic_partition: TopicPartition) -> bool:
        """Return whether any deletion was reported in an events partition, of whichever key."""
        return self._caches.cache_for(*topic_partition).has_deletions

    def may_show_shadowed(self, key_read: KeyRead) -> bool:
        """Return whether a row that was read may have cells that a reported deletion shadows: a deletion of the row, of
        some of its columns, or of its partition. If not, deletions do not matter to the changes that the row shows.
        """
        deletions = self._deletions(self._caches.cache_for(key_read.topic, key_read.partition), key_read)
        if not deletions:
            return False
        row = _row(key_read.after)
        return not row.times or any(deletion.shadows_cells_of(row) for deletion in deletions)

    def prove(self, key_read: KeyRead) -> Proof:
        """Return which of its changes the read of a key proves."""
        if key_read.read_at is None:
            return Proof(key_read.awaited)
        if key_read.scope is _TABLE:
            return PROVEN  # each node reports its own truncation: after the last one, no replica has the old rows
        image, count_replicas = key_read.after, self._gate.count_replicas
        min_reporters = self.min_reporters(key_read.consistency)
        cache = self._caches.cache_for(key_read.topic, key_read.partition)
        deletions = self._deletions(cache, key_read) if cache.has_deletions else []
        may_show = image is not None and not deletions and not (key_read.is_marked and self._has_rows)
        # What is not proven at first sight: change id, change, whether the read meets a reporter, verdict if known.
        others: list[tuple[bytes, UnprovenChange, bool, Verdict | None]] = []
        for change, awaited in key_read.awaited.items():
            meets_reporter = (
                min_reporters == ANY_REPORTER
                or count_replicas(key_read.topic, key_read.partition, key_read.values, change) >= min_reporters
            )
            effect = awaited.effect
            if may_show and (not effect or effect & _LIVE) and image.shows_write(awaited.write_time, effect):  # type: ignore[union-attr]
                if not meets_reporter:
                    others.append((change, awaited, False, Verdict.SHOWN))
                # Else it is proven: the ordinary case, decided without decoding the row's times.
            else:
                others.append((change, awaited, meets_reporter, None))
        return self._prove_others(key_read, others, cache, deletions) if others else PROVEN

    def find_unseen(self, key_read: KeyRead) -> set[bytes]:
        """Return the changes of a row that its read contradicts. It never contradicts a marker: the live rows of the
        scope are read too, and follow it.
        """
        if key_read.is_marked and self._has_rows:
            return set()
        cache = self._caches.cache_for(key_read.topic, key_read.partition)
        row, deletions = _row(key_read.after), self._deletions(cache, key_read) if cache.has_deletions else []
        return {
            change
            for change, awaited in key_read.awaited.items()
            if self._judge(key_read, awaited, row, deletions, cache) is Verdict.AGAINST
        }

    def _prove_others(
        self,
        key_read: KeyRead,
        changes: Iterable[tuple[bytes, UnprovenChange, bool, Verdict | None]],
        cache: ChangeCache,
        deletions: Sequence[ReportedDeletion],
    ) -> Proof:
        """Return the proof of changes, each with whether the read meets a replica that reported it, and with what the
        row says of it if that is known already.
        """
        row = _row(key_read.after)
        handed = key_read.unconfirmed.handed if key_read.unconfirmed else 0.0
        unproven: dict[bytes, UnprovenChange] = {}
        by_age: list[bytes] = []
        contradicted, pause_s = 0, math.inf
        for change, awaited, meets_reporter, known_verdict in changes:
            verdict = known_verdict
            if verdict is None:
                verdict = self._judge(key_read, awaited, row, deletions, cache)
            waited = awaited.waited(handed)
            if meets_reporter and is_proven(verdict, waited, self._min_age):
                if verdict in (Verdict.SILENT, Verdict.AGAINST):
                    by_age.append(change)
                    contradicted += verdict is Verdict.AGAINST
                continue
            unproven[change] = awaited
            # A SILENT change is proven once it is old enough; any other by a report or a row that may come at once.
            needs_only_age = meets_reporter and verdict is Verdict.SILENT
            pause_s = min(pause_s, self._min_age - waited if needs_only_age else 0.0)
        pause_s = max(0.0, pause_s) if key_read.unconfirmed and pause_s < math.inf else 0.0
        return Proof(unproven, tuple(by_age), contradicted, pause_s)

    def _judge(
        self,
        key_read: KeyRead,
        awaited: UnprovenChange,
        row: RowEvidence,
        deletions: Sequence[ReportedDeletion],
        cache: ChangeCache,
    ) -> Verdict:
        now = time.time()
        # Of a partition, a change that does not delete all of it is of the static columns.
        is_of_statics = key_read.scope is Scope.PARTITION and awaited.effect and not awaited.effect & _GONE
        if key_read.is_marked and self._has_rows and not is_of_statics:
            return _judge_scope(key_read, awaited, row)
        if row.exists and any(deletion.shadows_cells_of(row) for deletion in deletions):
            return Verdict.AGAINST  # the row is out of date: it will lose these cells
        verdict = judge_row(awaited, row, deletions, now)
        if verdict is Verdict.AGAINST and self._is_unsure(key_read, awaited, deletions, cache, now):
            return judge_row(awaited, row, deletions, now, unsure=True)
        return verdict

    def _is_unsure(
        self,
        key_read: KeyRead,
        awaited: UnprovenChange,
        deletions: Sequence[ReportedDeletion],
        cache: ChangeCache,
        now: float,
    ) -> bool:
        """Return whether something written later may have deleted what a change wrote: a range delete, deletions of
        single columns, a change that also wrote (nulls among other values), a truncation, or a cell that has expired
        since.
        """
        if awaited.write_time is None:
            return False
        known_deletions = [
            *deletions,
            self._find_partition_deletion(cache, Scope.RANGE, key_read),
            _find_deletion(cache, MAY + Scope.TABLE, b""),
        ]
        kinds = (Scope.ROW, Scope.STATIC, Scope.PARTITION, _ROW_DELETION)
        known_deletions += [_find_deletion(cache, MAY + kind, key_read.key) for kind in kinds]
        if any(deletion is not None and deletion.time >= awaited.write_time for deletion in known_deletions):
            return True
        return any(other.may_hide(awaited, now) for other in key_read.awaited.values() if other is not awaited)

    def _deletions(self, cache: ChangeCache, key_read: KeyRead) -> list[ReportedDeletion]:
        """Return the newest reported deletions of some columns of a row, of all of it, and of its partition."""
        kinds: tuple[int, ...] = (key_read.scope,)
        if not self._has_rows:
            kinds = (Scope.ROW, _ROW_DELETION, Scope.PARTITION)
        elif key_read.scope is Scope.ROW:
            kinds = (Scope.ROW, _ROW_DELETION)
        elif key_read.scope is Scope.PARTITION:
            kinds = (Scope.STATIC, Scope.PARTITION)
        known_deletions = [_find_deletion(cache, kind, key_read.key) for kind in kinds]
        if not key_read.is_marked:
            known_deletions.append(self._find_partition_deletion(cache, Scope.PARTITION, key_read))
        return [deletion for deletion in known_deletions if deletion is not None]

    def _find_partition_deletion(self, cache: ChangeCache, scope: Scope, key_read: KeyRead) -> ReportedDeletion | None:
        """Return the newest deletion of this scope that was reported of a row's partition."""
        if not self._has_rows or not cache.deletes(scope):
            return None
        n = self._codec.partition_columns
        partition_key = self._codec.encode([*key_read.values[:n], *[None] * (len(key_read.values) - n)])
        return _find_deletion(cache, scope, partition_key)


def _find_deletion(cache: ChangeCache, kind: int, key: bytes) -> ReportedDeletion | None:
    deletion = cache.deletion(kind, key)
    return None if deletion is None else ReportedDeletion(*deletion)


def _row(image: Image | None) -> RowEvidence:
    """Return a row with decoded write times; without any if they do not match the columns that have one."""
    if image is None:
        return RowEvidence(False)
    times = [None if time is None else int.from_bytes(time, "big", signed=True) for time in image.times]
    return RowEvidence(True, times, image.timed) if len(times) == len(image.timed.bits) else RowEvidence(True)


def _judge_scope(key_read: KeyRead, awaited: UnprovenChange, row: RowEvidence) -> Verdict:
    """Judge a marker's change by the live rows in its scope; `row` has the partition's static columns."""
    written, effect = awaited.write_time, awaited.effect
    if written is None or not effect:
        return Verdict.SILENT
    statics = row.times if key_read.scope is Scope.PARTITION else ()  # a range has none
    oldest = min((time for time in (key_read.oldest, *statics) if time is not None), default=None)
    if oldest is not None and oldest <= written:
        return Verdict.AGAINST
    # The cache has no bounds of range deletes: old rows in the range that appear later are found by a second read.
    return Verdict.SILENT if key_read.has_untimed_rows or key_read.scope is Scope.RANGE else Verdict.ABSENT
