"""A batch's Spark job: its planner says what each task reads, and the driver runs the tasks.

Spark asks a source for the partitions of a batch, and calls the batch's function afterwards. Python processes of their
own read a source's partitions, and the JVM hands the rows to those of the stage. That takes half of the time of a batch
of a few events. So the planner writes the tasks to a file and reports no partitions to Spark, and the tasks are a job
over the file's rows, with one Python process each.

PySpark's own means for that (`foreachBatch`, `parallelize`, `mapPartitions`, `collect`) make forty calls of Java a
batch. Here it is one, to `Job.java`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.serializers import CloudPickleSerializer

from helenus_connector.query.batch_parts import PICKLED, TaskRanges, offer, read_offered
from helenus_connector.query.internals import own_classes
from helenus_schemas.errors import HelenusError, Kind, error_in

T = TypeVar("T")
Function = Callable[[Iterator[TaskRanges]], Iterator[T]]
_LARGE = 1 << 20
"""Bytes of a pickled function from which on PySpark hands it to Java by a file."""


class SparkJobs:
    """Runs jobs in a Spark context, in the pool and the job group of the thread that asks. `take_parts` returns what
    the tasks of a batch read, where they are not in a file.
    """

    def __init__(self, context: Any, take_parts: Callable[[], Sequence[TaskRanges]] | None = None) -> None:
        self._context = context
        self.take_parts = take_parts
        self._java: Any = None
        classes = own_classes(context)
        if classes is not None:
            python = context.environment, context._python_includes, context.pythonExec, context.pythonVer
            self._java = classes.Job(context._jsc, *python, context._javaAccumulator)

    def collect(self, file: Path, parts: Sequence[TaskRanges], function: Function[T]) -> list[T]:
        """Return what a function yields for each of the parts: each is a task, and a row of the file. Works as
        `mapPartitions(function).collect()`, and raises the same. By `Job.java` the results come by a file in
        `spark.local.dir`: on a full disk this fails after the tasks did their work.
        """
        # Where Spark's files are encrypted (`spark.io.encryption.enabled`), that of our results would not be.
        if self._java is None or self._context._encryption_enabled:
            return self._collect_publicly(parts, function)
        command = CloudPickleSerializer().dumps((partial(_run_partition, function), None, PICKLED, PICKLED))
        if len(command) > _LARGE:  # PySpark makes a broadcast of it
            return self._collect_publicly(parts, function)
        if self.take_parts is not None:
            offer(file, parts)
        with tempfile.NamedTemporaryFile(dir=self._context._temp_dir) as results:
            self._java.run(str(file), len(parts), bytearray(command), results.name)
            return list(PICKLED.load_stream(results))

    def _collect_publicly(self, parts: Sequence[TaskRanges], function: Function[T]) -> list[T]:
        return list(self._context.parallelize(parts, len(parts)).mapPartitions(function).collect())


def _run_partition(function: Function[T], _: int, parts: Iterator[TaskRanges]) -> Iterator[T]:
    return function(parts)


def run(
    jobs: SparkJobs,
    file: Path,
    function_for: Callable[[set[str]], Function[T]],
    run_small: Callable[[Sequence[TaskRanges], Function[T]], list[T] | None] = lambda *_: None,
) -> list[T]:
    """Run a batch's tasks, and return what their function yields. Called in the driver. `function_for` gets the topics
    that the batch reads. What `run_small` returns for its parts and that function, unless it is None, is instead of a
    job. Raises HelenusError if a task raised it, and what Spark raises.
    """
    parts = read_offered(file) if jobs.take_parts is None else jobs.take_parts()
    if parts is None:
        problem = "Spark began a batch without asking which events it has"
        raise HelenusError(Kind.BATCH_FAILED, problem, str(file))
    try:
        if not parts:
            return []
        topics = {
            offset_range.topic for task in parts for topic_ranges in task.parts for offset_range in topic_ranges.ranges
        }
        function = function_for(topics)
        results = run_small(parts, function)
        return jobs.collect(file, parts, function) if results is None else results
    except (PySparkException, Py4JError) as failure:
        raise error_in(str(failure)) or failure from None
    finally:
        file.unlink(missing_ok=True)  # it is of this batch alone
