"""A query's batches of a real Spark: fetched by a thread of Python, and by PySpark's public API. No server needed."""

from __future__ import annotations

from typing import Any

import pytest
from connector.spark_script import run_script

pytestmark = pytest.mark.integration

SCRIPT = """
import json, pickle, socket, sys, threading, time
import pyarrow as pa
from pathlib import Path
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.query import handover
from helenus_connector.query.handover import batch_number, start_query
from helenus_connector.query.spark_session import start_session

worker, run = WorkerSettings.load(sys.argv[1]), Path(sys.argv[2])
spark = start_session(worker, run)
context = spark.sparkContext
context.setLocalProperty("spark.scheduler.pool", "mine")
rows = spark.readStream.format("rate").option("rowsPerSecond", 100).load()

def start(name, process):
    writer = rows.writeStream.queryName(name).option("checkpointLocation", str(run / name))
    return start_query(context, writer.trigger(processingTime="100 milliseconds"), process)

def say(**fields):
    print(json.dumps(fields), flush=True)

# Batches come one by one, with their rows, in the pool and the job group of the query.
numbers, groups, pools, counts = [], set(), set(), []
def note(batch):
    counts.append(len(batch.frame.collect()))
    numbers.append(batch.number)
    pools.add(context.getLocalProperty("spark.scheduler.pool"))
    groups.add(context.getLocalProperty("spark.jobGroup.id"))
first = start("first", note)
while len(numbers) < 5:
    time.sleep(0.05)
first.stop()
say(numbers=numbers[:5], pools=sorted(pools), is_of_query=groups == {first.runId}, rows=sum(counts) > 0)

# What it raises ends the query, and is its error.
def fail(batch):
    raise ValueError("of batch %d" % batch.number)
second = start("second", fail)
while second.isActive:
    time.sleep(0.05)
say(error="ValueError: of batch 0" in str(second.exception()))

# What its rows have is collected, by tasks that know its number.
def number_of(batches):
    for batch in batches:
        pass
    yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps((batch_number(), [None]))], pa.binary())], ["done"])
collected = []
def collect(batch):
    collected.append((batch.number, batch.collect()))
numbered = rows.coalesce(1).mapInArrow(number_of, "done binary")
writer = numbered.writeStream.queryName("numbered").option("checkpointLocation", str(run / "numbered"))
fourth = start_query(context, writer.trigger(processingTime="100 milliseconds"), collect)
while len(collected) < 3:
    time.sleep(0.05)
fourth.stop()
try:
    batch_number()
except RuntimeError as error:
    outside = str(error)
say(collected=collected[:3], outside=outside)

# A query that stops ends the job of its batch, and waits until Python has seen that.
running, ended = threading.Event(), threading.Event()
def sleep(number):
    time.sleep(300)
def wait(batch):
    running.set()
    try:
        context.parallelize([1], 1).foreach(sleep)
    finally:
        time.sleep(0.5)
        ended.set()
third = start("third", wait)
running.wait()
while not context.statusTracker().getActiveJobsIds():
    time.sleep(0.05)
third.stop()
say(ended=ended.is_set(), error=third.exception() is not None)

# Two at once do not mix up their batches.
both = {"left": [], "right": []}
queries = [start(name, lambda batch, name=name: both[name].append(batch.number)) for name in both]
while min(map(len, both.values())) < 3:
    time.sleep(0.05)
for query in queries:
    query.stop()
while any(thread.name == "batches" for thread in threading.enumerate()):
    time.sleep(0.05)
say(left=both["left"][:3], right=both["right"][:3], gateway=context._gateway.__dict__.get("_callback_server") is None)

if worker.public_spark_api:  # this process is not Java's
    with socket.create_connection(("127.0.0.1", context._gateway.get_callback_server().get_listening_port())) as other:
        other.sendall(b"c\\nt\\ncall\\ne\\n")
        try:
            answer = other.recv(100)
        except ConnectionError:
            answer = b""
    say(refused=answer == b"")
    spark.stop()
    sys.exit()

# Java does not hear of the end of a batch.
class Lost:
    def __init__(self, java):
        self.java, self.calls = java, 0
    def __getattr__(self, name):
        return getattr(self.java, name)
    def next(self, *args):
        self.calls += 1
        if self.calls > 1:
            raise ValueError("no answer of Java's")
        return self.java.next(*args)
def start_with(name, thread_of):
    java = context._jvm.helenus.BatchHandover(context._jsc.sc())
    writer = rows.writeStream.queryName(name).option("checkpointLocation", str(run / name))
    query = writer.format("helenus.BatchSink").option("handover", java.name()).start()
    thread_of(java, query)
    deadline = time.monotonic() + 60
    while query.isActive and time.monotonic() < deadline:
        time.sleep(0.05)
    return "still active" if query.isActive else str(query.exception())
def serve(java, query):
    args = (context, Lost(java), query, lambda batch: None)
    threading.Thread(target=handover._serve, args=args, daemon=True).start()
unheard = start_with("unheard", serve)

# Nobody fetches batches.
context._jsc.sc().conf().set("spark.network.timeout", "1s")
unfetched = start_with("unfetched", lambda java, query: None)
say(unheard="can't fetch batches any more: ValueError: no answer" in unheard,
    unfetched="has not fetched a batch for 1 s" in unfetched, errors=[unheard[:200], unfetched[:200]])
spark.stop()
"""


Reports = list[dict[str, Any]]


@pytest.fixture(scope="module", params=["false", "true"], ids=["internals", "public"])
def public_api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def reports(public_api: str, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return run_script(SCRIPT, tmp_path_factory.mktemp("handover"), {"public.spark.api": public_api})


def test_batches_run_in_order_in_the_pool_and_job_group_of_their_query(reports: Reports) -> None:
    assert reports[0] == {"numbers": [0, 1, 2, 3, 4], "pools": ["mine"], "is_of_query": True, "rows": True}


def test_what_a_batch_raises_ends_its_query(reports: Reports) -> None:
    assert reports[1] == {"error": True}


def test_rows_are_collected_by_tasks_that_know_their_batch(reports: Reports) -> None:
    assert reports[2] == {
        "collected": [[0, [[0, [None]]]], [1, [[1, [None]]]], [2, [[2, [None]]]]],
        "outside": "this task is of no batch that is collected",
    }


def test_a_query_that_stops_ends_its_job_and_waits_for_its_batch(reports: Reports) -> None:
    assert reports[3] == {"ended": True, "error": False}


def test_queries_do_not_mix_up_batches_and_python_listens_for_no_call(reports: Reports, public_api: str) -> None:
    """By the public API it does, which is a reason for the other way."""
    assert reports[4] == {"left": [0, 1, 2], "right": [0, 1, 2], "gateway": public_api == "false"}


def test_a_query_whose_batches_are_fetched_no_more_ends(reports: Reports, public_api: str) -> None:
    """It says why, whether Python had a batch of it or not. By the public API Java calls, and only Java can."""
    if public_api == "true":
        assert reports[5] == {"refused": True}
    else:
        assert (reports[5]["unheard"], reports[5]["unfetched"]) == (True, True), reports[5]["errors"]
