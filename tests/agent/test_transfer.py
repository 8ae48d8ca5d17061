"""Taking segments away, again and again."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from helenus_agent.positions import Positions
from helenus_agent.segments.segment_queue import SegmentQueue
from helenus_agent.segments.transfer import delete, move, transfer_of
from helenus_schemas.errors import HelenusError, Kind


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
def test_move(segment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_disk: bool) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    if not same_disk:
        monkeypatch.setattr(os, "link", link)
    quarantine = tmp_path / "quarantine"
    for _ in range(2):
        assert move(segment, quarantine) == quarantine / segment.name
        assert (quarantine / segment.name).read_bytes() == b"log"
        assert names(quarantine) == ["CommitLog-7-12.log", "CommitLog-7-12_cdc.idx"]
        assert names(segment.parent) == ["CommitLog-7-13.log"]


def test_move_after_a_crash_half_way(segment: Path, tmp_path: Path) -> None:
    quarantine = tmp_path / "quarantine"
    quarantine.mkdir()
    os.link(segment, quarantine / segment.name)
    move(segment, quarantine)
    assert (quarantine / segment.name).read_bytes() == b"log"
    assert not segment.exists()


def test_archive(segment: Path, tmp_path: Path) -> None:
    archive = transfer_of("archive", tmp_path / "some" / "where")
    for _ in range(2):
        archive(segment)
        assert names(tmp_path / "some" / "where") == ["CommitLog-7-12.log", "CommitLog-7-12_cdc.idx"]
        assert names(segment.parent) == ["CommitLog-7-13.log"]


def test_a_segment_that_is_gone_before_it_is_archived(segment: Path, tmp_path: Path) -> None:
    """Deleted by another while the agent read it: its copy is missing, and that is said."""
    archive = transfer_of("archive", tmp_path / "archive")
    segment.unlink()
    with capture_logs() as logs:
        archive(segment)
    assert [(line["event"], line["log_level"], line["path"]) for line in logs] == [
        ("segment.not_archived", "error", str(segment))
    ]
    with capture_logs() as logs:
        archive(segment.parent / "CommitLog-7-13.log")
        archive(segment.parent / "CommitLog-7-13.log")
    assert logs == []


def test_a_segment_that_a_restarted_node_linked_again(segment: Path, tmp_path: Path) -> None:
    """The same segment once more, with another index: the node writes a new one when it replays."""
    quarantine = tmp_path / "held"
    move(segment, quarantine)
    segment.write_bytes(b"log")
    (segment.parent / "CommitLog-7-12_cdc.idx").write_bytes(b"33554432\nCOMPLETED")
    move(segment, quarantine)
    assert names(quarantine) == ["CommitLog-7-12.log", "CommitLog-7-12_cdc.idx"]
    assert (quarantine / segment.name).read_bytes() == b"log"
    assert names(segment.parent) == ["CommitLog-7-13.log"]


def test_another_node_s_segment_is_not_overwritten(segment: Path, tmp_path: Path) -> None:
    quarantine = tmp_path / "held"
    quarantine.mkdir()
    (quarantine / segment.name).write_bytes(b"its")
    with pytest.raises(HelenusError, match="another segment of this name") as error:
        move(segment, quarantine)
    assert error.value.kind is Kind.TRANSFER_FAILED
    assert (quarantine / segment.name).read_bytes() == b"its"
    assert segment.read_bytes() == b"log"


def test_no_room_at_the_destination(segment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", link)
    quarantine = tmp_path / "held"
    quarantine.mkdir()
    (quarantine / f"{segment.name}.part").symlink_to("/dev/full")
    with pytest.raises(HelenusError, match="No space left") as error:
        move(segment, quarantine)
    assert error.value.kind is Kind.TRANSFER_FAILED
    assert segment.read_bytes() == b"log"
    assert not (quarantine / segment.name).exists()


def test_a_segment_that_must_not_be_deleted(segment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unlink(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(HelenusError, match="Permission denied") as error:
        delete(segment)
    assert error.value.kind is Kind.CDC_DIRECTORY


YOURS = """
from helenus_schemas.errors import HelenusError, Kind
taken = []
def take(path): taken.append(path.name); path.unlink()
class Take:
    def __call__(self, path): taken.append(self); path.unlink(missing_ok=True)
def leaves(path): pass
class Needs:
    def __init__(self, bucket): pass
def fails(path): raise RuntimeError("the bucket is away")
def stops(path): raise HelenusError(Kind.STATE, "enough", str(path))
number = 7
"""


@pytest.fixture
def yours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "transfers.py").write_text(YOURS)
    (tmp_path / "mine" / "broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("mine.transfers")
    for name in [name for name in sys.modules if name.split(".")[0] == "mine"]:
        del sys.modules[name]


def test_a_custom_function_and_a_custom_class(yours: Any, segment: Path) -> None:
    transfer_of("mine.transfers:take", None)(segment)
    take = transfer_of("mine.transfers:Take", None)
    take(segment)
    take(segment)
    assert yours.taken[0] == segment.name
    assert isinstance(yours.taken[1], yours.Take)
    assert yours.taken[1] is yours.taken[2]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.at_all:take", "nowhere.at_all can't be imported: No module named"),
        ("mine.transfers:none", "mine.transfers has no none"),
        ("mine.transfers:Needs", "bucket"),
        ("mine.broken:take", "mine.broken can't be imported: division by zero"),
        ("mine.transfers:number", "can't be called"),
    ],
)
def test_a_segment_transfer_that_cannot_be_loaded(yours: Any, segment: Path, name: str, message: str) -> None:
    with pytest.raises(HelenusError, match=message) as error:
        transfer_of(name, None)
    assert error.value.kind is Kind.CONFIG


@pytest.mark.parametrize(
    ("name", "kind"), [("fails", Kind.TRANSFER_FAILED), ("leaves", Kind.TRANSFER_FAILED), ("stops", Kind.STATE)]
)
def test_errors_of_a_custom_segment_transfer(yours: Any, segment: Path, name: str, kind: Kind) -> None:
    with pytest.raises(HelenusError) as error:
        transfer_of(f"mine.transfers:{name}", None)(segment)
    assert error.value.kind is kind
    assert str(segment) in str(error.value)


def test_the_index_of_a_segment_whose_removal_was_killed_is_deleted(segment: Path) -> None:
    """Nobody else deletes it: Cassandra cares for it no more."""
    segment.unlink()
    index, other = segment.with_name("CommitLog-7-12_cdc.idx"), segment.with_name("CommitLog-7-13_cdc.idx")
    other.write_bytes(b"3\n")  # its segment is not linked yet, say
    queue = SegmentQueue(segment.parent, Positions("", done=[12]))
    queue.refresh()
    assert not index.exists()
    assert other.exists()
