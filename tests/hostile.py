"""Bytes that somebody made up, and what a decoder of them may take: steps and memory in proportion to the bytes.

Steps are lines of Python that run and functions that are called, so no clock has a say. They are counted of plain
Python; compiled modules run the same source, and their own tests show that they give the same results.
"""

from __future__ import annotations

import json
import struct
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st

T = TypeVar("T")
EXAMPLES = settings.default.max_examples
STEPS, STEPS_OF_A_BYTE = 20_000, 200
MEMORY, MEMORY_OF_A_BYTE = 4 << 20, 400
"""The most that a decoder may take of no bytes, and of each of them more."""
INTS = [0, 1, 2, 127, 128, 255, 256, 1 << 15, (1 << 16) - 1, 1 << 24, 1 << 30, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
LONGS = [*INTS, 1 << 32, 1 << 53, (1 << 62) - 1, 1 << 62, (1 << 63) - 1]
NUMBERS = sorted({sign * n for n in LONGS for sign in (1, -1)} | {-(1 << 63)})
"""What a length or a count may claim to be."""


class TooMuch(BaseException):
    """A decoder took more than its bytes allow; no `except Exception` of its own hides it."""


def run(decode: Callable[[], T], size: int, expected: type[Exception] | tuple[type[Exception], ...] = ()) -> T | None:
    """What a decoder makes of `size` bytes; None if it raises what it is `expected` to raise.

    Fails if it raises something else, or takes more steps or memory than so many bytes allow.
    """
    steps, max_steps = 0, STEPS + STEPS_OF_A_BYTE * size

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps > max_steps:
            raise TooMuch(f"more than {max_steps} steps for {size} bytes, in {frame.f_code.co_name}")
        return trace

    before = sys.gettrace()
    is_tracing = tracemalloc.is_tracing()
    if not is_tracing:
        tracemalloc.start()
    tracemalloc.reset_peak()
    start, _ = tracemalloc.get_traced_memory()
    sys.settrace(trace)
    try:
        return decode()
    except expected:
        return None
    finally:
        sys.settrace(before)
        _, peak = tracemalloc.get_traced_memory()
        if not is_tracing:
            tracemalloc.stop()
        if peak - start > MEMORY + MEMORY_OF_A_BYTE * size:
            raise TooMuch(f"{peak - start} bytes of memory for {size} bytes")


def read(
    decode: Callable[[bytes], T], data: bytes, expected: type[Exception] | tuple[type[Exception], ...]
) -> T | None:
    """As `run`, of a decoder that is given the bytes."""
    return run(lambda: decode(data), len(data), expected)


def avro_long(number: int) -> bytes:
    """A number of at most 64 bits, as Avro has it."""
    zigzag = (number << 1) ^ (number >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*out, zigzag])


def unsigned_vint(number: int) -> bytes:
    """A number of at most 64 bits, as the commit log has it."""
    number &= (1 << 64) - 1
    size = next(n for n in range(9) if n == 8 or number < 1 << 7 * (n + 1))
    data = bytearray(number.to_bytes(size + 1, "big"))
    data[0] |= 0xFF << (8 - size) & 0xFF
    return bytes(data)


CLAIMS = [
    *(struct.pack(code, number) for code in (">b", ">h", ">i", ">q") for number in (-1, -128)),
    *(struct.pack(">I", number & 0xFFFFFFFF) for number in INTS),
    *(struct.pack("<I", number & 0xFFFFFFFF) for number in INTS),
    *map(avro_long, NUMBERS),
    *map(unsigned_vint, LONGS),
    b"\x80" * 9 + b"\1",
    b"\xff" * 20,
    bytes(8),
]
"""Lengths and counts in all forms that ours and others' formats have."""


@st.composite
def damaged(draw: st.DrawFn, valid: bytes | Sequence[bytes]) -> bytes:
    """One of these, damaged one to four times: flipped bits, claims in place of what is there, cuts, repetitions."""
    data = bytearray(valid if isinstance(valid, bytes) else draw(st.sampled_from(list(valid))))
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, len(data)))
        kind = draw(st.integers(0, 5))
        if kind == 0 and position < len(data):
            data[position] ^= 1 << draw(st.integers(0, 7))
        elif kind == 1:
            claim = draw(st.sampled_from(CLAIMS))
            data[position : position + draw(st.sampled_from([0, 1, 2, 4, 8, len(claim)]))] = claim
        elif kind == 2:
            del data[position:]
        elif kind == 3:
            end = draw(st.integers(position, len(data)))
            data[position:position] = data[position:end] * draw(st.integers(1, 8))
        elif kind == 4:
            data[position:position] = draw(st.binary(min_size=1, max_size=12))
        else:
            data[position:] = data[position:][::-1]
    return bytes(data)


JSON_TEXTS = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b"0",
    b'""',
    b"1e999",
    b"NaN",
    b"-Infinity",
    b"9" * 5000,
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'"\\ud800"',
    b'{"\\ud800": "\\udfff"}',
    b"\xff\xfe",
    b"[[1], {}, null, true, 1.5]",
]
"""What is no answer to any question, or one that takes much."""


@st.composite
def damaged_json(draw: st.DrawFn, valid: bytes | Sequence[bytes]) -> bytes:
    """JSON with another value somewhere, or damaged as bytes."""
    data = draw(st.sampled_from([valid] if isinstance(valid, bytes) else list(valid)))
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return draw(st.sampled_from(JSON_TEXTS))
    if kind == 1:
        return draw(damaged(data))
    content = json.loads(data)
    for _ in range(draw(st.integers(1, 3))):
        content = _replaced(draw, content)
    return json.dumps(content).encode()


def _replaced(draw: st.DrawFn, content: Any) -> Any:
    """The content with one of its values, however deep, replaced."""
    if isinstance(content, dict) and content and draw(st.integers(0, 4)):
        name = draw(st.sampled_from(sorted(content)))
        if draw(st.integers(0, 5)) == 0:
            return {key: value for key, value in content.items() if key != name}
        return {**content, name: _replaced(draw, content[name])}
    if isinstance(content, list) and content and draw(st.integers(0, 4)):
        position = draw(st.integers(0, len(content) - 1))
        return [*content[:position], _replaced(draw, content[position]), *content[position + draw(st.integers(0, 1)) :]]
    return draw(st.sampled_from(_VALUES))


_VALUES: list[Any] = [
    None, True, 0, -1, 1 << 31, 1 << 63, -(1 << 63) - 1, 10**400, 1.5, float("inf"), "", "x", "\ud800", "\0", "a.b",
    "x" * 5000, " " * 5000, "(" * 2000, "list<" * 500, '"' * 999, [], {}, [[]], [{}], {"a": {}}, ["a", "b"], [1, 2],
    [None], {"type": "record"}, {"fields": None}, {"name": 5},
]  # fmt: skip
