"""Batches planned in a thread of the driver, for the source in Java: in a real Spark, but for what it does not do. No
server needed.
"""

from __future__ import annotations

import json
import queue
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from connector.spark_script import run_script

from helenus_connector.query import _planning_thread as module
from helenus_connector.query._planning_thread import PlanningThread
from helenus_schemas.errors import HelenusError

SCRIPT = """
import json, sys, threading, time
from pathlib import Path
from types import SimpleNamespace
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.query import _planning_thread as planning_thread
from helenus_connector.query.handover import start_query
from helenus_connector.query._planning_thread import PlanningThread
from helenus_connector.query.spark_session import start_session
from helenus_connector.query.stream import new_session, read_stream
from helenus_schemas.errors import HelenusError, Kind

worker, run = WorkerSettings.load(sys.argv[1]), Path(sys.argv[2])
spark = start_session(worker, run)
context = spark.sparkContext

class Planner:
    # As BatchPlanner, of a topic that gets an event whenever one is looked for.
    plan = SimpleNamespace(max_batch_size=7)
    is_retired = False

    def __init__(self, plan_file):
        self.calls, self.ends, self.wait = [], 3, 0.0

    def latest_offset(self, start, limit):
        self.calls.append(("latest", start["tick"], limit.max_rows))
        time.sleep(self.wait)
        if start["tick"] >= self.ends:
            return start
        return {"tick": start["tick"] + 1, "topics": {"events-ä": {"0": start["tick"] + 1}}, "now": 1764489600.123}

    def partitions(self, start, end):
        self.calls.append(("parts", start["tick"], end["tick"]))
        return [f"part {end['tick']}"]

    def commit(self, end):
        self.calls.append(("commit", end["tick"]))

    def stop(self):
        self.calls.append(("stop",))

planning_thread.BatchPlanner = Planner

def say(**fields):
    print(json.dumps(fields), flush=True)

def start(name, process, planner_type=Planner):
    planning_thread.BatchPlanner = planner_type
    planning = PlanningThread.for_session(context, run / "plan")
    rows = read_stream(new_session(worker, spark), run / "plan", planning)
    writer = rows.writeStream.queryName(name).option("checkpointLocation", str(run / name))
    query = start_query(context, writer, lambda batch: process(planning, batch))
    return planning, query

def ended(query):
    deadline = time.monotonic() + 60
    while query.isActive and time.monotonic() < deadline:
        time.sleep(0.05)
    return "still active" if query.isActive else str(query.exception())

# Batches come in order, each with its parts, from the first offset on, and are committed.
parts = []
planning, query = start("first", lambda planning, batch: parts.append([batch.number, *planning.take_parts()]))
while planning._planner.calls[-1:] != [("latest", 3, 7)]:
    time.sleep(0.01)
query.stop()
planning.close()
calls = [call for call in planning._planner.calls if call[0] != "latest"]
limits = sorted({call[2] for call in planning._planner.calls if call[0] == "latest"})
offset = (run / "first/offsets/2").read_text().splitlines()[-1]
say(parts=parts, calls=calls, limits=limits, closed=not planning._thread.is_alive(), offset=offset)

# The next run goes on from the checkpoint.
parts.clear()
class Later(Planner):
    def __init__(self, plan_file):
        super().__init__(plan_file)
        self.ends = 4
planning, query = start("first", lambda planning, batch: parts.append([batch.number, *planning.take_parts()]), Later)
while not parts:
    time.sleep(0.05)
query.stop()
planning.close()
say(parts=parts)

# What the planner raises ends the query, and is its error.
class Failing(Planner):
    def latest_offset(self, start, limit):
        raise HelenusError(Kind.STATE, "the checkpoint is damaged", "here")
planning, query = start("failing", lambda planning, batch: None, Failing)
error = ended(query)
planning.close()
say(error="HelenusError: " in error and "the checkpoint is damaged" in error)

# A query is stopped while its planner waits, without an error of its own; the thread ends.
class Slow(Planner):
    def __init__(self, plan_file):
        super().__init__(plan_file)
        self.ends, self.wait = 0, 1.0
planning, query = start("slow", lambda planning, batch: None, Slow)
while not planning._planner.calls:
    time.sleep(0.01)
query.stop()
error = ended(query)
planning.close()
say(error=error, closed=not planning._thread.is_alive(), retired=planning._planner.is_retired)

# A batch that takes its parts twice, as one that Spark begins without asking for them.
def twice(planning, batch):
    planning.take_parts(), planning.take_parts()
planning, query = start("twice", twice)
error = ended(query)
planning.close()
say(twice="without asking which events" in error)

# Python can call Java no more, or is gone: the query ends and says so. A closed one plans nothing.
class Lost:
    def __init__(self, java):
        self.java, self.calls = java, 0
    def __getattr__(self, name):
        return getattr(self.java, name)
    def next(self, *args):
        self.calls += 1
        if self.calls > 2:
            raise ValueError("no answer of Java's")
        return self.java.next(*args)
def classes_with(wrap):
    return SimpleNamespace(BatchPlanning=lambda limit: wrap(context._jvm.helenus.BatchPlanning(limit)))
def begin(name, planning):
    rows = read_stream(new_session(worker, spark), run / "plan", planning)
    writer = rows.writeStream.queryName(name).option("checkpointLocation", str(run / name))
    return start_query(context, writer, lambda batch: None)
planning_thread.BatchPlanner = Planner
lost = ended(begin("lost", PlanningThread(classes_with(Lost), run / "plan", 60_000)))
java = context._jvm.helenus.BatchPlanning(1000)
gone = ended(begin("gone", SimpleNamespace(name=java.name())))
closed = PlanningThread.for_session(context, run / "plan")
closed.close()
refused = ended(begin("closed", closed))
say(lost="can't plan batches any more: ValueError: no answer" in lost, gone="has not planned for 1 s" in gone,
    refused="No thread of Python plans batches as planning-" in refused, errors=[lost[:300], gone[:300], refused[:300]])
spark.stop()
"""


class JavaSide:
    """Asks what a query's thread would: `ask` returns the answer, or raises the error."""

    def __init__(self) -> None:
        self._questions = queue.Queue[str | None]()
        self._answers = queue.Queue[tuple[str | None, str | None]]()
        self.closed: list[str] = []
        self._has_asked = False

    def name(self) -> str:
        return "planning-1"

    def next(self, answer: str | None, error: str | None) -> str | None:
        if self._has_asked:
            self._answers.put((answer, error))
        self._has_asked = True
        return self._questions.get()

    def close(self, reason: str) -> None:
        self.closed.append(reason)
        self._questions.put(None)

    def ask(self, *question: Any) -> Any:
        self._questions.put(json.dumps(question))
        answer, error = self._answers.get(timeout=60)
        if error is not None:
            raise RuntimeError(error)
        return json.loads(cast(str, answer))


class Counted:
    """A planner that counts for how many batches it is asked."""

    plan = SimpleNamespace(max_batch_size=1)
    is_retired = has_stopped = False

    def __init__(self, _: str) -> None:
        self.planned = 0

    def partitions(self, *_: object) -> list[int]:
        self.planned += 1
        return [self.planned]

    def commit(self, _: object) -> None:
        raise ValueError("no commit")

    def stop(self) -> None:
        self.has_stopped = True


def test_a_batch_is_planned_once_however_often_java_asks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And again if it is another one: no parts are those of two batches."""
    java = JavaSide()
    monkeypatch.setattr(module, "BatchPlanner", Counted)
    planning = PlanningThread(SimpleNamespace(BatchPlanning=lambda _: java), tmp_path / "plan", 1000)
    first, second, third = ({"tick": tick} for tick in range(3))
    assert java.ask("initial") == module.INITIAL
    for _ in range(2):
        java.ask("parts", first, second)
    assert planning.take_parts() == [1]
    java.ask("parts", first, second)
    with pytest.raises(HelenusError, match="without asking"):
        planning.take_parts()
    java.ask("parts", second, third)
    assert planning.take_parts() == [2]
    with pytest.raises(RuntimeError, match="ValueError: no commit"):
        java.ask("commit", third)
    planning.close()
    planner = cast(Counted, planning._planner)
    assert planner.is_retired
    assert planner.has_stopped
    assert java.closed == ["the run of the query has ended"]


Reports = list[dict[str, Any]]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return run_script(SCRIPT, tmp_path_factory.mktemp("planning"))


@pytest.mark.integration
def test_batches_are_planned_in_order_and_committed(reports: Reports) -> None:
    report = reports[0]
    assert report["parts"] == [[0, "part 1"], [1, "part 2"], [2, "part 3"]]
    in_order = [["parts", 0, 1], ["commit", 1], ["parts", 1, 2], ["commit", 2], ["parts", 2, 3], ["stop"]]
    assert [call for call in report["calls"] if call != ["commit", 3]] == in_order
    assert report["limits"] == [7]
    assert report["closed"]


@pytest.mark.integration
def test_offsets_are_as_a_source_in_python_has_them(reports: Reports) -> None:
    assert reports[0]["offset"] == '{"tick": 3, "topics": {"events-\\u00e4": {"0": 3}}, "now": 1764489600.123}'
    assert reports[1] == {"parts": [[3, "part 4"]]}


@pytest.mark.integration
def test_an_error_of_the_planner_ends_the_query(reports: Reports) -> None:
    assert reports[2] == {"error": True}


@pytest.mark.integration
def test_a_query_stops_while_its_planner_waits(reports: Reports) -> None:
    assert reports[3] == {"error": "None", "closed": True, "retired": True}


@pytest.mark.integration
def test_parts_are_of_one_batch_alone(reports: Reports) -> None:
    assert reports[4] == {"twice": True}


@pytest.mark.integration
def test_a_query_that_nobody_plans_ends(reports: Reports) -> None:
    errors = reports[5].pop("errors")
    assert reports[5] == {"lost": True, "gone": True, "refused": True}, errors
