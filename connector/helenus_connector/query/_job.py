"""A batch's Spark job: its planner says what each task reads, and the driver runs the tasks.

Spark asks a source for the partitions of a batch, and calls the batch's function afterwards. A source's partitions are
read by Python processes of their own, whose rows the JVM hands to those of the stage. All that costs a batch of a few
events half of its time. So the planner leaves the tasks in a file, Spark sees no partitions, and the tasks are a
job over what the file has, with one Python process each.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from helenus_connector.config.run_directory import replace
from helenus_connector.query._limits import Parts
from helenus_schemas.errors import HelenusError, Kind, error_in

T = TypeVar("T")


def offer(file: Path, parts: Sequence[Parts]) -> None:
    """In the planner: what each task of the next batch reads."""
    replace(file, pickle.dumps(list(parts)))


def run(
    frame: Any, file: Path, function_for: Callable[[set[str]], Callable[[Iterator[Parts]], Iterator[T]]]
) -> list[T]:
    """In the driver: the results of a function over what was offered for a batch, as `mapPartitions` has it. What it is
    is asked with the topics that the batch reads. `frame` is what Spark gives the batch's function. Raises HelenusError
    if a task raised it, and what Spark raises.
    """
    try:
        parts = pickle.loads(file.read_bytes())
        file.unlink()  # it is of this batch alone
    except FileNotFoundError:
        what = "Spark began a batch without asking which events it has"
        raise HelenusError(Kind.BATCH_FAILED, what, str(file)) from None
    if not parts:
        return []
    try:
        topics = {place.topic for task in parts for part in task.parts for place in part.ranges}
        tasks = frame.sparkSession.sparkContext.parallelize(parts, len(parts))
        found: list[T] = tasks.mapPartitions(function_for(topics)).collect()
    except (PySparkException, Py4JError) as failure:
        raise error_in(str(failure)) or failure from None
    return found
