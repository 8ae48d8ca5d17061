"""The compressors that cassandra.yaml can name in `commitlog_compression`, and the blocks they write.

A block must come to exactly the length that its section gives. LZ4Compressor
writes that length once more before its block, as a little-endian int; SnappyCompressor writes Snappy's raw form,
DeflateCompressor a zlib stream, ZstdCompressor one frame.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

Decompress = Callable[[bytes, int], memoryview]
"""A block, and how many bytes it must come to. Raises ValueError."""


def decompress(compressor: str) -> Decompress:
    """How to read what a Cassandra compressor class wrote; its package may be left out. Raises ValueError."""
    name = compressor.rsplit(".", 1)[-1]
    if name not in _BLOCKS:
        raise ValueError(f"it is compressed by {compressor}; only {', '.join(_BLOCKS)} are read")
    read, most = _BLOCKS[name]

    def whole(block: bytes, length: int) -> memoryview:
        if length > most * len(block):
            raise ValueError(f"no {len(block)} bytes of {name} come to {length}")
        try:
            found = read(block, length)
        except MemoryError:
            raise ValueError(f"no memory for the {length} bytes that a block of {name} comes to") from None
        if len(found) != length:
            raise ValueError(f"{len(block)} bytes of {name} come to {len(found)}, not {length}")
        return found

    return whole


def _lz4(block: bytes, length: int) -> memoryview:
    import cramjam  # here and below: few nodes compress their log

    if int.from_bytes(block[:4], "little") != length:
        raise ValueError(f"a block of LZ4 that says it comes to {int.from_bytes(block[:4], 'little')}, not {length}")
    try:
        return memoryview(cramjam.lz4.decompress_block(block[4:], output_len=length))
    except cramjam.DecompressionError as error:
        raise ValueError(f"not a block of LZ4: {error}") from None


def _snappy(block: bytes, length: int) -> memoryview:
    import cramjam

    _agree("block of Snappy", _snappy_length(block), length)
    found = bytearray(length)
    try:
        return memoryview(found)[: cramjam.snappy.decompress_raw_into(block, found)]
    except cramjam.DecompressionError as error:
        raise ValueError(f"not a block of Snappy: {error}") from None


def _zstd(block: bytes, length: int) -> memoryview:
    import cramjam

    _agree("frame of Zstd", _zstd_length(block), length)
    found = bytearray(length)
    try:
        return memoryview(found)[: cramjam.zstd.decompress_into(block, found)]
    except cramjam.DecompressionError as error:
        raise ValueError(f"not a frame of Zstd: {error}") from None


def _deflate(block: bytes, length: int) -> memoryview:
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(block, length + 1)
    except zlib.error as error:
        raise ValueError(f"not a stream of zlib: {error}") from None
    if len(found) == length and (not stream.eof or stream.unused_data):
        raise ValueError("a stream of zlib that does not end where its section does")
    return memoryview(found)


def _agree(what: str, says: int, length: int) -> None:
    """The section's length has no checksum: before memory is taken for it, the block has to say the same."""
    if says != length:
        raise ValueError(f"a {what} that says it comes to {says}, not {length}")


def _snappy_length(block: bytes) -> int:
    """What a block of raw Snappy begins with: an int of 7 bits a byte, the lowest first."""
    length = 0
    for shift, byte in enumerate(block[:5]):
        length |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return length
    raise ValueError("not a block of Snappy: it has no length")


def _zstd_length(block: bytes) -> int:
    """The content size in a frame's header (RFC 8878, 3.1.1.1), which Cassandra's compressor always writes."""
    descriptor = block[4] if len(block) > 4 else 0
    single = descriptor >> 5 & 1
    at = 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
    size = (single, 2, 4, 8)[descriptor >> 6]
    if block[:4] != b"\x28\xb5\x2f\xfd" or not size or len(block) < at + size:
        raise ValueError("not a frame of Zstd that says how long its content is")
    return int.from_bytes(block[at : at + size], "little") + (256 if size == 2 else 0)


# How a compressor's blocks are read, and the most bytes that one byte of a block can become in its format: a damaged
# length takes no more memory than that allows.
_BLOCKS: dict[str, tuple[Callable[[bytes, int], memoryview], int]] = {
    "LZ4Compressor": (_lz4, 255),
    "SnappyCompressor": (_snappy, 22),
    "DeflateCompressor": (_deflate, 1032),
    "ZstdCompressor": (_zstd, 1 << 15),
}
