"""What the gate makes of events that are of no row."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helenus_connector.gate import Event, Gate
from helenus_connector.settle import Pending
from helenus_schemas.change import Change, Scope, encode
from helenus_schemas.cql import parse
from helenus_schemas.key import KeyCodec
from helenus_schemas.table import Column, Table


def admit(path: Path, key: bytes | None, value: bytes | None) -> Any:
    gate = Gate(SimpleNamespace(query_consistency="LOCAL_QUORUM"), None, path)  # type: ignore[arg-type]
    return gate.admit([Event("t", 1, 2, 3, key, value)], [], None)  # type: ignore[arg-type]


def test_a_gap_is_said_and_done_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gap = Change("0" * 32, "n", Scope.GAP, write_time=5)
    admitted = admit(tmp_path, None, encode(gap))
    assert (admitted.read, admitted.settled, admitted.works, admitted.poison) == (1, 1, {}, [])
    assert "events.gap" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("key", "value"), [(None, encode(Change("0" * 32, "n"))), (b"k", None), (None, None), (b"k", b"\0")]
)
def test_what_is_no_event_is_poison(tmp_path: Path, key: bytes | None, value: bytes | None) -> None:
    admitted = admit(tmp_path, key, value)
    assert (admitted.read, admitted.settled, admitted.works) == (1, 0, {})
    assert len(admitted.poison) == 1


INT = Table("ks", "t", uuid.uuid1(), (Column("k", parse("int"), "partition_key", 0),))


@pytest.mark.parametrize(("written", "sent", "counts"), [(99, 150, (1, 0)), (150, 99, (1, 0)), (101, 150, (0, 1))])
def test_a_key_of_a_table_that_was_made_anew(tmp_path: Path, written: int, sent: int, counts: tuple[int, int]) -> None:
    """It can't be of the table, which was made at 100 s: outdated if it is older, poison if it is not."""
    gate = Gate(SimpleNamespace(query_consistency="LOCAL_QUORUM"), SimpleNamespace(factor=lambda: 1), tmp_path)  # type: ignore[arg-type]
    event = Event("t", 1, 2, sent * 1000, b"no int", encode(Change(None, None, write_time=written * 10**6)))
    waits = Pending("t", 1, b"no int", 0, copies=2)
    admitted = gate.admit([event], [waits], KeyCodec(INT), made_at=100.0)
    assert (admitted.outdated, len(admitted.poison)) == counts
    assert (admitted.gone, admitted.works) == ([waits], {})
