"""Masks of columns, conditions of rows and skipped operations: what must not leave leaves in no form."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from agent.writer import Cell, Row, Update, table_of
from connector.celled import AS_JSON, JSON, events
from connector.staged import CLUSTERED, Staged
from connector.staged import NODE as STAGED_NODE
from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.config.column_masks import column_masks
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.row_condition import parse_condition
from helenus_connector.control._obstacles import find_obstacle
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.image import Image, LiveRow
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import Record, Shape
from helenus_connector.pipeline._undeliverable import Undeliverable
from helenus_connector.rest import _definitions
from helenus_connector.shape.choice import make_shape
from helenus_connector.shape.row.row import RowShape, shown_table
from helenus_connector.shape.selection._conditions import MISSING, bind_condition
from helenus_connector.shape.selection._masks import mask_function
from helenus_connector.testing.log import MemoryLog
from helenus_connector.testing.registry import MemoryRegistry
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Change, Origin, Scope
from helenus_schemas.event.wire import decode, encode, request
from helenus_schemas.settings.properties import ConfigError, read_properties

SECRET = b"tell nobody"
SALT = "s4lt.of the.sea"
TABLE = table_of("t", "k int pk, c int ck, s text static, v int, w text")
PLAIN_TABLE = table_of("t", "k int pk, c int ck, v int, w text")
K, C = struct.pack(">i", 7), struct.pack(">i", 1)
HASH = f"column.mask.hash.v2.SHA-256.with.salt.{SALT}"
MASKED = {HASH: "ks.t.w"}
T = 1_700_000_000_000_000
FORMATS: dict[str, dict[str, str]] = {
    "avro": {"output.format": "key-value-avro", "value.converter.schema.registry.url": "http://r"},
    "json": {"output.format": "json"},
    "debezium": AS_JSON,
    "debezium-avro": {"output.format": "debezium", "value.converter.schema.registry.url": "http://r"},
    "debezium-cassandra": {"output.format": "debezium-cassandra", "value.converter": JSON},
    "cep44": {"output.format": "cep44", "value.converter": JSON},
    "with-schemas": {"value.converter": JSON, "key.converter": JSON, "output.format": "key-value-json"},
}


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


def settings(**more: str) -> ConnectorSettings:
    properties = {"name": "n", "keyspace": "ks", "table": "t", "output.format": "json"}
    return ConnectorSettings.from_properties({**properties, **more}, "test")


def errors(**more: str) -> str:
    with pytest.raises(ConfigError) as raised:
        settings(**more)
    return str(raised.value)


def shape_of(table: Table, **more: str) -> Shape:
    made = settings(**more)
    return make_shape(shown_table(table, made), made, MemoryRegistry(), "topic", "cluster")


def resolved(
    after: Sequence[bytes | None] | None,
    key: Sequence[bytes | None] = (K, C),
    before: Sequence[bytes | None] | None = None,
    op: str | None = None,
    event: bytes | None = None,
    scope: Scope = Scope.ROW,
    table: Table = PLAIN_TABLE,
) -> ResolvedKey:
    request_event = None if event is None else Event("events", 0, 7, 1000, b"", event)
    made = ResolvedKey("events", 0, KeyCodec(table).encode(tuple(key)), tuple(key), scope, event=request_event)
    made.write_time = T
    made.after = None if after is None else Image(tuple(after), T)
    made.before = None if before is None else Image(tuple(before), T)
    made.op = op
    return made


def records(shape: Shape, resolved_key: ResolvedKey) -> list[Record]:
    """The records of a key, which are the same from `rows`, where that makes them."""
    shaped = [s.record for s in shape.records(resolved_key) if s is not None]
    (fast,) = shape.rows([resolved_key])
    assert fast is None or [(fast.key, list(fast.headers))] == [(r.key, list(r.headers)) for r in shaped[:1]]
    return shaped


def mask(option: str, value: bytes) -> bytes:
    prefix = "column.mask." if option.startswith("column.mask.") else "column.truncate."
    parts = {option.removeprefix(prefix): "ks.t.w"}
    (made,) = column_masks(parts, {}) if prefix == "column.mask." else column_masks({}, parts)
    return mask_function(made)(value)


# 1. masks


def test_hashes_are_debeziums() -> None:
    """Debezium's own figures: MaskStringsTest and ColumnMappersTest hash as here."""
    value, salt = "bill@example.com", b"salt123"
    v2 = hashlib.sha256(salt + value.encode()).hexdigest().encode()
    assert mask("column.mask.hash.v2.SHA-256.with.salt.salt123", value.encode()) == v2
    java = bytes.fromhex("aced000574") + len(value).to_bytes(2, "big") + value.encode()
    v1 = hashlib.sha256(salt + java).hexdigest().encode()
    assert mask("column.mask.hash.SHA-256.with.salt.salt123", value.encode()) == v1


@pytest.mark.parametrize(
    ("text", "serialized"),
    [
        ("a\0b", b"\xac\xed\0\5\x74\0\4a\xc0\x80b"),
        ("\U0001f600", b"\xac\xed\0\5\x74\0\6\xed\xa0\xbd\xed\xb8\x80"),
        ("é", b"\xac\xed\0\5\x74\0\2\xc3\xa9"),
        ("x" * 70_000, b"\xac\xed\0\5\x7c" + (70_000).to_bytes(8, "big") + b"x" * 70_000),
    ],
)
def test_version_one_hashes_what_java_serializes(text: str, serialized: bytes) -> None:
    wanted = hashlib.md5(b"x" + serialized).hexdigest().encode()
    assert mask("column.mask.hash.MD5.with.salt.x", text.encode()) == wanted


def test_other_masks() -> None:
    assert mask("column.mask.with.5.chars", SECRET) == b"*****"
    assert mask("column.mask.with.0.chars", SECRET) == b""
    assert mask("column.truncate.to.4.chars", SECRET) == b"tell"
    assert mask("column.truncate.to.40.chars", SECRET) == SECRET
    assert mask("column.truncate.to.2.chars", "é\U0001f600".encode()) == "é".encode()
    assert mask("column.truncate.to.3.chars", "é\U0001f600x".encode()) == "é\U0001f600".encode()


@pytest.mark.parametrize(
    "option", [HASH, HASH.replace(".v2", ""), "column.truncate.to.2.chars", "column.mask.with.1.chars"]
)
def test_no_mask_fails_for_what_is_no_text(option: str) -> None:
    assert SECRET not in mask(option, b"\xff\xfe" + SECRET)


HIDING = [HASH, "column.mask.with.3.chars", "column.truncate.to.4.chars"]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("option", HIDING)
def test_no_record_has_the_value(form: str, option: str) -> None:
    shape = shape_of(PLAIN_TABLE, **FORMATS[form], **{option: "ks.t.w"})
    row, other = (int32(5), SECRET), (int32(6), SECRET + b"!")
    for key in (
        resolved(row),
        resolved(row, event=request(Scope.ROW, Origin.SNAPSHOT)),
        resolved(row, before=other, op="u"),
        resolved(None, before=other, op="d"),
    ):
        made = records(shape, key)
        assert made
        assert SECRET not in repr(made).encode()
        shaped = next(iter(shape.records(key)))
        assert shaped is not None
        if shaped.image is not None:
            smaller = [shaped.make(image) for image, _ in shape.smaller(shaped.image)]
            assert SECRET not in repr([smaller, shaped]).encode()
        # What the stage compares next stays as it was read.
        assert key.after is None or key.after.values == row


@pytest.mark.parametrize("form", FORMATS)
def test_rows_after_a_marker_and_its_static_columns_are_masked(form: str) -> None:
    shape = shape_of(TABLE, **FORMATS[form], **{"column.mask.with.3.chars": r"ks\.t\.(w|s)"})
    marker = resolved((None, None, SECRET), (K, None), scope=Scope.PARTITION, table=TABLE)
    key = KeyCodec(TABLE).encode((K, C))
    marker.read_rows = lambda _: iter([LiveRow(key, (K, C), Image((int32(5), SECRET, SECRET), T))])
    made = [s.record for s in shape.records(marker) if s is not None]
    assert len(made) >= 2
    assert SECRET not in repr(made).encode()


@pytest.mark.parametrize("form", ["debezium", "debezium-avro", "debezium-cassandra", "cep44"])
def test_cells_of_a_change_are_masked(form: str) -> None:
    shape = shape_of(PLAIN_TABLE, resolver="none", **FORMATS[form], **MASKED)
    row = Row((C,), {"v": Cell(int32(5)), "w": Cell(SECRET)}, time=T)
    (event,) = events(Update(PLAIN_TABLE, K, [row], lowest=(T - 1, 1_700_000_000, 0)))
    change = decode(event.value or b"")
    key = resolved(None, event=event.value)
    key.cells = change.cells
    (made,) = records(shape, key)
    assert SECRET not in repr(made).encode()
    assert hashlib.sha256(SALT.encode() + SECRET).hexdigest().encode() in (made.value or b"")
    assert key.cells == change.cells


def test_what_is_not_masked_is_as_it_was() -> None:
    """The fast path is taken, and other columns' bytes are the same."""
    plain, masked = shape_of(PLAIN_TABLE, **FORMATS["avro"]), shape_of(PLAIN_TABLE, **FORMATS["avro"], **MASKED)
    assert isinstance(plain, RowShape)
    for row in ((int32(5), None), None):
        assert plain.rows([resolved(row)]) == masked.rows([resolved(row)])
        assert plain.rows([resolved(row)])[0] is not None


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("ks.t.k", "k is of the key"),
        ("ks.t.c", "c is of the key"),
        ("ks.t.v", "v is int, and only text and ascii can be masked"),
        ("ks.t.(w|nosuch)", r"no column matches \(nosuch\)"),
        ("ks.t.pasword", "no column matches pasword"),
        ("ks.t.w,ks.t..*", "k is of the key"),
    ],
)
def test_what_can_not_be_masked_is_refused_by_name(entry: str, message: str) -> None:
    with pytest.raises(HelenusError, match=message) as raised:
        shown_table(PLAIN_TABLE, settings(**{HASH: entry}))
    assert raised.value.kind is Kind.CONFIG
    assert SALT not in str(raised.value)


def test_two_masks_of_a_column_are_refused() -> None:
    with pytest.raises(HelenusError, match=r"w is also masked by column\.mask\.with"):
        shown_table(PLAIN_TABLE, settings(**{"column.mask.with.3.chars": "ks.t.w", HASH: ".*.t.w"}))


def test_masks_of_other_tables_stay_out() -> None:
    assert isinstance(shape_of(PLAIN_TABLE, **FORMATS["avro"], **{HASH: "ks.other.w"}), RowShape)


def test_digests_of_changes_go_with_no_mask() -> None:
    assert "headers: digest is a hash of the whole change" in errors(headers="op,digest", **MASKED).replace(
        "headers=op,digest", "headers"
    )


# 2. salts are secrets


def test_salts_are_in_no_message() -> None:
    texts = [
        errors(**{HASH: "nodots"}),
        errors(**{f"column.mask.hash.SHA-257.with.salt.{SALT}": "ks.t.w"}),
        errors(**{f"column.mask.hash.SHA-256.with.slat.{SALT}": "ks.t.w"}),
        errors(**{f"column.mask.hash.v3.SHA-256.with.salt.{SALT}": "ks.t.w"}),
        errors(**{f"colum.mask.hash.SHA-256.with.salt.{SALT}": "ks.t.w"}),
        errors(**{HASH: "${env:NO_SUCH_VARIABLE}"}),
        repr(settings(**MASKED)),
        str(settings(**MASKED)),
        repr(settings(**MASKED).column_masks),
    ]
    for text in texts:
        assert "s4lt" not in text
        assert "the sea" not in text


def test_salts_are_in_no_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.properties"
    name = HASH.replace(" ", r"\ ")
    file.write_text(f"name=n\n{name}=ks.t.w\n{name}=ks.t.v\n")
    assert read_properties(file)[HASH] == "ks.t.v"
    out = capsys.readouterr()
    assert "s4lt" not in out.out + out.err


def test_rest_shows_no_salt_and_takes_its_stars_back() -> None:
    other = HASH + "2"
    stored = {"name": "n", HASH: "ks.t.w", other: "ks.t.s"}
    shown = _definitions.shown(stored)
    assert sorted(shown.values()) == ["ks.t.s", "ks.t.w", "n"]
    assert "s4lt" not in repr(shown)
    assert _definitions.restored(shown, stored) == stored
    assert _definitions.restored({**shown, "name": "m"}, stored) == {**stored, "name": "m"}
    with pytest.raises(ConfigError, match="give the secret itself"):
        _definitions.restored(shown, {"name": "n"})


# 3. where


COLUMNS = [
    Column(name, parse(t))
    for name, t in {
        "i": "int",
        "t": "text",
        "b": "boolean",
        "d": "decimal",
        "f": "float",
        "x": "double",
        "u": "uuid",
        "at": "timestamp",
        "on": "date",
        "l": "list<int>",
        "Big": "bigint",
    }.items()
]
ID = uuid.UUID(int=5)
ROW: list[Any] = [
    int32(5),
    b"it's 100%",
    b"\1",
    b"\0\0\0\2" + b"\x04\xd2",
    struct.pack(">f", 0.1),
    struct.pack(">d", float("nan")),
    ID.bytes,
    (1_700_000_000_000).to_bytes(8, "big"),
    (19_675 + (1 << 31)).to_bytes(4, "big"),
    None,
    (-3).to_bytes(8, "big", signed=True),
]


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("i = 5", True),
        ("i <> 5", False),
        ("NOT i != 5", True),
        ("i > 4 AND i <= 5", True),
        ("i = 1 OR (i >= 5 AND NOT (i = 6))", True),
        ("i = 1 OR i = 5 AND i = 6", False),
        ("i IN (1, 5)", True),
        ("i NOT IN (1, 5)", False),
        ("i = 5.0", True),
        ("t = 'it''s 100%'", True),
        ("t LIKE 'it_s%'", True),
        ("t NOT LIKE '%5%'", True),
        ("t < 'j'", True),
        ("b = TRUE", True),
        ("b != true", False),
        ("d = 12.34", True),
        ("d > 12.3e0", True),
        ("f = 0.1", True),
        ("x = 0 OR x > 0", False),
        ("u = '00000000-0000-0000-0000-000000000005'", True),
        ("at = '2023-11-14T22:13:20Z'", True),
        ("at < '2023-11-14 22:13:20+01:00'", False),
        ("at = 1700000000000", True),
        ("\"on\" = '2023-11-14'", True),
        ("l IS NULL", True),
        ("l IS NOT NULL", False),
        ('"Big" < 0', True),
        ("big < 0", ValueError),
        ("I = 5", True),
        ("i = 'x'", ValueError),
        ("i LIKE 'x'", ValueError),
        ("u > '00000000-0000-0000-0000-000000000005'", ValueError),
        ("l = 1", ValueError),
        ("b = 1", ValueError),
        ("nosuch IS NULL", ValueError),
        ("\"on\" = 'yesterday'", ValueError),
    ],
)
def test_conditions(text: str, result: Any) -> None:
    if result is ValueError:
        with pytest.raises(ValueError, match=r"can't be compared|no column|no text|alone|only IS NULL"):
            bind_condition(parse_condition(text), COLUMNS)
    else:
        assert bind_condition(parse_condition(text), COLUMNS)(ROW) is result


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("i = 5", None),
        ("NOT i = 5", None),
        ("i = 5 AND t = 'x'", False),
        ("i = 5 OR t LIKE '%'", True),
        ("i IS NULL", True),
        ("i = 5 OR i IS NULL", True),
        ("i NOT IN (1)", None),
    ],
)
def test_nulls_do_not_match(text: str, result: bool | None) -> None:
    test = bind_condition(parse_condition(text), COLUMNS)
    assert test([None, *ROW[1:]]) is result
    assert test([MISSING, *ROW[1:]]) is (None if "NULL" in text else result)
    assert test([b"", *ROW[1:]]) is (None if "= 5 OR i IS" in text else False if "IS NULL" in text else result)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "i",
            "i =",
            "i = 5 AND",
            "i == 5",
            "5 = i",
            "i = five",
            "(i = 5",
            "i = 5)",
            "i IS 5",
            "i IN ()",
            "i IN 5",
        ),
        *("i = 'x", "i LIKE 5", "__import__('os')", "i = 5; DROP", "i BETWEEN 1 AND 2", "i = 1.2.3", "i = 0x10", "NOT"),
        "(" * 60 + "i = 5" + ")" * 60,
        "NOT " * 2000 + "i = 5",
    ],
)
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|no part of a condition|text in single quotes|nested"):
        parse_condition(text)
    assert "where.t" in errors(**{"where.t": text})


def test_conditions_of_no_table_are_refused() -> None:
    assert "`table` has no users" in errors(**{"where.users": "v = 5"})
    assert "where" in errors(where="v = 5")
    assert settings(table="a.*", **{"where.abc": "v = 5"}).where


WHERE = {"where.t": "v > 4"}
SNAPSHOT = request(Scope.ROW, Origin.SNAPSHOT)
LOW, HIGH = (int32(1), SECRET), (int32(5), b"shown")


@pytest.mark.parametrize("form", FORMATS)
def test_a_row_that_does_not_match_has_a_delete(form: str) -> None:
    shape = shape_of(PLAIN_TABLE, **FORMATS[form], **WHERE)
    gone = records(shape_of(PLAIN_TABLE, **FORMATS[form]), resolved(None))
    for row in (LOW, (None, SECRET)):
        made = records(shape, resolved(row))
        assert SECRET not in repr(made).encode()
        assert [(r.key, dict(r.headers)) for r in made] == [(r.key, dict(r.headers)) for r in gone]
    (first, *_) = records(shape, resolved(HIGH))
    assert b"shown" in (first.value or b"")


@pytest.mark.parametrize(
    ("before", "after", "op", "event", "expected"),
    [
        (None, HIGH, "c", None, ("c", None, 5)),
        (LOW, HIGH, "u", None, ("c", None, 5)),
        (HIGH, LOW, "u", None, ("d", 5, None)),
        (LOW, LOW, "u", None, None),
        (LOW, LOW, "r", SNAPSHOT, ("d", None, None)),
        (None, LOW, "c", None, ("d", None, None)),
        (LOW, None, "d", None, ("d", None, None)),
        (HIGH, HIGH, "u", None, ("u", 5, 5)),
    ],
)
def test_the_row_before_decides_too(before: Any, after: Any, op: str, event: bytes | None, expected: Any) -> None:
    made = records(shape_of(PLAIN_TABLE, **AS_JSON, **WHERE), resolved(after, before=before, op=op, event=event))
    assert SECRET not in repr(made).encode()
    if expected is None:
        assert not made
        return
    value = json.loads(made[0].value or b"")
    rows = [row and row["v"] for row in (value["before"], value["after"])]
    assert (value["op"], *rows) == expected
    assert dict(made[0].headers)["op"] == expected[0].encode()


def test_what_the_key_excludes_has_no_record_at_all() -> None:
    shape = shape_of(PLAIN_TABLE, **{"where.t": "k = 8 AND v > 4"})
    assert not records(shape, resolved(HIGH))
    assert not records(shape, resolved(None))
    marker = resolved(None, (K, None), scope=Scope.PARTITION)
    marker.read_rows = lambda _: iter(())
    assert not list(shape.records(marker))
    # But a repair, which finds a record of it, takes that away.
    assert records(shape, resolved(HIGH, event=request(Scope.ROW, Origin.REPAIR)))[0].value == b"{}"


def test_rows_after_a_marker_are_selected() -> None:
    codec = KeyCodec(PLAIN_TABLE)
    keys = [(K, int32(n)) for n in range(3)]
    rows = [LiveRow(codec.encode(key), key, Image(row, T)) for key, row in zip(keys, (LOW, HIGH, LOW), strict=True)]
    marker = resolved(None, (K, None), scope=Scope.PARTITION)
    marker.read_rows = lambda _: iter(rows)
    made = [s.record for s in shape_of(PLAIN_TABLE, **WHERE).records(marker) if s is not None]
    assert [json.loads(r.key or b"")["c"] for r in made] == [None, 1]


@pytest.mark.parametrize(
    ("table", "more", "message"),
    [
        (PLAIN_TABLE, {"where.t": "nosuch = 5"}, "nosuch is no column that is published"),
        (PLAIN_TABLE, {"where.t": "v = 5", "columns": "w"}, "v is no column that is published"),
        (PLAIN_TABLE, {"where.t": "v = 'x'"}, "v is int"),
        (TABLE, {"where.t": "v = 5"}, "static column"),
        (TABLE, {"where.t": "s = 'x'"}, "static column"),
        (PLAIN_TABLE, {"where.t": "v = 5", "resolver": "none", **AS_JSON}, "resolver=none"),
    ],
)
def test_conditions_that_can_not_be_kept_are_refused(table: Table, more: dict[str, str], message: str) -> None:
    with pytest.raises(HelenusError, match=message) as raised:
        shape_of(table, **more)
    assert raised.value.kind is Kind.CONFIG


def test_a_condition_that_can_not_be_kept_is_an_obstacle_at_the_start() -> None:
    assert "nosuch" in str(find_obstacle(settings(**{"where.t": "nosuch = 5"}), PLAIN_TABLE, None))


# 4. skipped operations


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"skipped.operations": "x"}, "no operation x"),
        ({"skipped.operations": "c"}, "c and u are known with"),
        ({"skipped.operations": "r", "resolver": "none", **AS_JSON}, "r is known with state=rows alone"),
        ({"skipped.operations": "d", "state": "keys"}, "state=keys"),
        ({"skipped.operations": "d", **WHERE}, "leave out d"),
    ],
)
def test_operations_that_can_not_be_skipped(more: dict[str, str], message: str) -> None:
    assert message in errors(**more)


def test_skipped_operations() -> None:
    state = {"state": "rows", "query.group": "g", **AS_JSON}
    made = shape_of(PLAIN_TABLE, **state, **{"skipped.operations": "u,r"})
    assert [bool(records(made, resolved(HIGH, op=op))) for op in "cur"] == [True, False, False]
    assert records(made, resolved(None, op="d"))
    no_deletes = shape_of(PLAIN_TABLE, **{"skipped.operations": "d"})
    assert not records(no_deletes, resolved(None))
    assert records(no_deletes, resolved(HIGH))
    assert isinstance(shape_of(PLAIN_TABLE, **{"skipped.operations": "none"}), RowShape)


@pytest.mark.parametrize("form", ["json", "debezium"])
@pytest.mark.parametrize(("scope", "op"), [(Scope.TABLE, "t"), (Scope.PARTITION, "d")])
def test_the_rows_after_a_skipped_marker_have_records(form: str, scope: Scope, op: str) -> None:
    key = KeyCodec(TABLE).encode((K, C))
    marker = resolved((None, None, b"static"), (K, None), scope=scope, table=TABLE)
    if scope is Scope.TABLE:
        marker.key, marker.values, marker.after = b"", (), None
    marker.read_rows = lambda _: iter([LiveRow(key, (K, C), Image((int32(5), b"w", b"static"), T))])
    made = [s.record for s in shape_of(TABLE, **FORMATS[form], **{"skipped.operations": op}).records(marker) if s]
    assert [json.loads(r.key or b"")["c"] for r in made] == [1] if scope is Scope.TABLE else [None, 1]
    assert not any(name == "scope" for r in made for name, _ in r.headers)
    assert all(b"static" in (r.value or b"") for r in made)


@pytest.mark.parametrize("deletes", [False, True])
def test_skipped_operations_of_cells(deletes: bool) -> None:
    row = Row((C,), {} if deletes else {"v": Cell(int32(5))}, time=None if deletes else T)
    if deletes:
        row = Row((C,), {}, deletion=(T, 1_700_000_000))
    (event,) = events(Update(PLAIN_TABLE, K, [row], lowest=(T - 1, 1_700_000_000, 0)))
    key = resolved(None, event=event.value)
    key.cells = decode(event.value or b"").cells
    for skipped, is_left in (("c", deletes), ("d", not deletes), ("u", True)):
        shape = shape_of(PLAIN_TABLE, resolver="none", **AS_JSON, **{"skipped.operations": skipped})
        assert bool(records(shape, key)) == is_left


# 5. the stage, and dead letters


def test_a_stage_counts_what_has_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Staged(CLUSTERED, tmp_path, monkeypatch, **{"where.t": "a = 1 AND v > 4"})
    outcomes = []
    for number, (a, v) in enumerate([(1, 5), (1, 3), (2, 5)]):
        key = (int32(a), int32(1))
        stage.live[key] = Image((int32(v),), 1)
        digest = f"{number:032}"
        change = Change(digest, STAGED_NODE, write_time=1, segment=1, position=number)
        outcomes.append(stage.run(change, KeyCodec(CLUSTERED).encode(key)))
    assert [(o.published, o.records, o.read) for o in outcomes] == [(1, 1, 1), (1, 1, 1), (1, 0, 1)]
    assert [(key["a"], value) for key, value in stage.records_of("data-ks.t")] == [(1, {"v": 5}), (1, None)]


def dead_letter(event: Event, **more: str) -> tuple[Any, ...]:
    log = MemoryLog()
    made = settings(**{"errors.tolerance": "all", **more})
    Undeliverable(made).bury_events(log, [(event, HelenusError(Kind.POISON_EVENT, f"bad: {event.value!r}", "ks.t"))])
    (buried,) = log.appended
    assert buried.topic == made.dead_letters
    return tuple(buried)


def test_dead_letters_have_no_cells() -> None:
    row = Row((C,), {"w": Cell(SECRET)}, time=T)
    (event,) = events(Update(PLAIN_TABLE, K, [row], lowest=(T - 1, 1_700_000_000, 0)))
    assert SECRET in repr(dead_letter(event)).encode()
    for more in (MASKED, WHERE):
        buried = dead_letter(event, **more)
        assert SECRET not in repr(buried).encode()
        change = decode(event.value or b"")
        assert encode(change._replace(cells=None, digest=None)) in buried
        torn = event._replace(value=(event.value or b"")[:-40] + b"\xff" * 3 + SECRET)
        poison = event._replace(value=b"\xff" + SECRET)
        assert SECRET not in repr([dead_letter(torn, **more), dead_letter(poison, **more)]).encode()
        assert b"value" in repr(dead_letter(poison, **more)).encode()


@pytest.mark.parametrize("more", [{}, *map(dict, (MASKED, WHERE))], ids=["plain", "masked", "where"])
def test_the_error_of_a_stopped_task_has_no_hidden_value(more: dict[str, str]) -> None:
    row = Row((C,), {"w": Cell(SECRET)}, time=T)
    (event,) = events(Update(PLAIN_TABLE, K, [row], lowest=(T - 1, 1_700_000_000, 0)))
    stops = settings(**{"errors.tolerance": "none", **more})
    quoting = HelenusError(Kind.POISON_EVENT, f"bad: {event.value!r}", "ks.t")
    with pytest.raises(HelenusError) as raised:
        Undeliverable(stops).bury_events(MemoryLog(), [(event, quoting)])
    assert (SECRET.decode() in str(raised.value)) == (not more)
    assert raised.value.kind is Kind.POISON_EVENT


@pytest.mark.parametrize("digits", [5, -(10**40) - 1, 123_456_789_012_345_678_901_234_567_890])
@pytest.mark.parametrize("scale", [0, 2, 2**31 - 1, -(2**31)])
def test_decimals_of_any_size_are_compared_as_they_are(digits: int, scale: int) -> None:
    """Python's arithmetic has 28 digits, and raises for such scales."""
    data = scale.to_bytes(4, "big", signed=True) + digits.to_bytes(18, "big", signed=True)
    columns = [Column("d", parse("decimal"))]
    assert bind_condition(parse_condition("d > 0"), columns)([data]) is (digits > 0)
    assert bind_condition(parse_condition("d IN (7)"), columns)([data]) is False
    if scale == 0:
        assert bind_condition(parse_condition(f"d = {digits}"), columns)([data]) is True
        assert bind_condition(parse_condition(f"d = {digits + 1}"), columns)([data]) is False


@given(pattern=st.text("ab%_.", max_size=8), text=st.text("ab.\n", max_size=12))
def test_like_is_the_regular_expression_it_stands_for(pattern: str, text: str) -> None:
    expression = "".join({"%": ".*", "_": "."}.get(c) or re.escape(c) for c in pattern)
    test = bind_condition(parse_condition(f"t LIKE '{pattern}'"), [Column("t", parse("text"))])
    assert test([text.encode()]) is (re.fullmatch(expression, text, re.DOTALL) is not None)


def test_like_takes_a_long_text_with_many_beginnings() -> None:
    test = bind_condition(parse_condition(f"t LIKE '{'%a' * 20}%b%'"), [Column("t", parse("text"))])
    assert test([b"a" * 1_000_000]) is False
