"""The compressors that cassandra.yaml can name in `commitlog_compression`, and the blocks they write.

A block must come to exactly the length that its section gives, which has no checksum. LZ4Compressor writes that length
once more before its block, as a little-endian int; SnappyCompressor writes Snappy's raw form, DeflateCompressor a zlib
stream, ZstdCompressor one frame.
"""

from __future__ import annotations

from helenus_schemas.codec import blocks

Decompress = blocks.Block
"""A block, and how many bytes it must come to. Raises ValueError."""


def decompress(compressor: str) -> Decompress:
    """Return how to read what a Cassandra compressor class wrote; its package may be left out. Raises ValueError."""
    name = compressor.rsplit(".", 1)[-1]
    if name not in _BLOCKS:
        raise ValueError(f"it is compressed by {compressor}; only {', '.join(_BLOCKS)} are read")
    return _BLOCKS[name]


def _lz4(block: bytes, length: int) -> memoryview:
    declared = int.from_bytes(block[:4], "little")
    if declared != length:
        raise ValueError(f"a block of LZ4 that says it comes to {declared}, not {length}")
    return blocks.lz4(block[4:], length)


_BLOCKS: dict[str, Decompress] = {
    "LZ4Compressor": _lz4,
    "SnappyCompressor": blocks.snappy,
    "DeflateCompressor": blocks.deflate,
    "ZstdCompressor": blocks.zstd,
}
