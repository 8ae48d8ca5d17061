"""The columns of a primary key as DataStax CDC writes them: in Avro, and in JSON.

Their agent makes Avro of Java values, and their connector makes JSON of that: so tinyint and smallint are unsigned,
a time is in µs, an address is the text of Java's `InetAddress`, and numbers have the fewest bytes that hold them.
Types that they skip in a key (collections, tuples, user-defined types, vectors) have no form of theirs.
Sources: `PulsarMutationSender.cqlToAvro`, `NativeJsonConverter.toJson` and `CqlLogicalTypes` of DataStax CDC 2.3.9.
"""

from __future__ import annotations

import math
import struct
from base64 import b64encode
from collections.abc import Callable
from decimal import Decimal

from helenus_schemas.codec._avro_scalars import Encode, string
from helenus_schemas.codec._from_avro import NUMBERS, Decode, number
from helenus_schemas.codec.avro_long import long_bytes, sized_bytes
from helenus_schemas.cql.text import float_text, java_inet, spelled
from helenus_schemas.cql.types import CqlType
from helenus_schemas.cql.values import Malformed, shortest_varint, wrong_size

_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def avro_codec(t: CqlType, clustering: bool) -> tuple[Encode | None, Decode | None]:
    """Return the encoder and the decoder of a type; None where theirs is the exact form's.

    A decimal or varint of the clustering columns is the exact form's: that is the shortest, and one for equal values.
    """
    if t.name in ("tinyint", "smallint"):
        width = NUMBERS[t.name]
        return lambda data: long_bytes(_unsigned(data, width)), number(width, unsigned=True)
    if t.name == "time":
        return lambda data: long_bytes(_microseconds(data)), number(8, factor=1000)
    if t.name == "inet":
        return string(java_inet), None
    if clustering:
        return None, None
    if t.name == "varint":
        return lambda data: sized_bytes(shortest_varint(data)), None
    if t.name == "decimal":
        return _decimal, None
    return None, None


def json_encoder(t: CqlType) -> Callable[[bytes], str] | None:
    """Return the encoder of a type as Jackson prints it; None where that is the text of the exact form."""
    return _JSON.get(t.name)


def _unsigned(data: bytes, width: int) -> int:
    if len(data) != width:
        raise wrong_size(data, width)
    return int.from_bytes(data, "big")


def _microseconds(data: bytes) -> int:
    """Return a time's µs, rounded towards zero as Java divides: Cassandra accepts a time below zero."""
    if len(data) != 8:
        raise wrong_size(data, 8)
    nanoseconds = int.from_bytes(data, "big", signed=True)
    return nanoseconds // 1000 if nanoseconds >= 0 else -(-nanoseconds // 1000)


def _decimal(data: bytes) -> bytes:
    if len(data) < 5:
        raise Malformed(f"a decimal of {len(data)} bytes")
    return sized_bytes(shortest_varint(data[4:])) + long_bytes(int.from_bytes(data[:4], "big", signed=True))


def _json_decimal(data: bytes) -> str:
    if len(data) < 5:
        raise Malformed(f"a decimal of {len(data)} bytes")
    return f'{{"bigint":{_json_varint(data[4:])},"scale":{int.from_bytes(data[:4], "big", signed=True)}}}'


def _json_varint(data: bytes) -> str:
    return f'"{b64encode(shortest_varint(data)).decode()}"'


def _json_text(data: bytes) -> str:
    """Return a string as Jackson writes it in UTF-8: control characters, and those beyond U+FFFF, are escaped, in
    capitals.

    Text that is not UTF-8, which they fail on, has the exact form's lone surrogates.
    """
    text = data.decode("utf-8", "surrogateescape")
    return f'"{text if text.isascii() and text.isalnum() else "".join(map(_character, text))}"'


def _character(character: str) -> str:
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    if " " <= character < "\ud800" or "\udfff" < character <= "\uffff":
        return character
    if "\ud800" <= character <= "\udfff":
        return f"\\u{ord(character):04x}"
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))


def _json_number(value: float, shortest: str) -> str:
    """Return a number as `Double.toString` spells it: with an exponent from 10^7 on, and below 10^-3.

    Of two digits where one would do, Java takes the nearest: 4.9E-324 where Python has 5e-324.
    """
    if not math.isfinite(value):
        return f'"{shortest}"'
    if not value or 1e-3 <= abs(value) < 1e7:
        return f"{Decimal(shortest):f}"
    sign, digits, exponent = Decimal(shortest).normalize().as_tuple()
    if len(digits) == 1:
        sign, digits, exponent = Decimal(f"{value:.1e}").as_tuple()
    assert isinstance(exponent, int)
    figures = "".join(map(str, digits))
    return f"{'-' * sign}{figures[0]}.{figures[1:] or '0'}E{exponent + len(figures) - 1}"


def _json_float(data: bytes) -> str:
    return _json_number(struct.unpack(">f", data)[0], float_text(data))


def _json_double(data: bytes) -> str:
    value = struct.unpack(">d", data)[0]
    return _json_number(value, spelled(value))


_JSON: dict[str, Callable[[bytes], str]] = {
    "tinyint": lambda data: str(_unsigned(data, 1)),
    "smallint": lambda data: str(_unsigned(data, 2)),
    "time": lambda data: str(_microseconds(data)),
    "inet": lambda data: f'"{java_inet(data)}"',
    "varint": _json_varint,
    "decimal": _json_decimal,
    "ascii": _json_text,
    "text": _json_text,
    "float": _json_float,
    "double": _json_double,
}
