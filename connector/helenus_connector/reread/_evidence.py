"""Whether a read confirms the changes of its key: what the row says of each, and what is known to be deleted since."""

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
    ReportedDeletion,
    RowEvidence,
    Witness,
    is_proven,
    judge_row,
    required_replicas,
)
from helenus_connector.unconfirmed.unconfirmed_key import TopicPartition
from helenus_connector.unconfirmed.unproven_changes import UnprovenChange
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.event.change import Effect, Scope

_LIVE, _GONE, _DELETES = int(Effect.LIVE), int(Effect.GONE), int(Effect.GONE | Effect.DELETES)
_TABLE = Scope.TABLE  # an enum's members are slow to look up
_WHOLE = 5  # the kind of a row's deletion, apart from those of columns of it


def note_deletion(caches: Caches, admitted: AdmittedChange) -> None:
    """Remember what expires and what is deleted: a row that shows older cells later on is not what it will be.

    Of a change that writes too it is not known which columns it deletes, and a truncation takes rows whatever their
    times: these may explain what is missing.
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
        kind = _WHOLE if change.scope is Scope.ROW and not columns else change.scope
        cache.delete(kind + (MAY if effect & _LIVE else 0), admitted.key, write_time, columns or ALL_COLUMNS)


class Evidence:
    """Confirms the reads of one batch, of one version of a table; `min_age_s` is `settle.min.age.ms` in s."""

    def __init__(self, gate: Gate, replicas: Replicas, caches: Caches, codec: KeyCodec, min_age_s: float) -> None:
        self._gate = gate
        self._replicas = replicas
        self._caches = caches
        self._codec = codec
        self._min_age = min_age_s
        self._factor: int | None = None
        self._least: dict[int, int] = {}
        self._has_rows = codec.partition_columns < codec.columns

    @property
    def count_replicas(self) -> Callable[[str, int, Key, bytes], int]:
        """Return the gate's function of that name."""
        return self._gate.count_replicas

    @property
    def factor(self) -> int:
        """Return the replication factor, as it was when the batch began."""
        if self._factor is None:
            self._factor = self._replicas.factor()
        return self._factor

    def nodes_needed(self, consistency: int) -> int:
        """Return how many replicas have to report a change, so that each read of this level meets one of them; 0 where
        one is enough, and whichever node reports it is one.
        """
        least = self._least.get(consistency)
        if least is None:
            least = (
                0
                if consistency == ConsistencyLevel.ALL
                else self.factor - required_replicas(consistency, self.factor) + 1
            )
            if consistency == ConsistencyLevel.QUORUM and not self._replicas.counts_everywhere:
                least = self.factor + 1  # it may meet few of the replicas that are counted
            self._least[consistency] = 0 if least == 1 and self._replicas.are_all_read() else least
        return self._least[consistency]

    def has_deletions(self, topic_partition: TopicPartition) -> bool:
        """Return whether any deletion was reported in an events partition, of whichever key."""
        return self._caches.cache_for(*topic_partition).has_deletions

    def is_undone(self, key_read: KeyRead) -> bool:
        """Return whether a row that was read may show what a reported deletion takes away: of the row, of columns of it
        or of its partition. If not, it is as if there were none for the changes that the row shows.
        """
        deletions = self._deletions(self._caches.cache_for(key_read.topic, key_read.partition), key_read)
        if not deletions:
            return False
        row = _row(key_read.after)
        return not row.times or any(deletion.undone_by(row) for deletion in deletions)

    def proof(self, key_read: KeyRead) -> Proof:
        """Return what the read of a key proves of its changes."""
        if key_read.read_at is None:
            return Proof(key_read.awaited)
        if key_read.scope is _TABLE:
            return PROVEN  # each node reports its own truncation: after the last one's, no replica holds the rows
        image, nodes = key_read.after, self._gate.count_replicas
        least = self.nodes_needed(key_read.consistency)
        cache = self._caches.cache_for(key_read.topic, key_read.partition)
        deletions = self._deletions(cache, key_read) if cache.has_deletions else []
        may_show = image is not None and not deletions and not (key_read.is_marked and self._has_rows)
        others: list[tuple[bytes, UnprovenChange, bool, Witness | None]] = []
        for change, awaited in key_read.awaited.items():
            met = not least or nodes(key_read.topic, key_read.partition, key_read.values, change) >= least
            effect = awaited.effect
            if may_show and (not effect or effect & _LIVE) and image.shows_write(awaited.write_time, effect):  # type: ignore[union-attr]
                if not met:
                    others.append((change, awaited, False, Witness.SHOWN))
                # Else it is the ordinary case, by its bytes.
            else:
                others.append((change, awaited, met, None))
        return self._judged(key_read, others, cache, deletions) if others else PROVEN

    def unseen(self, key_read: KeyRead) -> set[bytes]:
        """Return the changes of a row that its read speaks against. Of more than a row it never does: what lives in the
        scope is read, and follows the marker.
        """
        if key_read.is_marked and self._has_rows:
            return set()
        cache = self._caches.cache_for(key_read.topic, key_read.partition)
        row, deletions = _row(key_read.after), self._deletions(cache, key_read) if cache.has_deletions else []
        return {
            change
            for change, awaited in key_read.awaited.items()
            if self._witness(key_read, awaited, row, deletions, cache) is Witness.AGAINST
        }

    def _judged(
        self,
        key_read: KeyRead,
        changes: Iterable[tuple[bytes, UnprovenChange, bool, Witness | None]],
        cache: ChangeCache,
        deletions: Sequence[ReportedDeletion],
    ) -> Proof:
        """Return the proof of changes, each with whether the read meets a replica that reported it, and what its row
        says of it if that is known.
        """
        row = _row(key_read.after)
        handed = key_read.unconfirmed.handed if key_read.unconfirmed else 0.0
        unproven: dict[bytes, UnprovenChange] = {}
        by_age: list[bytes] = []
        contradicted, pause_s = 0, math.inf
        for change, awaited, met, shown in changes:
            verdict = self._witness(key_read, awaited, row, deletions, cache) if shown is None else shown
            waited = awaited.waited(handed)
            if met and is_proven(verdict, waited, self._min_age):
                if verdict in (Witness.SILENT, Witness.AGAINST):
                    by_age.append(change)
                    contradicted += verdict is Witness.AGAINST
                continue
            unproven[change] = awaited
            pause_s = min(pause_s, self._min_age - waited if met and verdict is Witness.SILENT else 0.0)
        pause_s = max(0.0, pause_s) if key_read.unconfirmed and pause_s < math.inf else 0.0
        return Proof(unproven, tuple(by_age), contradicted, pause_s)

    def _witness(
        self,
        key_read: KeyRead,
        awaited: UnprovenChange,
        row: RowEvidence,
        deletions: Sequence[ReportedDeletion],
        cache: ChangeCache,
    ) -> Witness:
        now = time.time()
        # What is not of the whole scope is of a partition's static columns.
        of_statics = key_read.scope is Scope.PARTITION and awaited.effect and not awaited.effect & _GONE
        if key_read.is_marked and self._has_rows and not of_statics:
            return _judge_scope(key_read, awaited, row)
        if row.exists and any(deletion.undone_by(row) for deletion in deletions):
            return Witness.AGAINST  # cells that are there will go
        verdict = judge_row(awaited, row, deletions, now)
        if verdict is Witness.AGAINST and self._is_unsure(key_read, awaited, deletions, cache, now):
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
        """Return whether something written since may have taken away what a change wrote: a range that held it,
        nulls among other values, deletions of its columns one by one, a truncation, a cell that has expired.
        """
        if awaited.write_time is None:
            return False
        known_deletions = [
            *deletions,
            self._find_partition_deletion(cache, Scope.RANGE, key_read),
            _find_deletion(cache, MAY + Scope.TABLE, b""),
        ]
        kinds = (Scope.ROW, Scope.STATIC, Scope.PARTITION, _WHOLE)
        known_deletions += [_find_deletion(cache, MAY + kind, key_read.key) for kind in kinds]
        if any(deletion is not None and deletion.time >= awaited.write_time for deletion in known_deletions):
            return True
        return any(other.may_hide(awaited, now) for other in key_read.awaited.values() if other is not awaited)

    def _deletions(self, cache: ChangeCache, key_read: KeyRead) -> list[ReportedDeletion]:
        """Return the newest deletions that were reported of a row's columns, of it, and of its whole partition."""
        kinds: tuple[int, ...] = (key_read.scope,)
        if not self._has_rows:
            kinds = (Scope.ROW, _WHOLE, Scope.PARTITION)
        elif key_read.scope is Scope.ROW:
            kinds = (Scope.ROW, _WHOLE)
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
    """Return a row as its proof needs it."""
    if image is None:
        return RowEvidence(False)
    times = [None if time is None else int.from_bytes(time, "big", signed=True) for time in image.times]
    return RowEvidence(True, times, image.timed) if len(times) == len(image.timed.bits) else RowEvidence(True)


def _judge_scope(key_read: KeyRead, awaited: UnprovenChange, row: RowEvidence) -> Witness:
    """Judge a change by the rows that live in a marker's scope, and a partition's static `row`."""
    written, effect = awaited.write_time, awaited.effect
    if written is None or not effect:
        return Witness.SILENT
    statics = row.times if key_read.scope is Scope.PARTITION else ()  # a range has none
    oldest = min((time for time in (key_read.oldest, *statics) if time is not None), default=None)
    if oldest is not None and oldest <= written:
        return Witness.AGAINST
    # Of a range no bounds are remembered: rows of before it that come late are found by a second look.
    return Witness.SILENT if key_read.timeless or key_read.scope is Scope.RANGE else Witness.ABSENT
