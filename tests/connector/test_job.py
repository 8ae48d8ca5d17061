"""What the planner offers for a batch, and the driver runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
import structlog
from py4j.java_gateway import JavaPackage
from pyspark.serializers import CPickleSerializer

from helenus_connector.query import _spark_job as job
from helenus_connector.query import internals
from helenus_connector.query.batch_parts import TaskRanges, TopicRanges
from helenus_schemas.errors import HelenusError, Kind


class Slices:
    """A Spark that runs each task here, one after the other."""

    error: Exception | None = None
    take_parts: Callable[[], Sequence[TaskRanges]] | None = None

    def collect(
        self, file: Path, parts: Sequence[TaskRanges], function: Callable[[Iterator[TaskRanges]], Iterator[Any]]
    ) -> Any:
        if self.error is not None:
            raise self.error
        with file.open("rb") as rows:
            task_parts = list(CPickleSerializer().load_stream(rows))
        assert len(task_parts) == len(parts)
        return [result for part in task_parts for result in function(iter([part]))]


SLICES = cast(job.SparkJobs, Slices())


def sizes(tasks_offered: Iterator[TaskRanges]) -> Iterator[int]:
    for parts in tasks_offered:
        yield parts.most_bytes


def test_each_task_has_what_was_offered_for_it(tmp_path: Path) -> None:
    for sizes_offered in ([7, 8], [], [9]):
        job.offer(tmp_path / "parts", [TaskRanges([TopicRanges((), "fail", 0)], size) for size in sizes_offered])
        assert job.run(SLICES, tmp_path / "parts", lambda _: sizes) == sizes_offered


def test_no_batch_runs_what_was_offered_for_another(tmp_path: Path) -> None:
    job.offer(tmp_path / "parts", [TaskRanges([], 7)])
    assert job.run(SLICES, tmp_path / "parts", lambda _: sizes) == [7]
    with pytest.raises(HelenusError, match="without asking") as error:
        job.run(SLICES, tmp_path / "parts", lambda _: sizes)
    assert error.value.kind is Kind.BATCH_FAILED


def test_what_a_thread_planned_is_in_a_file_for_its_job_alone(tmp_path: Path) -> None:
    """A batch without a job has none. `PlanningThread` gives nothing twice."""
    planned, file = [[TaskRanges([], 7), TaskRanges([], 8)], [TaskRanges([], 9)]], tmp_path / "parts"
    context, read = MagicMock(_encryption_enabled=False), list[int]()

    def run_in_java(offered: str, tasks: int, _: bytearray, results: str) -> None:
        with Path(offered).open("rb") as file_rows:
            rows = list(CPickleSerializer().load_stream(file_rows))
        assert len(rows) == tasks
        read.extend(row.most_bytes for row in rows)
        with Path(results).open("wb") as out:
            CPickleSerializer().dump_stream([0] * tasks, out)

    context._jvm.helenus.Job.return_value.run.side_effect = run_in_java
    context._temp_dir = str(tmp_path)
    jobs = job.SparkJobs(context, lambda: planned.pop(0))
    assert job.run(jobs, file, lambda _: sizes) == [0, 0]
    assert read == [7, 8]
    assert job.run(jobs, file, lambda _: sizes, lambda parts, _: [len(parts)]) == [1]
    assert read == [7, 8]
    assert not file.exists()


def test_an_error_of_a_task_is_ours_again(tmp_path: Path) -> None:
    job.offer(tmp_path / "parts", [TaskRanges([], 7)])
    failed = HelenusError(Kind.CASSANDRA_READ, "no host is there", "ks.t")
    spark = Slices()
    spark.error = job.PySparkException(f"helenus_schemas.errors.HelenusError: {failed}\n\tat java.Some")
    with pytest.raises(HelenusError, match="no host is there"):
        job.run(cast(job.SparkJobs, spark), tmp_path / "parts", lambda _: sizes)
    assert not (tmp_path / "parts").exists()


def test_with_encrypted_spark_files_jobs_go_through_spark_alone(tmp_path: Path) -> None:
    context = MagicMock(_encryption_enabled=True)
    context.parallelize.return_value.mapPartitions.return_value.collect.return_value = [7]
    job.offer(tmp_path / "parts", [TaskRanges([], 7)])
    assert job.run(job.SparkJobs(context), tmp_path / "parts", lambda _: sizes) == [7]
    assert not context._jvm.helenus.Job.return_value.run.called


@pytest.mark.parametrize("reason", ["setting", "class", "member"])
def test_without_our_class_or_internals_jobs_go_by_the_public_api(tmp_path: Path, reason: str) -> None:
    context = MagicMock(_encryption_enabled=False)
    context.getConf.return_value = {internals.SETTING: "false" if reason == "setting" else "true"}
    if reason == "class":  # what Java has no class for
        context._jvm.helenus.Job = JavaPackage("helenus.Job", None)
    elif reason == "member":
        del context._javaAccumulator
    context.parallelize.return_value.mapPartitions.return_value.collect.return_value = [7]
    job.offer(tmp_path / "parts", [TaskRanges([], 7)])
    assert job.run(job.SparkJobs(context), tmp_path / "parts", lambda _: sizes) == [7]
    assert internals.own_classes(context) is None
    with structlog.testing.capture_logs() as logs:
        internals.warn_of_public_api(context, None)
    assert [entry["event"] for entry in logs] == ["spark.public_api", "spark.not_authenticated"], "no port to guard"
