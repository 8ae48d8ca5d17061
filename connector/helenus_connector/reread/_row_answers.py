"""Reads rows, and yields them as answers come: a batch's images are never held together, and reads go on meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from helenus_connector.cassandra_rows.row_reader import KeyRefused, RowReader, UnreadReason
from helenus_connector.reread._attempt import ReadAttempt, ResolvedGroups
from helenus_connector.reread._key_read import KeyRead
from helenus_connector.reread._row_proofs import prove_row_reads
from helenus_connector.reread._row_reads import index_by_key
from helenus_schemas.codec.key import Key


def read_rows(attempt: ReadAttempt, key_reads: Sequence[KeyRead], consistency: int) -> ResolvedGroups:
    """Read the rows of keys at this level. Raises as `RowReader.answers`."""
    evidence, reader = attempt.evidence, attempt.reader
    reads_by_key, more = index_by_key(key_reads)
    start, least = time.time(), evidence.nodes_needed(consistency)
    verifies = key_reads[0].verifying is not None
    for answers in _answers(reader, reads_by_key, consistency):
        if isinstance(answers[0][1], (KeyRefused, UnreadReason)):
            for key, answer in answers:
                for key_read in (reads_by_key[key], *more.get(key, ())):
                    yield from _take_unread(attempt, key_read, answer, start)
            continue
        group = prove_row_reads(
            reads_by_key,
            answers,
            more,
            start,
            least,
            evidence.count_replicas,
            evidence.has_deletions,
            evidence.is_undone,
            reader.shows_all_times,
            attempt.prepare,
        )
        attempt.outcome.keys_read += len(group)
        yield [key_read for key_read in group if attempt.is_verified(key_read)] if verifies else group
        for key_read in group:
            key_read.after = None


def _answers(
    reader: RowReader, reads_by_key: Mapping[Key, KeyRead], consistency: int
) -> Iterator[list[tuple[Key, Any]]]:
    """Yield each key once, with its row, as `RowReader.answers`. What changed comes first: it does not wait for what a
    snapshot scanned, most of which is read in the order of the ring.
    """
    scanned: list[Key] = []
    if not reader.is_single:
        scanned = [key for key, key_read in reads_by_key.items() if key_read.is_scanned and not key_read.awaited]
    missing = dict.fromkeys(scanned)
    if len(missing) < len(reads_by_key):
        changed = [key for key in reads_by_key if key not in missing] if missing else reads_by_key
        yield from reader.answers(changed, consistency)
    for answers in reader.read_along_ring(scanned, consistency) if missing else ():
        for key, _ in answers:
            del missing[key]
        yield answers
    if missing:
        yield from reader.answers(missing, consistency)


def _take_unread(
    attempt: ReadAttempt, key_read: KeyRead, answer: KeyRefused | UnreadReason, start: float
) -> ResolvedGroups:
    if isinstance(answer, UnreadReason):
        attempt.unread.note(key_read, answer)
        return
    key_read.read_at = start
    yield from attempt.refuse(key_read, answer)
