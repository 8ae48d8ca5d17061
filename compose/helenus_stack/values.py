"""Values of records, Avro's or JSON's, and of rows as the driver gives them, in one form that compares and hashes.

The codecs are not ours. In that form a date is days, a timestamp ms, a time ns, a decimal (unscaled, scale), a
duration its three parts; collections, tuples and UDTs are tuples, maps tuples of pairs whose keys are text, as records
show them.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import math
import struct
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from helenus_schemas.cql.types import CqlType
from helenus_schemas.names import avro_name

_EPOCH = datetime.datetime(1970, 1, 1)
_Convert = Callable[[CqlType, Any], Any]
_Scalars = Mapping[str, Callable[[Any], Any]]


def from_avro(t: CqlType, value: Any) -> Any:
    """A value as fastavro reads it."""
    if t.name == "udt" and value is not None:
        return tuple(from_avro(a, value.get(avro_name(f))) for f, a in zip(t.fields, t.args, strict=True))
    return _same(t, value, from_avro, _AVRO)


def from_json(t: CqlType, value: Any) -> Any:
    """A value of a JSON record."""
    if t.name == "udt" and value is not None:
        return tuple(from_json(a, value.get(f)) for f, a in zip(t.fields, t.args, strict=True))
    return _same(t, value, from_json, _JSON)


def from_driver(t: CqlType, value: Any) -> Any:
    """A value as the driver gives it."""
    if t.name in ("udt", "tuple") and value is not None:
        return tuple(from_driver(a, v) for a, v in zip(t.args, value, strict=True))
    return _same(t, value, from_driver, _DRIVER)


def as_clustering(t: CqlType, value: Any) -> Any:
    """A value in the one form that stands for all that Cassandra's comparison holds for equal: decimals by value."""
    if value is None:
        return None
    if t.name == "decimal":
        unscaled, scale = value
        while unscaled and not unscaled % 10:
            unscaled, scale = unscaled // 10, scale - 1
        return (unscaled, scale if unscaled else 0)
    if t.name in ("list", "set", "vector"):
        return tuple(as_clustering(t.args[0], v) for v in value)
    if t.name in ("tuple", "udt"):
        return tuple(as_clustering(a, v) for a, v in zip(t.args, value, strict=True))
    if t.name == "map":
        return tuple((k, as_clustering(t.args[1], v)) for k, v in value)
    return value


def _same(t: CqlType, value: Any, nested: _Convert, scalars: _Scalars) -> Any:
    if value is None:
        return None
    if t.name == "tuple":
        return tuple(nested(a, value.get(f"index_{i}")) for i, a in enumerate(t.args))
    if t.name in ("list", "vector"):
        return tuple(nested(t.args[0], v) for v in value)
    if t.name == "set":
        return tuple(sorted((nested(t.args[0], v) for v in value), key=repr))
    if t.name == "map":
        return tuple(sorted(((_key(t.args[0], k, nested), nested(t.args[1], v)) for k, v in _entries(value)), key=repr))
    return scalars[t.name](value) if t.name in scalars else value


def _entries(value: Any) -> Any:
    """A map's entries: in an Avro key that is an array of records, where the map's keys are not text."""
    return [(e["key"], e["value"]) for e in value] if isinstance(value, list) else value.items()


def _key(t: CqlType, key: Any, nested: _Convert) -> str:
    """A map's key as text. What comes as text from a record is that already."""
    if t.name == "float":
        return repr(_float(key))
    if isinstance(key, str):
        return str(ipaddress.ip_address(key)) if t.name == "inet" else key
    return _text(t, nested(t, key))


def _text(t: CqlType, value: Any) -> str:
    match t.name:
        case "double":
            return repr(float(value))
        case "varint":
            return f"{Decimal(value):f}"  # str takes no more than 4300 digits
        case "boolean":
            return "true" if value else "false"
        case "blob":
            return f"0x{value.hex()}"
        case "date":
            return str(_EPOCH.date() + datetime.timedelta(days=value))
        case "timestamp":
            return f"{(_EPOCH + datetime.timedelta(milliseconds=value)).isoformat(timespec='milliseconds')}Z"
        case "time":
            seconds, nanos = divmod(value, 10**9)
            return f"{_EPOCH + datetime.timedelta(seconds=seconds):%H:%M:%S}.{nanos:09}"
        case "decimal":
            sign, digits, _ = Decimal(value[0]).as_tuple()
            return str(Decimal((sign, digits, -value[1])))
        case "list" | "set" | "vector" | "tuple" | "udt" | "map":
            return json.dumps(_json(t, value), separators=(",", ":"), ensure_ascii=False)
    return str(value)


def _json(t: CqlType, value: Any) -> Any:
    match t.name:
        case "list" | "set" | "vector":
            return [_json(t.args[0], v) for v in value]
        case "map":
            return {k: _json(t.args[1], v) for k, v in value}
        case "tuple" | "udt":
            names = t.fields or tuple(f"index_{i}" for i in range(len(t.args)))
            return {n: _json(a, v) for n, a, v in zip(names, t.args, value, strict=True) if v is not None}
        case "blob":
            return b64encode(value).decode()
        case "varint":
            return b64encode(_bytes(value)).decode()
        case "decimal":
            return {"bigint": b64encode(_bytes(value[0])).decode(), "scale": value[1]}
        case "uuid" | "timeuuid" | "inet":
            return str(value)
    return value


def _bytes(value: int) -> bytes:
    return value.to_bytes((value + (value < 0)).bit_length() // 8 + 1, "big", signed=True)


def _unscaled(value: Decimal) -> tuple[int, int]:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    unscaled = int("".join(map(str, digits)))
    return (-unscaled if sign else unscaled, -exponent)


def _millis(value: datetime.datetime | int) -> int:
    if isinstance(value, int):
        return value
    # The driver goes through a float and may be off by a microsecond.
    return (value.replace(tzinfo=None) + datetime.timedelta(microseconds=500) - _EPOCH) // datetime.timedelta(
        milliseconds=1
    )


def _days(value: datetime.date | int) -> int:
    return value if isinstance(value, int) else (value - _EPOCH.date()).days


def _signed(value: bytes) -> int:
    return int.from_bytes(value, "big", signed=True)


def _number(value: float | str) -> Any:
    """A float; as text NaN, which equals nothing, and -0.0, which equals another value of Cassandra's."""
    number = float(value)
    if number != number:
        return "NaN"
    return number if number or math.copysign(1, number) > 0 else "-0.0"


def _float(value: float | str) -> Any:
    number = _number(value)
    return struct.unpack(">f", struct.pack(">f", number))[0] if isinstance(number, float) else number


_COMMON: _Scalars = {"inet": ipaddress.ip_address, "float": _float, "double": _number, "timestamp": _millis}
_AVRO: _Scalars = {
    **_COMMON,
    # As text or number where the connector's file says so (decimal.handling.mode); a double need not be the same.
    "varint": lambda v: _signed(v) if isinstance(v, bytes) else int(v),
    "decimal": lambda v: (_signed(v["bigint"]), v["scale"]) if isinstance(v, dict) else _unscaled(Decimal(v)),
    "duration": lambda v: (v["months"], v["days"], v["nanoseconds"]),
    "date": _days,
    **dict.fromkeys(("uuid", "timeuuid"), lambda v: uuid.UUID(str(v))),
}
_JSON: _Scalars = {
    **_AVRO,
    "blob": b64decode,
    "varint": lambda v: _signed(b64decode(v)),
    "decimal": lambda v: (_signed(b64decode(v["bigint"])), v["scale"]),
}
_DRIVER: _Scalars = {
    **_COMMON,
    "decimal": _unscaled,
    "duration": lambda v: (v.months, v.days, v.nanoseconds),
    "date": lambda v: v.days_from_epoch,
    "time": lambda v: v.nanosecond_time,
}
