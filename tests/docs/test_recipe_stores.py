"""Each store that a recipe fills holds what the records say: all types, types that grow, markers, restarts."""

from __future__ import annotations

import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import batches
import pytest
from cassandra.util import Date
from docs.recipe_stores import STORES, Message, Publisher, Row, Store, bound, clickhouse_over_http, left_out
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from markers import is_in_range, parse_bound
from records import to_rows
from schemas.cqldata import Pairs, cql_bytes, key_text, same, shown, types, values
from settings import Settings
from to_clickhouse import ClickHouse

from helenus_connector.verify.scopes import Clustering
from helenus_schemas.cql.table import Column
from helenus_schemas.cql.types import CqlType, parse
from helenus_schemas.names import avro_name

pytestmark = [
    # ClickHouse opens more than a thousand sessions in one test of `make test-long`: minutes, on a busy machine more.
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the stores' libraries
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
OF_SERVERS = {"opensearch": pytest.mark.integration}
stores = pytest.mark.parametrize(
    "store", [pytest.param(store, id=name, marks=OF_SERVERS.get(name, ())) for name, store in STORES.items()]
)
EXAMPLES = max(5, settings.default.max_examples // 3)  # of each of five stores, in files
slow = settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=EXAMPLES)
INT, TEXT, DATE, TIMESTAMP = (CqlType(name) for name in ("int", "text", "date", "timestamp"))
KEY = [Column("k", INT, "partition_key", 0), Column("c", INT, "clustering", 0)]


def in_store(store: Store, t: CqlType, value: Any) -> Any:
    """What a store shows of a value: as an Avro reader without logical types, with decimals and varints as text."""
    if value is None:
        return _null(store, t)
    match t.name:
        case "list" | "set" | "vector":
            return [in_store(store, t.args[0], item) for item in value]
        case "map":
            return {key_text(t.args[0], key): in_store(store, t.args[1], item) for key, item in value}
        case "tuple":
            return {f"index_{i}": in_store(store, a, v) for i, (a, v) in enumerate(zip(t.args, value, strict=True))}
        case "udt":
            parts = zip(t.fields, t.args, (*value, *[None] * (len(t.args) - len(value))), strict=True)
            return {avro_name(field): in_store(store, a, v) for field, a, v in parts}
    plain = key_text(t, value) if t.name in ("decimal", "varint") else shown(t, value)
    return plain.encode() if isinstance(plain, str) and not store.has_text else plain


class NullOrEmpty:
    """Equal to a null, and to an empty collection."""

    def __eq__(self, other: object) -> bool:
        return other is None or other == [] or other == {}

    def __repr__(self) -> str:
        return "null or empty"


def _null(store: Store, t: CqlType) -> Any:
    """What a store shows of a null of this type.

    ClickHouse has no null collections. PyIceberg reads those of structures as empty ones, as long as they are within
    fewer than two lists.
    """
    if t.name not in ("list", "set", "map", "vector") or not store.empties:
        return None
    if store.empties == "all":
        return {} if t.name == "map" else []
    return NullOrEmpty() if t.args[-1].name in ("tuple", "udt", "duration") else None


def is_beyond(store: Store, t: CqlType, value: Any) -> bool:
    """Whether a store can't hold a value: ClickHouse no date after 9999, others no timestamp after 294247."""
    if value is None:
        return False
    match t.name:
        case "list" | "set" | "vector":
            return any(is_beyond(store, t.args[0], item) for item in value)
        case "map":
            return any(is_beyond(store, t.args[1], item) for _, item in value)
        case "tuple" | "udt":
            return any(is_beyond(store, a, v) for a, v in zip(t.args, value, strict=False))
        case "timestamp" | "date":
            ranges = {str(kind): limits for kind, limits in store.target.limits.items()}
            low, high = ranges.get(
                {"timestamp": "timestamp[ms, tz=UTC]", "date": "date32[day]"}[t.name], (-(2**63), 2**63)
            )
            return not low <= shown(t, value) <= high
    return False


def typed(t: CqlType) -> st.SearchStrategy[tuple[CqlType, Any]]:
    return st.tuples(st.just(t), st.none() | values(t))


@stores
@slow
@example(row=[(TIMESTAMP, 9_223_372_036_854_776)])  # the first that DuckDB can't read from a file
@example(row=[(CqlType("list", (TIMESTAMP,)), [2**63 - 1])])
@example(row=[(CqlType("list", (TIMESTAMP,)), [9_223_372_036_854_774]), (TIMESTAMP, -9_223_372_022_400_000)])
@example(row=[(TIMESTAMP, 9_223_372_036_854_775), (TIMESTAMP, -9_223_372_022_400_001)])
@example(row=[(TIMESTAMP, 253_402_300_800_000), (TIMESTAMP, -62_135_596_800_001)])  # the years 10,000 and 0
@example(row=[(TIMESTAMP, 253_402_300_799_999), (TIMESTAMP, -62_135_596_800_000)])
@example(row=[(DATE, Date(days)) for days in (2_932_897, -719_163, -(2**31), 2**31 - 1)])
@example(row=[(DATE, Date(2_932_896)), (DATE, Date(-719_162))])
@given(row=st.lists(types(depth=2).flatmap(typed), min_size=1, max_size=4))
def test_all_types(store: Store, row: list[tuple[CqlType, Any]]) -> None:
    publisher = Publisher()
    publisher.become([*KEY, *(Column(f"v{i}", t) for i, (t, _) in enumerate(row))])
    data = [None if value is None else cql_bytes(t, value) for t, value in row]
    full = publisher.row(0, [cql_bytes(INT, 1), cql_bytes(INT, 2)], data)
    publisher.row(0, [cql_bytes(INT, 1), cql_bytes(INT, 3)], [None] * len(row))
    with tempfile.TemporaryDirectory() as folder:
        with store.open(Path(folder)) as target:
            target.store(publisher.batch(publisher.topic[0]).for_table(target))
        rows = sorted(store.rows(Path(folder), ["k", "c"]), key=lambda r: r["c"])
    missing = left_out(full)
    expected: Row = {"k": 1, "c": 2}
    for i, (t, value) in enumerate(row):
        is_null = f"v{i}" in missing or is_beyond(store, t, value)
        expected[f"v{i}"] = in_store(store, t, None if is_null else value)
    assert same(rows[0], expected), (rows[0], expected)
    nothing = {f"v{i}": in_store(store, t, None) for i, (t, _) in enumerate(row)}
    assert same(rows[1], {"k": 1, "c": 3, **nothing})


def _wrap(layers: list[str], inner: CqlType) -> CqlType:
    """A type within others."""
    for depth, layer in enumerate(layers):
        match layer:
            case "list" | "set":
                inner = CqlType(layer, (inner,), frozen=True)
            case "map":
                inner = CqlType("map", (TEXT, inner), frozen=True)
            case "vector":
                inner = CqlType("vector", (inner,), True, dimension=2)
            case "udt":
                inner = CqlType("udt", (INT, inner), frozen=True, label=f"outer{depth}", fields=("n", "inner"))
            case "tuple":
                inner = CqlType("tuple", (inner, TEXT), frozen=True)
    return inner


def _udt(fields: list[CqlType]) -> CqlType:
    return CqlType("udt", tuple(fields), frozen=True, label="grows", fields=tuple(f"f{i}" for i in range(len(fields))))


LAYERS = ["list", "set", "map", "vector", "udt", "tuple"]


@stores
@slow
@given(data=st.data())
def test_types_and_tables_grow(store: Store, data: st.DataObject) -> None:
    """A type gets fields, wherever in a column's type it is, and the table columns: nothing of either is lost."""
    layers = data.draw(st.lists(st.sampled_from(LAYERS), max_size=3), "layers")
    fields = data.draw(st.lists(types(depth=1), min_size=2, max_size=4), "fields")
    cut = data.draw(st.integers(1, len(fields) - 1), "fields at first")
    small, large = (_wrap(layers, _udt(fields[:n])) for n in (cut, len(fields)))
    versions = [[("v", small)], [("v", large)], [("v", large), ("w", data.draw(types(depth=1)))]]
    publisher = Publisher()
    written: list[tuple[list[tuple[str, CqlType]], list[Any], list[str]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, columns in enumerate(versions):
            publisher.become([*KEY, *(Column(name, t) for name, t in columns)])
            row = [data.draw(st.none() | values(t)) for _, t in columns]
            raw = [None if v is None else cql_bytes(t, v) for (_, t), v in zip(columns, row, strict=True)]
            message = publisher.row(0, [cql_bytes(INT, 1), cql_bytes(INT, number)], raw)
            written.append((columns, row, left_out(message)))
            with store.open(Path(folder)) as target:  # a restart before each batch
                offset = target.read_offsets([0]).get(0, 0)
                target.store(publisher.batch(publisher.topic[0][offset:]).for_table(target))
        rows = {row["c"]: row for row in store.rows(Path(folder), ["k", "c"])}
    assert sorted(rows) == [0, 1, 2]
    for number, (columns, row, missing) in enumerate(written):
        shown_row = {name: None for name, _ in versions[-1]} | {
            name: None if name in missing or is_beyond(store, t, v) else v
            for (name, t), v in zip(columns, row, strict=True)
        }
        expected = {name: in_store(store, t, shown_row[name]) for name, t in versions[-1]}
        assert same(rows[number], {"k": 1, "c": number, **expected}), (rows[number], expected)


BIGINT = CqlType("bigint")
QUEUE = [
    Column("k", INT, "partition_key", 0),
    Column("a", INT, "clustering", 0),
    Column("b", INT, "clustering", 1, reversed=True),
    Column("v", BIGINT),
]
small = st.integers(0, 2)
limit = st.none() | st.tuples(st.lists(small, min_size=1, max_size=2), st.booleans())
operations = st.one_of(
    st.tuples(st.sampled_from(["row", "row", "gone"]), small, small, small),
    st.tuples(st.just("partition"), small),
    st.tuples(st.just("range"), small, limit, limit),
    st.tuples(st.just("table"), st.integers(0, 1)),
)


def sort_key(clustering: tuple[int, ...]) -> tuple[int, ...]:
    """Where a clustering key, or what it begins with, is in the table's order: b descends."""
    return (clustering[0], *(-b for b in clustering[1:]))


def is_within(key: tuple[int, int], start: Any, end: Any) -> bool:
    """Whether a row is in a range: a bound holds, or leaves out, all keys that begin with it."""
    if start is not None:
        prefix, border = sort_key(key)[: len(start[0])], sort_key(tuple(start[0]))
        if prefix < border or (prefix == border and not start[1]):
            return False
    if end is not None:
        prefix, border = sort_key(key)[: len(end[0])], sort_key(tuple(end[0]))
        if prefix > border or (prefix == border and not end[1]):
            return False
    return True


def publish(publisher: Publisher, rows: dict[tuple[int, int, int], int], operation: Any, number: int) -> None:
    """Publish an operation, and do it to the rows as they should be."""

    def raw(*numbers: int) -> list[bytes]:
        return [cql_bytes(INT, n) for n in numbers]

    kind, first, *more = operation
    partition = first % 2
    match kind:
        case "row":
            publisher.row(partition, raw(first, *more), [cql_bytes(BIGINT, number)])
            rows[first, more[0], more[1]] = number
        case "gone":
            publisher.row(partition, raw(first, *more), None)
            rows.pop((first, more[0], more[1]), None)
        case "table":
            publisher.truncation(first)
            for key in [key for key in rows if key[0] % 2 == first]:
                del rows[key]
        case _:
            bounds = None
            if kind == "range":
                start, end = (b and bound(raw(*b[0]), b[1]) for b in more)
                bounds = (start, end)
            publisher.marker(partition, [*raw(first), None, None], bounds)
            for key in [key for key in rows if key[0] == first and (bounds is None or is_within(key[1:], *more))]:
                del rows[key]


@stores
def test_a_table_of_an_earlier_recipe_goes_on(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its column for the topic partition had a name that Spark keeps for Iceberg's own: that one is renamed."""
    publisher = Publisher()
    publisher.become([*KEY, Column("v", INT)])

    def add(partition: int, *values: int) -> None:
        publisher.row(partition, [cql_bytes(INT, n) for n in values[:2]], [cql_bytes(INT, values[2])])

    def run(begin: int) -> list[str]:
        with store.open(tmp_path) as target:
            target.read_offsets([0, 1])  # as each process does first
            messages = [message for part in publisher.topic for message in part[begin:]]
            target.store(publisher.batch(messages).for_table(target))
            return [name for name in target.read_schema().names if name.startswith("_topic") or name == "_partition"]

    for number in range(3):
        add(number % 2, number, 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(batches, "PARTITION", batches.FORMER_PARTITION)
        assert run(0) == ["_partition"]
    begin = len(publisher.topic[0])
    add(0, 0, 1, 2)
    add(1, 1, 1, 2)
    assert run(1) == ["_topic_partition" if store is STORES["iceberg"] else "_partition"]
    publisher.truncation(0)
    add(0, 2, 2, 3)
    run(begin)
    rows = sorted(tuple(row.values()) for row in store.rows(tmp_path, ["k", "c"]))
    assert rows == [(1, 0, 1), (1, 1, 2), (2, 2, 3)]


sizes = st.lists(st.tuples(*[st.integers(0, 20)] * 2), max_size=3)  # of batches: how many records of each partition


@stores
@slow
@example(history=[("row", 0, 0, 0), ("partition", 0), ("row", 0, 0, 0), ("table", 0)], starts=[[(1, 0)]])
@example(history=[("table", 0), ("row", 0, 1, 1), ("table", 0)], starts=[[(1, 0)]])
@given(history=st.lists(operations, min_size=1, max_size=40), starts=st.lists(sizes, max_size=3))
def test_markers_and_restarts(store: Store, history: list[Any], starts: list[list[tuple[int, int]]]) -> None:
    """Batches of any size, with starts between them that go on where the store is: no row too many, none too few."""
    publisher, rows = Publisher(), dict[tuple[int, int, int], int]()
    publisher.become(QUEUE)
    for number, operation in enumerate([("row", 0, 0, 0), *history, ("row", 0, 2, 2)]):
        publish(publisher, rows, operation, number)
    with tempfile.TemporaryDirectory() as folder:
        for start in [*starts, [(100, 100)]]:
            with store.open(Path(folder)) as target:
                stored = target.read_offsets([0, 1])
                offsets = [stored.get(partition, 0) for partition in (0, 1)]
                for size in start:
                    offsets = fill(target, publisher, offsets, size)
        stored_rows = {(row["k"], row["a"], row["b"]): row["v"] for row in store.rows(Path(folder), ["k", "a", "b"])}
    assert stored_rows == rows


@stores
@slow
@given(values=st.lists(st.tuples(st.booleans(), small), min_size=1, max_size=8), cut=st.integers(0, 8))
def test_a_key_whose_type_grows_stays_one(store: Store, values: list[tuple[bool, int]], cut: int) -> None:
    """A key that comes again by a newer schema is the same key, within a batch as well: it has one row, the last."""
    publisher, rows = Publisher(), dict[int, int]()
    for number, (has_grown, c) in enumerate(sorted(values, key=lambda value: value[0])):
        kind = _udt([INT, TEXT] if has_grown else [INT])
        publisher.become([KEY[0], Column("c", kind, "clustering", 0), Column("v", BIGINT)])
        value = (c, None) if has_grown else (c,)
        publisher.row(0, [cql_bytes(INT, 1), cql_bytes(kind, value)], [cql_bytes(BIGINT, number)])
        rows[c] = number
    with tempfile.TemporaryDirectory() as folder:
        with store.open(Path(folder)) as target:
            for messages in (publisher.topic[0][:cut], publisher.topic[0][cut:]):
                if messages:
                    target.store(publisher.batch(messages).for_table(target))
        stored_rows = [(row["c"]["f0"], row["v"]) for row in store.rows(Path(folder), ["k", "c"])]
    assert sorted(stored_rows) == sorted(rows.items())


@stores
def test_a_dropped_column_stays(store: Store, tmp_path: Path) -> None:
    """Rows that change afterwards have null in it, as Cassandra would show if it were there again; others keep it."""
    publisher = Publisher()
    columns = [*KEY, Column("v", INT), Column("w", TEXT)]
    for present in (columns, columns[:-1]):
        publisher.become(present)
        for c in (2, 1) if present is columns else (1,):
            values = [cql_bytes(INT, 5), cql_bytes(TEXT, "old")][: len(present) - len(KEY)]
            publisher.row(0, [cql_bytes(INT, 0), cql_bytes(INT, c)], values)
        with store.open(tmp_path) as target:
            offset = target.read_offsets([0]).get(0, 0)
            target.store(publisher.batch(publisher.topic[0][offset:]).for_table(target))
    rows = {row["c"]: row.get("w") for row in store.rows(tmp_path, ["k", "c"])}
    assert rows == {1: None, 2: in_store(store, TEXT, "old")}


def fill(target: Any, publisher: Publisher, offsets: list[int], size: tuple[int, int]) -> list[int]:
    """Store a batch, as `batches.run` does. Returns where the next one begins."""
    parts = zip(publisher.topic, offsets, size, strict=True)
    if not (messages := [message for part, offset, count in parts for message in part[offset : offset + count]]):
        return offsets
    batch = publisher.batch(messages)
    offsets = [batch.offsets.get(partition, offsets[partition]) for partition in (0, 1)]
    batch.offsets = {partition: offset for partition, offset in enumerate(offsets) if offset}
    change = batch.for_table(target)
    if len(change.rows) or len(change.deleted):
        target.store(change)
    return offsets


@settings(deadline=None)
@given(data=st.data())
def test_ranges_are_compared_as_cassandra_does(data: st.DataObject) -> None:
    """A key of any type is in a range or not, as verify has it; where the type does not tell, the answer is None."""
    kinds = data.draw(st.lists(types(depth=0, key=True), min_size=1, max_size=2), "types")
    columns = [Column("k", INT, "partition_key", 0)]
    columns += [Column(f"c{i}", t, "clustering", i, data.draw(st.booleans())) for i, t in enumerate(kinds)]
    publisher = Publisher()
    publisher.become([*columns, Column("v", INT)])
    draws = [st.sampled_from(data.draw(st.lists(values(t), min_size=1, max_size=4))) for t in kinds]

    def draw_key() -> list[bytes]:
        return [cql_bytes(t, data.draw(drawn)) for t, drawn in zip(kinds, draws, strict=True)]

    width = st.integers(1, len(kinds))
    ends = [data.draw(st.none() | st.tuples(width, st.booleans())) for _ in range(2)]
    bounds = [end and bound(draw_key()[: end[0]], end[1]) for end in ends]
    key = draw_key()
    row = publisher.row(0, [cql_bytes(INT, 1), *key], [None])
    marker = publisher.marker(0, [cql_bytes(INT, 1), *[None] * len(kinds)], (bounds[0], bounds[1]))
    headers = dict(marker.headers())
    order = Clustering(columns[1:])
    start, end = order.limits(headers.get("start", b"") + b"\n" + headers.get("end", b""))
    batch = publisher.batch([row])
    (record,) = next(iter(batch.records[0].values())).values()
    avro = [batch.key.avro[name] for name in batch.clustering]
    clustering = [record.key[name] for name in batch.clustering]
    answer = is_in_range(clustering, avro, *(parse_bound(headers.get(name)) for name in ("start", "end")))
    if answer is None:
        assert {"text", "ascii", "inet"} & {t.name for t in kinds}
    else:
        assert answer == (start < order.position(key) < end)


@pytest.mark.parametrize(("second", "expected"), [(0, False), (1, True), (2, True), (3, False)])
def test_a_range_over_two_decimals(second: int, expected: bool) -> None:
    """The schema defines the type at the first column, and only names it at the second."""
    publisher = Publisher()
    decimals = [Column(f"c{i}", parse("decimal"), "clustering", i) for i in range(2)]
    publisher.become([Column("k", INT, "partition_key", 0), *decimals, Column("v", INT)])

    def key(last: int) -> list[bytes]:
        return [cql_bytes(parse("decimal"), Decimal(number)) for number in (5, last)]

    row = publisher.row(0, [cql_bytes(INT, 1), *key(second)], [None])
    marker = publisher.marker(0, [cql_bytes(INT, 1), None, None], (bound(key(1), True), bound(key(3), False)))
    headers = dict(marker.headers())
    batch = publisher.batch([row])
    (record,) = next(iter(batch.records[0].values())).values()
    avro = [batch.key.avro[name] for name in batch.clustering]
    clustering = [record.key[name] for name in batch.clustering]
    answer = is_in_range(clustering, avro, *(parse_bound(headers.get(name)) for name in ("start", "end")))
    assert answer is expected


def test_what_can_t_be_compared_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    """A bound that does not say which columns descend, as of older connectors: the row stays, and it is said."""
    start = parse_bound(b'{"inclusive":true,"values":{"c":5}}')
    whole = parse_bound(b'{"inclusive":true,"values":{"c":7}}')
    assert is_in_range([6], ["int"], start, None) is None
    assert is_in_range([6], ["int"], start, whole) is None
    assert is_in_range([5], ["int"], start, None) is True
    assert is_in_range([6], [["null", {"type": "array", "items": "int"}]], start, None) is None
    assert is_in_range([6], ["int"], None, None) is True
    addresses = parse_bound(b'{"inclusive":true,"values":{"c":"10.0.0.1"},"descending":[]}')
    assert is_in_range(["9.0.0.1"], ["string"], addresses, None) is None
    assert is_in_range(["11.0.0.1"], ["string"], addresses, None) is True
    publisher = Publisher()
    publisher.become(QUEUE)
    publisher.row(0, [cql_bytes(INT, n) for n in (0, 1, 1)], [None])
    message = publisher.marker(0, [cql_bytes(INT, 0), None, None], (bound([cql_bytes(INT, 1)], False), None))
    headers = [
        ("start", b'{"inclusive":false,"values":{"a":0}}') if n == "start" else (n, v) for n, v in message.headers()
    ]
    publisher.topic[0][1] = Message(message.record._replace(headers=headers), message.position)
    batch = publisher.batch(publisher.topic[0])
    assert [r.value for keys in batch.records[0].values() for r in keys.values()] == [{"v": None}]
    assert "a range delete whose order is not certain" in capsys.readouterr().err


def test_clickhouse_by_its_other_client(tmp_path: Path) -> None:
    """The engine behind HTTP, by clickhouse-connect with a login: growth, and a marker that has keys read."""
    publisher = Publisher()
    publisher.become([*KEY, Column("m", _wrap(["map"], _udt([INT])))])
    small, large = (_wrap(["map"], _udt(fields)) for fields in ([INT], [INT, TEXT]))
    for c in range(2):
        publisher.row(0, [cql_bytes(INT, 1), cql_bytes(INT, c)], [cql_bytes(small, Pairs([("é", (c,))]))])
    publisher.become([*KEY, Column("m", large)])
    publisher.marker(0, [cql_bytes(INT, 1), None], (bound([cql_bytes(INT, 1)], True), None))
    publisher.row(0, [cql_bytes(INT, 2), cql_bytes(INT, 0)], [cql_bytes(large, Pairs([("x", (7, "z"))]))])
    with clickhouse_over_http(tmp_path, ("u", "p")) as url:
        login = {"target.username": "u", "target.password": "p"}
        clickhouse = Settings("b", "r", "data-ks.t", [url, "a-b"], True, login)
        for part in (publisher.topic[0][:2], publisher.topic[0][2:]):
            with ClickHouse(clickhouse) as target:
                target.store(publisher.batch(part).for_table(target))
        with ClickHouse(clickhouse) as target:
            rows = to_rows(target._engine.read("SELECT k, c, m FROM `a-b` FINAL ORDER BY k"))
        with pytest.raises(ClickHouse.errors, match="Authentication failed"):
            ClickHouse(Settings("b", "r", "data-ks.t", [url, "a-b"], True, {**login, "target.password": "q"}))
    assert rows == [
        {"k": 1, "c": 0, "m": {"é": {"f0": 0, "f1": None}}},
        {"k": 2, "c": 0, "m": {"x": {"f0": 7, "f1": b"z"}}},
    ]
