"""What the planner offers for a batch, and the driver runs: with a Spark that keeps the slices as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from helenus_connector.query import _job as job
from helenus_connector.query._limits import Part, Parts
from helenus_schemas.errors import HelenusError, Kind


class Context:
    """Of Spark, what a job needs."""

    def __init__(self) -> None:
        self.sparkSession = self.sparkContext = self

    def parallelize(self, parts: Sequence[Parts], slices: int) -> Context:
        assert len(parts) == slices
        self._parts = parts
        return self

    def mapPartitions(self, function: Callable[[Iterator[Parts]], Iterator[Any]]) -> Context:  # noqa: N802
        self._function = function
        return self

    def collect(self) -> list[Any]:
        return [found for part in self._parts for found in self._function(iter([part]))]


def sizes(given: Iterator[Parts]) -> Iterator[int]:
    for parts in given:
        yield parts.most_bytes


def test_each_task_has_what_was_offered_for_it(tmp_path: Path) -> None:
    for most in ([7, 8], [], [9]):
        job.offer(tmp_path / "parts", [Parts([Part((), "fail", 0)], size) for size in most])
        assert job.run(Context(), tmp_path / "parts", lambda _: sizes) == most


def test_no_batch_runs_what_was_offered_for_another(tmp_path: Path) -> None:
    job.offer(tmp_path / "parts", [Parts([], 7)])
    assert job.run(Context(), tmp_path / "parts", lambda _: sizes) == [7]
    with pytest.raises(HelenusError, match="without asking") as error:
        job.run(Context(), tmp_path / "parts", lambda _: sizes)
    assert error.value.kind is Kind.BATCH_FAILED


def test_an_error_of_a_task_is_ours_again(tmp_path: Path) -> None:
    job.offer(tmp_path / "parts", [Parts([], 7)])
    context = Context()

    def fails() -> list[Any]:
        failed = HelenusError(Kind.CASSANDRA_READ, "no host is there", "ks.t")
        raise job.PySparkException(f"helenus_schemas.errors.HelenusError: {failed}\n\tat java.Some")

    context.collect = fails  # type: ignore[method-assign]
    with pytest.raises(HelenusError, match="no host is there"):
        job.run(context, tmp_path / "parts", lambda _: sizes)
