"""Scalars as text: for the keys of Avro maps, which are always text.

Numbers as CQL prints them, booleans as `true` and `false`, uuid and inet in their canonical form, a blob as `0x…`,
dates and times by ISO 8601: `2024-02-29`, `2024-02-29T12:30:15.123Z`, `23:59:59.123456789`. A year outside 0000 to 9999
carries a sign, as Java's `Instant` prints it.
"""

from __future__ import annotations

import ipaddress
import math
import struct
import uuid
from collections.abc import Callable
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, Inexact, localcontext
from itertools import zip_longest

from helenus_schemas.cql.types import CqlType
from helenus_schemas.cql.values import Malformed, wrong_size

AsText = Callable[[bytes], str]

_FLOAT = struct.Struct(">f")
_LEAST_NORMAL = 2.0**-126
_IPV4_MAPPED = bytes(10) + b"\xff\xff"
_DIRECT_BYTES = 512  # up to this size Decimal(int) is the faster way
_PIECE_BYTES = 128
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact])


def as_text(t: CqlType) -> AsText | None:
    """Return a function from a scalar's CQL bytes to its text, None for a type that has no text form."""
    return _FORMS.get(t.name)


def as_microseconds(data: bytes) -> int:
    """Return a time's µs since midnight, rounded down. Raises Malformed."""
    if len(data) != 8:
        raise wrong_size(data, 8)
    return int.from_bytes(data, "big", signed=True) // 1000


def inet(data: bytes) -> str:
    """Return an address's canonical form, of an IPv4 one within IPv6 too: `::ffff:102:304`. Raises ValueError.

    Python 3.13 spells those otherwise, and a key is the same on each.
    """
    if len(data) == 16 and data.startswith(_IPV4_MAPPED):
        return f"::ffff:{data[12] << 8 | data[13]:x}:{data[14] << 8 | data[15]:x}"
    return str(ipaddress.ip_address(data))


def java_inet(data: bytes) -> str:
    """Return an address as Java's `InetAddress.getHostAddress` has it: `2001:db8:0:0:0:0:0:1`. Raises Malformed.

    Java takes an IPv4 address within IPv6 for the IPv4 address: two keys of Cassandra then are one.
    """
    if len(data) == 16 and data.startswith(_IPV4_MAPPED):
        data = data[12:]
    if len(data) == 4:
        return ".".join(map(str, data))
    if len(data) != 16:
        raise Malformed(f"an inet of {len(data)} bytes")
    return ":".join(f"{group:x}" for group in struct.unpack(">8H", data))


def _integer(code: str) -> AsText:
    unpack = struct.Struct(f">{code}").unpack
    return lambda data: str(unpack(data)[0])


def _varint(data: bytes) -> str:
    if not data:
        raise ValueError("a varint of no bytes")
    # Python shows no int of more than 4300 digits, but a Decimal of any.
    return f"{_varint_decimal(data):f}"


def _decimal(data: bytes) -> str:
    return str(_as_decimal(data))


def as_double(data: bytes) -> float:
    """Return the double nearest to a decimal's CQL bytes; infinite if it is beyond them. Raises ValueError."""
    return float(_as_decimal(data))


def as_long(data: bytes) -> int:
    """Return a varint's CQL bytes as a number of 64 bits. Raises ValueError."""
    value = int.from_bytes(data, "big", signed=True)
    if not data or not -1 << 63 <= value < 1 << 63:
        raise ValueError(f"a varint of {len(data)} bytes where varint.handling.mode=long takes 8; string takes any")
    return value


def _as_decimal(data: bytes) -> Decimal:
    if len(data) < 5:
        raise ValueError(f"a decimal of {len(data)} bytes")
    sign, digits, _ = _varint_decimal(data[4:]).as_tuple()
    return Decimal((sign, digits, -int.from_bytes(data[:4], "big", signed=True)))


def _varint_decimal(data: bytes) -> Decimal:
    """Return a varint's number. Decimal(int) takes quadratic time: a long one is put together from pieces."""
    value = int.from_bytes(data, "big", signed=True)
    if len(data) <= _DIRECT_BYTES:
        return Decimal(value)
    low_first = abs(value).to_bytes(len(data), "little")
    parts = [
        Decimal(int.from_bytes(low_first[i : i + _PIECE_BYTES], "little")) for i in range(0, len(data), _PIECE_BYTES)
    ]
    with localcontext(_EXACT):
        weight = Decimal(1 << 4 * _PIECE_BYTES)
        while len(parts) > 1:
            weight *= weight
            parts = [low + high * weight for low, high in zip_longest(parts[::2], parts[1::2], fillvalue=Decimal())]
    return parts[0].copy_negate() if value < 0 else parts[0]


def float_text(data: bytes) -> str:
    """Return the shortest text that reads back as the same 4 bytes, spelled as a double is."""
    (value,) = _FLOAT.unpack(data)
    # Nine digits are always enough. Numbers that need fewer than six look the same with six, except those near 0.
    shorter = (float(f"{value:.{digits}g}") for digits in range(1 if abs(value) < _LEAST_NORMAL else 6, 9))
    return spelled(next((near for near in shorter if _nearest(near) == value), float(f"{value:.9g}")))


def _double(data: bytes) -> str:
    return spelled(struct.unpack(">d", data)[0])


def spelled(value: float) -> str:
    """Return the shortest text of a double; NaN and infinities as Java spells them."""
    return repr(value) if math.isfinite(value) else _NOT_FINITE[repr(value)]


def _nearest(value: float) -> float:
    """Return the 4-byte float nearest to a number; infinite if none is."""
    try:
        return float(_FLOAT.unpack(_FLOAT.pack(value))[0])
    except OverflowError:
        return value


def _date(days: int) -> str:
    """Return the ISO 8601 date of days since 1970-01-01. Source: Howard Hinnant, "chrono-compatible low-level date
    algorithms".
    """
    days += 719_468
    era, day_of_era = divmod(days, 146_097)
    year = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year + year // 4 - year // 100)
    shifted = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + 3 if shifted < 10 else shifted - 9
    year += era * 400 + (month <= 2)
    text = f"{year:04d}" if 0 <= year <= 9999 else f"{year:+05d}"
    return f"{text}-{month:02d}-{day:02d}"


def _timestamp(data: bytes) -> str:
    (value,) = struct.unpack(">q", data)
    days, millis = divmod(value, 86_400_000)
    seconds, millis = divmod(millis, 1000)
    return f"{_date(days)}T{_clock(seconds)}.{millis:03d}Z"


def _time(data: bytes) -> str:
    (value,) = struct.unpack(">q", data)
    seconds, nanos = divmod(value, 1_000_000_000)
    return f"{_clock(seconds)}.{nanos:09d}"


def _clock(seconds: int) -> str:
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_FORMS: dict[str, AsText] = {
    "ascii": bytes.decode,
    "text": bytes.decode,
    "tinyint": _integer("b"),
    "smallint": _integer("h"),
    "int": _integer("i"),
    "bigint": _integer("q"),
    "varint": _varint,
    "decimal": _decimal,
    "float": float_text,
    "double": _double,
    "boolean": lambda data: "true" if struct.unpack("?", data)[0] else "false",
    "uuid": lambda data: str(uuid.UUID(bytes=data)),
    "timeuuid": lambda data: str(uuid.UUID(bytes=data)),
    "inet": inet,
    "blob": lambda data: "0x" + data.hex(),
    "date": lambda data: _date(struct.unpack(">I", data)[0] - (1 << 31)),
    "timestamp": _timestamp,
    "time": _time,
}
