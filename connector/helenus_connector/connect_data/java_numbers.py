"""Java's numbers: conversions between their types, and how Java reads and writes them."""

from __future__ import annotations

import math
import re
import struct
from decimal import Decimal, InvalidOperation
from typing import Any

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_NUMBER = re.compile(r"[+-]?(NaN|Infinity|((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)[fFdD]?)", re.ASCII)
_MAX_EXPONENT = 5_000  # a double has 308
_HEXADECIMAL = re.compile(r"[+-]?0[xX]([0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?\d+[fFdD]?", re.ASCII)


def wrap(value: int, bits: int) -> int:
    """Return the lowest bits of a number, signed."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def to_integer(value: Any, kind: str) -> int:
    """Return a number as `Number.byteValue` and its like do: decimals cut, integers wrapped, floats saturated."""
    bits = BITS[kind]
    if isinstance(value, Decimal):
        return wrap(int(value), bits)
    if isinstance(value, float):
        if math.isnan(value):
            return 0
        # Java goes by way of int for the two smaller types.
        width = max(bits, 32)
        limit = 1 << (width - 1)
        whole = -limit if value <= -limit else limit - 1 if value >= limit else int(value)
        return wrap(whole, bits)
    return wrap(int(value), bits)


def to_float(value: Any) -> float:
    """Return a number as the nearest double, infinite if it is beyond all."""
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def to_float32(value: Any) -> float:
    """Return a number as the nearest float of 32 bits."""
    number = to_float(value)
    try:
        rounded: float = struct.unpack(">f", struct.pack(">f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return rounded


def parse_integer(text: str, kind: str) -> int:
    """Read a number as `Byte.parseByte` and its like. Raises ValueError."""
    bits = BITS[kind]
    if re.fullmatch(r"[+-]?\d+", text):
        value = int(text)
        if -(1 << (bits - 1)) <= value < 1 << (bits - 1):
            return value
    raise ValueError(f"{text[:100]} is no {kind}")


def parse_float(text: str) -> float:
    """Read a number as `Double.parseDouble`. Raises ValueError."""
    stripped = text.strip("".join(map(chr, range(33))))
    if _HEXADECIMAL.fullmatch(stripped):
        return float.fromhex(stripped.rstrip("fFdD") if "p" in stripped.lower() else stripped)
    if not _NUMBER.fullmatch(stripped):
        raise ValueError(f"{text[:100]} is no number")
    return float(stripped if stripped.endswith(("N", "y")) else stripped.rstrip("fFdD"))


def parse_decimal(text: str) -> Decimal:
    """Read a number as `new BigDecimal`. Raises ValueError, also for one that has more than some thousand digits when
    it is written out: that takes memory, and minutes.
    """
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.ASCII):
        try:
            number = Decimal(text)
            if abs(number.adjusted()) <= _MAX_EXPONENT:
                return number
        except InvalidOperation:
            pass
    raise ValueError(f"{text[:100]} is no number")


def float_text(value: float, bits: int = 64) -> str:
    """Return a float as Java's `Double.toString`, or the nearest one of 32 bits as `Float.toString`."""
    value = to_float32(value) if bits == 32 else value
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    sign = "-" if math.copysign(1, value) < 0 else ""
    if value == 0:
        return f"{sign}0.0"
    digits, exponent = _shortest(abs(value), bits)
    if -3 <= exponent < 7:
        if exponent < 0:
            return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
        whole = digits[: exponent + 1].ljust(exponent + 1, "0")
        return f"{sign}{whole}.{digits[exponent + 1 :] or '0'}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"


def _shortest(value: float, bits: int) -> tuple[str, int]:
    """Return the fewest digits that stand for a positive float, and its decimal exponent."""
    for precision in range(17):
        text = f"{value:.{precision}e}"
        if (to_float32(float(text)) if bits == 32 else float(text)) == value:
            break
    mantissa, _, exponent = text.partition("e")
    return mantissa.replace(".", "").rstrip("0") or "0", int(exponent)
