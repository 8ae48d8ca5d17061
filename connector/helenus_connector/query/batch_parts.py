"""What the tasks of a batch read, and the file by which the planner tells the driver."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from pyspark.serializers import CPickleSerializer
from pyspark.sql.datasource import InputPartition

from helenus_connector.config.run_directory import replace
from helenus_connector.log.events import OffsetRange
from helenus_schemas.errors import HelenusError

PICKLED = CPickleSerializer()
"""Rows of a file: four bytes of length, and the pickled object."""


@dataclass(frozen=True, slots=True)
class TopicRanges:
    """What a task reads of one connector's topic: ranges, all planned in `epoch`; `error` if they cannot be read.

    `events` is about how many events they have, `lost` how many are known to be gone before they were read. Up to the
    offsets in `read`, by partition, an earlier run has read them.
    """

    ranges: tuple[OffsetRange, ...]
    data_loss: str
    epoch: int
    error: HelenusError | None = None
    events: int = 0
    lost: int = 0
    read: Mapping[int, int] = field(default_factory=dict)


class TaskRanges(InputPartition):
    """What one task of Spark's reads, at most about so many bytes of it. `now` is the batch's time, `rules` are what
    an operator with state goes by in it.
    """

    def __init__(
        self,
        parts: Sequence[TopicRanges],
        most_bytes: int,
        now: float = 0.0,
        rules: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.parts = tuple(parts)
        self.most_bytes = most_bytes
        self.now = now
        self.rules = dict(rules)


def offer(file: Path, parts: Sequence[TaskRanges]) -> None:
    """Write what each task of the next batch reads. Called in the planner, or before a job."""
    rows = io.BytesIO()
    PICKLED.dump_stream(parts, rows)
    replace(file, rows.getvalue())


def note_planned(file: Path, end: Mapping[str, Any], parts: Sequence[TaskRanges]) -> None:
    """Write what a batch reads that ends at this offset. Called in the planner. On a full disk it is not noted."""
    with suppress(OSError):
        replace(file, pickle.dumps((end, parts)))


def read_planned(file: Path, end: Mapping[str, Any]) -> Sequence[TaskRanges] | None:
    """Return what a batch reads that ends at this offset: None if what was noted is not of it. No two batches that
    follow one another end at the same.
    """
    with suppress(FileNotFoundError):
        noted_end, parts = pickle.loads(file.read_bytes())
        if noted_end == end:
            return cast(Sequence[TaskRanges], parts)
    return None


def read_offered(file: Path) -> list[TaskRanges] | None:
    """Return what `offer` wrote, None if there is nothing. It is of one batch alone: who has done that removes it."""
    try:
        with file.open("rb") as rows:
            return list(PICKLED.load_stream(rows))
    except FileNotFoundError:
        return None
