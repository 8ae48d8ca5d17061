"""Whether a read confirms the changes of its key: what the row says of each, and what is known to be deleted since."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence

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
from helenus_connector.unconfirmed.unconfirmed_key import Place
from helenus_connector.unconfirmed.unproven_changes import UnprovenChange
from helenus_schemas.codec.key import KeyCodec
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
    effect, at = change.effect, change.write_time
    if not effect & _DELETES and change.expires_at is None and change.scope is not _TABLE:
        return  # the ordinary case
    cache = caches.cache_for(admitted.event.topic, admitted.event.partition)
    if change.expires_at is not None:
        cache.note_expiry()
    if at is None:
        return
    if change.scope is Scope.TABLE:
        cache.delete(MAY + change.scope, admitted.key, at, ALL_COLUMNS)
    elif effect & _DELETES:
        columns = 0 if effect & _GONE else effect & ALL_COLUMNS
        kind = _WHOLE if change.scope is Scope.ROW and not columns else change.scope
        cache.delete(kind + (MAY if effect & _LIVE else 0), admitted.key, at, columns or ALL_COLUMNS)


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
    def factor(self) -> int:
        """The replication factor, as it was when the batch began."""
        if self._factor is None:
            self._factor = self._replicas.factor()
        return self._factor

    def nodes_needed(self, consistency: int) -> int:
        """How many replicas have to report a change, so that each read of this level meets one of them; none where one
        is enough, and whichever node reports it is one.
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

    def has_deletions(self, place: Place) -> bool:
        """Whether any deletion was reported in an events partition, of whichever key."""
        return self._caches.cache_for(*place).has_deletions

    def is_undone(self, work: KeyRead) -> bool:
        """Whether a row that was read may show what a deletion takes away that was reported: of the row, of columns of
        it or of its partition. If not, it is as if there were none for the changes that the row shows.
        """
        deletions = self._deletions(self._caches.cache_for(work.topic, work.partition), work)
        if not deletions:
            return False
        row = _row(work.after)
        return not row.times or any(deletion.undone_by(row) for deletion in deletions)

    def proof(self, work: KeyRead) -> Proof:
        """What the read of a key proves of its changes."""
        if work.read_at is None:
            return Proof(work.awaited)
        if work.scope is _TABLE:
            return PROVEN  # each node reports its own truncation: after the last one's, no replica holds the rows
        image, nodes = work.after, self._gate.count_replicas
        least = self.nodes_needed(work.consistency)
        cache = self._caches.cache_for(work.topic, work.partition)
        deletions = self._deletions(cache, work) if cache.has_deletions else []
        may_show = image is not None and not deletions and not (work.is_marked and self._has_rows)
        others: list[tuple[bytes, UnprovenChange, bool, Witness | None]] = []
        for change, awaited in work.awaited.items():
            met = not least or nodes(work.topic, work.partition, work.values, change) >= least
            effect = awaited.effect
            if may_show and (not effect or effect & _LIVE) and image.shows_write(awaited.write_time, effect):  # type: ignore[union-attr]
                if not met:
                    others.append((change, awaited, False, Witness.SHOWN))
                # Else it is the ordinary case, by its bytes.
            else:
                others.append((change, awaited, met, None))
        return self._judged(work, others, cache, deletions) if others else PROVEN

    def unseen(self, work: KeyRead) -> set[bytes]:
        """The changes of a row that its read speaks against. Of more than a row it never does: what lives in the scope
        is read, and follows the marker.
        """
        if work.is_marked and self._has_rows:
            return set()
        cache = self._caches.cache_for(work.topic, work.partition)
        row, deletions = _row(work.after), self._deletions(cache, work) if cache.has_deletions else []
        return {
            change
            for change, awaited in work.awaited.items()
            if self._witness(work, awaited, row, deletions, cache) is Witness.AGAINST
        }

    def _judged(
        self,
        work: KeyRead,
        changes: Iterable[tuple[bytes, UnprovenChange, bool, Witness | None]],
        cache: ChangeCache,
        deletions: Sequence[ReportedDeletion],
    ) -> Proof:
        """The proof of changes, each with whether the read meets a replica that reported it, and what its row says of
        it if that is known.
        """
        row = _row(work.after)
        handed = work.unconfirmed.handed if work.unconfirmed else 0.0
        unproven: dict[bytes, UnprovenChange] = {}
        by_age: list[bytes] = []
        contradicted, rest = 0, math.inf
        for change, awaited, met, shown in changes:
            said = self._witness(work, awaited, row, deletions, cache) if shown is None else shown
            waited = awaited.waited(handed)
            if met and is_proven(said, waited, self._min_age):
                if said in (Witness.SILENT, Witness.AGAINST):
                    by_age.append(change)
                    contradicted += said is Witness.AGAINST
                continue
            unproven[change] = awaited
            rest = min(rest, self._min_age - waited if met and said is Witness.SILENT else 0.0)
        rest = max(0.0, rest) if work.unconfirmed and rest < math.inf else 0.0
        return Proof(unproven, tuple(by_age), contradicted, rest)

    def _witness(
        self,
        work: KeyRead,
        awaited: UnprovenChange,
        row: RowEvidence,
        deletions: Sequence[ReportedDeletion],
        cache: ChangeCache,
    ) -> Witness:
        now = time.time()
        # What is not of the whole scope is of a partition's static columns.
        of_statics = work.scope is Scope.PARTITION and awaited.effect and not awaited.effect & _GONE
        if work.is_marked and self._has_rows and not of_statics:
            return _of_scope(work, awaited, row)
        if row.exists and any(deletion.undone_by(row) for deletion in deletions):
            return Witness.AGAINST  # cells that are there will go
        said = judge_row(awaited, row, deletions, now)
        if said is Witness.AGAINST and self._is_unsure(work, awaited, deletions, cache, now):
            return judge_row(awaited, row, deletions, now, unsure=True)
        return said

    def _is_unsure(
        self,
        work: KeyRead,
        awaited: UnprovenChange,
        deletions: Sequence[ReportedDeletion],
        cache: ChangeCache,
        now: float,
    ) -> bool:
        """Whether something that was written since may have taken away what a change wrote: a range that held it,
        nulls among other values, deletions of its columns one by one, a truncation, a cell that has expired.
        """
        if awaited.write_time is None:
            return False
        found = [*deletions, self._of_partition(cache, Scope.RANGE, work), _known(cache, MAY + Scope.TABLE, b"")]
        kinds = (Scope.ROW, Scope.STATIC, Scope.PARTITION, _WHOLE)
        found += [_known(cache, MAY + kind, work.key) for kind in kinds]
        if any(one is not None and one.time >= awaited.write_time for one in found):
            return True
        return any(other.may_hide(awaited, now) for other in work.awaited.values() if other is not awaited)

    def _deletions(self, cache: ChangeCache, work: KeyRead) -> list[ReportedDeletion]:
        """The newest deletions that were reported of a row's columns, of it, and of its whole partition."""
        kinds: tuple[int, ...] = (work.scope,)
        if not self._has_rows:
            kinds = (Scope.ROW, _WHOLE, Scope.PARTITION)
        elif work.scope is Scope.ROW:
            kinds = (Scope.ROW, _WHOLE)
        elif work.scope is Scope.PARTITION:
            kinds = (Scope.STATIC, Scope.PARTITION)
        found = [_known(cache, kind, work.key) for kind in kinds]
        if not work.is_marked:
            found.append(self._of_partition(cache, Scope.PARTITION, work))
        return [one for one in found if one is not None]

    def _of_partition(self, cache: ChangeCache, scope: Scope, work: KeyRead) -> ReportedDeletion | None:
        """The newest deletion of this scope that was reported of a row's partition."""
        if not self._has_rows or not cache.deletes(scope):
            return None
        n = self._codec.partition_columns
        return _known(cache, scope, self._codec.encode([*work.values[:n], *[None] * (len(work.values) - n)]))


def _known(cache: ChangeCache, kind: int, key: bytes) -> ReportedDeletion | None:
    found = cache.deletion(kind, key)
    return None if found is None else ReportedDeletion(*found)


def _row(image: Image | None) -> RowEvidence:
    """A row as its proof has it."""
    if image is None:
        return RowEvidence(False)
    times = [None if time is None else int.from_bytes(time, "big", signed=True) for time in image.times]
    return RowEvidence(True, times, image.timed) if len(times) == len(image.timed.bits) else RowEvidence(True)


def _of_scope(work: KeyRead, awaited: UnprovenChange, row: RowEvidence) -> Witness:
    """What the rows that live in a marker's scope, and a partition's static `row`, say of a change."""
    written, effect = awaited.write_time, awaited.effect
    if written is None or not effect:
        return Witness.SILENT
    statics = row.times if work.scope is Scope.PARTITION else ()  # a range has none
    oldest = min((time for time in (work.oldest, *statics) if time is not None), default=None)
    if oldest is not None and oldest <= written:
        return Witness.AGAINST
    # Of a range no bounds are remembered: rows of before it that come late are found by a second look.
    return Witness.SILENT if work.timeless or work.scope is Scope.RANGE else Witness.ABSENT
