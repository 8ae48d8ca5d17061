"""Reads rows, and yields them as answers arrive: the rows of a batch are never in memory together, and while the stage
publishes some, others are being read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from helenus_connector.cassandra_rows.row_reader import KeyRefused, RowReader, UnreadReason
from helenus_connector.reread._key_read import KeyRead
from helenus_connector.reread._read_pass import ReadPass, ResolvedGroups
from helenus_connector.reread._row_proofs import prove_row_reads
from helenus_connector.reread._row_reads import index_by_key
from helenus_schemas.codec.key import Key


def read_rows(read_pass: ReadPass, key_reads: Sequence[KeyRead], consistency: int) -> ResolvedGroups:
    """Read the rows of keys at this level. Raises as `RowReader.read_row_lists`."""
    evidence, reader = read_pass.evidence, read_pass.reader
    reads_by_key, repeated_reads = index_by_key(key_reads)
    start, min_reporters = time.time(), evidence.min_reporters(consistency)
    verifies = key_reads[0].verifying is not None
    for answers in _answers(reader, reads_by_key, consistency):
        if isinstance(answers[0][1], (KeyRefused, UnreadReason)):
            for key, answer in answers:
                for key_read in (reads_by_key[key], *repeated_reads.get(key, ())):
                    yield from _take_unread(read_pass, key_read, answer, start)
            continue
        group = prove_row_reads(
            reads_by_key,
            answers,
            repeated_reads,
            start,
            min_reporters,
            evidence.count_replicas,
            evidence.has_deletions,
            evidence.may_show_shadowed,
            reader.shows_all_times,
            read_pass.prepare,
        )
        read_pass.outcome.keys_read += len(group)
        yield [key_read for key_read in group if read_pass.is_verified(key_read)] if verifies else group
        for key_read in group:
            key_read.after = None  # it is published: free the row's memory


def _answers(
    reader: RowReader, reads_by_key: Mapping[Key, KeyRead], consistency: int
) -> Iterator[list[tuple[Key, Any]]]:
    """Yield each key once, with its row, as `RowReader.read_row_lists`. Keys that changed come first: they do not wait
    for those of a snapshot, most of which are read in the order of the ring.
    """
    scanned: list[Key] = []
    if not reader.reads_singly:
        scanned = [key for key, key_read in reads_by_key.items() if key_read.is_scanned and not key_read.awaited]
    missing = dict.fromkeys(scanned)
    if len(missing) < len(reads_by_key):
        changed = [key for key in reads_by_key if key not in missing] if missing else reads_by_key
        yield from reader.read_row_lists(changed, consistency)
    for answers in reader.read_along_ring(scanned, consistency) if missing else ():
        for key, _ in answers:
            del missing[key]
        yield answers
    if missing:
        yield from reader.read_row_lists(missing, consistency)


def _take_unread(
    read_pass: ReadPass, key_read: KeyRead, answer: KeyRefused | UnreadReason, start: float
) -> ResolvedGroups:
    if isinstance(answer, UnreadReason):
        read_pass.unread_keys.note(key_read, answer)
        return
    key_read.read_at = start
    yield from read_pass.refuse(key_read, answer)
