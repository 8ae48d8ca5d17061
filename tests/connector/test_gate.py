"""What the gate makes of events that are of no row."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helenus_connector.gate import Event, Gate
from helenus_schemas.change import Change, Scope, encode


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
