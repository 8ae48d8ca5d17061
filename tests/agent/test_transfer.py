"""Taking segments away, again and again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from helenus_agent.transfer import delete, quarantine


def names(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.iterdir())


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    raw = tmp_path / "cdc_raw"
    raw.mkdir()
    path = raw / "CommitLog-7-12.log"
    path.write_bytes(b"log")
    (raw / "CommitLog-7-12_cdc.idx").write_bytes(b"3\nCOMPLETED")
    (raw / "CommitLog-7-13.log").write_bytes(b"next")
    return path


def test_delete(segment: Path) -> None:
    for _ in range(2):
        delete(segment)
        assert names(segment.parent) == ["CommitLog-7-13.log"]


@pytest.mark.parametrize("same_disk", [True, False])
def test_quarantine(segment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_disk: bool) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    if not same_disk:
        monkeypatch.setattr(os, "link", link)
    held = tmp_path / "quarantine"
    for _ in range(2):
        assert quarantine(segment, held) == held / segment.name
        assert (held / segment.name).read_bytes() == b"log"
        assert names(held) == ["CommitLog-7-12.log", "CommitLog-7-12_cdc.idx"]
        assert names(segment.parent) == ["CommitLog-7-13.log"]


def test_quarantine_after_a_crash_half_way(segment: Path, tmp_path: Path) -> None:
    held = tmp_path / "quarantine"
    held.mkdir()
    os.link(segment, held / segment.name)
    quarantine(segment, held)
    assert (held / segment.name).read_bytes() == b"log"
    assert not segment.exists()
