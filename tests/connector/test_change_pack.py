"""Merged changes on their way from one process to another: what goes in comes out, plain and compiled."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import twice
from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.merged_change import GapEvent, MergedChange, PoisonEvent, ReadRequest, RowChange
from helenus_connector.state.rows import _change_pack
from helenus_schemas.event.change import Bound, Scope

SOURCE = Path(_change_pack.__file__).with_name("_change_pack.py")
_bytes = st.none() | st.binary(max_size=6)
_events = st.builds(
    Event,
    st.sampled_from(["events-a", "events-b"]),
    st.integers(0, 1),
    st.integers(0, 9),
    st.integers(0, 9),
    _bytes,
    _bytes,
)
_columns = st.sampled_from([("v", "w"), ("w", "v"), ("v",), ()])
_rows = st.none() | _columns.flatmap(lambda names: st.fixed_dictionaries(dict.fromkeys(names, _bytes)))
_times = st.none() | st.integers(-(1 << 63), (1 << 63) - 1)
_bounds = st.none() | st.tuples(st.none(), st.builds(Bound, st.booleans(), st.tuples(st.binary(max_size=3))))
_row_changes = st.builds(
    RowChange,
    st.integers(0, 1),
    st.binary(max_size=2),
    st.sampled_from([Scope.ROW, Scope.ROW, Scope.ROW, Scope.STATIC, Scope.RANGE]),
    st.sampled_from("cudr"),
    _rows,
    _rows,
    _times,
    _times,
    st.none() | _events,
    _bounds,
)
_changes: st.SearchStrategy[MergedChange] = (
    _row_changes
    | _row_changes
    | st.builds(ReadRequest, st.integers(0, 1), st.binary(max_size=2), st.just(Scope.ROW), st.integers(0, 9))
    | st.builds(PoisonEvent, _events, st.text(max_size=5))
    | st.builds(GapEvent, _events)
)


@pytest.fixture(scope="module", params=["plain", "compiled"])
def module(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return twice.plain(SOURCE) if request.param == "plain" else twice.compiled(SOURCE, tmp_path_factory)


@given(st.lists(_changes, max_size=12), st.sampled_from([1, 3, 2000]))
def test_changes_come_back_in_their_order(module: ModuleType, changes: list[MergedChange], limit: int) -> None:
    packs = [pack for start in range(0, len(changes), limit) for pack in module.pack_changes(changes[start:][:limit])]
    unpacked = [change for pack in packs for change in module.unpack_changes(pack)]
    assert unpacked == changes
    assert [type(change) for change in unpacked] == [type(change) for change in changes]
    assert packs == [
        pack for start in range(0, len(changes), limit) for pack in _change_pack.pack_changes(changes[start:][:limit])
    ]


def test_many_rows_take_several_packs(module: ModuleType) -> None:
    def change(number: int, value: bytes) -> RowChange:
        event = Event("events-a", 0, number, 7, b"k", value)
        return RowChange(0, b"k", Scope.ROW, "u", {"v": b"1"}, {"v": value}, 5, None, event)

    for value, count in ((b"x", 2000), (b"x" * 10_000, 53)):
        changes = [change(number, value) for number in range(count + 1)]
        packs = list(module.pack_changes(changes))
        assert [len(module.unpack_changes(pack)) for pack in packs] == [count, 1]
        assert [change for pack in packs for change in module.unpack_changes(pack)] == changes
