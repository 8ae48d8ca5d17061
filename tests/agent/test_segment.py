"""A segment's file: name, header, markers, index, and what is not written yet."""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path

import cramjam
import pytest
from agent.writer import COMPRESS, entry, file_name, header, options, segment_bytes, sync_marker

from helenus_agent.commitlog import _compression as compression
from helenus_agent.commitlog import segment as module
from helenus_agent.commitlog.segment import ReadMode, Segment, read_marker
from helenus_agent.commitlog.segment_header import Corrupt, read_header
from helenus_agent.commitlog.segment_name import parse_name
from helenus_agent.commitlog.segment_source import read_index
from helenus_schemas.errors import HelenusError

ID = 1795262845123
HEAD = len(header(ID))


def write(directory: Path, sections: list[bytes], size: int = 1000, version: int = 7, compressor: str = "") -> Path:
    path = directory / file_name(ID, version)
    path.write_bytes(segment_bytes(ID, sections, size, version, compressor))
    return path


def write_index(path: Path, text: str) -> None:
    path.with_name(f"{path.stem}_cdc.idx").write_text(text)


def read_all(segment: Segment, max_bytes: int = 1 << 20) -> list[tuple[int, bytes]]:
    """All there is to be read, as (position, bytes), one for each piece."""
    pieces = []
    while segment.look():
        data, position, _ = segment.read(max_bytes)
        pieces.append((position, data))
        segment.advance(position + len(data))
    return pieces


def put(path: Path, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.fixture(autouse=True)
def no_look_finds_what_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """But the first one at a segment that is complete now: that is seen in a listing."""
    look = Segment.look
    complete = set[Segment]()

    def checked(segment: Segment) -> bool:
        expected = segment.has_news() or bool(segment.unread) or (segment.complete and segment not in complete)
        if segment.complete:
            complete.add(segment)
        try:
            news = look(segment)
        except Corrupt:
            assert expected
            raise
        assert expected or not news
        return news

    monkeypatch.setattr(Segment, "look", checked)


def test_names() -> None:
    assert parse_name(f"CommitLog-7-{ID}.log") == (7, ID)
    assert parse_name(f"CommitLog-{ID}.log") == (0, ID)
    for name in (f"CommitLog-7-{ID}_cdc.idx", "CommitLog-7-x.log", "CommitLog-.log", "system.log"):
        assert parse_name(name) is None


@pytest.mark.parametrize("version", [6, 7, 8, 9])
def test_header(version: int) -> None:
    good = header(ID, version)
    for named in (version, 0):
        assert read_header(good + bytes(100), named, ID) == (len(good), version, None) == (20, version, None)
    for cut in range(len(good)):
        assert read_header(good[:cut], version, ID) is None
        assert read_header(good[:cut] + bytes(100), version, ID) is None
    for wrong in ((version, ID + 1), (5, ID)):
        with pytest.raises(Corrupt, match="the header of segment"):
            read_header(good, *wrong)


@pytest.mark.parametrize(
    ("version", "text", "message"),
    [
        (7, options("org.example.BrotliCompressor"), r"org\.example\.BrotliCompressor; only LZ4Compressor, .*Zstd"),
        (7, b"[]", "a header that says"),
        (7, b"{", "a header that says"),
        (8, b'{"encCipher":"AES/CBC/PKCS5Padding","encKeyAlias":"k","encIV":"00"}', "encrypted segments are not supp"),
        (6, b'{"encCipher":"AES","encKeyAlias":"k","compressionClass":"LZ4Compressor"}', "transparent_data_encryption"),
    ],
)
def test_headers_of_unsupported_segments(version: int, text: bytes, message: str) -> None:
    with pytest.raises(Corrupt, match=message):
        read_header(header(ID, version, text), version, ID)


@pytest.mark.parametrize("version", [5, 10, 0x7FFFFFFF])
def test_unknown_versions_stop_the_agent(version: int) -> None:
    with pytest.raises(HelenusError, match=f"a commit log of version {version}; this agent reads versions 6 to 9"):
        read_header(header(ID, version), version, ID)


@pytest.mark.parametrize("compressor", [*COMPRESS, "org.apache.cassandra.io.compress.LZ4Compressor"])
def test_headers_of_compressed_segments(compressor: str) -> None:
    read = read_header(header(ID, 7, options(compressor)), 7, ID)
    assert read is not None
    assert read.decompress is not None


def test_marker() -> None:
    good = sync_marker(ID, 20, 500)
    assert read_marker(good, ID, 20) == 500
    assert read_marker(good[:4] + bytes(4), ID, 20) is None
    for bad, position in (
        (good, 28),
        (bytes(4) + good[4:], 20),
        (sync_marker(ID, 20, 27), 20),
        (sync_marker(7, 20, 50), 20),
    ):
        with pytest.raises(Corrupt, match="sync marker"):
            read_marker(bad, ID, position)


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
        data, offset, _ = segment.read(3)
        read += data
        segment.advance(offset + len(data))
    before = 0 if position < HEAD + 8 else min(position - HEAD - 8, 10)
    before += max(0, min(position - HEAD - 26, 5))
    assert read == content[before:]
    segment.rewind(0)
    assert segment.look()
    assert segment.read(99)[0] == b"a" * 10
    segment.close()


def test_a_segment_without_any_section(tmp_path: Path) -> None:
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
    assert not segment.is_stable
    put(path, HEAD + 18, good)
    assert segment.look()
    assert segment.is_stable

    put(path, HEAD + 30, b"\0\0\1\0nope")
    assert segment.look()  # the second section is still unread
    segment.skip()
    assert not segment.look()
    monkeypatch.setattr(module, "_TORN_READ_S", -1.0)
    with pytest.raises(Corrupt, match="sync marker"):
        segment.look()
    assert segment.bad
    assert segment.is_stable
    assert not segment.look()
    segment.close()


def test_markers_that_point_outside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TORN_READ_S", -1.0)
    path = write(tmp_path, [b"a" * 10])
    put(path, HEAD, sync_marker(ID, HEAD, 1001))
    segment = Segment(path)
    assert not segment.look()
    with pytest.raises(Corrupt, match="1000 bytes"):
        segment.look()
    assert segment.remaining_bytes == 1000 - HEAD
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


def test_a_full_segment_ends_without_room_for_a_marker(tmp_path: Path) -> None:
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
    for text, wanted in (
        ("", None),
        ("12", (12, False)),
        ("12\nCOMPLETED", (12, True)),
        ("12\nCOMPLETED\n", (12, True)),
    ):
        index.write_text(text)
        assert read_index(path) == wanted
    index.write_bytes(b"\xff\xfe")
    assert read_index(path) is None


def test_a_closed_segment_opens_again(tmp_path: Path) -> None:
    segment = Segment(write(tmp_path, [b"a" * 10]))
    for _ in range(3):
        assert segment.look()
        assert segment.is_open
        segment.close()
        assert not segment.is_open
        assert segment.read(1)[0] == b"a"
        segment.close()
    open_paths = [fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    assert not [path for path in open_paths if path.is_relative_to(tmp_path)]


@pytest.mark.parametrize("compressor", ["", "LZ4Compressor"])
def test_a_look_ends_at_the_limit_of_sections(tmp_path: Path, compressor: str) -> None:
    """The next one goes on from there, or from where it is put back to."""
    contents = [number.to_bytes(4, "big") for number in range(2 * module._MAX_SECTIONS + 5)]
    segment = Segment(write(tmp_path, contents, 100_000, compressor=compressor))
    segment.complete = True
    for _ in range(2):
        pieces, looks = [], []
        while segment.look():
            looks.append((len(segment.unread), segment.looked))
            assert segment.look()
            assert len(segment.unread) == looks[-1][0]
            while segment.unread:
                pieces.append(segment.read(99)[0])
                segment.skip()
        assert pieces == contents
        assert looks == [(module._MAX_SECTIONS, False), (module._MAX_SECTIONS, False), (5, True)]
        assert (segment.looked, segment.bad) == (True, False)
        segment.rewind(0)
    segment.close()


@pytest.mark.parametrize("compressor", COMPRESS)
def test_compressed_sections_are_read_as_if_they_were_plain(tmp_path: Path, compressor: str) -> None:
    """The same bytes at the same positions as in a plain segment with a header of that size; resumed anywhere, too."""
    contents = [b"a" * 1000, b"", random.Random(1).randbytes(300), b"c"]
    path = write(tmp_path, contents, version=8, compressor=compressor)
    head = len(header(ID, 8, options(compressor)))
    logical = b""
    for content in contents:
        logical += bytes(8) + content
    for position in [
        0,
        head + 8,
        head + 9,
        head + 500,
        head + 1007,
        head + 1008,
        head + 1100,
        head + 1324,
        head + 1325,
    ]:
        segment = Segment(path, position)
        for offset, data in read_all(segment, 128):
            assert data == logical[offset - head :][: len(data)]
            assert position <= offset
            assert len(data) <= 128
        assert segment.position == max(head + len(logical), position)
        segment.rewind(position)
        assert sum(len(data) for _, data in read_all(segment)) == sum(
            len(content) - min(max(position - head - before, 0), len(content))
            for content, before in zip(contents, (8, 1016, 1024, 1332), strict=True)
        )
        segment.close()


@pytest.mark.parametrize("compressor", COMPRESS)
def test_a_damaged_block_costs_its_section(tmp_path: Path, compressor: str) -> None:
    path = write(tmp_path, [b"a" * 1000, b"b" * 50], compressor=compressor)
    head = len(header(ID, 7, options(compressor)))
    put(path, head + 12, b"\xff\xff")
    segment = Segment(path)
    assert segment.look()
    with pytest.raises(Corrupt, match=r"1000 bytes are not read"):
        segment.read(10)
    segment.skip()
    assert read_all(segment) == [(head + 8 + 1000 + 8, b"b" * 50)]
    segment.close()


@pytest.mark.parametrize("compressor", COMPRESS)
@pytest.mark.parametrize("length", [-1, -(1 << 31), 0, 999, 1001, 40_000, 1 << 30, (1 << 31) - 1])
def test_a_length_that_is_not_the_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compressor: str, length: int
) -> None:
    """Whatever it says: nothing is read, and no more memory is taken than such a block may come to."""
    monkeypatch.setattr(module, "_TORN_READ_S", -1.0)
    path = write(tmp_path, [random.Random(1).randbytes(500) * 2], compressor=compressor)
    put(path, len(header(ID, 7, options(compressor))) + 8, struct.pack(">i", length))
    segment = Segment(path)
    with pytest.raises(Corrupt):  # noqa: PT012 - one of them
        for _ in range(2):
            if segment.look():
                segment.read(10)
    segment.close()


@pytest.mark.parametrize("compressor", ["SnappyCompressor", "ZstdCompressor"])
def test_a_flipped_bit_of_a_length_takes_no_memory(tmp_path: Path, compressor: str) -> None:
    """The section's length has no checksum; the block's own says that it is not so long."""
    content = random.Random(1).randbytes(1 << 20)
    path = write(tmp_path, [content], compressor=compressor)
    put(path, len(header(ID, 7, options(compressor))) + 8, struct.pack(">i", len(content) | 1 << 24))
    segment = Segment(path)
    assert segment.look()
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt, match="says it comes to 1048576, not 17825792"):
            segment.read(10)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    segment.close()


def test_a_block_for_which_there_is_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(block: bytes, content: bytearray) -> int:
        raise MemoryError

    monkeypatch.setattr(cramjam.lz4, "decompress_block_into", read)
    segment = Segment(write(tmp_path, [b"a" * 1000], compressor="LZ4Compressor"))
    assert segment.look()
    with pytest.raises(Corrupt, match="no memory for the 1000 bytes"):
        segment.read(10)
    segment.close()


@pytest.mark.parametrize("size", [1, 100, 255, 256, 300, 65_791, 65_792, 100_000])
def test_content_sizes_of_every_width(size: int) -> None:
    for name in ("ZstdCompressor", "SnappyCompressor"):
        data = random.Random(size).randbytes(size)
        assert compression.decompress(name)(COMPRESS[name](data), size) == data


def test_a_compressed_section_that_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TORN_READ_S", -1.0)
    path = write(tmp_path, [b"a" * 100, b"b" * 100], compressor="LZ4Compressor")
    whole = path.read_bytes()
    head = len(header(ID, 7, options("LZ4Compressor")))
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        segment = Segment(path)
        for _ in range(3):
            segment.look()
        pieces = read_all(segment)
        path.write_bytes(whole)
        pieces += read_all(segment)
        assert pieces == [(head + 8, b"a" * 100), (head + 116, b"b" * 100)]
        segment.close()
    # Nothing more comes: then it is an end that was cut off.
    path.write_bytes(whole[:-1])
    segment = Segment(path)
    segment.complete = True
    segment.look()
    segment.skip()
    with pytest.raises(Corrupt, match="in a file of"):
        segment.look()
    segment.close()


@pytest.mark.parametrize("name", [file_name(ID, 6), f"CommitLog-{ID}.log"])
@pytest.mark.parametrize("compressor", ["", "LZ4Compressor"])
def test_version_6_is_complete_when_it_appears(tmp_path: Path, name: str, compressor: str) -> None:
    """As those of Cassandra 3.11."""
    path = tmp_path / name
    path.write_bytes(segment_bytes(ID, [b"a" * 10, b"b"], 1000, 6, compressor))
    for mode in ("marker", "idx", "eager"):
        segment = Segment(path, mode=mode)
        assert (segment.complete, segment.indexed) == (True, True)
        assert [data for _, data in read_all(segment)] == [b"a" * 10, b"b"]
        assert not segment.bad
        segment.close()


def test_idx_reads_what_the_index_says(tmp_path: Path) -> None:
    path = write(tmp_path, [b"a" * 10, b"b" * 10, b"c" * 10])
    segment = Segment(path, mode="idx")
    assert not segment.look()
    for text, pieces in (
        ("", []),
        (str(HEAD + 17), []),
        (str(HEAD + 18), [(HEAD + 8, b"a" * 10)]),
        ("", []),
        (str(HEAD + 40), [(HEAD + 26, b"b" * 10)]),
        ("1000\nCOMPLETED", [(HEAD + 44, b"c" * 10)]),  # as after a crash: the size of the file
    ):
        write_index(path, text)
        assert read_all(segment) == pieces
    segment.complete = True
    assert not segment.look()
    assert (segment.bad, segment.position) == (False, HEAD + 54)
    segment.close()


def test_idx_after_a_crash_of_a_compressed_segment(tmp_path: Path) -> None:
    """The index then holds the size of the file, which is less than what its sections come to."""
    path = write(tmp_path, [b"a" * 1000, b"b" * 1000], compressor="LZ4Compressor")
    write_index(path, f"{path.stat().st_size}\nCOMPLETED")
    segment = Segment(path, mode="idx")
    segment.complete = True
    assert [len(data) for _, data in read_all(segment)] == [1000, 1000]
    assert not segment.bad
    segment.close()


def test_sections_that_end_before_the_index_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A marker that was there once: what follows it is not forgotten."""
    monkeypatch.setattr(module, "_TORN_READ_S", -1.0)
    path = write(tmp_path, [b"a" * 10, b"b" * 10])
    write_index(path, f"{HEAD + 36}\nCOMPLETED")
    put(path, HEAD + 18, bytes(8))
    segment = Segment(path)
    assert [data for _, data in read_all(segment)] == [b"a" * 10]
    assert not segment.bad
    segment.complete = True
    assert not segment.look()
    assert not segment.is_stable
    with pytest.raises(Corrupt, match=rf"end at {HEAD + 18}, but the index says {HEAD + 36}"):
        segment.look()
    assert segment.bad
    assert segment.remaining_bytes == 18
    segment.close()


def entries(*payloads: bytes) -> bytes:
    return b"".join(entry(payload) for payload in payloads)


def test_eager_reads_after_the_last_marker(tmp_path: Path) -> None:
    first, two, three = (entry(letter * 20) for letter in (b"a", b"b", b"c"))
    path = write(tmp_path, [first])
    end = HEAD + 8 + len(first)
    segment = Segment(path, mode="eager")
    assert read_all(segment) == [(HEAD + 8, first)]
    assert not segment.look()

    put(path, end + 8, two[:-1])
    assert not segment.look()  # it is being written
    put(path, end + 8 + len(two), three)
    assert not segment.look()  # whatever follows it
    put(path, end + 8, two)
    assert segment.look()
    assert (segment.live, segment.position) == (True, end + 8)
    data, offset, final = segment.read(5)
    assert (data.rstrip(b"\0"), offset, final) == (two + three, end + 8, False)
    segment.advance(end + 8 + len(two))
    assert segment.position == end + 8 + len(two)
    assert segment.look()
    assert segment.read(5)[0].startswith(three)

    # The marker comes: the rest of its section, and then after the next one.
    last = end + 8 + len(two + three)
    put(path, end, sync_marker(ID, end, last))
    segment.rewind(end + 8 + len(two))
    assert read_all(segment) == [(end + 8 + len(two), three)]
    assert segment.position == last
    put(path, last + 8, first)
    assert segment.look()
    assert (segment.live, segment.position) == (True, last + 8)
    segment.advance(last + 8 + len(first))
    put(path, last, sync_marker(ID, last, last + 8 + len(first)))
    assert not segment.look()
    segment.close()


@pytest.mark.parametrize(("mode", "compressor"), [("marker", ""), ("idx", ""), ("eager", "LZ4Compressor")])
def test_other_modes_stop_at_the_last_marker(tmp_path: Path, mode: ReadMode, compressor: str) -> None:
    path = write(tmp_path, [b"a" * 20], compressor=compressor)
    write_index(path, "100000")
    segment = Segment(path, mode=mode)
    assert len(read_all(segment)) == 1
    end = len(path.read_bytes().rstrip(b"\0")) if compressor else HEAD + 28
    put(path, end, bytes(8) + entry(b"b" * 20))
    assert not segment.look()
    segment.close()


def test_eager_in_a_new_segment_and_in_a_complete_one(tmp_path: Path) -> None:
    """In one nobody knows yet whether its elders are wholly written; in the other no marker will come."""
    path = write(tmp_path, [])
    put(path, HEAD + 8, entry(b"a" * 20))
    segment = Segment(path, mode="eager")
    assert not segment.look()
    put(path, HEAD, sync_marker(ID, HEAD, HEAD + 40))
    assert len(read_all(segment)) == 1
    put(path, HEAD + 48, entry(b"a" * 20))
    assert segment.look()
    segment.rewind(HEAD + 40)
    segment.complete = True
    assert not segment.look()
    segment.close()


def test_eager_with_a_size_that_is_damaged(tmp_path: Path) -> None:
    path = write(tmp_path, [b"a" * 20])
    for size in (0, -1, 9, 1 << 30, (1 << 31) - 1):
        put(path, HEAD + 36, struct.pack(">iI", size, module.crc32(struct.pack(">i", size))))
        segment = Segment(path, mode="eager")
        assert len(read_all(segment)) == 1
        segment.close()


def test_a_rewind_goes_back_before_a_break(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read up to it and not acknowledged is read again, and the break is found again."""
    monkeypatch.setattr(module, "_TORN_READ_S", 0.0)
    content = entry(bytes(20))
    path = write(tmp_path, [content])
    put(path, HEAD + 8 + len(content), b"\0\0\1\1\2\3\4\5")
    segment = Segment(path)

    def read_to_the_break() -> None:
        segment.look()  # at the first sight it may be half written
        with pytest.raises(Corrupt, match="sync marker"):
            segment.look()
        assert read_all(segment) == [(HEAD + 8, content)]

    read_to_the_break()
    segment.rewind(0)
    assert segment.bad
    read_to_the_break()
