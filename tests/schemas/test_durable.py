"""Files that are known as damaged when they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import durable
from helenus_schemas.service.durable import Damaged

CONTENT = {"a topic": {"0": 5, "1": 1 << 100}, "ü": [1.5, None, "k"]}


def test_saved_data_is_loaded(tmp_path: Path) -> None:
    durable.save(tmp_path / "file", CONTENT, 1, "it", "nowhere")
    assert durable.load(tmp_path / "file", 1) == CONTENT
    with pytest.raises(FileNotFoundError):
        durable.load(tmp_path / "another", 1)


def test_an_incomplete_file_is_damaged(tmp_path: Path) -> None:
    """Cut anywhere, or with a byte of another value: as a disk may leave it."""
    file = tmp_path / "file"
    durable.save(file, CONTENT, 1, "it", "nowhere")
    whole = file.read_bytes()
    for length in range(len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(Damaged):
            durable.load(file, 1)
    for position in range(len(whole) - 1):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(Damaged):
            durable.load(file, 1)
    file.write_bytes(bytes(len(whole)))
    with pytest.raises(Damaged):
        durable.load(file, 1)


def test_another_version_is_not_taken_for_ours(tmp_path: Path) -> None:
    durable.save(tmp_path / "file", CONTENT, 2, "it", "nowhere")
    with pytest.raises(Damaged, match="version 2"):
        durable.load(tmp_path / "file", 1)


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file.new").symlink_to("/dev/full")
    with pytest.raises(HelenusError, match="cannot save the things: No space left on device") as error:
        durable.save(tmp_path / "file", CONTENT, 1, "the things", "nowhere")
    assert error.value.kind is Kind.STATE
    with pytest.raises(HelenusError, match="cannot read a file: Is a directory"):
        durable.load(tmp_path, 1)
