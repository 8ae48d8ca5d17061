"""Define what goes through Spark's shuffle: one small entry for each record, row and delete marker.

All of a Cassandra partition meets in one task: `part` follows from its token. There the entries come in the order of
`VerifyEntry`'s fields: what concerns many partitions, then each partition's markers, then its keys, each with its
records, the newest first, and then its row.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa

TRUNCATION, COUNTS, STRAY, MARKER, KEY = range(5)
"""Ranks of entries. A STRAY is a record whose key the table can't have."""
ASKED, RECORD, ROW = range(3)
"""Sides of a key's entries. ASKED: the key is looked at again; others of the same topic are not."""
NEVER = b""
"""`at` of a record that does not exist: before all others."""
_BATCH = 5_000


class VerifyEntry(NamedTuple):
    """`token` is None for what is of no partition. `name` is the event's key, of a STRAY the record's; a `static` one
    is of the partition's static columns. `at` is the offset in a topic's `partition`, see `place`; `stamp` in ms.

    `digest` is None where there is no value. `expires` in s since the epoch. `written`: the newest write time in µs, of
    a record that expires, and of a row that is looked at again, if it is known. `note`: of a marker its bounds, of a
    record the header `left_out`, of a row without digest why it has none; of COUNTS a pickled dict.
    """

    part: int
    token: int | None = None
    rank: int = KEY
    name: bytes | None = None
    static: bool = False
    side: int = RECORD
    partition: int = -1
    at: bytes = NEVER
    stamp: int = 0
    digest: bytes | None = None
    expires: int | None = None
    note: bytes | None = None
    written: int | None = None


SCHEMA = (
    "part int, token bigint, rank tinyint, name binary, static boolean, side tinyint, partition int, at binary, "
    "stamp bigint, digest binary, expires bigint, note binary, written bigint"
)
ORDER = ("token", "rank", "name", "static", "side", "partition")
"""Order in which a task gets the entries; last by `at`, descending."""
TYPES = (
    *(pa.int32(), pa.int64(), pa.int8(), pa.binary(), pa.bool_(), pa.int8(), pa.int32()),
    *(pa.binary(), pa.int64(), pa.binary(), pa.int64(), pa.binary(), pa.int64()),
)


def offset_bytes(offset: int) -> bytes:
    """Return an offset as bytes that compare as it does: Pulsar's have more than 64 bits."""
    return offset.to_bytes(16, "big")


def counts(**numbers: int) -> VerifyEntry:
    """Return the entry of what a task counted."""
    return VerifyEntry(0, rank=COUNTS, note=pickle.dumps(numbers))


def batches(entries: Iterable[tuple[Any, ...]]) -> Iterator[pa.RecordBatch]:
    """Convert entries to Spark's record batches."""
    remaining = iter(entries)
    while chunk := list(islice(remaining, _BATCH)):
        columns = [pa.array(column, t) for column, t in zip(zip(*chunk, strict=True), TYPES, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, names=VerifyEntry._fields)


def entries(record_batches: Iterable[pa.RecordBatch]) -> Iterator[VerifyEntry]:
    """Convert Spark's record batches to entries."""
    for batch in record_batches:
        yield from map(VerifyEntry._make, zip(*(column.to_pylist() for column in batch.columns), strict=True))
