"""A table that is altered, or recreated, while earlier events are in flight or a batch runs."""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from connector.staged import ALL, DATA, DEAD_LETTERS, EVENTS, NODE, Staged, int32

from helenus_connector.cassandra_rows.row_reader import KeyRefused
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.resolver import SchemaChanged
from helenus_connector.pipeline import _table_version as version
from helenus_connector.reread import resolver
from helenus_connector.testing.cassandra import MemoryReader
from helenus_connector.unconfirmed.unconfirmed_key import UnconfirmedKey
from helenus_connector.unconfirmed.unproven_changes import UnprovenChange, pack_changes
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType, parse
from helenus_schemas.errors import Action, HelenusError, Kind
from helenus_schemas.event.change import Change, Scope
from helenus_schemas.event.wire import encode

LATER, BEFORE = uuid.uuid1(), uuid.UUID(int=1)
NOW = time.time() + 1
FIRST = Column("k", parse("int"), "partition_key")
VALUE = Column("v", parse("int"))


def table(*columns: Column, table_id: uuid.UUID = BEFORE) -> Table:
    return Table("ks", "t", table_id, columns, cdc=True)


def udt(*fields: str) -> CqlType:
    return CqlType("udt", (parse("int"),) * len(fields), frozen=True, label="u", fields=fields)


def change(seconds: float = NOW) -> Change:
    return Change(uuid.uuid4().hex, NODE, write_time=int(seconds * 1e6))


class Reader(MemoryReader):
    """Reads the table that is there now, and meets what a test has it meet before."""

    def __init__(self, altered: Altered, definition: Table) -> None:
        super().__init__(altered.live, definition)
        self.altered, self.is_current = altered, False

    def read_rows(self, keys: Sequence[Key], consistency: int) -> Iterator[tuple[Key, Image | None]]:
        self.altered.asked += keys
        self.altered.before_rows()
        for key in keys:
            if key not in self.altered.refused:
                yield key, self.live.get(key)
            elif self.is_current:
                yield key, KeyRefused("Key may not be empty")  # type: ignore[misc]
            else:
                raise SchemaChanged("Key may not be empty")

    def read_statics(self, key: Key, consistency: int) -> None:
        if key in self.altered.refused:
            raise KeyRefused("Key may not be empty") if self.is_current else SchemaChanged("Key may not be empty")

    def read_range(self, key: Key, bounds: object, consistency: int) -> Iterator[tuple[Key, Image]]:
        yield from self.live.items()


class Altered(Staged):
    """A stage whose table is `now`; a node that lags shows `lagging` instead, unless all are asked."""

    def __init__(self, created: Table, directory: Path, monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
        super().__init__(created, directory, monkeypatch, **more)
        self.now = self.lagging = created
        self.refused: set[Key] = set()
        self.asked: list[Key] = []
        self.before_rows: Callable[[], None] = lambda: None

        def definition(
            session: Any, settings: Any, known_version: object = None, version_request: object = None
        ) -> tuple[object, Table] | None:
            definition_now = self.now if known_version is None else self.lagging
            return None if known_version == definition_now else (definition_now, definition_now)

        monkeypatch.setattr(version, "read_definition", definition)
        monkeypatch.setattr(resolver, "RowReader", lambda session, table, settings: Reader(self, table))

    def alter(self, definition: Table) -> None:
        self.now = self.lagging = definition

    def send(self, key: bytes, sent: Change, due_keys: Sequence[UnconfirmedKey] = (), seconds: float = NOW) -> Any:
        return self.stage.run(
            [Event(EVENTS, 0, 7, int(seconds * 1000), key, encode(sent))], due_keys, trust_images=True
        )


Make = Callable[..., Altered]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    return lambda definition, **more: Altered(definition, tmp_path, monkeypatch, **more)


def waiting(key: bytes, scope: Scope = Scope.ROW) -> UnconfirmedKey:
    return UnconfirmedKey(
        EVENTS, 0, key, scope, pack_changes({bytes(16): UnprovenChange(None, 1.0)}), copies=1, since=1.0, handed=100.0
    )


TEXT = table(Column("k", parse("text"), "partition_key"), VALUE, table_id=LATER)
ZERO = KeyCodec(table(FIRST, VALUE)).encode((int32(0),))


@pytest.mark.parametrize("scope", [Scope.ROW, Scope.PARTITION])
def test_a_key_of_the_former_table_that_the_recreated_one_refuses(make: Make, scope: Scope) -> None:
    """The int 0 has the bytes of an empty text: a key, by its form, and Cassandra takes none that is empty."""
    c = Column("c", parse("int"), "clustering")
    altered = make(table(*TEXT.columns[:1], c, VALUE, table_id=LATER) if scope is Scope.PARTITION else TEXT)
    codec = KeyCodec(altered.now)
    clustering_key = (None,) if scope is Scope.PARTITION else ()
    altered.refused = {(b"", *clustering_key)}
    key, good = codec.encode((b"", *clustering_key)), codec.encode((b"a", *clustering_key))
    old = change(1.0)._replace(scope=scope)
    outcome = altered.send(key, old, due_keys=[waiting(key, scope), waiting(good, scope)], seconds=1.0)
    assert (outcome.read, outcome.outdated, outcome.published, outcome.waiting) == (1, 2, 1, [])
    assert {p.key for p in outcome.done} == {key, good}, "it holds up no other"
    assert altered.stage.run([], [waiting(key, scope)], trust_images=True).outdated == 1
    assert altered.records_of(DEAD_LETTERS) == []


@pytest.mark.parametrize("more", [{}, ALL])
def test_a_refused_key_that_is_younger_than_the_table_is_poison(make: Make, more: dict[str, str]) -> None:
    altered = make(TEXT, **more)
    altered.refused = {(b"",)}
    if not more:
        with pytest.raises(
            HelenusError, match=r"no key of this table: Key may not be empty.*, event of .* 0, offset 7"
        ):
            altered.send(ZERO, change())
        return
    outcome = altered.send(ZERO, change())
    assert (outcome.dead_lettered, outcome.waiting) == (1, [])
    assert [topic for topic, *_ in altered.appended] == [DEAD_LETTERS]


def test_an_unconfirmed_key_that_is_refused_goes_on_waiting(make: Make) -> None:
    """It was read before, so it is no poison; and not of a former table, so it is not outdated."""
    altered = make(TEXT)
    altered.refused = {(b"",)}
    younger = waiting(ZERO)
    younger.since = NOW
    outcome = altered.stage.run([], [younger], trust_images=True)
    (waiting_key,) = outcome.waiting
    assert (waiting_key.key, waiting_key.copies, outcome.done, outcome.outdated) == (ZERO, 1, [], 0)


def grown(kind: Any) -> tuple[Table, Table, bytes]:
    """A table before and after its key's type got a field, and the key of a row from before."""
    keys = [() if kind == "partition_key" else (FIRST,)] * 2
    before, after = (table(*key, Column("c", udt(*fs), kind), VALUE) for key, fs in zip(keys, ("a", "ab"), strict=True))
    value = struct.pack(">ii", 4, 1)
    return before, after, KeyCodec(before).encode((value,) if kind == "partition_key" else (int32(1), value))


@pytest.mark.parametrize("more", [{}, ALL])
def test_a_row_whose_partition_key_cannot_be_encoded_any_more(make: Make, more: dict[str, str]) -> None:
    """The agent skips what is written to it later, for the same reason."""
    _, after, key = grown("partition_key")
    outcome = make(after, **more).send(key, change(), due_keys=[waiting(key)])
    assert (outcome.read, outcome.outdated, outcome.dead_lettered) == (1, 2, 0)
    assert [p.key for p in outcome.done] == [key]


def test_a_key_that_waits_while_its_type_grows(make: Make) -> None:
    _, after, key = grown("clustering")
    altered = make(after)
    codec = KeyCodec(after)
    altered.live[codec.decode(codec.current_key(key))] = Image((int32(5),), 1)
    outcome = altered.stage.run([], [waiting(key)], trust_images=True)
    assert altered.records_of(DATA) == [({"k": 1, "c": {"a": 1}}, {"v": 5})]
    assert ([p.key for p in outcome.done], outcome.waiting, outcome.outdated) == ([key], [], 0)


def test_an_unconfirmed_key_goes_on_waiting_under_its_new_form(make: Make) -> None:
    _, after, key = grown("clustering")
    altered = make(after)

    def away() -> None:
        raise HelenusError(Kind.CASSANDRA_READ, "a node is away")

    altered.before_rows = away
    outcome = altered.stage.run([], [waiting(key)], trust_images=True)
    (waiting_key,) = outcome.waiting
    assert [p.key for p in outcome.done] == [key]
    # As one that begins to wait: another one that waits by the new key already is one with it.
    assert (waiting_key.key, waiting_key.attempts) == (KeyCodec(after).current_key(key), 0)


RECREATED = [
    pytest.param(table(FIRST, Column("v", parse("text")), table_id=LATER), [({"k": 0}, {"v": "abcd"})], id="value"),
    pytest.param(TEXT, [], id="key"),
]


@pytest.mark.parametrize(("after", "expected"), RECREATED)
@pytest.mark.parametrize("value_read", [b"hello", b"abcd"])
def test_a_table_recreated_while_a_batch_reads_it(make: Make, after: Table, expected: Any, value_read: bytes) -> None:
    """The statement of before is one of the new table too, so the driver prepares it again, and reads."""
    altered = make(table(FIRST, VALUE))
    altered.live[int32(0),] = Image((value_read,), 1)
    altered.before_rows = lambda: altered.alter(after)
    with pytest.raises(HelenusError, match="recreated") as error:
        altered.send(ZERO, change(1.0), seconds=1.0)
    assert error.value.action is Action.RETRY
    altered.appended.clear()
    altered.live[int32(0),] = Image((b"abcd",), 1)
    altered.refused = {(b"",)}
    outcome = altered.send(ZERO, change(1.0), seconds=1.0)
    assert (outcome.published, outcome.outdated) == (len(expected), 1 - len(expected))
    assert altered.records_of(DATA) == expected


def test_a_column_that_gets_another_type_while_a_batch_reads_it(make: Make) -> None:
    """Dropped and added again: what was read of it is done again."""
    altered = make(table(FIRST, VALUE))
    altered.live[int32(0),] = Image((b"abcd",), 1)
    altered.before_rows = lambda: altered.alter(table(FIRST, Column("v", parse("text"))))
    assert altered.send(ZERO, change()).published == 1
    assert altered.records_of(DATA)[-1] == ({"k": 0}, {"v": "abcd"})


@pytest.mark.parametrize("more", [{}, {"varint.handling.mode": "long"}])
def test_a_new_column_repeats_no_batch(make: Make, more: dict[str, str]) -> None:
    """An event comes with the first write of it. A column shown in another form has no other type."""
    first = (FIRST, VALUE, Column("x", parse("varint")))
    altered = make(table(*first), **more)
    altered.before_rows = lambda: altered.alter(table(*first, Column("w", parse("text"))))
    altered.live[int32(0),] = Image((int32(1), None), 1)
    assert altered.send(ZERO, change()).published == 1
    assert altered.records_of(DATA) == [({"k": 0}, {"v": 1, "x": None})]
    altered.live[int32(0),] = Image((int32(1), b"new", None), 2)
    altered.send(ZERO, change())
    assert altered.records_of(DATA)[1:] == [({"k": 0}, {"v": 1, "x": None, "w": "new"})]


def test_a_table_that_is_altered_over_and_over_ends_the_batch(make: Make) -> None:
    altered = make(table(FIRST, VALUE))
    kinds = iter(["text", "blob", "ascii", "varint", "int"])
    altered.before_rows = lambda: altered.alter(table(FIRST, Column("v", parse(next(kinds)))))
    with pytest.raises(HelenusError, match="over and over") as error:
        altered.send(ZERO, change())
    assert error.value.action is Action.RETRY
    assert next(kinds) == "varint", "three attempts"


def test_a_key_whose_type_grows_while_a_batch_reads_it(make: Make) -> None:
    before, after, key = grown("clustering")
    altered = make(before)

    def alter() -> None:
        if altered.now is not after:
            altered.alter(after)
            raise SchemaChanged("Undefined column name x")

    altered.before_rows = alter
    with pytest.raises(HelenusError, match="its key altered") as error:
        altered.send(key, change())
    assert (error.value.action, altered.appended) == (Action.RETRY, [])
    altered.send(key, change())
    assert altered.records_of(DATA) == [({"k": 1, "c": {"a": 1}}, None)]


def test_an_event_that_a_lagging_node_cannot_decode(make: Make) -> None:
    """The agent's node knows more. All are asked then, and the batch is done again."""
    before, after, _ = grown("clustering")
    altered = make(before)
    altered.stage.run([], [waiting(KeyCodec(before).encode((int32(1), None)))], trust_images=True)
    altered.now = after
    row = (int32(1), struct.pack(">iiii", 4, 1, 4, 2))
    key = KeyCodec(after).encode(row)
    with pytest.raises(HelenusError, match="its key altered"):
        altered.send(key, change())
    altered.lagging = after
    altered.appended.clear()
    assert altered.send(key, change()).published == 1
    assert altered.records_of(DATA) == [({"k": 1, "c": {"a": 1, "b": 2}}, None)]


def test_a_definition_is_applied_completely_or_not_at_all(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    altered = make(table(FIRST, VALUE))
    altered.send(ZERO, change())
    old = altered.stage.versions.current

    def fails(*_: Any) -> Any:
        raise HelenusError(Kind.CASSANDRA_READ, "a node is away")

    altered.alter(table(FIRST, Column("w", parse("text"))))
    with monkeypatch.context() as away:
        away.setattr(version, "make_shape", fails)
        with pytest.raises(HelenusError, match="away"):
            altered.send(ZERO, change())
    assert altered.stage.versions.current is old
    with monkeypatch.context() as away:
        away.setattr(resolver, "RowReader", fails)
        with pytest.raises(HelenusError, match="away"):
            altered.send(ZERO, change())
    altered.send(ZERO, change())
    assert altered.stage._resolver.reader.table is altered.stage.versions.current.table
