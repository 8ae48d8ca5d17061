"""Describe a verification for its tasks. The job travels in their closures: settings hold secrets."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
from cassandra.metadata import Murmur3Token

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.gate.replicas import routing_key
from helenus_connector.query import worker_process
from helenus_connector.query.garbage import freeze
from helenus_connector.verify._entry import VerifyEntry, batches
from helenus_schemas.codec.key import Key
from helenus_schemas.cql.table import Table
from helenus_schemas.service.logs import Setup, follow

Tokens = tuple[int, int]
"""First and last token of a range."""
Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function for `mapInArrow`."""
_SLICES = 1000


@dataclass(frozen=True)
class VerifyJob:
    """`settings` are of one table, `table` is as its records show it. `topic` has so many `partitions`, the shuffle so
    many `parts`. `tokens` are looked at, in order; None for all. `directory` is the run's.
    """

    worker: WorkerSettings
    settings: ConnectorSettings
    table: Table
    topic: str
    partitions: int
    parts: int
    tokens: tuple[Tokens, ...] | None
    keeps_schemas: bool
    logging: Setup
    directory: Path | None = None

    def has(self, token: int) -> bool:
        """Return whether a token is verified."""
        if self.tokens is None:
            return True
        index = bisect_right(self.tokens, (token, token)) - 1
        if index + 1 < len(self.tokens) and self.tokens[index + 1][0] == token:
            return True
        return index >= 0 and self.tokens[index][0] <= token <= self.tokens[index][1]

    def part(self, token: int) -> int:
        """Return the part of the shuffle in which a partition's entries meet."""
        return token % self.parts

    def part_of_name(self, name: bytes) -> int:
        """Return the part of the shuffle for a key without token."""
        return crc32(name) % self.parts


def begin(job: VerifyJob) -> None:
    """Prepare the Python worker of a task."""
    worker_process.end_with_parent()
    follow(job.logging)
    freeze("verify")


def token_of(partition_key: Key) -> int:
    """Return the token of a partition key."""
    return int(Murmur3Token.hash_fn(routing_key(partition_key)))


def cut(ranges: Sequence[Tokens], count: int) -> list[Tokens]:
    """Divide ranges of tokens into about `count` of about equal width; each into one at least."""
    total = sum(last - first + 1 for first, last in ranges)
    slices: list[Tokens] = []
    for first, last in ranges:
        width = last - first + 1
        slice_count = max(1, min(width, count * width // total))
        ends = [first + width * i // slice_count for i in range(slice_count + 1)]
        slices += [(start, end - 1) for start, end in pairwise(ends)]
    return slices


def sampled(ranges: Sequence[Tokens], share: float) -> list[Tokens]:
    """Return random slices of ranges, in order."""
    slices = cut(ranges, _SLICES)
    return sorted(random.sample(slices, max(1, round(len(slices) * share))))


def shared_out(items: Sequence[Any], tasks: int) -> list[list[Any]]:
    """Divide items among tasks; none is without."""
    return [list(items[i::tasks]) for i in range(min(tasks, len(items)))]


def numbered(job: VerifyJob, make: Callable[[int], Iterable[VerifyEntry]]) -> Task:
    """Return the task that makes the entries of the numbers that it gets."""
    return partial(_run, job, make)


def _run(
    job: VerifyJob, make: Callable[[int], Iterable[VerifyEntry]], record_batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    begin(job)
    for batch in record_batches:
        for number in batch.column(0).to_pylist():
            yield from batches(make(number))
