"""Functions that Spark gets. It pickles one that is nested with copies of its module's variables: what a task then
keeps there, or looks for, is not what the process has.
"""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.plan import QueryPlan
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.query import _worker_task, worker_process
from helenus_connector.snapshot import _scan
from helenus_connector.state.keys import _read_request
from helenus_connector.state.rows import _publish_task, rebuild
from helenus_connector.verify import _reduce, _repair, _rows, _topic

NO: Any = None


@pytest.mark.parametrize(
    "function",
    [
        _worker_task.topic_task(NO, {}),
        _scan.task(NO),
        _read_request.request_reads(NO),
        _publish_task.publish(NO, NO),
        rebuild._publish(NO, NO, NO, 0.0),
        _rows.scan(NO, []),
        _rows.look_again(NO),
        _reduce.compare(NO),
        _repair.repair(NO),
        _topic.read_topic(NO, []),
    ],
)
def test_they_are_pickled_by_their_name(function: partial[Any]) -> None:
    assert pickle.loads(pickle.dumps(function)).func is function.func


class Events:
    """A Log of events that is only flushed."""

    flushed = 0

    def flush(self, timeout: float) -> None:
        self.flushed += 1


class Stage:
    """A stage whose batch has nothing to publish."""

    def begin(self, table: object) -> None: ...
    def check(self, columns: object) -> None: ...
    def confirm(self) -> None: ...

    def end(self) -> BatchOutcome:
        return BatchOutcome()


def test_requested_rows_are_flushed_before_the_batch_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = WorkerSettings.from_properties({"bootstrap.servers": "h:1", "checkpoint.dir": str(tmp_path)}, "worker")
    settings = ConnectorSettings.from_properties(
        {"name": "n", "keyspace": "ks", "table": "t", "output.format": "json"}, "test"
    )
    plan = QueryPlan(worker, {settings.events: settings}, str(tmp_path))
    plan.checkpoint.mkdir(parents=True)
    events = Events()
    monkeypatch.setattr(worker_process, "_reused", {})
    monkeypatch.setattr(worker_process, "events_log", lambda _: events)
    assert worker_process.events_log_for(worker) is events  # type: ignore[comparison-overlap]
    monkeypatch.setattr(_publish_task, "stage_of", lambda *_: Stage())
    monkeypatch.setattr(_publish_task.CurrentTable, "__call__", lambda _: None)
    monkeypatch.setattr(worker_process, "end_with_parent", lambda: None)
    function = pickle.loads(cloudpickle.dumps(_publish_task.publish(plan, settings)))
    row = pa.RecordBatch.from_pylist([{"notes": None, "merged": None, "ended": None}])
    (batch,) = function(iter([row]))
    assert pickle.loads(batch.column(0)[0].as_py()).outcome == BatchOutcome()
    assert events.flushed == 1
