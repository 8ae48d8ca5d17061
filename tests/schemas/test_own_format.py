"""The fast path for events of our agents: plain and compiled read the same, of whatever bytes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import twice
from hypothesis import given
from hypothesis import strategies as st
from schemas.test_change import changes

from helenus_schemas.cql.values import Malformed
from helenus_schemas.event import own_format, wire
from helenus_schemas.event.change import Change, Scope

SOURCE = Path(own_format.__file__).with_name("own_format.py")
DIGEST, NODE = "0123456789abcdef" * 2, "11111111-2222-3333-4444-555555555555"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return twice.compiled(SOURCE, tmp_path_factory)


PLAIN = twice.plain(SOURCE)


def read(module: Any, match: Any) -> Any:
    """All that a match says."""
    try:
        return match and (match.digest, match.node, match.scope, module.parse_match(match), module.log_position(match))
    except (Malformed, UnicodeDecodeError) as error:
        return type(error), str(error)


def decoded_fields(module: Any, value: bytes) -> Any:
    return read(module, module.match_own_format(value))


alone = st.builds(
    lambda change, scope: change._replace(digest=DIGEST, node=NODE, scope=scope, start=None, end=None, origin=0),
    changes,
    st.sampled_from([Scope.ROW, Scope.STATIC, Scope.PARTITION]),
)


@given(alone)
def test_both_read_what_agents_write(compiled: ModuleType, change: Change) -> None:
    value = wire.encode(change)
    assert decoded_fields(PLAIN, value) == decoded_fields(compiled, value)
    assert decoded_fields(PLAIN, value)[3] == change._replace(part=0, parts=1, segment=-1, position=-1)


def scanned(module: Any, value: bytes) -> Any:
    try:
        return module.scan(value)
    except IndexError:
        return None


@given(alone, st.lists(st.tuples(st.integers(0, 200), st.binary(min_size=1, max_size=1)), max_size=3), st.data())
def test_both_read_the_same_of_other_bytes(
    compiled: ModuleType, change: Change, changed: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    """What is scanned is read as the regular expression reads it, in each form."""
    value = bytearray(wire.encode(change))
    for position, byte in changed:
        value[position % len(value) : position % len(value) + 1] = byte
    cut = bytes(value[: data.draw(st.integers(0, len(value)) | st.just(len(value)))])
    expected = decoded_fields(PLAIN, cut)
    assert decoded_fields(compiled, cut) == expected
    for module in (PLAIN, compiled):
        match = scanned(module, cut)
        assert match is None or read(module, match) == expected
