"""Rows that cannot be published: after a marker they hold up no other, and when read again they stop nothing."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from connector.staged import ALL, CLUSTERED, DATA, DEAD_LETTERS, EVENTS, NODE, Staged, int32, rows, table

from helenus_connector.config.connector import ConnectorSettings, PulsarConnectorSettings
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.image import Image
from helenus_connector.testing.cassandra import MemoryReader
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Bound, Change, Scope
from helenus_schemas.event.wire import decode, encode

WRONG = b"\1"  # no int
HOLLOW = struct.pack(">ii", 1, 0)  # a list whose only element has no bytes
Make = Callable[..., Staged]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    return lambda definition, **more: Staged(definition, tmp_path, monkeypatch, **more)


def test_a_row_without_a_key_form_after_a_truncation(make: Make) -> None:
    """A tuple with fewer fields than its type is another partition than the one with nulls."""
    staged = make(table(("a", "frozen<tuple<int, int>>", "partition_key"), ("b", "text", "partition_key")))
    short, whole = struct.pack(">ii", 4, 7), struct.pack(">iiii", 4, 7, 4, 8)
    staged.live.update(rows(((short, b"x"), int32(5)), ((whole, b"x"), int32(6))))
    outcome = staged.run(Change("1" * 32, NODE, Scope.TABLE, write_time=5), None)
    assert (outcome.published, outcome.records, outcome.unpublished) == (1, 2, 1)
    assert staged.records_of(DATA) == [
        ({"table": "ks.t"}, None),
        ({"a": {"index_0": 7, "index_1": 8}, "b": "x"}, {"v": 6}),
    ]


def test_partition_keys_with_values_of_no_bytes(make: Make) -> None:
    """`blob_as_int(0x)` is legal in one of several columns: a row published by itself, and one after a marker."""
    definition = table(("a", "int", "partition_key"), ("b", "text", "partition_key"), ("c", "int", "clustering"))
    staged = make(definition)
    staged.live.update(rows(((b"", b"x", int32(1)), int32(5)), ((int32(0), b"x", int32(1)), int32(6))))
    for n, key in enumerate(staged.live):
        outcome = staged.run(Change(f"{n}" * 32, NODE, Scope.ROW, write_time=5), staged.codec.encode(key))
        assert (outcome.published, outcome.unpublished) == (1, 0)
    expected = [({"a": None, "b": "x", "c": 1}, {"v": 5}), ({"a": 0, "b": "x", "c": 1}, {"v": 6})]
    assert staged.records_of(DATA) == expected
    assert [json.loads(dict(headers).get("empty", b"[]")) for *_, headers in staged.appended] == [["a"], []]
    staged.appended.clear()
    outcome = staged.run(Change("2" * 32, NODE, Scope.TABLE, write_time=5), None)
    assert (outcome.published, outcome.unpublished) == (1, 0)
    assert staged.records_of(DATA)[1:] == expected


def test_a_row_without_a_key_form_after_a_partition_delete(make: Make) -> None:
    definition = table(("a", "int", "partition_key"), ("c", "frozen<list<int>>", "clustering"))
    staged = make(definition)
    good_value = struct.pack(">iii", 1, 4, 9)
    staged.live.update(rows(((int32(1), HOLLOW), int32(5)), ((int32(1), good_value), int32(6))))
    outcome = staged.run(Change("1" * 32, NODE, Scope.PARTITION, write_time=5), staged.codec.encode((int32(1), None)))
    assert (outcome.published, outcome.unpublished) == (1, 1)
    assert staged.records_of(DATA) == [({"a": 1, "c": None}, None), ({"a": 1, "c": [9]}, {"v": 6})]


def test_an_unpublishable_value_holds_up_no_row_after_it(make: Make) -> None:
    staged = make(CLUSTERED, **ALL)
    values = ((1, int32(1)), (2, WRONG), (3, int32(3)))
    staged.live.update(rows(*(((int32(1), int32(c)), value) for c, value in values)))
    key = staged.codec.encode((int32(1), None))
    outcome = staged.run(Change("1" * 32, NODE, Scope.PARTITION, write_time=5), key)
    assert (outcome.published, outcome.dead_lettered, outcome.unpublished) == (1, 0, 1)
    assert [(k["c"], v) for k, v in staged.records_of(DATA)] == [(None, None), (1, {"v": 1}), (3, {"v": 3})]
    (dead_letter,) = [
        (key, decode(value or b"")) for topic, _, key, value, _ in staged.appended if topic == DEAD_LETTERS
    ]
    assert dead_letter == (staged.codec.encode((int32(1), int32(2))), Change(None, None, Scope.ROW, write_time=5))
    # It is read again for its proof: nothing is new, and nothing is published.
    (unconfirmed,) = outcome.waiting
    second_outcome = staged.stage.run([], [unconfirmed], trust_images=True)
    assert (len(staged.appended), second_outcome.unpublished) == (4, 0)


def test_without_tolerance_an_unpublishable_value_stops_the_connector(make: Make) -> None:
    staged = make(CLUSTERED, **{"errors.tolerance": "none"})
    staged.live.update(rows(((int32(1), int32(2)), WRONG)))
    key = staged.codec.encode((int32(1), None))
    with pytest.raises(HelenusError, match=r"column v, event of events-ks\.t 0, offset 7") as error:
        staged.run(Change("1" * 32, NODE, Scope.PARTITION, write_time=5), key)
    assert error.value.kind is Kind.POISON_EVENT


def test_an_unpublishable_row_is_one_dead_letter_for_all_its_events(make: Make) -> None:
    staged = make(CLUSTERED, **ALL)
    staged.live.update(rows(((int32(1), int32(2)), WRONG)))
    key = staged.codec.encode((int32(1), int32(2)))
    events = [
        Event(EVENTS, 0, n, 1000, key, encode(Change(str(n) * 32, NODE, Scope.ROW, write_time=5))) for n in (7, 8)
    ]
    outcome = staged.stage.run(events, [], trust_images=True)
    assert (outcome.read, outcome.dead_lettered, outcome.published, outcome.unpublished) == (2, 2, 0, 1)
    ((_, _, _, value, headers),) = staged.appended
    assert (value, dict(headers)["__connect.errors.offset"]) == (events[0].value, b"7")


@pytest.mark.parametrize("copies", [0, 3])
def test_a_key_that_becomes_unpublishable_when_it_is_read_again(make: Make, copies: int) -> None:
    """A later write made it so, and its event did not come yet."""
    staged = make(CLUSTERED, **ALL)
    key = staged.codec.encode((int32(1), int32(2)))
    (unconfirmed,) = staged.run(Change("1" * 32, NODE, Scope.ROW, write_time=5), key).waiting
    unconfirmed.copies = copies
    staged.live.update(rows(((int32(1), int32(2)), WRONG)))
    outcome = staged.stage.run([], [unconfirmed], trust_images=True)
    assert (outcome.dead_lettered, outcome.unpublished, outcome.unchanged, outcome.published) == (copies, 1, 0, 0)
    (unconfirmed,) = outcome.waiting
    second_outcome = staged.stage.run([], [unconfirmed], trust_images=True)
    assert (second_outcome.dead_lettered, second_outcome.unpublished, unconfirmed.copies) == (0, 0, 0), (
        "it is reported once"
    )
    _, (topic, _, key_of_letter, value, _) = staged.appended
    assert (topic, key_of_letter, decode(value or b"").scope) == (DEAD_LETTERS, key, Scope.ROW)


def test_an_unpublishable_bound(make: Make) -> None:
    definition = table(("a", "int", "partition_key"), ("c", "frozen<list<int>>", "clustering"))
    staged = make(definition, **ALL)
    change = Change("1" * 32, NODE, Scope.RANGE, write_time=5, start=Bound(True, (HOLLOW,)))
    outcome = staged.run(change, staged.codec.encode((int32(1), None)))
    assert (outcome.dead_lettered, outcome.records) == (1, 0)
    assert [topic for topic, *_ in staged.appended] == [DEAD_LETTERS]


def test_headers_of_an_event_in_a_registrys_frame(make: Make) -> None:
    """As DataStax's agents write them on Kafka."""
    definition = table(("a", "int", "partition_key"))
    staged = make(definition, headers="node,digest")
    staged.live.update(rows(((int32(1),), int32(7))))
    frame = b"\0" + int32(7)
    value = encode(Change("a" * 32, NODE, foreign=True))
    outcome = staged.stage.run(
        [Event(EVENTS, 0, 0, 1000, frame + staged.codec.encode((int32(1),)), frame + value)], [], trust_images=True
    )
    assert outcome.published == 1
    ((*_, headers),) = staged.appended
    assert dict(headers) == {"node": NODE.encode(), "digest": b"a" * 32}


LIMIT = 1_000_000


@pytest.mark.parametrize(
    ("key", "value", "left_out"),
    [
        (b"k", bytes(LIMIT - 1000), None),
        (b"k", bytes(LIMIT), b"value"),
        (None, bytes(LIMIT), b"value"),
        (bytes(LIMIT), b"v", b"key,value"),
    ],
)
def test_poison_that_is_too_large_for_a_dead_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: bytes | None, value: bytes, left_out: bytes | None
) -> None:
    """The dead letter says what is not in it, and the connector goes on."""
    staged = Staged(CLUSTERED, tmp_path, monkeypatch, **ALL)
    staged.log.log.largest = LIMIT
    outcome = staged.stage.run([Event(EVENTS, 0, 7, 1000, key, value)], [], trust_images=True)
    assert outcome.dead_lettered == 1
    ((topic, _, kept_key, kept_value, record_headers),) = staged.appended
    headers = dict(record_headers)
    assert (topic, headers.get("__connect.errors.left.out")) == (DEAD_LETTERS, left_out)
    assert (kept_key == key, kept_value == value) == (left_out != b"key,value", left_out is None)
    assert headers["__connect.errors.offset"] == b"7"
    assert "poison" not in headers["__connect.errors.exception.message"].decode()
    assert len(headers["__connect.errors.exception.message"]) <= 2000


def test_a_dead_letter_asks_for_all_that_its_events_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition's statics and its deletion are one read: its dead letter, replayed, asks for the deletion too."""
    definition = table(("a", "int", "partition_key"), ("c", "int", "clustering"))
    staged = Staged(definition, tmp_path, monkeypatch, **{"errors.large.record": "dead-letter"})
    key = staged.codec.encode((int32(1), None))
    monkeypatch.setattr(MemoryReader, "read_statics", lambda *_: Image((int32(1),), 5))
    staged.log.fail("append", HelenusError(Kind.RECORD_TOO_LARGE, "too large", DATA), times=None, topics=[DATA])
    scopes = (Scope.STATIC, Scope.PARTITION, Scope.STATIC)
    changes = [Change(str(n) * 32, NODE, scope, write_time=n) for n, scope in enumerate(scopes, 1)]
    events = [Event(EVENTS, 0, n, 1000, key, encode(change)) for n, change in enumerate(changes)]
    outcome = staged.stage.run(events, [], trust_images=True)
    assert outcome.dead_lettered == 3
    ((_, _, key_of_letter, value, _),) = staged.appended
    assert (key_of_letter, decode(value or b"").scope) == (key, Scope.PARTITION)


def test_a_topic_of_dead_letters_is_made_when_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default no table stops at a record that is too large; one whose dead letter is refused says both."""
    staged = Staged(CLUSTERED, tmp_path, monkeypatch)
    assert not staged.stage.settings.has_dead_letters
    key = staged.codec.encode((int32(1), int32(1)))
    events = [Event(EVENTS, 0, 1, 1000, key, encode(Change("1" * 32, NODE, Scope.ROW, write_time=1)))]
    staged.log.fail("append", HelenusError(Kind.RECORD_TOO_LARGE, "too large", DATA), times=None, topics=[DATA])
    staged.log.fail("create", HelenusError(Kind.BROKER_REFUSED, "no right"), times=None, topics=[DEAD_LETTERS])
    with pytest.raises(HelenusError, match=f"too large.*no dead letter: no right.*{DEAD_LETTERS}") as error:
        staged.stage.run(events, [], trust_images=True)
    assert error.value.kind is Kind.RECORD_TOO_LARGE
    staged.log.mend()
    staged.log.fail("append", HelenusError(Kind.RECORD_TOO_LARGE, "too large", DATA), times=None, topics=[DATA])
    assert staged.stage.run(events, [], trust_images=True).dead_lettered == 1
    assert [record.topic for record in staged.appended] == [DEAD_LETTERS]


@pytest.mark.parametrize("settings", [ConnectorSettings, PulsarConnectorSettings])
def test_chunks_are_for_both_brokers(settings: type[ConnectorSettings]) -> None:
    properties = {"name": "n", "keyspace": "ks", "table": "t", "output.format": "json", "errors.large.record": "chunk"}
    assert settings.from_properties(properties, "test").has_chunks
