"""Batches planned in a thread of the driver, for the source in Java, in a real Spark. No server needed."""

from __future__ import annotations

from typing import Any

import pytest
from connector.spark_script import run_script

pytestmark = pytest.mark.integration

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
try:
    begin("closed", closed)
    refused = "begun"
except Exception as failure:
    refused = str(failure)
say(lost="can't plan batches any more: ValueError: no answer" in lost, gone="has not planned for 1 s" in gone,
    refused="No thread of Python plans batches as planning-" in refused, errors=[lost[:300], gone[:300], refused[:300]])
spark.stop()
"""


Reports = list[dict[str, Any]]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return run_script(SCRIPT, tmp_path_factory.mktemp("planning"))


def test_batches_are_planned_in_order_and_committed(reports: Reports) -> None:
    report = reports[0]
    assert report["parts"] == [[0, "part 1"], [1, "part 2"], [2, "part 3"]]
    in_order = [["parts", 0, 1], ["commit", 1], ["parts", 1, 2], ["commit", 2], ["parts", 2, 3], ["stop"]]
    assert [call for call in report["calls"] if call != ["commit", 3]] == in_order
    assert report["limits"] == [7]
    assert report["closed"]


def test_offsets_are_as_a_source_in_python_has_them(reports: Reports) -> None:
    assert reports[0]["offset"] == '{"tick": 3, "topics": {"events-\\u00e4": {"0": 3}}, "now": 1764489600.123}'
    assert reports[1] == {"parts": [[3, "part 4"]]}


def test_an_error_of_the_planner_ends_the_query(reports: Reports) -> None:
    assert reports[2] == {"error": True}


def test_a_query_stops_while_its_planner_waits(reports: Reports) -> None:
    assert reports[3] == {"error": "None", "closed": True, "retired": True}


def test_parts_are_of_one_batch_alone(reports: Reports) -> None:
    assert reports[4] == {"twice": True}


def test_a_query_that_nobody_plans_ends(reports: Reports) -> None:
    errors = reports[5].pop("errors")
    assert reports[5] == {"lost": True, "gone": True, "refused": True}, errors
