"""Types and values of CQL at random, as the Cassandra driver knows them, and what a record shows of each.

A value is the driver's for a scalar; a list for list, set and vector; Pairs for a map; a tuple for a tuple or UDT.
"""

from __future__ import annotations

import ipaddress
import json
import math
from base64 import b64encode
from decimal import Decimal
from typing import Any

from cassandra import cqltypes, util
from hypothesis import strategies as st

from helenus_schemas.cql.text import as_text, float_text
from helenus_schemas.cql.types import CqlType
from helenus_schemas.names import avro_name

DRIVER = {
    "ascii": cqltypes.AsciiType,
    "text": cqltypes.UTF8Type,
    "blob": cqltypes.BytesType,
    "tinyint": cqltypes.ByteType,
    "smallint": cqltypes.ShortType,
    "int": cqltypes.Int32Type,
    "bigint": cqltypes.LongType,
    "varint": cqltypes.IntegerType,
    "decimal": cqltypes.DecimalType,
    "float": cqltypes.FloatType,
    "double": cqltypes.DoubleType,
    "boolean": cqltypes.BooleanType,
    "inet": cqltypes.InetAddressType,
    "uuid": cqltypes.UUIDType,
    "timeuuid": cqltypes.TimeUUIDType,
    "date": cqltypes.SimpleDateType,
    "time": cqltypes.TimeType,
    "timestamp": cqltypes.DateType,
    "duration": cqltypes.DurationType,
}


class Pairs(list[tuple[Any, Any]]):
    """A map's entries: their keys need not be hashable."""

    def items(self) -> list[tuple[Any, Any]]:
        return self


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


def _duration(parts: tuple[int, int, int], negative: bool) -> util.Duration:
    return util.Duration(*(-p if negative else p for p in parts))


SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "ascii": st.text(st.characters(max_codepoint=127), max_size=8),
    "text": st.text(max_size=8),
    "blob": st.binary(max_size=8),
    "tinyint": signed(8),
    "smallint": signed(16),
    "int": signed(32),
    "bigint": signed(64),
    "varint": st.one_of(signed(8), signed(200)),
    "decimal": st.decimals(allow_nan=False, allow_infinity=False),
    # One NaN of all: in a set, or as a map's key, Cassandra takes them for equal.
    "float": st.floats(width=32).map(lambda v: math.nan if math.isnan(v) else v),
    "double": st.floats().map(lambda v: math.nan if math.isnan(v) else v),
    "boolean": st.booleans(),
    "inet": st.ip_addresses().map(str),
    "uuid": st.uuids(),
    "timeuuid": st.uuids(version=1),
    "date": signed(32).map(util.Date),
    "time": st.integers(0, 86_400_000_000_000 - 1).map(util.Time),
    # As ms: the driver's datetime cannot hold all of them.
    "timestamp": signed(64),
    "duration": st.builds(
        _duration, st.tuples(*[st.integers(0, 2**31 - 1)] * 2, st.integers(0, 2**63 - 1)), st.booleans()
    ),
}
# CQL allows no duration there; the text of a float has a test of its own.
NEVER_IN_KEYS = {"duration", "float"}


def types(depth: int = 3, key: bool = False) -> st.SearchStrategy[CqlType]:
    """Types nested up to `depth`; with `key` those that a primary key, a set or a map's key can have."""
    names = [name for name in SCALARS if not key or name not in NEVER_IN_KEYS]
    scalars = st.sampled_from(names).map(CqlType)
    if not depth:
        return scalars
    inner = types(depth - 1, key)
    keys = types(depth - 1, key=True)
    fields = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        scalars,
        inner.map(lambda t: CqlType("list", (t,), frozen=True)),
        keys.map(lambda t: CqlType("set", (t,), frozen=True)),
        st.tuples(keys, inner).map(lambda args: CqlType("map", args, frozen=True)),
        fields.map(lambda args: CqlType("tuple", tuple(args), frozen=True)),
        fields.map(_udt),
        st.tuples(inner, st.integers(1, 3)).map(lambda v: CqlType("vector", (v[0],), True, dimension=v[1])),
    )


def _udt(args: list[CqlType]) -> CqlType:
    names = ("f", "F g", "größe")[: len(args)]
    # One label a definition, as in a keyspace.
    label = f"Udt {abs(hash(tuple(map(str, args))))}"
    return CqlType("udt", tuple(args), frozen=True, label=label, fields=names)


def values(t: CqlType) -> st.SearchStrategy[Any]:
    """Values of a type. Fields of tuples and UDTs may be null."""
    if t.name in SCALARS:
        return SCALARS[t.name]
    if t.name == "list":
        return st.lists(values(t.args[0]), max_size=3)
    if t.name == "set":
        return st.lists(values(t.args[0]), max_size=3, unique_by=lambda v: cql_bytes(t.args[0], v))
    if t.name == "vector":
        return st.lists(values(t.args[0]), min_size=t.dimension, max_size=t.dimension)
    if t.name == "map":
        entries = st.tuples(values(t.args[0]), values(t.args[1]))
        return st.lists(entries, max_size=3, unique_by=lambda e: cql_bytes(t.args[0], e[0])).map(Pairs)
    return st.tuples(*[st.one_of(st.none(), values(a)) for a in t.args])


def driver_type(t: CqlType) -> Any:
    """The driver's codec of a type."""
    if t.name in DRIVER:
        return DRIVER[t.name]
    if t.name == "vector":
        return type("Vector", (cqltypes.VectorType,), {"vector_size": t.dimension, "subtype": driver_type(t.args[0])})
    base = {"list": cqltypes.ListType, "set": cqltypes.SetType, "map": cqltypes.MapType}.get(t.name, cqltypes.TupleType)
    return base.apply_parameters([driver_type(a) for a in t.args])


def cql_bytes(t: CqlType, value: Any) -> bytes:
    """A value's bytes, by the driver."""
    return bytes(driver_type(_plain(t)).to_binary(value, 4))


def _plain(t: CqlType) -> CqlType:
    """A type with bigint for timestamp: the same bytes, and the driver takes every value."""
    return (
        CqlType("bigint")
        if t.name == "timestamp"
        else CqlType(t.name, tuple(map(_plain, t.args)), dimension=t.dimension)
    )


def shown(t: CqlType, value: Any) -> Any:
    """What an Avro reader that knows no logical types sees."""
    if value is None:
        return None
    match t.name:
        case "list" | "set" | "vector":
            return [shown(t.args[0], v) for v in value]
        case "map":
            return {key_text(t.args[0], k): shown(t.args[1], v) for k, v in value}
        case "tuple":
            return {f"index_{i}": shown(a, v) for i, (a, v) in enumerate(zip(t.args, value, strict=True))}
        case "udt":
            return {avro_name(f): shown(a, v) for f, a, v in zip(t.fields, t.args, value, strict=True)}
        case "varint":
            return _unscaled(value)
        case "decimal":
            return {"bigint": _unscaled(_parts(value)[0]), "scale": _parts(value)[1]}
        case "duration":
            return {"months": value.months, "days": value.days, "nanoseconds": value.nanoseconds}
        case "date":
            return value.days_from_epoch
        case "time":
            return value.nanosecond_time
        case "uuid" | "timeuuid":
            return str(value)
        case "inet":
            return _address(value)
    return value


def in_json(t: CqlType, value: Any) -> Any:
    """What a JSON reader sees: as in Avro, but for bytes, floats that are no numbers, and null fields."""
    if value is None:
        return None
    match t.name:
        case "list" | "set" | "vector":
            return [in_json(t.args[0], v) for v in value]
        case "map":
            return {key_text(t.args[0], k): in_json(t.args[1], v) for k, v in value}
        case "tuple" | "udt":
            names = t.fields or [f"index_{i}" for i in range(len(t.args))]
            fields = zip(names, t.args, value, strict=True)
            return {name: in_json(a, v) for name, a, v in fields if v is not None}
        case "blob":
            return b64encode(value).decode()
        case "varint":
            return b64encode(_unscaled(value)).decode()
        case "decimal":
            unscaled, scale = _parts(value)
            return {"bigint": b64encode(_unscaled(unscaled)).decode(), "scale": scale}
        case "float" | "double" if value != value:
            return "NaN"
        case "float" | "double" if abs(value) == float("inf"):
            return "Infinity" if value > 0 else "-Infinity"
        case "float":
            # The shortest number that is this one in 4 bytes.
            return float(float_text(cql_bytes(t, value)))
    return shown(t, value)


def key_text(t: CqlType, value: Any) -> str:
    """A map's key as text."""
    match t.name:
        case "ascii" | "text":
            return str(value)
        case "boolean":
            return "true" if value else "false"
        case "blob":
            return f"0x{value.hex()}"
        case "double" | "date" | "timestamp":
            # Their texts have tests of their own.
            text = as_text(t)
            assert text is not None
            return text(cql_bytes(t, value))
        case "time":
            return f"{value.hour:02}:{value.minute:02}:{value.second:02}.{value.nanosecond:09}"
        case "decimal":
            unscaled, scale = _parts(value)
            sign, digits, _ = Decimal(unscaled).as_tuple()
            return str(Decimal((sign, digits, -scale)))
        case "inet" | "uuid" | "timeuuid" | "tinyint" | "smallint" | "int" | "bigint" | "varint":
            return _address(value) if t.name == "inet" else str(value)
    return json.dumps(in_json(t, value), separators=(",", ":"), ensure_ascii=False)


def same(value: Any, other: Any) -> bool:
    """Whether two values are equal, NaN to itself too."""
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(same(value[k], other[k]) for k in value)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(same, value, other))
    return bool(value == other) or (value != value and other != other)


def _address(value: str) -> str:
    """As Python spelled it before 3.13."""
    address = ipaddress.ip_address(value)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(address) if mapped is None else f"::ffff:{int(mapped) >> 16:x}:{int(mapped) & 0xFFFF:x}"


def _parts(value: Decimal) -> tuple[int, int]:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    unscaled = int("".join(map(str, digits)))
    return (-unscaled if sign else unscaled, -exponent)


def _unscaled(value: int) -> bytes:
    """A varint's bytes as the driver writes them: the fewest that hold it."""
    return bytes(cqltypes.IntegerType.serialize(value, 4))
