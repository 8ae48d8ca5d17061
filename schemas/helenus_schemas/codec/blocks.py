"""Compressed blocks whose content is said to have some length: of a commit log's segments, and of Pulsar's entries.

A block must come to exactly the length that is declared. Memory is taken only for a length that so many bytes of the
format can come to, and that the block itself declares where its format has a length: so a false length takes no more
memory than a true one would.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

Block = Callable[[bytes, int], memoryview]
"""From a block and the number of bytes that it must decompress to, to those bytes. Raises ValueError."""


def _bounded(name: str, max_ratio: int, read: Block) -> Block:
    """Read blocks of a format of which one byte comes to at most `max_ratio` bytes."""

    def read_bounded(block: bytes, length: int) -> memoryview:
        if not 0 <= length <= max_ratio * len(block):
            raise ValueError(f"no {len(block)} bytes of {name} come to {length}")
        try:
            content = read(block, length)
        except MemoryError:
            raise ValueError(f"no memory for the {length} bytes that a block of {name} comes to") from None
        if len(content) != length:
            raise ValueError(f"{len(block)} bytes of {name} come to {len(content)}, not {length}")
        return content

    return read_bounded


def _read_lz4(block: bytes, length: int) -> memoryview:
    import cramjam  # here and below: few topics and commit logs are compressed

    content = bytearray(length)
    try:
        return memoryview(content)[: cramjam.lz4.decompress_block_into(block, content)]
    except cramjam.DecompressionError as error:
        raise ValueError(f"not a block of LZ4: {error}") from None


def _read_snappy(block: bytes, length: int) -> memoryview:
    import cramjam

    _check_length("block of Snappy", _snappy_length(block), length)
    content = bytearray(length)
    try:
        return memoryview(content)[: cramjam.snappy.decompress_raw_into(block, content)]
    except cramjam.DecompressionError as error:
        raise ValueError(f"not a block of Snappy: {error}") from None


def _read_zstd(block: bytes, length: int) -> memoryview:
    import cramjam

    _check_length("frame of Zstd", _zstd_length(block), length)
    content = bytearray(length)
    try:
        return memoryview(content)[: cramjam.zstd.decompress_into(block, content)]
    except cramjam.DecompressionError as error:
        raise ValueError(f"not a frame of Zstd: {error}") from None


def _read_deflate(block: bytes, length: int) -> memoryview:
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(block, length + 1)  # one more, as 0 would be no limit
    except zlib.error as error:
        raise ValueError(f"not a stream of zlib: {error}") from None
    if len(content) == length and (not stream.eof or stream.unused_data):
        raise ValueError("a stream of zlib that does not end where its block does")
    return memoryview(content)


def _check_length(subject: str, declared: int, length: int) -> None:
    if declared != length:
        raise ValueError(f"a {subject} that says it comes to {declared}, not {length}")


def _snappy_length(block: bytes) -> int:
    """Return the length that a block of raw Snappy begins with: an int of 7 bits a byte, the lowest first."""
    length = 0
    for shift, byte in enumerate(block[:5]):
        length |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return length
    raise ValueError("not a block of Snappy: it has no length")


def _zstd_length(block: bytes) -> int:
    """Return the content size in a frame's header (RFC 8878, 3.1.1.1), which all that compress at once write."""
    descriptor = block[4] if len(block) > 4 else 0
    single = descriptor >> 5 & 1
    offset = 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
    size = (single, 2, 4, 8)[descriptor >> 6]
    if block[:4] != b"\x28\xb5\x2f\xfd" or not size or len(block) < offset + size:
        raise ValueError("not a frame of Zstd that says how long its content is")
    return int.from_bytes(block[offset : offset + size], "little") + (256 if size == 2 else 0)


# With the most bytes that one byte can become in each format.
lz4 = _bounded("LZ4", 255, _read_lz4)
"""LZ4's block format, without a frame."""
snappy = _bounded("Snappy", 22, _read_snappy)
"""Snappy's raw format, without a frame."""
zstd = _bounded("Zstd", 1 << 15, _read_zstd)
"""One frame of Zstd, which has the size of its content."""
deflate = _bounded("zlib", 1032, _read_deflate)
"""One stream of zlib."""
