"""`resolver=none` and `output.format=debezium`, real: what was written is what the records say, without a read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from integration.pipeline import Lasting, Pipeline, dotted
from patience import eventually

from helenus_stack.records import Record

pytestmark = pytest.mark.integration

TABLE = "envelope.t"
WITHOUT = {"resolver": "none", "output_format": "debezium"}


@pytest.fixture(scope="module")
def pipeline(session: Any, lasting: Lasting) -> Iterator[Pipeline]:
    session.execute("CREATE KEYSPACE envelope WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    session.execute("CREATE TYPE envelope.addr (street text, zip int)")
    session.execute(
        f"CREATE TABLE {TABLE} (k int, c int, s text static, v int, w text, m map<text, int>, l list<int>,"
        " st set<text>, a addr, PRIMARY KEY (k, c)) WITH cdc = true"
    )
    with lasting("kafka").connected({TABLE: dotted(WITHOUT)}) as pipeline:
        yield pipeline


def records_of(pipeline: Pipeline, k: int, count: int) -> list[Record]:
    records: list[Record] = []

    def there() -> bool:
        records[:] = [record for record in pipeline.records(TABLE) if record.key.get("k") == k]
        return len(records) >= count

    eventually(there, lambda: f"{count} records of key {k}, {len(records)} are there:\n{pipeline.connector.tail()}")
    assert len(records) == count
    return records


def written(record: Record) -> dict[str, Any]:
    """The columns that a record has, without its key's."""
    assert record.value is not None
    after = record.value["after"]
    assert (after["k"], after["c"]) == (record.key["k"], record.key["c"])
    return {name: value for name, value in after.items() if value is not None and name not in ("k", "c")}


def test_every_statement_is_a_record(pipeline: Pipeline, session: Any) -> None:
    for statement in (
        f"INSERT INTO {TABLE} (k, c, v, w, m, l, st) VALUES (1, 1, 1, 'x', {{'a': 1}}, [1, 2], {{'p', 'q'}})"
        " USING TIMESTAMP 1700000000000001",
        f"UPDATE {TABLE} SET v = 2 WHERE k = 1 AND c = 1",
        f"UPDATE {TABLE} SET m = m + {{'b': 2}}, l = l + [9], st = st - {{'p'}} WHERE k = 1 AND c = 1",
        f"DELETE w, m['a'] FROM {TABLE} WHERE k = 1 AND c = 1",
        f"UPDATE {TABLE} SET m = {{'z': 26}}, a.street = 'Main' WHERE k = 1 AND c = 1",
        f"UPDATE {TABLE} SET s = 'static' WHERE k = 1",
        f"INSERT INTO {TABLE} (k, c, v) VALUES (1, 2, 5) USING TTL 86400",
        f"DELETE FROM {TABLE} WHERE k = 1 AND c = 1",
        f"DELETE FROM {TABLE} WHERE k = 1 AND c > 1 AND c <= 7",
        f"DELETE FROM {TABLE} WHERE k = 1",
    ):
        session.execute(statement)
    records = records_of(pipeline, 1, 13)
    values = [record.value for record in records if record.value is not None]
    assert [value["op"] for value in values] == ["c", "u", "u", "u", "u", "u", "c", "d", "d", "d"]
    assert [record.value is None for record in records] == [False] * 8 + [True, False, True, False, True]
    insert, update, elements, removal, replaced, static, expiring, row, _, scope, _, partition, _ = records
    assert written(insert) == {"v": 1, "w": "x", "m": {"a": 1}, "l": [1, 2], "st": ["p", "q"]}
    assert sorted(values[0]["written"]["replaced"]) == ["l", "m", "st"]
    assert written(update) == {"v": 2}
    assert values[1]["written"] == {"columns": ["v"], "replaced": [], "removed": {}}
    assert written(elements) == {"m": {"b": 2}, "l": [9]}
    assert values[2]["written"]["removed"] == {"st": ["p"]}
    assert values[2]["written"]["replaced"] == []
    assert written(removal) == {}
    assert sorted(values[3]["written"]["columns"]) == ["m", "w"]
    assert values[3]["written"]["removed"] == {"m": ["a"]}
    assert written(replaced) == {"m": {"z": 26}, "a": {"street": "Main", "zip": None}}
    assert values[4]["written"]["replaced"] == ["m"]
    assert static.key == {"k": 1, "c": None}
    assert written(static) == {"s": "static"}
    assert written(expiring) == {"v": 5}
    assert int(expiring.headers["expires"]) > 1_700_000_000
    assert (row.key, values[7]["after"], "scope" in row.headers) == ({"k": 1, "c": 1}, None, False)
    assert scope.key == partition.key == {"k": 1, "c": None}
    assert (scope.headers["scope"], partition.headers["scope"]) == (b"range", b"partition")
    assert scope.headers["start"] == b'{"inclusive":false,"values":{"c":1},"descending":[]}'
    assert scope.headers["end"] == b'{"inclusive":true,"values":{"c":7},"descending":[]}'
    source = values[0]["source"]
    assert (source["ts_us"], source["connector"], source["snapshot"]) == (1700000000000001, "cassandra", "false")
    assert (source["keyspace"], source["table"], source["name"]) == ("envelope", "t", "envelope-t")
    assert source["cluster"] == session.cluster.metadata.cluster_name
    assert source["node"] == str(next(iter(session.cluster.metadata.all_hosts())).host_id)
    places = [(int(value["source"]["file"]), value["source"]["pos"]) for value in values]
    assert places == sorted(set(places))
    pipeline.adds_up("envelope-t")
    metrics = pipeline.connector
    assert metrics.total("helenus_connector_keys_read_total", connector="envelope-t") == 0
    assert metrics.total("helenus_connector_keys_unconfirmed", connector="envelope-t") == 0


def test_a_truncation_and_a_new_column(pipeline: Pipeline, session: Any) -> None:
    """The records go on after an ALTER, in a schema that readers of the one before are compatible with."""
    session.execute(f"ALTER TABLE {TABLE} ADD n bigint")
    session.execute(f"INSERT INTO {TABLE} (k, c, n) VALUES (2, 1, 8)")
    (record,) = records_of(pipeline, 2, 1)
    assert written(record) == {"n": 8}
    session.execute(f"TRUNCATE {TABLE}")

    def truncated() -> bool:
        return any((record.value or {}).get("op") == "t" for record in pipeline.records(TABLE))

    eventually(truncated, lambda: f"a truncation:\n{pipeline.connector.tail()}")
