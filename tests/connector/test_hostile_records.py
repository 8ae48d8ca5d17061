"""What anybody may write to the topics that a connector reads: events with cells, data records, markers, signals; and
bytes of the state that are damaged. Each is refused as what it is, and takes what its bytes allow.
"""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import hostile
import pyarrow as pa
import pytest
from agent.writer import Cell, Complex, Marker, Row, Update, table_of
from connector import test_verify
from connector.celled import AS_JSON, events, op
from connector.test_cep44 import REGISTRY as AS_CEP
from connector.test_cep44 import Cep
from connector.test_envelope import REGISTRY, Made
from connector.test_state_index import DictStore
from connector.test_state_rows import GOLDEN_PARTITION, GOLDEN_ROW, GOLDEN_ROW_4, NOW
from hostile import JSON_TEXTS, avro_long, damaged, damaged_json
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helenus_connector.gate.event_content import (
    check_bounds,
    decode_event,
    decode_key,
    event_time,
    identity,
    is_repeated,
)
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.merged_change import PoisonEvent, RowChange
from helenus_connector.interfaces.resolver import SchemaChanged
from helenus_connector.interfaces.shape import Record
from helenus_connector.snapshot import _signal
from helenus_connector.state.keys import _record_reader
from helenus_connector.state.keys._key_index import KeyIndex
from helenus_connector.state.keys._plan import FollowedTopic
from helenus_connector.state.rows._merge import TopicPartitionMerger
from helenus_connector.state.rows._partition import PartitionState, keys_of, page_bytes
from helenus_connector.state.rows._row_bytes import load_row
from helenus_connector.state.rows._topic_partition_history import NodeHistory, TopicPartitionHistory
from helenus_connector.state.store.packing import pack_items, unpack_items
from helenus_connector.state.store.pages import entries
from helenus_connector.verify._topic import TopicRecords
from helenus_connector.verify.scopes import Clustering, MarkerScopes
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column
from helenus_schemas.cql.types import CqlType, parse
from helenus_schemas.cql.values import Malformed
from helenus_schemas.event import cells as event_cells

slow = settings(deadline=None, suppress_health_check=list(HealthCheck))
ONE = struct.pack(">i", 1)
TIMEUUID = bytes(6) + b"\x10" + bytes(9)
TABLE = table_of(
    "t",
    "k int pk, c int ck, s text static, v int, w text, d decimal, m map<int,text>, n map<double,int>, "
    "l list<int>, u set<uuid>, f frozen<map<int,int>>",
)
FULL = Row(
    (ONE,),
    {
        "v": Cell(ONE, time=5),
        "w": Cell(b"text"),
        "d": Cell(bytes(4) + b"\7"),
        "m": Complex([Cell(b"x", path=ONE)], (3, 4)),
        "n": Complex([Cell(ONE, path=bytes(8)), Cell(ONE, path=struct.pack(">d", 1.5))]),
        "l": Complex([Cell(ONE, path=TIMEUUID), Cell(ONE, path=TIMEUUID[:-1] + b"\1")]),
        "u": Complex([Cell(b"", path=bytes(16)), Cell(b"", path=TIMEUUID)]),
        "f": Cell(struct.pack(">iiiii", 1, 4, 1, 4, 2)),
    },
    time=9,
)
UPDATES = [
    Update(TABLE, ONE, [FULL]),
    Update(TABLE, ONE, [Row((ONE,), deletion=(4, 5))], deletion=(1, 2)),
    Update(
        TABLE,
        ONE,
        [Row((ONE,), {"m": Complex([Cell(None, path=ONE, time=5, deleted_at=9)])})],
        Row((), {"s": Cell(b"s", time=5)}),
    ),
    Update(TABLE, ONE, [Marker(1, (ONE,), ((9, 10),)), Marker(6, (ONE,), ((9, 10),))]),
]
EVENTS = events(*UPDATES)
CODEC = KeyCodec(TABLE)


@st.composite
def hostile_events(draw: st.DrawFn) -> Event:
    event = draw(st.sampled_from(EVENTS))
    value, key = event.value or b"", event.key or b""
    if draw(st.integers(0, 3)):
        # Where the cells are, most damages change nothing else.
        position = draw(st.integers(0, 1)) * value.find(b"]}")
        value = value[: position + 2] + draw(damaged(value[position + 2 :]))
    else:
        key = draw(damaged(key))
    return event._replace(value=value, key=key)


@slow
@given(event=hostile_events())
def test_what_the_gate_reads(event: Event) -> None:
    size = len(event.value or b"") + len(event.key or b"")

    def read() -> None:
        is_repeated(event)
        event_time(event)
        change, key = decode_event(event, CODEC)
        identity(change, key)
        check_bounds(CODEC, decode_key(CODEC, key), (change.start, change.end))

    event_cells._columns_by_text.clear()
    hostile.run(read, size, Malformed)


@slow
@given(damaged_events=st.lists(hostile_events(), min_size=1, max_size=3))
def test_rows_that_are_kept(damaged_events: list[Event]) -> None:
    """One that is none is poison; the others are merged, and what is kept can be read again."""
    store = DictStore()
    try:
        changes = list(TopicPartitionMerger(TABLE, CODEC, store, 0, 864_000).take([*damaged_events, *EVENTS], NOW))
    except SchemaChanged:  # it names columns that the table has not
        return
    assert not [merged for merged in changes if isinstance(merged, PoisonEvent) and merged.event not in damaged_events]
    assert any(isinstance(merged, RowChange) for merged in changes)
    list(TopicPartitionMerger(TABLE, CODEC, store, 0, 864_000).take(EVENTS, NOW + 1))


SHAPES = {
    "avro": lambda: Made(TABLE, **REGISTRY),
    "json": lambda: Made(TABLE, **AS_JSON),
    "cep44": lambda: Cep(TABLE, **AS_CEP),
}


@pytest.mark.parametrize("shape", SHAPES)
@slow
@given(event=hostile_events())
def test_records_of_what_is_written(shape: str, event: Event) -> None:
    made = SHAPES[shape]()

    def make() -> None:
        resolved = made.resolved(event)
        assert len(list(made.shape.records(resolved))) <= 2

    try:
        make()
    except (Malformed, AssertionError):
        return


@slow
@given(data=st.data())
def test_signals(data: st.DataObject) -> None:
    valid = {
        "type": "execute-snapshot",
        "data": {
            "data-collections": ["ks.table", "ks[.]a*"],
            "type": "INCREMENTAL",
            "additional-conditions": [{"data-collection": "ks.table", "filter": "id = 5"}],
        },
    }
    value = data.draw(damaged_json(json.dumps(valid).encode()))

    def read(value: bytes) -> None:
        signal = _signal.parse_signal(value)
        signal.tables(["ks.table", "ks.a"])
        signal.where("ks.table")

    read(json.dumps(valid).encode())  # the first time imports what Arrow needs
    hostile.read(read, value, ValueError)


BOUND = b'{"inclusive":true,"values":{"c":1}}'


@slow
@given(data=st.data())
def test_bounds_of_markers(data: st.DataObject) -> None:
    table = table_of("t", "k int pk, c int ck, d timestamp ck, e frozen<map<text,int>> ck")
    scopes = MarkerScopes(Clustering(table.clustering))
    bounds = b"\n".join(data.draw(st.lists(damaged_json(BOUND), min_size=1, max_size=3)))
    hostile.run(lambda: scopes.add(b"\1", bounds), len(bounds))
    scopes.add(b"\2", BOUND + b"\n" + BOUND)
    assert scopes.over((ONE, bytes(8), bytes(4)))[1] >= b"\1"


HEADERS = {
    "scope": [b"row", b"range", b"partition", b"table", b"\xff"],
    "start": [BOUND, b"x"],
    "expires": [b"1", b"9" * 5000, b"9" * 30, b"x", b""],
    "writetime": [b"1", b"-" + b"9" * 30],
    "exact_key": [b"\2\2", b"\xff" * 20, b""],
    "empty": [b'["c"]', b"[[]]"],
    "left_out": [b'["v"]', b"{}"],
    "schema_id": [b"x" * 32],
}
VERIFIED = test_verify.table(("v", "int"), ("m", "map<text, int>"), ("s", "int static"))
FRAMED = [b"\0" + struct.pack(">I", number) for number in (0, 1, 2, 99, (1 << 32) - 1)]


@pytest.mark.parametrize("form", test_verify.FORMS)
@settings(slow, max_examples=hostile.EXAMPLES // 5)
@given(data=st.data())
def test_records_that_are_verified(form: dict[str, str], data: st.DataObject) -> None:
    """Whatever the topic has: a verification goes on, and what it can read of it differs or does not."""
    topic = test_verify.Topic(VERIFIED, form)
    topic.publish((ONE, ONE), (None, ONE, None))
    (good,) = topic.messages
    json_bytes = [part for part in (good.key(), good.value()) if part and part[:1] == b"{"]
    damage = damaged_json(json_bytes) if json_bytes else damaged([good.key() or b"", good.value() or b""])
    part = st.one_of(
        st.none(), st.just(good.key()), st.just(good.value()), damage, st.sampled_from([*JSON_TEXTS, *FRAMED])
    )
    listed = [(n, content) for n, content in good.headers() or () if data.draw(st.booleans())]
    names = data.draw(st.lists(st.sampled_from(sorted(HEADERS)), max_size=3))
    listed += [(n, data.draw(st.one_of(st.sampled_from(HEADERS[n]), damaged(HEADERS[n])))) for n in names]
    record = Record(data.draw(part), data.draw(part), listed)
    assert topic.entries()  # what is made once is made now
    topic.add(record)

    size = 2 * sum(len(each or b"") for each in (*record[:2], *(header[1] for header in listed)))
    topic_entries = hostile.run(topic.entries, size + 2000)
    assert topic_entries
    assert len(pa.RecordBatch.from_pylist([entry._asdict() for entry in topic_entries])) == len(topic_entries)


SCHEMAS = [
    '{"type":"array","items":"null"}',
    '{"type":"record","name":"r","namespace":"ks1","fields":[{"name":"v","type":["null","ks1.r"]}]}',
    '{"type":"fixed"}', '{"fields":[1]}', "{", "[]", "5", '"int"', '"ks.a"', "[" * 10_000,
    '{"type":"record","fields":[]}',
    '{"type":"record","name":"t","namespace":"ks1","fields":[{"name":"k0","type":"int"},{"name":"v","type":"x"}]}',
]  # fmt: skip


DATA = [b"", b"\2" * 50_000, avro_long((1 << 62) - 1), avro_long(-(1 << 62)) * 2]


@pytest.mark.parametrize("form", [{}, {"output.format": "debezium"}])
@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_records_of_a_schema_that_somebody_registered(schema: str, form: dict[str, str]) -> None:
    topic = test_verify.Topic(VERIFIED, form)
    topic.publish((ONE, ONE), (None, ONE, None))
    (good,) = topic.messages
    for data in DATA:
        framed = b"\0" + struct.pack(">I", 77) + data
        topic.add(Record(good.key(), framed, ()))
        topic.add(Record(framed, good.value(), ()))

    def text(number: int) -> str | None:
        return schema if number == 77 else topic.registry.schema(number)

    records = TopicRecords(topic.job, text, text)
    hostile.run(lambda: list(records.entries(topic.messages, True)), 2 * sum(map(len, DATA)) + 20_000)


@slow
@given(data=st.data())
def test_bytes_of_the_state(data: st.DataObject) -> None:
    """Nobody but Spark writes them. Damage is noticed, or read as something; it takes no more than its bytes."""
    bad = (ValueError, IndexError, struct.error)
    row = data.draw(damaged([bytes.fromhex(GOLDEN_ROW), bytes.fromhex(GOLDEN_ROW_4)]))
    hostile.read(load_row, row, bad)
    history = TopicPartitionHistory(bytes(16), nodes={"n": NodeHistory(1, (7, 9)), "m": NodeHistory(2)})
    hostile.read(TopicPartitionHistory.loads, data.draw(damaged([history.dumps()])), bad)
    partition = data.draw(damaged([bytes.fromhex(GOLDEN_PARTITION)]))
    hostile.read(PartitionState.loads, partition, bad)
    page = data.draw(damaged(page_bytes([b"k", b"key"])))
    hostile.read(keys_of, page, bad)
    hostile.read(entries, page, bad)
    items = pack_items([b"a", b"bc", b""])
    assert unpack_items(items) == [b"a", b"bc", b""]
    for cut in range(1, len(items)):
        if cut not in (5, 11):
            with pytest.raises((ValueError, struct.error)):
                unpack_items(items[:cut])


@pytest.mark.parametrize("path", [b"", b"x", b"xyz", bytes(100)], ids=len)
@pytest.mark.parametrize(
    "kind", ["map<double, int>", "set<uuid>", "map<frozen<list<int>>, int>", "set<frozen<tuple<int, double>>>", "udt"]
)
def test_a_path_that_is_none_of_its_column(kind: str, path: bytes) -> None:
    """It is poison before it is merged: a row that had it could never be shown again."""
    udt = CqlType("udt", (CqlType("int"), CqlType("text")), label="addr", fields=("a", "b"))
    made = udt if kind == "udt" else parse(kind)
    table = table_of("t", "k int pk, c int ck, v int")
    table = replace(table, columns=(*table.columns, Column("m", made)))
    cells = Complex([Cell(ONE, path=path), Cell(ONE, path=path + b"\1")])
    bad = events(Update(table, ONE, [Row((ONE,), {"v": Cell(ONE), "m": cells}, time=9)]))
    good = events(Update(table, ONE, [Row((ONE,), {"v": Cell(ONE)}, time=9)]), offset=1)
    store = DictStore()
    changes = list(TopicPartitionMerger(table, KeyCodec(table), store, 0, 864_000).take([*bad, *good], NOW))
    # 16 bytes are a UUID, whatever follows; CQL takes no bytes for a value of any type.
    assert [op(merged) for merged in changes if merged.event in bad] in ([PoisonEvent], ["c"])
    assert [op(merged) for merged in changes if merged.event in good] in (["c"], [])
    assert "c" in [op(merged) for merged in changes]
    assert len(path) == 100 or [op(merged) for merged in changes] == [PoisonEvent, "c"]


NUMERALS = [b"1", b"-5", b"9" * 12, b"9" * 30, b"9" * 5000]
TIMES = sorted({0, 1, NOW, 1 << 32, 1 << 33, (1 << 45), *hostile.NUMBERS})


@pytest.mark.parametrize("cells", [True, False])
@settings(slow, max_examples=hostile.EXAMPLES * 2)
@given(data=st.data(), time=st.sampled_from(TIMES))
def test_times_of_events(cells: bool, data: st.DataObject, time: int) -> None:
    """A record's time is its producer's word: whatever that is, it is kept, and read again."""
    event = data.draw(st.sampled_from(events(*UPDATES, cells=cells)))._replace(timestamp=time)
    store = DictStore()
    list(TopicPartitionMerger(TABLE, CODEC, store, 0, 864_000).take([event], NOW))
    list(TopicPartitionMerger(TABLE, CODEC, store, 0, 864_000).take(EVENTS, NOW + 10**6))


@slow
@given(
    headers=st.dictionaries(st.sampled_from(sorted(HEADERS)), st.binary(max_size=8) | st.sampled_from(NUMERALS)),
    value=st.sampled_from([None, b"", b"x"]),
)
def test_records_that_state_keys_follows(headers: dict[str, bytes], value: bytes | None) -> None:
    """Whatever the headers of a record say, its key is known from then on, or is none of this table."""
    topic = test_verify.Topic(VERIFIED, {"output.format": "key-value-json"})
    topic.publish((ONE, ONE), (None, ONE, None))
    (good,) = topic.messages
    topic.add(Record(good.key(), value, list(headers.items())))
    records = _record_reader.KeyRecords(FollowedTopic(topic.settings, topic.table), False, lambda _: None)
    records._check_definition = lambda: None  # type: ignore[method-assign]
    store = DictStore()
    for message in topic.messages:
        index = KeyIndex(store, NOW, lambda name, bounds: False, 1000)
        index.take(hostile.run(lambda message=message: records.parse_record(message), 10_000) or [])  # type: ignore[misc]
    KeyIndex(store, NOW + 10**6, lambda name, bounds: False, 1000).take([])
