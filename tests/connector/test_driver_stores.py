"""The stores of a query's state in its driver, on Spark's own: batches of jobs and of none see what the others left."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from connector.spark_script import run_script
from connector.test_state_index import DictStore
from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.state.store.driver_stores import AskedStore

SCRIPT = """
import json, pickle, sys, time
from pathlib import Path
import pandas as pd, pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.query.handover import start_query
from helenus_connector.query.spark_session import start_session
from helenus_connector.state.store.driver_stores import AskedStore, DriverStores
from helenus_connector.state.store.rocksdb import new_session
from helenus_connector.state.store.spark_store import SparkStore

PLACES, SLOTS = 7, 3
worker, run = WorkerSettings.load(sys.argv[1]), Path(sys.argv[2])
spark = start_session(worker, run)
session = new_session(spark, SLOTS)
session.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", FORMAT)
rows = session.readStream.format("rate").option("rowsPerSecond", 1000).load()
rows = rows.selectExpr(f"cast(value % {PLACES} AS int) AS place")

def say(**fields):
    print(json.dumps(fields), flush=True)

class Operator(StatefulProcessor):  # each batch of a job notes its turn with all places, and gives what they have
    def init(self, handle):
        self.store = SparkStore.open(handle)
    def handleInputRows(self, key, rows, timerValues):
        for _ in rows:
            pass
        (turns,) = self.store.get_many([b"turns"])
        (gone,) = self.store.get_many([b"gone"])
        self.store.put_many({b"turns": (turns or b"") + b"j", b"gone": b"x"})
        yield pd.DataFrame({"done": [pickle.dumps((int(key[0]), (turns or b"").decode(), gone))]})
    def close(self):
        pass

def start(batches):  # the first is a job: the stores are those of a query that runs
    seen, stores = [], []
    def of_job(batch):
        return {place: [turns, gone is None] for place, turns, gone in batch.collect()}
    def of_driver(batch, kind):
        (store,) = stores
        store.begin()
        result = {}
        for place in range(PLACES):
            asked = AskedStore(store.answer, place)
            turns, missing, gone = asked.get_many([b"turns", b"missing", b"gone"])
            assert missing is None
            result[place] = [(turns or b"").decode(), gone is None]
            asked.put_many({b"turns": (turns or b"") + b"d", b"large": bytes(300_000)})
            asked.remove_many([b"gone", b"missing"])
            assert asked.get_many([b"gone", b"large"]) == [None, bytes(300_000)]
        if kind == "abort":
            store.abort()
            return of_job(batch)
        assert store.commit() > 0
        return result
    def process(batch):
        while not stores and seen:
            time.sleep(0.05)
        kind = batches[len(seen)] if len(seen) < len(batches) else "job"
        result = of_job(batch) if kind == "job" or stores == [None] else of_driver(batch, kind)
        if result:  # the first has no rows yet
            seen.append(sorted({tuple(of_place) for of_place in result.values()}))
    writer = rows.groupBy("place").transformWithStateInPandas(Operator(), "done binary", "Append", "None").writeStream
    writer = writer.queryName("q").option("checkpointLocation", str(run / "q")).trigger(processingTime="0 seconds")
    query = start_query(spark.sparkContext, writer, process)
    while not seen and query.isActive:
        time.sleep(0.05)
    stores.append(DriverStores.of_query(spark.sparkContext, query, "place"))
    while len(seen) < len(batches) and query.isActive:
        time.sleep(0.05)
    error = query.exception()
    query.stop()
    say(seen=seen[:len(batches)], known=stores[0] is not None, error=str(error)[:500] if error else None)

"""

RUNS = """
start(["job", "driver", "driver", "job", "abort", "driver", "job"])
start(["job", *["driver"] * 25, "job"])
start(["job", "driver"])
spark.stop()
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_script('FORMAT = "1"' + SCRIPT + RUNS, tmp_path_factory.mktemp("stores"))


def test_jobs_and_the_driver_see_what_the_other_left(reports: list[dict[str, Any]]) -> None:
    """Whatever was put before it was given up is not there, and a job does that batch."""
    assert (reports[0]["error"], reports[0]["known"]) == (None, True)
    assert reports[0]["seen"] == [
        [["", True]],
        [["j", False]],
        [["jd", True]],
        [["jdd", True]],
        [["jddj", False]],
        [["jddjj", False]],
        [["jddjjd", True]],
    ]


def test_the_state_is_that_of_the_last_batch_after_a_restart(reports: list[dict[str, Any]]) -> None:
    """Also once Spark has written whole copies of a store, and removed what lies before them."""
    (turns, _), *_ = reports[1]["seen"][0]
    assert turns.startswith("jddjjdj")
    assert reports[1]["seen"][-1] == [[turns + "j" + 25 * "d", True]]
    ((last, _),) = reports[2]["seen"][0]
    assert last.startswith(turns + "j" + 25 * "d" + "j")
    assert reports[2]["seen"][1] == [[last + "j", False]]
    assert [report["error"] for report in reports] == [None] * 3


def test_stores_whose_versions_commits_name_are_left_to_jobs(tmp_path: Path) -> None:
    script = 'FORMAT = "2"' + SCRIPT + 'start(["job", "driver"])\nspark.stop()'
    assert run_script(script, tmp_path) == [{"seen": [[["", True]], [["j", False]]], "known": False, "error": None}]


@given(st.dictionaries(st.binary(max_size=40), st.binary(max_size=300)), st.lists(st.binary(max_size=40)))
def test_questions_are_answered_as_by_a_store(values: dict[bytes, bytes], others: list[bytes]) -> None:
    store = DictStore()

    def answer(question: bytes) -> bytes:
        """As `StateStores.java` does."""
        kind, group = struct.unpack_from(">Bi", question)
        items, offset = list[bytes](), 5
        while offset < len(question):
            (size,) = struct.unpack_from(">i", question, offset)
            items.append(question[offset + 4 : offset + 4 + size])
            offset += 4 + size
        assert group == -7
        if kind == 1:
            store.put_many(dict(zip(items[::2], items[1::2], strict=True)))
        elif kind == 2:
            store.remove_many(items)
        else:
            values_found = store.get_many(items)
            return b"".join(struct.pack(">i", -1) if f is None else struct.pack(">i", len(f)) + f for f in values_found)
        return b""

    questioner = AskedStore(answer, -7)
    questioner.put_many(values)
    keys = [*values, *others]
    assert questioner.get_many(keys) == [values.get(key) for key in keys]
    questioner.remove_many(others)
    assert store.values == {key: value for key, value in values.items() if key not in others}
