"""The resolver `none`, plain and compiled: of the same changes both make the same keys, or raise the same."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import twice
from agent.writer import Cell, Marker, Row, Update, table_of
from connector.celled import events
from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.interfaces.admitted_change import AdmittedChange
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.resolver import SchemaChanged
from helenus_connector.resolve import none
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.types import parse
from helenus_schemas.cql.values import Malformed
from helenus_schemas.event.own_format import match_own_format
from helenus_schemas.event.wire import decode

SOURCE = Path(none.__file__ or "").with_name("none.py")
PLAIN = twice.plain(SOURCE)
T = 1_700_000_000_000_000
TABLE = table_of("t", "k int pk, c int ck, s int static, v int, w text", id=1)
NARROWER = table_of("t", "k int pk, c int ck, v int", id=1)
ANOTHER = table_of("t", "k int pk, c int ck, s int static, v int, w text", id=2)
READDED = replace(TABLE, dropped={"v": TABLE.columns[3]}, dropped_at={"v": T})
GROWN = replace(TABLE, columns=tuple(replace(c, type=parse("bigint")) if c.name == "w" else c for c in TABLE.columns))
LOWEST = T - 1, 1_700_000_000, 0
K, C = struct.pack(">i", 7), struct.pack(">i", 1)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return twice.compiled(SOURCE, tmp_path_factory)


@st.composite
def written(draw: st.DrawFn) -> Event:
    """An event of some change of one of the tables; of one in ten some bytes are others."""
    table = draw(st.sampled_from([TABLE, TABLE, ANOTHER]))
    time = draw(st.sampled_from([T, T + 1]))
    row: Any = Row((C,), {"v": Cell(C)}, time=time)
    updates = [
        Update(table, K, [row], lowest=LOWEST),
        Update(
            table,
            K,
            [Row((C,), {"v": Cell(C), "w": Cell(b"x")}, time=time, expires=(60, 1_800_000_000))],
            lowest=LOWEST,
        ),
        Update(table, K, [Row((C,), {"w": Cell(b"y", time=time)})], lowest=LOWEST),
        Update(table, K, [Row((C,), deletion=(time, 1_700_000_000))], lowest=LOWEST),
        Update(table, K, [], deletion=(time, 1_700_000_000), lowest=LOWEST),
    ]
    (event,) = events(draw(st.sampled_from(updates)), cells=draw(st.sampled_from([True] * 4 + [False])))
    value = bytearray(event.value or b"")
    if draw(st.integers(0, 9)) == 0:
        for index, byte in draw(st.lists(st.tuples(st.integers(74, len(value) - 1), st.integers(0, 255)), max_size=3)):
            value[index] = byte
    return event._replace(value=bytes(value[: draw(st.sampled_from([None, None, None, -1, -30]))]))


def admit(event: Event, more: tuple[int, bytes | None, bool, bool]) -> AdmittedChange | None:
    """Return the change as the gate admits it; None if its event is none."""
    value, key = event.value or b"", event.key or b""
    match = match_own_format(value)
    try:
        change = None if match is not None else decode(value)
    except ValueError:
        return None
    copies, name, is_published, is_released = more
    admitted = AdmittedChange(
        event, change, key, KeyCodec(TABLE).decode(key), name, copies, is_published, match if change is None else None
    )
    admitted.is_released = is_released
    return admitted


def outcome(
    module: Any, made: list[tuple[Event, tuple[int, bytes | None, bool, bool]]], table: Any, pattern: str
) -> Any:
    """All that a module says of changes: which are read, which are written with how many copies, and their keys."""
    changes = [admitted for event, more in made if (admitted := admit(event, more)) is not None]
    divided: list[AdmittedChange] = []
    numbers = {id(admitted): number for number, admitted in enumerate(changes)}
    read = [numbers[id(admitted)] for admitted in module.divide_changes(changes, divided, "ks.t")]
    resolver, answers = module.CellResolver(table, re.compile(pattern)), []
    for admitted in divided:
        try:
            resolved = resolver.resolve(admitted)
        except SchemaChanged as error:
            answers.append(str(error))
            continue
        answers.append(resolved and fields(resolved))
    copies = [(numbers[id(admitted)], admitted.copies) for admitted in divided]
    ids = module.ids_by_partition(divided)
    try:
        groups = [module.resolve_group(module.CellResolver(table, re.compile(pattern)), divided)]
        counted = [(len(group), outdated, module.count_copies(group)) for group, outdated in groups]
    except SchemaChanged:
        counted = []
    return read, copies, answers, ids, counted


def fields(resolved: Any) -> Any:
    names = (
        "topic partition key values scope bounds event events newest write_time expires cells is_confirmed is_released"
    )
    failure = resolved.failure and (resolved.failure.kind, str(resolved.failure))
    try:
        written = failure or resolved.written
    except Malformed as error:  # its event is whole, its cells are not
        written = str(error)
    return [getattr(resolved, name) for name in names.split()], failure, written


@given(
    st.lists(
        st.tuples(
            written(),
            st.tuples(
                st.integers(1, 3),
                st.sampled_from([None, b"0" * 16, b"1" * 16]),
                st.sampled_from([False] * 4 + [True]),
                st.booleans(),
            ),
        ),
        max_size=6,
    ),
    st.sampled_from([TABLE, NARROWER, READDED, GROWN]),
    st.sampled_from([".*", "v"]),
)
def test_both_resolve_alike(compiled: ModuleType, made: Any, table: Any, pattern: str) -> None:
    assert outcome(PLAIN, made, table, pattern) == outcome(compiled, made, table, pattern)


def test_markers_keep_their_bounds(compiled: ModuleType) -> None:
    update = Update(TABLE, K, [Marker(kind, (C,), ((T, 1_700_000_000),)) for kind in (1, 6)], lowest=LOWEST)
    (event,) = events(update)
    both = [outcome(module, [(event, (1, None, False, False))], TABLE, ".*") for module in (PLAIN, compiled)]
    assert both[0] == both[1]
    assert both[0][2][0][0][5] is not None
