"""What must not leave, on real servers: masks, conditions, skipped operations and columns of keys, with transforms and
with both states, before images, snapshots and dead letters. No topic and no log has a value that is hidden.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from agent.writer import table_of
from integration.pipeline import Lasting, Pipeline
from patience import eventually

from helenus_schemas.codec.key import KeyCodec
from helenus_stack.records import messages
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

JSON = {
    **{f"{part}.converter": "org.apache.kafka.connect.json.JsonConverter" for part in ("key", "value")},
    **{f"{part}.converter.schemas.enable": "false" for part in ("key", "value")},
}
ENVELOPE = {**JSON, "output.format": "debezium"}
MERGED = {"state": "rows", "snapshot.mode": "never"}
"""Each change has its record, however late the snapshot of the empty table would be."""
COLUMN = r"hidden\..*\.secret"
STARS = {"column.mask.with.5.chars": COLUMN}
HASH = {"column.mask.hash.v2.SHA-256.with.salt.s4lt": COLUMN}
UNWRAP = {
    "transforms": "unwrap,origin",
    "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
    "transforms.unwrap.add.fields": "op",
    "transforms.unwrap.delete.tombstone.handling.mode": "rewrite",
    "transforms.origin.type": "org.apache.kafka.connect.transforms.InsertField$Value",
    "transforms.origin.static.field": "origin",
    "transforms.origin.static.value": "cassandra",
}
CAST = {
    "transforms": "cast",
    "transforms.cast.type": "org.apache.kafka.connect.transforms.Cast$Value",
    "transforms.cast.spec": "secret:int32",
}
TABLES: dict[str, dict[str, str]] = {
    "plain": {**STARS, "snapshot.mode": "initial"},
    "listed": {**JSON, **STARS, "state": "keys"},
    "written": {**ENVELOPE, **HASH, "resolver": "none"},
    "merged": {**ENVELOPE, **STARS, **MERGED},
    "changed": {**ENVELOPE, **STARS, **MERGED, **UNWRAP},
    "failing": {**JSON, **STARS, **CAST},
    "chosen": {
        **JSON,
        "where.chosen": "v > 0",
        "message.key.columns": "hidden.chosen:k",
        "skipped.operations": "t",
    },
    "skipped": {**ENVELOPE, **STARS, **MERGED, "skipped.operations": "u,d"},
}
BROKEN_TABLES = ("plain", "written", "merged")
"""Those whose connectors also read events that can't be decoded."""
WORDS = [f"Cl3ar-{name}" for name in ("inserted", "updated", "before", "broken", "unchosen", "snapshot", "removed")]
INSERTED, UPDATED, BEFORE, BROKEN, UNCHOSEN, SNAPSHOT, REMOVED = WORDS
LAST = 9
"""Partition of the row that each table gets last."""
STATEMENTS = [
    f"INSERT INTO {{}} (k, c, v, secret) VALUES (1, 1, 1, '{BEFORE}')",
    f"INSERT INTO {{}} (k, c, v, secret) VALUES (1, 2, -1, '{UNCHOSEN}')",
    f"UPDATE {{}} SET secret = '{UPDATED}' WHERE k = 1 AND c = 1",
    f"INSERT INTO {{}} (k, c, v, secret) VALUES (1, 3, 3, '{REMOVED}')",
    "DELETE FROM {} WHERE k = 1 AND c = 3",
    "UPDATE {} SET secret = null WHERE k = 1 AND c = 2",
    f"INSERT INTO {{}} (k, c, v, secret) VALUES (2, 1, 4, '{REMOVED}')",
    "DELETE FROM {} WHERE k = 2",
    f"INSERT INTO {{}} (k, c, v, secret) VALUES ({LAST}, 1, 5, '{INSERTED}')",
]


@pytest.fixture(scope="module")
def pipeline(status: Status, session: Any, lasting: Lasting) -> Iterator[Pipeline]:
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    session.execute(f"CREATE KEYSPACE hidden WITH replication = {replication}")
    for name in TABLES:
        session.execute(
            f"CREATE TABLE hidden.{name} (k int, c int, v int, secret text, PRIMARY KEY (k, c)) WITH cdc = true"
        )
    session.execute("ALTER TABLE hidden.plain WITH cdc = false")
    session.execute(f"INSERT INTO hidden.plain (k, c, v, secret) VALUES (5, 5, 5, '{SNAPSHOT}')")
    session.execute("ALTER TABLE hidden.plain WITH cdc = true")
    tolerant = {"errors.tolerance": "all"}
    connectors = {f"hidden.{name}": {**tolerant, **more, **group_of(name, more)} for name, more in TABLES.items()}
    with lasting("kafka").connected(connectors) as pipeline:
        for name in TABLES:
            for statement in STATEMENTS:
                session.execute(statement.format(f"hidden.{name}"))
        for name in TABLES:
            settle(pipeline, name, len(STATEMENTS))
        for name in BROKEN_TABLES:
            settle(pipeline, name, len(STATEMENTS) + append_broken_events(pipeline, name))
        yield pipeline


def group_of(name: str, more: dict[str, str]) -> dict[str, str]:
    """A connector with state has a query of its own."""
    return {"query.group": f"hidden-{name}"} if "state" in more else {}


def append_broken_events(pipeline: Pipeline, name: str) -> int:
    """Append events that can't be decoded, or whose cells can't, to what a connector reads; return their number."""
    topic = f"events-hidden.{name}"
    events = pipeline.reader.messages(topic)
    whole = next(event for event in events if UPDATED.encode() in (event.value() or b""))
    start = whole.value().index(UPDATED.encode())
    values = [
        BROKEN.encode(),
        b"\0" + BROKEN.encode(),
        whole.value()[: start + 3],
        whole.value()[: start - 1] + b"\x7f" + BROKEN.encode(),
    ]
    with pipeline.log() as log:
        for value in values:
            log.append(topic, whole.partition(), whole.key(), value)
    return len(values)


def settle(pipeline: Pipeline, name: str, events: int) -> None:
    """Wait until a connector has read so many events, and is sure of all of their rows."""
    connector = f"hidden-{name}"

    def is_settled() -> bool:
        read = pipeline.connector.total("helenus_connector_events_read_total", connector=connector)
        waiting = pipeline.connector.total("helenus_connector_keys_unconfirmed", connector=connector)
        return read >= events and not waiting

    eventually(is_settled, lambda: f"{name} settles:\n{pipeline.connector.tail()}")
    pipeline.adds_up(connector)


def records(pipeline: Pipeline, name: str) -> list[tuple[Any, Any]]:
    """Keys and values of a data topic whose records are JSON; no delete markers."""
    written = messages(pipeline.status.bootstrap_servers, f"data-hidden.{name}")
    rows = [message for message in written if "scope" not in dict(message.headers() or ())]
    return [(json.loads(row.key()), json.loads(row.value() or b"null")) for row in rows]


def spellings(text: str) -> Iterator[bytes]:
    """The bytes in which a text may stand somewhere."""
    plain = text.encode()
    yield plain
    yield plain.hex().encode()
    yield text.encode("utf-16-le")
    for padding in range(3):  # Base64 has each byte in one of three places
        yield b64encode(bytes(padding) + plain)[4 if padding else 0 : -4]


def test_no_topic_and_no_log_has_a_hidden_value(pipeline: Pipeline) -> None:
    hidden = {**dict.fromkeys(TABLES, WORDS), "chosen": [UNCHOSEN]}
    with pipeline.log() as log:
        topics = [topic for topic in log.topics() if "hidden." in topic and not topic.startswith("events-")]
    assert {f"data-hidden.{name}" for name in TABLES} <= {*topics}
    assert {f"dlq-hidden.{name}" for name in (*BROKEN_TABLES, "failing")} <= {*topics}
    leaks = []
    for topic in topics:
        for message in messages(pipeline.status.bootstrap_servers, topic):
            headers = [part for name, value in message.headers() or () for part in (name.encode(), value)]
            for part in (message.key(), message.value(), *headers):
                for word in hidden[topic.partition(".")[2]]:
                    leaks += [(topic, word, part) for spelling in spellings(word) if spelling in (part or b"")]
    assert not leaks
    for command in (pipeline.connector, pipeline.agent):
        text = command.log.read_bytes()
        lines = [
            line for word in WORDS for spelling in spellings(word) for line in text.splitlines() if spelling in line
        ]
        assert not lines
    assert b"s4lt" not in pipeline.connector.log.read_bytes()


def test_the_events_have_them(pipeline: Pipeline) -> None:
    """So that the test above looks for what is there."""
    for name in ("written", "merged"):
        events = b"".join(message.value() or b"" for message in pipeline.reader.messages(f"events-hidden.{name}"))
        assert [word for word in WORDS if word != SNAPSHOT and word.encode() not in events] == []


def test_masks_of_written_cells(pipeline: Pipeline) -> None:
    digest = hashlib.sha256(f"s4lt{INSERTED}".encode()).hexdigest()
    values = [value["after"]["secret"] for key, value in records(pipeline, "written") if key["k"] == LAST]
    assert [value if isinstance(value, str) else value["value"] for value in values] == [digest]


def test_masks_of_rows_before_and_after(pipeline: Pipeline) -> None:
    changes = [value for key, value in records(pipeline, "merged") if (key["k"], key["c"]) == (1, 1) and value]
    assert [(change["op"], change["before"], change["after"]) for change in changes] == [
        ("c", None, {"k": 1, "c": 1, "v": 1, "secret": "*****"}),
        ("u", {"k": 1, "c": 1, "v": 1, "secret": "*****"}, {"k": 1, "c": 1, "v": 1, "secret": "*****"}),
    ]


def test_transforms_of_rows_that_are_kept(pipeline: Pipeline) -> None:
    """Their state is of the rows, not of what the transforms made: each change has its operation."""
    rows = records(pipeline, "changed")
    of_row = [value for key, value in rows if (key["k"], key["c"]) == (1, 1)]
    row = {"k": 1, "c": 1, "v": 1, "secret": "*****", "origin": "cassandra"}
    assert of_row == [{**row, "__op": "c", "__deleted": "false"}, {**row, "__op": "u", "__deleted": "false"}]
    deleted = [value["__op"] for key, value in rows if (key["k"], key["c"]) == (1, 3) and value]
    assert deleted == ["c", "d"]


def test_transforms_that_fail(pipeline: Pipeline) -> None:
    """The dead letters are of the rows with text, which is no number: a null is."""
    assert [value for _, value in records(pipeline, "failing") if value and value["secret"] is not None] == []
    letters = list(messages(pipeline.status.bootstrap_servers, "dlq-hidden.failing"))
    codec = KeyCodec(table_of("failing", "k int pk, c int ck"))
    keys = {tuple(int.from_bytes(part or b"", "big") for part in codec.decode(letter.key())) for letter in letters}
    assert keys >= {(1, 1), (LAST, 1)}


def test_conditions_and_columns_of_keys(pipeline: Pipeline) -> None:
    rows = records(pipeline, "chosen")
    assert {tuple(key) for key, _ in rows} == {("k",)}
    assert [value for _, value in rows if value and value["v"] <= 0] == []
    assert {value["secret"] for _, value in rows if value} >= {UPDATED, INSERTED}
    assert ({"k": 1}, None) in rows  # of the row that does not match


def test_skipped_operations(pipeline: Pipeline, session: Any) -> None:
    before = records(pipeline, "skipped")
    assert {value["op"] for _, value in before} == {"c"}
    assert sorted((key["k"], key["c"]) for key, _ in before) == [(1, 1), (1, 2), (1, 3), (2, 1), (LAST, 1)]
    session.execute("TRUNCATE hidden.chosen")
    session.execute(f"INSERT INTO hidden.chosen (k, c, v, secret) VALUES ({LAST}, 2, 6, '{INSERTED}')")
    eventually(lambda: any(v and v["v"] == 6 for _, v in records(pipeline, "chosen")), "the last row")
    written = messages(pipeline.status.bootstrap_servers, "data-hidden.chosen")
    assert b"table" not in {dict(message.headers() or ()).get("scope") for message in written}


def test_masks_of_snapshots(pipeline: Pipeline) -> None:
    values = [record.value for record in pipeline.records("hidden.plain") if record.key == {"k": 5, "c": 5}]
    assert {value and value["secret"] for value in values} == {"*****"}
