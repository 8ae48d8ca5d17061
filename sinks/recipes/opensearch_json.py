"""Rows as documents of OpenSearch: JSON values, mappings and ids. docs/sinks.md has the table of types.

Needs pyarrow.
"""

from __future__ import annotations

import hashlib
import json
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
from records import FOUR_DIGIT_YEARS, Row

_ID_BYTES = 512  # the servers' limit
_KEYWORD_CHARACTERS = 8191  # Lucene's limit for a term is 32,766 bytes, and a character has up to four
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_DAY_MS = 86_400_000
_DATE, _TIMESTAMP = pa.date32(), pa.timestamp("ms", "UTC")


def make_identifier(columns: Sequence[tuple[str, pa.DataType]]) -> Callable[[Row], str]:
    """Make a function that writes these columns as a JSON array; by its SHA-256 if that is too long for an id.

    Equal keys have equal ids. A field that a type in the key gets later changes none: nulls are left out, and the
    others are in order.
    """
    encoders = [(name, make_encoder(kind)) for name, kind in columns]
    write = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode

    def identify(row: Row) -> str:
        text = write([encode(row[name]) for name, encode in encoders])
        data = text.encode()
        return text if len(data) <= _ID_BYTES else f"sha256:{hashlib.sha256(data).hexdigest()}"

    return identify


def make_encoder(kind: pa.DataType) -> Callable[[Any], Any]:
    """Make a function that gives a value of `to_rows` the form that it has in a document. Nulls of structures go."""
    if pa.types.is_struct(kind):
        fields = [(field.name, make_encoder(field.type)) for field in kind]
        return lambda value: value and {n: e(value[n]) for n, e in fields if value[n] is not None}
    if pa.types.is_list(kind):
        item = make_encoder(kind.value_type)
        return lambda value: value and [item(part) for part in value]
    if pa.types.is_map(kind):
        entry = make_encoder(pa.struct([("key", pa.string()), ("value", kind.item_type)]))
        return lambda value: value and [entry({"key": name, "value": value[name]}) for name in sorted(value)]
    return _ENCODERS.get(kind, lambda value: value)


def from_json(value: Any, kind: pa.DataType) -> Any:
    """Give the value of a document that has a type: what a `pa.Table` is made of."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: from_json(value.get(field.name), field.type) for field in kind}
    if pa.types.is_list(kind):
        return [from_json(part, kind.value_type) for part in value]
    if pa.types.is_map(kind):
        return [(entry["key"], from_json(entry.get("value"), kind.item_type)) for entry in value]
    return _DECODERS[kind](value) if kind in _DECODERS else value


def mapping_of(kind: pa.DataType) -> Row:
    """Give the mapping of a field. That of a list is that of its items, and a map is a list of keys and values."""
    if pa.types.is_struct(kind):
        return {"properties": {field.name: mapping_of(field.type) for field in kind}}
    if pa.types.is_list(kind):
        return mapping_of(kind.value_type)
    if pa.types.is_map(kind):
        return mapping_of(pa.struct([("key", pa.string()), ("value", kind.item_type)]))
    return dict(_MAPPINGS[kind])


def merge_properties(stored: Row, needed: Row) -> Row:
    """Add the fields that an index lacks to those that it has, which stay as they are."""
    merged = dict(stored)
    for name, mapping in needed.items():
        if name not in stored:
            merged[name] = mapping
        elif "properties" in mapping and ("properties" in stored[name] or stored[name].get("type") == "nested"):
            merged[name] = {
                **stored[name],
                "properties": merge_properties(stored[name].get("properties", {}), mapping["properties"]),
            }
    return merged


def _encode_float(value: float | None) -> Any:
    """JSON has no NaN and no infinity."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _encode_date(days: int | None) -> Any:
    """Write a day as YYYY-MM-DD; one of other years, which Python's dates have not, as its ms since 1970."""
    if days is None:
        return None
    low, high = FOUR_DIGIT_YEARS[_DATE]
    return str(_EPOCH.date() + timedelta(days)) if low <= days <= high else days * _DAY_MS


def _encode_timestamp(milliseconds: int | None) -> Any:
    """Write a time in ISO 8601; one of other years as its ms since 1970, which have too many digits for a year."""
    if milliseconds is None:
        return None
    low, high = FOUR_DIGIT_YEARS[_TIMESTAMP]
    if not low <= milliseconds <= high:
        return milliseconds
    time = _EPOCH + timedelta(milliseconds=milliseconds)
    return time.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _decode_date(value: str | int) -> int:
    return value // _DAY_MS if isinstance(value, int) else (date.fromisoformat(value) - _EPOCH.date()).days


def _decode_timestamp(value: str | int) -> int:
    if isinstance(value, int):
        return value
    return (datetime.fromisoformat(value.removesuffix("Z") + "+00:00") - _EPOCH) // timedelta(milliseconds=1)


_ENCODERS: dict[pa.DataType, Callable[[Any], Any]] = {
    pa.binary(): lambda value: None if value is None else b64encode(value).decode(),
    pa.float32(): _encode_float,
    pa.float64(): _encode_float,
    _DATE: _encode_date,
    _TIMESTAMP: _encode_timestamp,
}
_DECODERS: dict[pa.DataType, Callable[[Any], Any]] = {
    pa.binary(): b64decode,
    pa.float32(): float,
    pa.float64(): float,
    _DATE: _decode_date,
    _TIMESTAMP: _decode_timestamp,
}
# What a field can't index stays in the document: NaN, and times beyond the servers'.
_MAPPINGS: dict[pa.DataType, Row] = {
    pa.bool_(): {"type": "boolean"},
    pa.int32(): {"type": "integer"},
    pa.int64(): {"type": "long"},
    pa.float32(): {"type": "float", "ignore_malformed": True},
    pa.float64(): {"type": "double", "ignore_malformed": True},
    pa.binary(): {"type": "binary"},
    pa.string(): {
        "type": "text",
        "fields": {"keyword": {"type": "keyword", "ignore_above": _KEYWORD_CHARACTERS}},
    },
    _DATE: {"type": "date", "ignore_malformed": True},
    _TIMESTAMP: {"type": "date", "ignore_malformed": True},
}
