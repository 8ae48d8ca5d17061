"""A streaming query that ends, and is started again: no Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JNetworkError
from structlog.testing import capture_logs

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.connectors import Connectors
from helenus_connector.control.fences import enter
from helenus_connector.query import events_query, query_runner
from helenus_connector.query.events_query import EventsQuery
from helenus_connector.query.query_runner import QueryRunner, failure_cause
from helenus_schemas.errors import Action, HelenusError, Kind


class Waits:
    """Instead of a clock: which pauses there were, until there were so many."""

    def __init__(self, max_events: int) -> None:
        self.taken: list[float] = []
        self._most = max_events

    def is_set(self) -> bool:
        return len(self.taken) == self._most

    def wait(self, seconds: float) -> bool:
        self.taken.append(seconds)
        return False


def test_a_failing_query_is_restarted_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when Spark's own disk is full: each pause is longer than the one before, to half a minute."""
    worker = WorkerSettings.from_properties({"bootstrap.servers": "h:1", "checkpoint.dir": str(tmp_path)}, "worker")
    query = EventsQuery(worker, Connectors(worker, lambda _: {}), "default", tmp_path, lambda *_: None)
    query._stopping = waits = Waits(1_100)  # type: ignore[assignment]

    def begin(*_: object) -> Any:
        return SimpleNamespace(isActive=False, exception=lambda: "java.io.IOException: No space left on device")

    monkeypatch.setattr(query, "_begin", begin)
    context = SimpleNamespace(setLocalProperty=lambda *_: None)
    with capture_logs():
        query._run(SimpleNamespace(sparkContext=context))
    assert query.failure is None
    assert waits.taken[:7] == [1, 2, 4, 8, 16, 30, 30]
    assert set(waits.taken[7:]) == {30}
    assert "No space left" in str(query.trouble())


def test_a_failure_in_spark_is_shown_by_its_cause() -> None:
    """Py4J puts it after its own words, which say nothing."""
    failure = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Exception thrown when the batch was done\n"
        "py4j.protocol.Py4JJavaError: An error occurred while calling o137.collectToPython.\n"
        ": org.apache.spark.SparkException: Job aborted: Python worker exited unexpectedly (crashed)\n"
        "\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)\n"
        "Caused by: java.io.EOFException\n"
    )
    query = SimpleNamespace(exception=lambda: failure)
    assert "Python worker exited" in failure_cause(query, None, Path("c")).what


def test_a_plan_names_all_tables_of_the_group(tmp_path: Path) -> None:
    """What one that is paused, or failed, has on a host is kept."""
    worker = WorkerSettings.from_properties({"bootstrap.servers": "h:1", "checkpoint.dir": str(tmp_path)}, "worker")
    connectors = Connectors(worker, lambda _: {})
    for name, more in (("a", {}), ("b", {}), ("c", {"query.group": "other"})):
        connectors.put(name, {"keyspace": "ks", "table": name, "output.format": "json", **more})
    connectors.set_wanted("b", "PAUSED")
    connectors.all()["a"].tasks["a"].ready = True
    connectors.held_positions("default").move("events-ks.b", {"0": 1})
    plan, _ = EventsQuery(worker, connectors, "default", tmp_path, lambda *_: None).refresh()
    assert plan.tables == {"events-ks.a": 0, "events-ks.b": 1}
    assert list(plan.connectors) == ["events-ks.a"]


def test_half_written_files_of_a_killed_run_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark would refuse the checkpoint for ever: STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY."""
    worker = WorkerSettings.from_properties({"bootstrap.servers": "h:1", "checkpoint.dir": str(tmp_path)}, "worker")
    query = EventsQuery(worker, Connectors(worker, lambda _: {}), "default", tmp_path, lambda *_: None)
    for name in ("offsets/.0.5e0e.tmp", "commits/.0.5e0e.tmp", "offsets/0", "commits/mine", "held"):
        (tmp_path / "default" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "default" / name).touch()
    stream = MagicMock()
    session = MagicMock(readStream=stream)
    monkeypatch.setattr(events_query, "SparkJobs", MagicMock())
    monkeypatch.setattr(events_query.PlanningThread, "for_session", lambda *_: None)
    monkeypatch.setattr(query_runner, "start_query", MagicMock())
    query._begin(SimpleNamespace(newSession=lambda: session, sparkContext=None), MagicMock())
    assert stream.mock_calls
    remaining_files = sorted(str(path.relative_to(tmp_path / "default")) for path in (tmp_path / "default").rglob("*"))
    assert remaining_files == ["commits", "commits/mine", "held", "offsets", "offsets/0"]


def test_files_in_a_checkpoint_that_are_not_sparks_are_named() -> None:
    failure = (
        "[STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY] The checkpoint location file:/c/offsets should be empty on batch 0"
    )
    query = SimpleNamespace(exception=lambda: failure)
    error = failure_cause(query, None, Path("/c"))
    assert (error.kind, error.where) == (Kind.STATE, "/c")
    assert "move them away" in error.what


@pytest.mark.parametrize("answers", [True, False])
def test_a_query_that_cannot_start_is_tried_again_unless_spark_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """As on a full disk, which Spark meets at the start too; a Java process that was killed ends the worker."""
    worker = WorkerSettings.from_properties({"bootstrap.servers": "h:1", "checkpoint.dir": str(tmp_path)}, "worker")
    query = EventsQuery(worker, Connectors(worker, lambda _: {}), "default", tmp_path, lambda *_: None)
    query._stopping = waits = Waits(3)  # type: ignore[assignment]

    def begin(*_: object) -> Any:
        raise RuntimeError("An error occurred while calling o56.start.\n: java.io.IOException: No space left on device")

    monkeypatch.setattr(query, "_begin", begin)

    class Context:
        def setLocalProperty(self, *_: str) -> None:  # noqa: N802
            """Nothing."""

        @property
        def defaultParallelism(self) -> int:  # noqa: N802
            if not answers:
                raise Py4JNetworkError("Answer from Java side is empty")
            return 2

    with capture_logs():
        query._run(SimpleNamespace(sparkContext=Context()))
    if answers:
        assert (query.failure, waits.taken) == (None, [1, 2, 4])
        assert "java.io.IOException: No space left on device" in str(query.trouble())
    else:
        assert isinstance(query.failure, HelenusError)
        assert "Spark's Java process has ended" in str(query.failure)


def test_a_query_starts_after_its_fence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of the start before know by its number that they are of before; and only then may others write."""
    worker = WorkerSettings.from_properties({"bootstrap.servers": "h:1", "checkpoint.dir": str(tmp_path)}, "worker")
    connectors = Connectors(worker, lambda _: {})
    query = EventsQuery(worker, connectors, "default", tmp_path, lambda *_: None)
    query._stopping = Waits(2)  # type: ignore[assignment]
    starts: list[int] = []

    def begin(*_: object) -> Any:
        plan, _tasks = query.refresh()
        starts.append(plan.start)
        with enter(plan.checkpoint, plan.start):
            pass
        assert connectors._written_topics["default"] == set()
        connectors.note_written_topics("default", ["data"])
        return SimpleNamespace(isActive=False, exception=lambda: "it was killed")

    monkeypatch.setattr(query, "_begin", begin)
    with capture_logs():
        query._run(SimpleNamespace(sparkContext=SimpleNamespace(setLocalProperty=lambda *_: None)))
    assert starts == [1, 2]


@pytest.mark.parametrize("ending", [False, True])
def test_a_query_that_ended_releases_its_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: bool) -> None:
    """As when the last connector of its group is deleted while a batch runs: but not before its tasks have ended."""
    worker = WorkerSettings.from_properties({"bootstrap.servers": "h:1", "checkpoint.dir": str(tmp_path)}, "worker")
    connectors = Connectors(worker, lambda _: {})
    query = EventsQuery(worker, connectors, "default", tmp_path, lambda *_: None)
    stopped = threading.Event()

    def begin(*_: object) -> Any:
        connectors.note_written_topics("default", ["data"])
        query.stop()
        return SimpleNamespace(isActive=True, stop=stopped.set)

    spark = SimpleNamespace(sparkContext=SimpleNamespace(setLocalProperty=lambda *_: None))
    thread = threading.Thread(target=query._run, args=(spark,))
    checkpoint = tmp_path / "default"
    checkpoint.mkdir()
    (checkpoint / "writers").write_text(f"{1:<20}")
    with ExitStack() as task, capture_logs():
        monkeypatch.setattr(
            query, "_begin", lambda *arguments: task.enter_context(enter(checkpoint, 2)) or begin(*arguments)
        )
        thread.start()
        assert stopped.wait(10)
        thread.join(0.5)
        assert thread.is_alive(), "a task may write still"
        assert connectors._written_topics["default"] == {"data"}
        connectors.ending = ending  # nobody waits for it then
        if ending:
            thread.join(10)
        task.close()
        thread.join(10)
    assert query.failure is None
    assert not thread.is_alive()
    assert connectors._written_topics["default"] == ({"data"} if ending else set())


class Runs(QueryRunner):
    """A query of which each run does what it was told."""

    def __init__(self, *outcomes: Callable[[], None]) -> None:
        super().__init__("query.group g", "query-g", "g", Path("c"))
        self._outcomes = list(outcomes)
        self.reported: list[HelenusError] = []
        self.backoffs: list[float] = []
        self.is_released = False

    def run_once(self, spark: Any) -> None:
        if not self._outcomes:
            self.stop()
        else:
            self._outcomes.pop(0)()

    def note_failure(self, error: HelenusError) -> float:
        self.reported.append(error)
        if error.action is not Action.RETRY:
            raise error
        self.backoffs.append(self.backoff_s)
        return 0.0

    def release(self) -> None:
        self.is_released = True

    def run(self) -> Runs:
        self._run(SimpleNamespace(sparkContext=SimpleNamespace(setLocalProperty=lambda *_: None)))
        return self


def fail(kind: Kind) -> Callable[[], None]:
    def run() -> None:
        raise HelenusError(kind, "why")

    return run


def test_an_error_that_is_not_transient_ends_a_query_that_says_so() -> None:
    query = Runs(fail(Kind.BROKER_UNREACHABLE), fail(Kind.STATE), fail(Kind.BROKER_UNREACHABLE)).run()
    assert [error.kind for error in query.reported] == [Kind.BROKER_UNREACHABLE, Kind.STATE]
    assert query.failure is query.reported[1]
    assert not query.is_released


def test_an_error_of_a_query_that_was_to_stop_is_none() -> None:
    def fail_stopped() -> None:
        query.stop()
        raise RuntimeError("its Java process is gone")

    query = Runs(fail_stopped)
    query.run()
    assert (query.reported, query.failure, query.is_released) == ([], None, True)


def test_a_batch_ends_a_row_of_failures() -> None:
    def fail_later() -> None:
        query.progress.batches_done = 1
        fail(Kind.BATCH_FAILED)()

    fails = fail(Kind.BATCH_FAILED)
    query = Runs(fails, fails, fails, fail_later, fails)
    assert query.run().backoffs == [1, 2, 4, 1, 2]
    assert not query.has_done_batches


@pytest.mark.parametrize("where", ["at the fence", "in its stream"])
def test_time_before_the_start_of_a_stream_ends_no_row_of_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    seconds = [0.0]
    monkeypatch.setattr(query_runner, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    monkeypatch.setattr(query_runner, "start_query", MagicMock())

    def fail_late() -> None:
        if where == "in its stream":
            query.start_stream(MagicMock(), "n", MagicMock(), 100, MagicMock())
        seconds[0] += 40.0
        fail(Kind.BATCH_FAILED)()

    query = Runs(fail_late, fail_late, fail_late)
    query.checkpoint = tmp_path
    assert query.run().backoffs == ([1, 2, 4] if where == "at the fence" else [1, 1, 1])


def test_a_stream_is_stopped_if_its_query_fails_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk. Spark starts no other stream of the same checkpoint beside it."""
    query, stopped = Runs(), threading.Event()

    def fail_to_save() -> bool:
        raise HelenusError(Kind.STATE, "no space left")

    monkeypatch.setattr(query, "is_wanted", fail_to_save)
    with pytest.raises(HelenusError, match="no space left"):
        query.watch(SimpleNamespace(isActive=True, stop=stopped.set))
    assert stopped.is_set()
