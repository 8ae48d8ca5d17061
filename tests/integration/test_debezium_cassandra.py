"""`output.format=debezium-cassandra`, real: in Avro with a registry, from events with cells and from rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests
from integration.pipeline import Lasting, Pipeline, dotted
from patience import eventually

from helenus_stack.records import Record

pytestmark = pytest.mark.integration

TABLE, READ = "theirs.t", "theirs.read"
AS_THEIRS = {"output_format": "debezium-cassandra", "data_topic": "dbz.${keyspace}.${table}"}
COLUMNS = (
    "(k int, c text, s text static, v int, m map<text, int>, st set<text>, a addr, de decimal, vi varint, "
    "ve vector<float, 2>, PRIMARY KEY (k, c))"
)


@pytest.fixture(scope="module")
def pipeline(session: Any, lasting: Lasting) -> Iterator[Pipeline]:
    session.execute("CREATE KEYSPACE theirs WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    session.execute("CREATE TYPE theirs.addr (street text, zip int)")
    for table in (TABLE, READ):
        session.execute(f"CREATE TABLE {table} {COLUMNS}")
    session.execute(f"INSERT INTO {READ} (k, c, v) VALUES (0, 'before', 5)")
    for table in (TABLE, READ):
        session.execute(f"ALTER TABLE {table} WITH cdc = true")
    theirs = dotted(AS_THEIRS)
    tables = {TABLE: {**theirs, "resolver": "none"}, READ: {**theirs, "snapshot.mode": "initial"}}
    with lasting("kafka").connected(tables) as pipeline:
        yield pipeline


def records_of(pipeline: Pipeline, table: str, k: int) -> list[Record]:
    """The records of a partition that are there."""
    records = map(pipeline.reader.record, pipeline.reader.messages(f"dbz.{table}"))
    return [record for record in records if record.key["k"] == k]


def values_of(pipeline: Pipeline, table: str, k: int, count: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The keys and values of the records of a partition."""
    records: list[Record] = []

    def there() -> bool:
        records[:] = records_of(pipeline, table, k)
        return len(records) >= count

    eventually(there, lambda: f"{count} records of key {k}, {len(records)} are there:\n{pipeline.connector.tail()}")
    assert len(records) == count
    return [(record.key, record.value) for record in records if record.value is not None]


def cells(value: dict[str, Any]) -> dict[str, Any]:
    """The values of the cells outside the key."""
    return {name: cell["value"] for name, cell in value["after"].items() if cell and name not in ("k", "c")}


def test_changes_as_they_were_written(pipeline: Pipeline, session: Any) -> None:
    long = 123456789012345678901234567890
    row = "WHERE k = 1 AND c = 'a'"
    for statement in (
        f"INSERT INTO {TABLE} (k, c, v, m, st, de, vi, ve) VALUES (1, 'a', 1, {{'x': 1}}, {{'p', 'q'}}, 12.50, {long},"
        " [1, 2]) USING TIMESTAMP 1700000000000001",
        f"UPDATE {TABLE} USING TTL 86400 SET v = 2 {row}",
        f"UPDATE {TABLE} SET st = st - {{'p'}}, m['x'] = null, a.street = 'Main' {row}",
        f"UPDATE {TABLE} SET s = 'static' WHERE k = 1",
        f"DELETE FROM {TABLE} {row}",
        f"DELETE FROM {TABLE} WHERE k = 1 AND c >= 'b'",
        f"DELETE FROM {TABLE} WHERE k = 1",
    ):
        session.execute(statement)
    records = values_of(pipeline, TABLE, 1, 7)
    assert [value["op"] for _, value in records] == ["i", "u", "u", "u", "d", "r", "d"]
    assert [key["c"] for key, _ in records] == ["a", "a", "a", None, "a", None, None]
    insert, expiring, elements, static, deleted, scope, _ = (value for _, value in records)
    assert cells(insert) == {"v": 1, "m": {"x": 1}, "st": ["p", "q"], "de": 12.5, "vi": None, "ve": [1.0, 2.0]}
    assert insert["written"]["exact"] == {"de": "12.50", "vi": str(long)}
    assert expiring["after"]["v"]["deletion_ts"] > 1_700_000_000_000_000
    assert cells(elements) == {"st": [], "m": {"x": None}, "a": {"street": "Main", "zip": None}}
    assert elements["written"]["removed"] == {"st": ["p"], "m": ["x"]}
    assert cells(static) == {"s": "static"}
    assert set(cells(deleted).values()) == {None}
    assert scope["after"]["_range_start"]["method"] == "INCL_START_BOUND"
    assert scope["after"]["_range_start"]["values"][0]["value"] == "b"
    assert scope["after"]["_range_end"] == {"method": "INCL_END_BOUND", "values": []}
    source = insert["source"]
    assert (source["name"], source["keyspace"], source["table"], source["db"]) == ("dbz", "theirs", "t", "NULL")
    assert (source["ts_us"], source["cluster"]) == (1700000000000001, session.cluster.metadata.cluster_name)
    assert source["file"].startswith("CommitLog-7-")
    assert source["pos"] > 0
    pipeline.adds_up("theirs-t")
    assert pipeline.connector.total("helenus_connector_keys_read_total", connector="theirs-t") == 0


def is_complete(url: str) -> bool:
    """Whether all snapshots of a connector are."""
    states = [snapshot["state"] for snapshot in requests.get(url, timeout=30).json()["snapshots"]]
    return bool(states) and set(states) == {"COMPLETE"}


def test_rows_that_are_read(pipeline: Pipeline, session: Any) -> None:
    # The agent may report the row of before, too: its segment is the one that is written to. What comes after it in the
    # same partition has it behind.
    session.execute(f"INSERT INTO {READ} (k, c, v) VALUES (0, 'after', 5)")
    eventually(lambda: any(record.key["c"] == "after" for record in records_of(pipeline, READ, 0)), "the row's record")
    url = f"http://127.0.0.1:{pipeline.connector.port}/connectors/theirs-read/snapshots"
    eventually(lambda: is_complete(url), lambda: f"a snapshot:\n{pipeline.connector.tail()}")
    before = records_of(pipeline, READ, 0)
    assert requests.post(url, json={}, timeout=30).status_code == 202
    eventually(lambda: is_complete(url), lambda: f"another snapshot:\n{pipeline.connector.tail()}")
    values = [record.value for record in records_of(pipeline, READ, 0)[len(before) :]]
    assert [(v["op"], v["source"]["snapshot"], cells(v)["v"]) for v in values if v] == [("i", "true", 5)] * 2
    session.execute(f"UPDATE {READ} SET v = 6 WHERE k = 2 AND c = 'a'")
    ((_, update),) = values_of(pipeline, READ, 2, 1)
    assert (update["op"], cells(update)["v"], update["written"]) == ("u", 6, None)
    assert cells(update).keys() == {"v", "m", "st", "a", "de", "vi", "ve"}, "all columns of the row"
    session.execute(f"DELETE FROM {READ} WHERE k = 2 AND c = 'a'")
    _, (key, deleted) = values_of(pipeline, READ, 2, 2)
    assert (key, deleted["op"]) == ({"k": 2, "c": "a"}, "d")
