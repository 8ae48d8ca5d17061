"""Compare each key's records with its row, in a task, one Cassandra partition after the other.

Only one partition's markers are in memory. The entries come in the order that `_entry` describes.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import Any

import pyarrow as pa

from helenus_connector.gate.event_content import decode_key
from helenus_connector.verify._entry import (
    ASKED,
    COUNTS,
    MARKER,
    NEVER,
    RECORD,
    ROW,
    STRAY,
    TRUNCATION,
    TYPES,
    VerifyEntry,
    entries,
)
from helenus_connector.verify._job import Task, VerifyJob, begin
from helenus_connector.verify.report import DOUBTFUL, EXPIRED, FOREIGN, GHOST, MISPLACED, MISSING, STALE, UNPUBLISHABLE
from helenus_connector.verify.scopes import Clustering, MarkerScopes
from helenus_schemas.codec.key import KeyCodec

FOUND = ("kind", "moved")
"""Columns of a difference: the key's kind, and whether a record of it came since the comparison before; followed by the
entry of its last record, whose partition is -1 if there is none. The kind of counts is empty."""
Row = tuple[Any, ...]
_BATCH = 5_000
_GRACE_S = 2
"""Tolerance of `expires`: it is rounded, and clocks differ."""


def compare(job: VerifyJob, is_again: bool = False) -> Task:
    """Return the task that compares a part of the shuffle; `is_again`: requested keys, in all versions that they
    had.
    """
    return partial(_compare, job, is_again)


def _compare(job: VerifyJob, is_again: bool, record_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    begin(job)
    remaining = Comparison(job, is_again).differences(entries(record_batches))
    while chunk := list(islice(remaining, _BATCH)):
        types = (pa.string(), pa.bool_(), *TYPES)
        columns = [pa.array(column, t) for column, t in zip(zip(*chunk, strict=True), types, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, names=[*FOUND, *VerifyEntry._fields])


@dataclass(slots=True)
class KeyEntries:
    """The entries of one key: its row, and its last record in each topic partition. `digests` are those of all its
    records, if it is compared again; then `requested_offset` is where its records were read to, and None if it was not
    requested.
    """

    requested_offset: bytes | None
    row: VerifyEntry | None = None
    last_records: dict[int, VerifyEntry] = field(default_factory=dict)
    digests: set[bytes | None] = field(default_factory=set)

    @classmethod
    def collect(cls, versions: Iterable[VerifyEntry], is_again: bool) -> KeyEntries:
        """Collect the entries of a key."""
        key = cls(None if is_again else NEVER)
        for entry in versions:
            if entry.side == RECORD:
                key.last_records.setdefault(entry.partition, entry)
                if is_again:
                    key.digests.add(entry.digest)
            elif entry.side == ROW:
                key.row = entry
            elif entry.side == ASKED:
                key.requested_offset = entry.at
        return key


class Comparison:
    """Compares the entries of one part."""

    def __init__(self, job: VerifyJob, is_again: bool) -> None:
        self._again = is_again
        self._codec = KeyCodec(job.table)
        self._n = len(job.table.partition_key)
        self._clustering = Clustering(job.table.clustering) if job.table.clustering else None
        self._truncated: dict[int, bytes] = {}
        self._now = int(time.time())
        self._counts = Counter[str]()
        self._scopes: dict[tuple[int, bytes], MarkerScopes] = {}

    def differences(self, entries_: Iterable[VerifyEntry]) -> Iterator[Row]:
        """Yield what differs, with its kind, and counts at the end."""
        for token, members in groupby(entries_, key=attrgetter("token")):
            if token is None:
                yield from self._read_shared(members)
            else:
                yield from self._compare_token(members)
        yield ("", False, *VerifyEntry(0, rank=COUNTS, note=pickle.dumps(dict(self._counts))))

    def _read_shared(self, members: Iterable[VerifyEntry]) -> Iterator[Row]:
        for rank, same in groupby(members, key=attrgetter("rank")):
            for name, records in groupby(same, key=attrgetter("name")):
                if rank == TRUNCATION:
                    for entry in records:
                        self._truncated[entry.partition] = max(entry.at, self._truncated.get(entry.partition, NEVER))
                elif rank == COUNTS:
                    for entry in records:
                        self._counts.update(pickle.loads(entry.note or b""))
                elif rank == STRAY and name is not None and not self._again:
                    yield from self._strays(records)

    def _strays(self, records: Iterable[VerifyEntry]) -> Iterator[Row]:
        for partition, versions in groupby(records, key=attrgetter("partition")):
            last = max(versions, key=attrgetter("at"))
            if last.digest is not None and last.at > self._truncated.get(partition, NEVER):
                yield (FOREIGN, False, *last)
                return

    def _compare_token(self, members: Iterable[VerifyEntry]) -> Iterator[Row]:
        self._scopes.clear()
        remaining = iter(members)
        for entry in remaining:
            if entry.rank != MARKER:
                for _, versions in groupby(chain([entry], remaining), key=_SAME):
                    yield from self._compare_key(versions)
                return
            self._add_marker(entry)

    def _add_marker(self, marker: VerifyEntry) -> None:
        if self._clustering is None:
            return
        topic_partition = marker.partition, self._partition(marker.name or b"")
        if topic_partition not in self._scopes:
            self._scopes[topic_partition] = MarkerScopes(self._clustering)
        self._scopes[topic_partition].add(marker.at, marker.note)

    def _partition(self, name: bytes) -> bytes:
        """Return what tells partitions of one token, which are rare, apart."""
        return repr(self._codec.decode(name)[: self._n]).encode()

    def _compare_key(self, versions: Iterable[VerifyEntry]) -> Iterator[Row]:
        """Compare a key's row with its last record; of a key that is compared again, with any that it had since."""
        key = KeyEntries.collect(versions, self._again)
        if key.requested_offset is None:
            return
        # 1. The last record, of all topic partitions.
        states = [self._state(entry) for entry in key.last_records.values()]
        record, unclear = max(states, key=lambda state: state[0].stamp) if states else (None, False)
        if not self._again:
            # Each partition is read by itself: which of its keys' records a reader meets last is not said.
            yield from ((MISPLACED, False, *state) for state, _ in _beside(record, states))
        # 2. How the row differs from it.
        row_digest = key.row.digest if key.row is not None else None
        is_equal = (record.digest if record is not None else None) == row_digest or (unclear and row_digest is None)
        if self._again and not is_equal:
            is_equal = row_digest in key.digests or (row_digest is None and any(s.digest is None for s, _ in states))
        kind = self._difference(record, key.row, is_equal)
        # 3. What is shown of it: the record, or the row if there is none.
        present = record or key.row
        if kind is not None and present is not None:
            shown = record if record is not None else present._replace(side=RECORD, partition=-1, at=NEVER, digest=None)
            yield (kind, self._again and shown.at > key.requested_offset, *shown)

    def _difference(self, record: VerifyEntry | None, row: VerifyEntry | None, is_equal: bool) -> str | None:
        """Return the kind of a key's difference, None if there is none. `is_equal` says that its record shows its
        row.
        """
        if row is not None and row.note is not None:
            return UNPUBLISHABLE
        if is_equal:
            return None
        if record is None or record.digest is None:
            return MISSING
        if record.expires is not None and record.expires <= self._now + _GRACE_S:
            return self._expired(record, row)
        return STALE if row is not None else GHOST

    def _expired(self, record: VerifyEntry, row: VerifyEntry | None) -> str:
        """Return the kind of a key whose record says that it expired: its row may have been written since."""
        if row is None:
            return EXPIRED
        if not self._again:
            return DOUBTFUL
        shown = record.stamp * 1000 if record.written is None else record.written
        return STALE if row.written is not None and row.written > shown else EXPIRED

    def _state(self, last: VerifyEntry) -> tuple[VerifyEntry, bool]:
        """Return the last record of a key in one topic partition, with the markers since applied; and whether a marker
        whose bounds can't be read may cover it.
        """
        gone = unclear = self._truncated.get(last.partition, NEVER)
        if self._scopes and not last.static:
            scopes = self._scopes.get((last.partition, self._partition(last.name or b"")))
            if scopes is not None:
                over, maybe = scopes.over(decode_key(self._codec, last.name or b"")[self._n :])
                gone, unclear = max(gone, over), max(unclear, maybe)
        if last.at < gone:
            return last._replace(digest=None), False
        return last, last.at < unclear


def _beside(
    record: VerifyEntry | None, states: Iterable[tuple[VerifyEntry, bool]]
) -> Iterator[tuple[VerifyEntry, bool]]:
    """Yield one of the records with a value that a key has in other partitions of the topic than its last record."""
    others = ((state, unclear) for state, unclear in states if state is not record and state.digest is not None)
    return islice(others, 1)


_SAME = attrgetter("name", "static")
