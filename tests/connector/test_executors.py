"""How many tasks Spark runs at once: on a cluster that changes, and is not known right after the start."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from helenus_connector.query import internals, spark_session
from helenus_connector.snapshot import _jobs
from helenus_connector.snapshot._scan import ScanResult


class Cluster:
    """A Spark whose executors, of two cores each, register one after the other: one more at each look, up to `most`."""

    def __init__(self, executor_limit: int, master: str = "spark://h:7077", has_internals: bool = True) -> None:
        self.settings = {internals.SETTING: str(has_internals).lower()}
        self.master, self.most, self.executors = master, executor_limit, 0
        self.looks = 0
        self.sparkContext = self
        self._jsc = self
        self.under_way = threading.Semaphore(0)
        self.ended = threading.Event()

    @property
    def defaultParallelism(self) -> int:  # noqa: N802
        return max(2, 2 * self.executors)

    def getConf(self) -> dict[str, str]:  # noqa: N802
        return self.settings

    def sc(self) -> Any:
        self.looks += 1
        self.executors = min(self.executors + 1, self.most)
        return SimpleNamespace(getExecutorMemoryStatus=lambda: SimpleNamespace(size=lambda: self.executors + 1))

    def parallelize(self, items: list[int], slices: int) -> Any:
        return self

    def setLocalProperty(self, name: str, value: str) -> None:  # noqa: N802
        """Nothing."""

    def mapPartitions(self, run: Any) -> Any:  # noqa: N802
        return self

    def count(self) -> int:
        """A job waits for an executor."""
        assert self.most or self.ended.wait(10)
        self.executors = self.most
        return 1

    def collect(self) -> list[ScanResult]:
        self.under_way.release()
        assert self.ended.wait(10)
        return [ScanResult()]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_session, "_STEADY_S", 0.05)
    monkeypatch.setattr(spark_session, "_POLL_S", 0.01)


def test_a_first_start_waits_for_executors() -> None:
    with capture_logs() as log_lines:
        assert spark_session.settled_task_slots(Cluster(3), lambda: False) == 6
    assert [line["event"] for line in log_lines] == ["spark.waiting", "spark.executors"]
    assert (log_lines[1]["executors"], log_lines[1]["slots"]) == (3, 6)


def test_it_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_session, "_EXECUTORS_S", 0.1)
    with capture_logs() as log_lines:
        assert spark_session.settled_task_slots(Cluster(0), lambda: False) == 2
    assert (log_lines[-1]["event"], log_lines[-1]["log_level"]) == ("spark.executors", "warning")
    assert spark_session.settled_task_slots(Cluster(0), lambda: True) == 2, "the worker ends"


def test_the_public_api_tells_by_a_task_that_executors_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with capture_logs() as log_lines:
        assert spark_session.settled_task_slots(Cluster(3, has_internals=False), lambda: False) == 6
    assert log_lines[1]["log_level"] == "info"
    monkeypatch.setattr(spark_session, "_EXECUTORS_S", 0.1)
    without = Cluster(0, has_internals=False)
    with capture_logs() as log_lines:
        assert spark_session.settled_task_slots(without, lambda: False) == 2
    assert log_lines[1]["log_level"] == "warning"
    assert not without.looks
    without.ended.set()


@pytest.mark.parametrize("master", ["local[2,4]", "local", "local[*]"])
def test_on_one_machine_nothing_is_waited_for(master: str) -> None:
    spark = Cluster(0, master)
    assert spark_session.settled_task_slots(spark, lambda: False) == 2
    assert not spark.looks


def test_a_scan_uses_the_executors_that_came_later() -> None:
    spark = Cluster(4)
    jobs = _jobs.SnapshotJobs(spark)
    slice_: Any = SimpleNamespace(table=SimpleNamespace(full_name="ks.t"))
    assert jobs.max_slices == 1
    spark.executors = 2
    assert jobs.max_slices == 3, "one task less: streaming goes on"
    futures: list[Future[ScanResult]] = [jobs.submit(slice_) for _ in range(3)]
    for _ in futures:
        assert spark.under_way.acquire(timeout=5), "all at once"
    spark.ended.set()
    assert [future.result(5) for future in futures] == [ScanResult()] * 3
    before = threading.active_count()
    for _ in range(50):
        jobs.submit(slice_).result(5)
    assert threading.active_count() == before, "the threads are used again"
