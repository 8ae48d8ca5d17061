"""`output.format=cep44`, real: CEP-44's envelope of what was written, in both templates, and of rows that were read."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from integration.pipeline import Lasting, Pipeline
from patience import eventually
from schemas.java import Reader, plain

from helenus_connector.shape.cep44._key import murmur2
from helenus_stack.records import Record, bare, messages, read

pytestmark = pytest.mark.integration

NONE = {"output.format": "cep44", "resolver": "none"}
TABLES = {
    "cep.whole": NONE,
    "cep.apart": {**NONE, "cep44.payload": "bytes", "key.compat": "cep44"},
    "cep.reread": {"output.format": "cep44"},
}
COLUMNS = (
    "k int, c int, s text static, v int, w text, m map<text, int>, l list<int>, st set<text>, a addr,"
    " d decimal, n varint, at timestamp, i inet, PRIMARY KEY (k, c)"
)


@pytest.fixture(scope="module")
def pipeline(session: Any, lasting: Lasting) -> Iterator[Pipeline]:
    session.execute("CREATE KEYSPACE cep WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    session.execute("CREATE TYPE cep.addr (street text, zip int)")
    for table in TABLES:
        session.execute(f"CREATE TABLE {table} ({COLUMNS}) WITH cdc = true")
    with lasting("kafka").connected(TABLES) as pipeline:
        yield pipeline


def statements(table: str) -> list[str]:
    return [
        f"INSERT INTO {table} (k, c, v, w, m, l, st, d, n, at, i) VALUES (1, 1, 1, 'x', {{'a': 1}}, [1, 2],"
        " {'p', 'q'}, -1.50, 12345678901234567890, '2024-03-22T23:10:35.715Z', '10.0.0.1')"
        " USING TIMESTAMP 1700000000000001",
        f"UPDATE {table} SET v = 2 WHERE k = 1 AND c = 1",
        f"UPDATE {table} SET m = m + {{'b': 2}}, l = l + [9], st = st - {{'p'}} WHERE k = 1 AND c = 1",
        f"DELETE w FROM {table} WHERE k = 1 AND c = 1",
        f"DELETE m FROM {table} WHERE k = 1 AND c = 1",
        f"UPDATE {table} SET m = {{'z': 26}}, a.street = 'Main' WHERE k = 1 AND c = 1",
        f"UPDATE {table} SET s = 'static' WHERE k = 1",
        f"INSERT INTO {table} (k, c, v) VALUES (1, 2, 5) USING TTL 86400",
        f"DELETE FROM {table} WHERE k = 1 AND c = 1",
        f"DELETE FROM {table} WHERE k = 1 AND c > 1 AND c <= 7",
        f"DELETE FROM {table} WHERE k = 1",
    ]


KINDS = [
    *("INSERT", "UPDATE", "COMPLEX_ELEMENT_DELETE", "UPDATE", "DELETE", "UPDATE", "UPDATE", "INSERT"),
    *("DELETE", "DELETE_RANGE", "DELETE_PARTITION"),
]
OPS = [b"c", b"u", b"u", b"u", b"u", b"u", b"u", b"c", b"d", b"d", b"d"]
FIELDS = [
    ["k", "c", "at", "d", "i", "n", "v", "w", "l", "m", "st"],
    ["k", "c", "v"],
    ["k", "c", "l", "m", "st"],
    ["k", "c", "w"],
    ["k", "c", "m"],
    ["k", "c", "a", "m"],
    ["k", "s"],
    ["k", "c", "v"],
    ["k", "c"],
    ["k"],
    ["k"],
]


def records_of(pipeline: Pipeline, table: str, k: int, count: int) -> list[Record]:
    records: list[Record] = []

    def there() -> bool:
        records[:] = [record for record in pipeline.records(table) if record.key.get("k") == k]
        return len(records) >= count

    eventually(there, lambda: f"{count} records of key {k}, {len(records)} are there:\n{pipeline.connector.tail()}")
    assert len(records) == count
    return records


def written_values(record: Record) -> dict[str, Any]:
    """The columns of a payload that are not null, without its key's."""
    assert record.value is not None
    payload = record.value["payload"]
    return {name: value for name, value in payload.items() if value is not None and name not in ("k", "c")}


def test_every_statement_is_a_record(pipeline: Pipeline, session: Any) -> None:
    for statement in statements("cep.whole"):
        session.execute(statement)
    records = records_of(pipeline, "cep.whole", 1, 14)
    assert [record.value is None for record in records] == [False] * 9 + [True, False, True, False, True]
    full = [record for record in records if record.value is not None]
    values = [record.value for record in full if record.value is not None]
    assert [value["operationType"] for value in values] == KINDS
    assert [record.headers["op"] for record in full] == OPS
    assert [sorted(value["updateFields"]) for value in values] == [sorted(fields) for fields in FIELDS]
    assert all(value["isPartial"] for value in values)
    insert, update, elements, one_element, whole, replaced, static, expiring, row, scope, partition = full
    values_of_insert = written_values(insert)
    assert str(values_of_insert.pop("d")) == "-1.5000000000000000000"
    assert values_of_insert.pop("n") == 12345678901234567890
    assert values_of_insert.pop("at").isoformat() == "2024-03-22T23:10:35.715000+00:00"
    assert values_of_insert.pop("i") == bytes((10, 0, 0, 1))
    assert values_of_insert == {"v": 1, "w": "x", "m": [{"key": "a", "value": 1}], "l": [1, 2], "st": ["p", "q"]}
    assert values[0]["timestampMicros"] == 1700000000000001
    assert (values[0]["sourceKeyspace"], values[0]["sourceTable"], values[0]["version"]) == ("cep", "whole", "2")
    assert insert.headers["schemaUuid"].decode() == values[0]["schemaUuid"]
    assert (insert.headers["keyspace"], insert.headers["table"]) == (b"cep", b"whole")
    assert written_values(update) == {"v": 2}
    assert written_values(elements) == {"m": [{"key": "b", "value": 2}], "l": [9]}
    assert values[2]["written"]["removed"] == {"st": ["p"]}
    assert (
        written_values(one_element)
        == written_values(whole)
        == written_values(row)
        == written_values(scope)
        == written_values(partition)
        == {}
    )
    assert written_values(replaced) == {"m": [{"key": "z", "value": 26}], "a": {"street": "Main", "zip": None}}
    assert (static.key, written_values(static)) == ({"k": 1, "c": None}, {"s": "static"})
    assert (written_values(expiring), values[7]["ttl"]["ttl"]) == ({"v": 5}, 86400)
    assert values[7]["ttl"]["deletedAt"] == int(expiring.headers["expires"])
    assert row.key == {"k": 1, "c": 1}
    assert [(p["field"], p["rangePredicateType"]) for p in values[9]["range"]] == [("c", "GT"), ("c", "LTE")]
    pipeline.adds_up("cep-whole")
    assert pipeline.connector.total("helenus_connector_keys_read_total", connector="cep-whole") == 0


def test_the_payload_apart_and_the_sidecars_key(pipeline: Pipeline, session: Any, tmp_path: Path) -> None:
    """The schema of the payload is in the envelope's, and Java reads both."""

    def sent_of(count: int) -> list[Any]:
        records: list[Any] = []

        def there() -> bool:
            records[:] = messages(pipeline.status.bootstrap_servers, "data-cep.apart")
            return len(records) >= count

        eventually(there, lambda: f"{count} records, {len(records)} are there:\n{pipeline.connector.tail()}")
        return records

    for statement in statements("cep.apart"):
        session.execute(statement)
    sent_of(len(KINDS))
    session.execute("ALTER TABLE cep.apart ADD more bigint")
    session.execute("INSERT INTO cep.apart (k, c, more) VALUES (1, 3, 8)")
    sent = sent_of(len(KINDS) + 1)
    assert {message.key() for message in sent} == {b"cep:apart:%x" % murmur2(b"\0\0\0\1")}
    registry = SchemaRegistryClient({"url": pipeline.status.registry_url})
    texts_and_data, expected, kinds, payloads = [], [], [], []
    for message in sent:
        text = registry.get_schema(int.from_bytes(message.value()[1:5], "big")).schema_str
        value = read(message.value()[5:], fastavro.parse_schema(bare(json.loads(text))))
        schema = next(field["schema"] for field in json.loads(text)["fields"] if field["name"] == "payload")
        parsed = fastavro.parse_schema(bare(schema))
        texts_and_data += [(text, message.value()[5:]), (json.dumps(schema), value["payload"])]
        expected += [plain(value), plain(read(value["payload"], parsed))]
        kinds.append(value["operationType"])
        payloads.append(fastavro.schemaless_reader(io.BytesIO(value["payload"]), parsed))
    registry.close()
    assert kinds == [*KINDS, "INSERT"]
    assert (payloads[0]["v"], payloads[0]["at"], payloads[6]["s"]) == (1, 1711149035715000, "static")
    assert ("more" in payloads[0], payloads[-1]["more"]) == (False, 8)
    answers = Reader(tmp_path).read(texts_and_data)
    assert [answer.get("error") for answer in answers] == [None] * len(texts_and_data)
    assert [answer["value"] for answer in answers] == expected


def test_rows_that_are_read(pipeline: Pipeline, session: Any) -> None:
    session.execute("UPDATE cep.reread SET s = 'static' WHERE k = 1")
    (static,) = records_of(pipeline, "cep.reread", 1, 1)
    assert static.value is not None
    assert (static.value["updateFields"], written_values(static)) == (["k", "s"], {"s": "static"})
    session.execute("INSERT INTO cep.reread (k, c, v, w) VALUES (1, 1, 1, 'x')")
    _, row = records_of(pipeline, "cep.reread", 1, 2)
    assert row.value is not None
    assert (row.value["operationType"], row.value["isPartial"]) == ("UPDATE", False)
    assert written_values(row) == {"s": "static", "v": 1, "w": "x"}
    assert "op" not in row.headers  # it is not known whether the row was there
    session.execute("DELETE FROM cep.reread WHERE k = 1 AND c = 1")
    *_, gone, tombstone = records_of(pipeline, "cep.reread", 1, 4)
    assert gone.value is not None
    assert (gone.value["operationType"], gone.headers["op"], tombstone.value) == ("DELETE", b"d", None)
    session.execute("ALTER TABLE cep.reread ADD more bigint")
    session.execute("INSERT INTO cep.reread (k, c, more) VALUES (1, 3, 8)")
    *_, row = records_of(pipeline, "cep.reread", 1, 5)
    assert written_values(row) == {"s": "static", "more": 8}
    pipeline.adds_up("cep-reread")
