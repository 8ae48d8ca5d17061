"""A segment's file: name, header, markers, index, and what is not written yet."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent.writer import file_name, header, segment_bytes, sync_marker

from helenus_agent import segment as module
from helenus_agent.segment import Corrupt, Segment, parse_name, read_header, read_index, read_marker

ID = 1795262845123
HEAD = len(header(ID))


def write(directory: Path, sections: list[bytes], size: int = 1000) -> Path:
    path = directory / file_name(ID)
    path.write_bytes(segment_bytes(ID, sections, size))
    return path


def put(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def test_names() -> None:
    assert parse_name(f"CommitLog-7-{ID}.log") == (7, ID)
    for name in (f"CommitLog-7-{ID}_cdc.idx", "CommitLog-7-x.log", f"CommitLog-{ID}.log", "system.log"):
        assert parse_name(name) is None


def test_header() -> None:
    good = header(ID)
    assert read_header(good + bytes(100), 7, ID) == len(good) == 20
    for cut in range(len(good)):
        assert read_header(good[:cut], 7, ID) is None
        assert read_header(good[:cut] + bytes(100), 7, ID) is None
    with pytest.raises(Corrupt, match="the header of segment"):
        read_header(good, 7, ID + 1)
    with pytest.raises(Corrupt, match="version 8"):
        read_header(header(ID, 8), 8, ID)
    with pytest.raises(Corrupt, match="LZ4Compressor"):
        read_header(header(ID, options=b'{"compressionClass":"LZ4Compressor"}'), 7, ID)


def test_marker() -> None:
    good = sync_marker(ID, 20, 500)
    assert read_marker(good, ID, 20) == 500
    assert read_marker(good[:4] + bytes(4), ID, 20) is None
    for bad, at in ((good, 28), (bytes(4) + good[4:], 20), (sync_marker(ID, 20, 27), 20), (sync_marker(7, 20, 50), 20)):
        with pytest.raises(Corrupt, match="sync marker"):
            read_marker(bad, ID, at)


def test_sections_are_read_in_pieces(tmp_path: Path) -> None:
    segment = Segment(write(tmp_path, [b"a" * 10, b"", b"b" * 5]))
    assert segment.position == 0
    assert segment.look()
    assert segment.read(4) == (b"aaaa", HEAD + 8, False)
    segment.advance(HEAD + 12)
    assert segment.position == HEAD + 12
    assert segment.read(100) == (b"a" * 6, HEAD + 12, True)
    segment.advance(HEAD + 18)
    assert segment.read(100) == (b"b" * 5, HEAD + 34, True)
    segment.advance(HEAD + 39)
    assert segment.position == HEAD + 39
    assert not segment.look()
    segment.close()


@pytest.mark.parametrize("position", [0, HEAD, HEAD + 8, HEAD + 11, HEAD + 18, HEAD + 26, HEAD + 30, HEAD + 31])
def test_resumes_anywhere(tmp_path: Path, position: int) -> None:
    content = b"a" * 10 + b"b" * 5
    segment = Segment(write(tmp_path, [b"a" * 10, b"b" * 5]), position)
    read = b""
    while segment.look():
        data, at, _ = segment.read(3)
        read += data
        segment.advance(at + len(data))
    before = 0 if position < HEAD + 8 else min(position - HEAD - 8, 10)
    before += max(0, min(position - HEAD - 26, 5))
    assert read == content[before:]
    segment.rewind(0)
    assert segment.look()
    assert segment.read(99)[0] == b"a" * 10
    segment.close()


def test_nothing_is_written_yet(tmp_path: Path) -> None:
    path = tmp_path / file_name(ID)
    path.write_bytes(bytes(1000))
    segment = Segment(path)
    assert not segment.look()
    assert not segment.started
    put(path, 0, header(ID)[:10])
    assert not segment.look()
    put(path, 0, header(ID))
    assert not segment.look()
    put(path, HEAD + 8, b"content")
    put(path, HEAD, sync_marker(ID, HEAD, HEAD + 15)[:4])
    assert not segment.look()
    put(path, HEAD, sync_marker(ID, HEAD, HEAD + 15))
    assert segment.look()
    assert segment.read(99) == (b"content", HEAD + 8, True)
    assert segment.started
    segment.close()


def test_a_complete_segment_without_header_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / file_name(ID)
    path.write_bytes(bytes(1000))
    segment = Segment(path)
    segment.complete = True
    with pytest.raises(Corrupt, match="no header"):
        segment.look()
    assert segment.bad
    assert not segment.look()
    segment.close()


def test_a_torn_marker_gets_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, [b"a" * 10])
    good = sync_marker(ID, HEAD + 18, HEAD + 30)
    put(path, HEAD + 18, good[:2] + b"\x77" + good[3:])
    segment = Segment(path)
    assert segment.look()  # the first section
    segment.skip()
    assert not segment.look()
    assert not segment.settled
    put(path, HEAD + 18, good)
    assert segment.look()
    assert segment.settled

    put(path, HEAD + 30, b"\0\0\1\0nope")
    assert segment.look()  # the second section is still unread
    segment.skip()
    assert not segment.look()
    monkeypatch.setattr(module, "_PATIENCE", -1.0)
    with pytest.raises(Corrupt, match="sync marker"):
        segment.look()
    assert segment.bad
    assert segment.settled
    assert not segment.look()
    segment.close()


def test_markers_that_lead_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", -1.0)
    path = write(tmp_path, [b"a" * 10])
    put(path, HEAD, sync_marker(ID, HEAD, 1001))
    segment = Segment(path)
    assert not segment.look()
    with pytest.raises(Corrupt, match="1000 bytes"):
        segment.look()
    segment.close()

    path = write(tmp_path, [b"a" * 10])
    put(path, HEAD + 18, sync_marker(ID, HEAD + 18, HEAD + 50)[:4])
    segment = Segment(path)
    segment.look()
    segment.skip()
    for _ in range(3):
        assert not segment.look()  # half written, for all we know
    segment.complete = True
    segment.look()
    with pytest.raises(Corrupt, match="without crc"):
        segment.look()
    segment.close()


def test_a_full_segment_ends_where_no_marker_fits(tmp_path: Path) -> None:
    size = HEAD + 8 + 10
    for more in (0, 3, 7):
        path = tmp_path / file_name(ID)
        path.write_bytes(segment_bytes(ID, [b"a" * 10])[:size] + b"\1" * more)
        segment = Segment(path)
        segment.complete = True
        assert segment.look()
        segment.skip()
        assert not segment.look()
        assert not segment.bad
        segment.close()


def test_a_file_held_open_can_be_read_after_it_is_deleted(tmp_path: Path) -> None:
    path = write(tmp_path, [b"a" * 10])
    segment = Segment(path)
    assert segment.look()
    path.unlink()
    assert segment.read(99)[0] == b"a" * 10
    segment.close()
    with pytest.raises(FileNotFoundError):
        segment.read(99)


def test_index(tmp_path: Path) -> None:
    path = tmp_path / file_name(ID)
    index = tmp_path / f"CommitLog-7-{ID}_cdc.idx"
    assert read_index(path) is None
    for text, found in (
        ("", None),
        ("12", (12, False)),
        ("12\nCOMPLETED", (12, True)),
        ("12\nCOMPLETED\n", (12, True)),
    ):
        index.write_text(text)
        assert read_index(path) == found
    index.write_bytes(b"\xff\xfe")
    assert read_index(path) is None


def test_a_closed_segment_opens_again(tmp_path: Path) -> None:
    segment = Segment(write(tmp_path, [b"a" * 10]))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        assert segment.look()
        assert segment.is_open
        segment.close()
        assert not segment.is_open
        assert segment.read(1)[0] == b"a"
        segment.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
