"""A thread of the driver that plans a query's batches, for the source in Java (`EventsSource.java`).

A source in Python has Spark start four Python processes for each query, one after the other: three that say what the
source is, and one that plans. Here Java asks, and this thread answers, as `handover` fetches batches: Python calls Java
for the next question. Where our classes of Java are not to be had, the source is the one in Python (`source`).
"""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadMaxRows

from helenus_connector.query._batch_planner import BatchPlanner
from helenus_connector.query.batch_parts import TaskRanges
from helenus_connector.query.internals import own_classes
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import descriptors

FORMAT = "helenus.EventsSource"
"""The class of Java, as a format of `spark.readStream`."""
INITIAL: dict[str, Any] = {"tick": 0, "topics": {}}
"""A query's first offset, without topics: each joins with a batch, whose end says where it began."""
_RETRY_S = 1.0
"""After which a call of Java is tried again for which no file could be opened: others close theirs within seconds."""
_GRACE_S = 2.0
"""For the answer to the last question, when the run has ended: a look for events takes up to 1.6 s."""


class PlanningThread:
    """Plans the batches of one run of a query, of a saved plan, until `close`."""

    def __init__(self, classes: Any, plan_file: Path, fetch_limit_ms: int) -> None:
        self._planner = BatchPlanner(str(plan_file))
        self._java = classes.BatchPlanning(fetch_limit_ms)
        self.name = str(self._java.name())
        self._parts: Sequence[TaskRanges] | None = None
        self._planned: tuple[dict[str, Any], ...] = ()
        """Where the batch starts and ends whose parts were planned last."""
        self._thread = threading.Thread(target=self._answer_questions, name="planning", daemon=True)
        self._thread.start()

    @classmethod
    def for_session(cls, context: Any, plan_file: Path) -> PlanningThread | None:
        """Return one for a session's query, None where our classes of Java can't be used."""
        classes = own_classes(context)
        if classes is None:
            return None
        return cls(classes, plan_file, int(context._jsc.sc().conf().getTimeAsMs("spark.network.timeout", "120s")))

    def take_parts(self) -> Sequence[TaskRanges]:
        """Return what the tasks of the batch read that was planned last. Called once for each, in its thread. Raises
        HelenusError.
        """
        parts, self._parts = self._parts, None
        if parts is None:
            raise HelenusError(Kind.BATCH_FAILED, "Spark began a batch without asking which events it has", self.name)
        return parts

    def close(self) -> None:
        """Plan no more. What is asked at the moment is answered first, but for seconds at most."""
        self._planner.is_retired = True
        with suppress(Exception):  # Java may have ended
            self._java.close("the run of the query has ended")
        self._thread.join(_GRACE_S)

    def _answer_questions(self) -> None:
        answer: str | None = None
        error: str | None = None
        while True:
            try:
                question = self._java.next(answer, error)
            except Exception as failure:
                # A thread's first call of Java opens a connection.
                if descriptors.are_exhausted(failure):
                    time.sleep(_RETRY_S)
                    continue
                with suppress(Exception):  # as a rule Java has ended, and whoever asks with it
                    self._java.close(f"Python can't plan batches any more: {type(failure).__name__}: {failure}")
                question = None
            if question is None:
                self._planner.stop()
                return
            answer = error = None
            try:
                answer = json.dumps(self._answer(*json.loads(question)))
            except BaseException:
                error = traceback.format_exc()

    def _answer(self, kind: str, *offsets: dict[str, Any]) -> dict[str, Any] | None:
        planner = self._planner
        if kind == "initial":
            return INITIAL
        if kind == "latest":
            return planner.latest_offset(offsets[0], ReadMaxRows(planner.plan.max_batch_size))
        if kind == "parts":
            if offsets != self._planned:  # Spark asks twice for each batch, before it begins
                self._parts = planner.partitions(offsets[0], offsets[1])
                self._planned = offsets
        else:
            planner.commit(offsets[0])
        return None
