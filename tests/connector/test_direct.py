"""Envelopes straight from the bytes of cells: byte for byte what the long way makes, plain and compiled."""

from __future__ import annotations

import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import twice
from agent.writer import LIVE, Cell, Complex, Row, Update, table_of
from connector.celled import events
from connector.test_cep44 import Cep
from connector.test_debezium_cassandra import Made as MadeCassandra
from connector.test_envelope import LOWEST, VALUES, Made
from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.gate.event_content import decode_key
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.shape.cep44 import shape as cep44
from helenus_connector.shape.debezium import _cassandra_layout, _cassandra_records, cassandra, envelope
from helenus_connector.shape.envelope import envelope_shape, record_layout
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.values import Malformed
from helenus_schemas.event import wire
from helenus_schemas.event.change import Scope

SOURCE = Path(record_layout.__file__).with_name("direct_records.py")
NOW = 1_700_000_000_123
T = 1_700_000_000_000_000
KEYS = {
    "k int pk": ((struct.pack(">i", 7),), ()),
    "k text pk, c timestamp ck": ((b"",), (struct.pack(">q", 5),)),
    "k uuid pk, c boolean ck, d text ck": ((bytes(16),), (b"\1", b"")),
    "k int pk, l text pk, c varint ck": ((struct.pack(">i", 7), b"x"), (b"\5",)),
    "k decimal pk, c int ck": ((bytes(4) + b"\5",), (b"",)),
}
MANY = {
    "list<int>": (bytes(range(16)), struct.pack(">i", 3)),
    "set<text>": (b"x", b""),
    "map<text, int>": (b"x", struct.pack(">i", 3)),
    "map<int, text>": (struct.pack(">i", 3), b"x"),
}
SIMPLE = {kind: data for kind, (data, _, _) in VALUES.items()}
PLAIN_COLUMNS = ", ".join(f"v{n} {kind}" for n, kind in enumerate(SIMPLE))


AVRO = {"value.converter.schema.registry.url": "http://r"}
JSON = {
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
}
SHAPES: dict[str, tuple[Any, ModuleType]] = {
    "debezium": (Made, envelope),
    "debezium-cassandra": (MadeCassandra, cassandra),
    "cep44": (Cep, cep44),
}
FORMS = [
    {"output.format": shape, **form, **more}
    for shape in SHAPES
    for form in (AVRO, JSON)
    for more in ([{}, {"cep44.payload": "bytes"}] if shape == "cep44" and form is AVRO else [{}])
]


@pytest.fixture(scope="module", params=["plain", "compiled"])
def direct(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    if request.param == "compiled":
        return twice.compiled(SOURCE, tmp_path_factory)
    module = twice.plain(SOURCE)
    module.writer = twice.plain(SOURCE.with_name("value_writer.py"))  # type: ignore[attr-defined]
    module.ValueWriter = module.writer.ValueWriter  # type: ignore[attr-defined]
    rows = twice.plain(SOURCE.with_name("_changed_row.py"))
    for name in ("ChangedColumn", "ChangedRow"):
        setattr(module, name, getattr(rows, name))
    module._NULL = rows.NULL  # type: ignore[attr-defined]
    return module


@pytest.fixture(scope="module", params=FORMS, ids=lambda form: "-".join(text[-14:] for text in form.values()))
def form(request: pytest.FixtureRequest) -> dict[str, str]:
    chosen: dict[str, str] = request.param
    return chosen


def stop_clocks(patch: pytest.MonkeyPatch) -> None:
    for module in (envelope, envelope_shape, _cassandra_records):
        patch.setattr(module, "now_ms", lambda: NOW)


class Both:
    """The shape of a table, that goes straight where it can, and one that never does."""

    def __init__(self, direct: ModuleType, table: Table, form: dict[str, str], **more: str) -> None:
        make, module = SHAPES[form["output.format"]]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "DirectRecords", direct.DirectRecords)
            for layout in (record_layout, _cassandra_layout):
                patch.setattr(layout, "ColumnSlot", direct.ColumnSlot)
            stop_clocks(patch)
            self.made = make(table, **form, **more)
            self.long = make(table, **form, **more).shape
            self.long._direct = None

    def straight(self, resolved: ResolvedKey) -> bool:
        """Whether it goes straight. It gives the same in any case."""
        with pytest.MonkeyPatch.context() as patch:
            stop_clocks(patch)
            shape = self.made.shape
            straight_outcome = outcome(shape, resolved)  # meets the columns
            assert outcome(shape, resolved) == straight_outcome == outcome(self.long, resolved)
            assert shape._direct is not None
            if isinstance(straight_outcome, str):
                return False
            (record,) = shape.rows([resolved])
            assert record is None or [record] == [r for r, *_ in outcome(self.long, resolved)[0]]
            return record is not None


def outcome(shape: Any, resolved: ResolvedKey) -> Any:
    try:
        shaped = list(shape.records(resolved))
    except Malformed as error:
        return str(error)
    whole = [s for s in shaped if s.cause is None and s.image is not None]
    smaller = [[s.make(image) for image, _ in shape.smaller(s.image)] for s in whole]
    return [(s.record, str(s.cause), s.key, s.image) for s in shaped], smaller


def resolved(both: Both, update: Update) -> ResolvedKey:
    (event,) = events(update)
    made = both.made.resolved(event)
    made.values = decode_key(both.made.codec, made.key)  # as the gate has them
    made.cells = wire.decode(event.value or b"").cells
    made._written = None
    return made


@st.composite
def written(draw: st.DrawFn) -> tuple[Table, Update]:
    kinds = draw(st.lists(st.sampled_from([*SIMPLE, *MANY]), min_size=1, max_size=8))
    keys = draw(st.sampled_from(sorted(KEYS)))
    table = table_of("t", ", ".join([keys, *(f"v{n} {kind}" for n, kind in enumerate(kinds))]))
    times = st.sampled_from([T, T - 1, T + 70_000_000_000, -5])
    time = draw(st.one_of(st.none(), times))
    expires = draw(st.sampled_from([None, (60, 1_700_000_060)])) if time is not None else None

    def cell(value: bytes, path: bytes | None) -> Cell:
        made = Cell(value, path=path, time=None if time is not None and draw(st.booleans()) else draw(times))
        kind = draw(st.integers(0, 9))
        if kind == 0:
            made.value = b""
        elif kind == 1:
            made.value, made.deleted_at = None, 1_700_000_000
        elif kind == 2:
            made.expires = (60, 1_700_000_060)
        elif kind == 3 and expires is not None:
            made.row_ttl = True
        return made

    columns: dict[str, Cell | Complex] = {}
    for n, kind in enumerate(kinds):
        if not draw(st.integers(0, 3)):
            continue
        if kind in MANY:
            path, value = MANY[kind]
            deletion = draw(st.sampled_from([None, LIVE, (T - 1, 1_700_000_000), (T, 1_700_000_000)]))
            columns[f"v{n}"] = Complex([cell(value, path) for _ in range(draw(st.integers(0, 2)))], deletion)
        else:
            columns[f"v{n}"] = cell(SIMPLE[kind], None)
    partition, clustering = KEYS[keys]
    key = partition[0] if len(partition) == 1 else b"".join(struct.pack(">H", len(p)) + p + b"\0" for p in partition)
    row = Row(clustering, columns, time=time, expires=expires)
    row.deletion = draw(st.sampled_from([None] * 9 + [(T, 1_700_000_000)]))
    return table, Update(table, key, [row], lowest=(T - 1, 1_700_000_000, 0))


@given(written(), st.data())
def test_all_of_it_is_the_same(
    direct: ModuleType, form: dict[str, str], table_and_update: tuple[Table, Update], data: st.DataObject
) -> None:
    table, update = table_and_update
    if not update.key:
        return
    both = Both(direct, table, form)
    made = resolved(both, update)
    both.straight(made)
    # The same of broken bytes.
    assert made.cells is not None
    assert made.event is not None
    cells = bytearray(made.cells)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(34, len(cells) - 1))
        cells[position] = data.draw(st.one_of(st.integers(0, 255), st.just(cells[position] ^ 1)))
    broken = bytes(cells[: data.draw(st.sampled_from([None, -1, -2]))])
    made.event = made.event._replace(value=(made.event.value or b"")[: -len(cells)] + broken)
    made.cells, made._written = broken, None
    both.straight(made)


@pytest.mark.parametrize("kind", SIMPLE)
def test_every_type_goes_straight(direct: ModuleType, form: dict[str, str], kind: str) -> None:
    table = table_of("t", f"k int pk, v {kind}, w text")
    update = Update(table, struct.pack(">i", 7), [Row((), {"v": Cell(SIMPLE[kind])}, time=T)], lowest=LOWEST)
    both = Both(direct, table, form)
    assert both.straight(resolved(both, update))


@pytest.mark.parametrize("kind", MANY)
@pytest.mark.parametrize("is_insert", [True, False])
def test_collections_go_straight(direct: ModuleType, form: dict[str, str], kind: str, is_insert: bool) -> None:
    path, value = MANY[kind]
    table = table_of("t", f"k int pk, v {kind}, w text, s text, n int")
    deletion = (T - 1, 1_700_000_000) if is_insert else None
    columns: dict[str, Cell | Complex] = {"v": Complex([Cell(value, time=T, path=path)], deletion), "n": Cell(None)}
    columns["n"] = Cell(None, time=T, deleted_at=1_700_000_000)
    row = Row((), columns, time=T if is_insert else None)
    both = Both(direct, table, form)
    assert both.straight(resolved(both, Update(table, struct.pack(">i", 7), [row], lowest=LOWEST)))


@pytest.mark.parametrize("keys", KEYS)
def test_what_goes_straight_by_its_key(direct: ModuleType, form: dict[str, str], keys: str) -> None:
    partition, clustering = KEYS[keys]
    table = table_of("t", f"{keys}, s text static, v int" if clustering else f"{keys}, v int")
    if b"" in partition:
        return
    key = partition[0] if len(partition) == 1 else b"".join(struct.pack(">H", len(p)) + p + b"\0" for p in partition)
    row = Row(clustering, {"v": Cell(struct.pack(">i", 7), time=T)}, time=T)
    both = Both(direct, table, form)
    made = resolved(both, Update(table, key, [row], lowest=LOWEST))
    assert both.straight(made) is (b"" not in made.values)
    if clustering:
        static = Row((), {"s": Cell(b"x", time=T)})
        made = resolved(both, Update(table, key, static=static, lowest=LOWEST))
        assert made.scope is Scope.STATIC
        assert both.straight(made)


def test_settings_of_keys_and_columns(direct: ModuleType, form: dict[str, str]) -> None:
    table = table_of("t", "k int pk, c tinyint ck, v int, w text, m decimal")
    columns: dict[str, Cell | Complex] = {
        "v": Cell(struct.pack(">i", 7)),
        "w": Cell(b"x"),
        "m": Cell(SIMPLE["decimal"]),
    }
    update = Update(table, struct.pack(">i", 7), [Row((b"\x85",), columns, time=T)], lowest=LOWEST)
    for more in (
        {"key.compat": "datastax"},
        {"columns": "v|w"},
        {"headers": "writetime,node,segpos,digest,schema_id,origin"},
    ):
        both = Both(direct, table, form, **more)
        assert both.straight(resolved(both, update))


def test_many_columns_go_the_long_way(direct: ModuleType, form: dict[str, str]) -> None:
    table = table_of("t", ", ".join(["k int pk", *(f"v{n} int" for n in range(70))]))
    columns: dict[str, Cell | Complex] = {f"v{n}": Cell(struct.pack(">i", n)) for n in range(70)}
    both = Both(direct, table, form)
    assert not both.straight(
        resolved(both, Update(table, struct.pack(">i", 7), [Row((), columns, time=T)], lowest=LOWEST))
    )
