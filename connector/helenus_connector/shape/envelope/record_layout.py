"""What `DirectRecords` needs to know of a shape's records: what goes around their values, and how values are written.

{"op":"c","after":{"k":7,"v":"x"}} → parts (b'{"op":', OPERATION), (b',"after":', ROW); slots of k and v
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from helenus_connector.shape.envelope.direct_records import ColumnSlot
from helenus_connector.shape.envelope.parsed_cells import ParsedCells
from helenus_connector.shape.envelope.value_writer import ValuePart, array_part, entries_part, record_part, scalar_part
from helenus_schemas.codec import to_avro, to_json
from helenus_schemas.cql.table import Column
from helenus_schemas.cql.types import CqlType


@dataclass(frozen=True)
class RecordLayout:
    """What the records of a table consist of.

    `keys`: the slots of a record's key, between `key_head` and `key_tail`; none if the shape makes keys. `value`: what
    a value begins with, and each of its parts with what goes after it. `row_keys` and `columns`: the slots of the key's
    columns, and of the others, in a row. `operations`: of an update and an insert; `removal` and `clearing` are those
    of a change that removes elements, and of one that only deletes whole collections, if these have others. The
    functions return encoded parts: the commit log's file, what is changed, the names of the columns (of static ones, if
    that is true), the exact values, TTL and expiry. `shows_removed`: as in `parse_cells`. `sizes_row`: a row's size is
    before it.
    """

    is_json: bool
    value: Sequence[tuple[bytes, int]]
    end: bytes
    row_keys: Sequence[ColumnSlot]
    columns: Sequence[ColumnSlot]
    operations: tuple[bytes, bytes]
    keys: Sequence[ColumnSlot] = ()
    key_head: bytes = b""
    key_tail: bytes = b""
    segment: Callable[[int], bytes] = lambda _: b""
    changed: Callable[[ParsedCells], bytes] = lambda _: b""
    fields: Callable[[ParsedCells, bool], bytes] = lambda _, __: b""
    exact: Callable[[Sequence[Any]], bytes] = lambda _: b""
    ttl: Callable[[int, int], bytes] = lambda _, __: b""
    no_ttl: bytes = b""
    shows_removed: bool = False
    sizes_row: bool = False
    removal: bytes = b""
    clearing: bytes = b""


class Marks:
    """Marks that stand for the parts of a value while a shape's own functions make what is constant of it."""

    def __init__(self) -> None:
        self._parts: dict[str, int] = {}

    def mark(self, part: int) -> str:
        """Return a text that is nowhere else, for a part of a value."""
        text = uuid4().hex
        self._parts[text] = part
        return text

    def split(self, value: bytes) -> tuple[list[tuple[bytes, int]], bytes]:
        """Return each marked part with the bytes before it, and the bytes after the last one."""
        pieces = re.split("|".join(self._parts).join("()").encode(), value)
        parts = [self._parts[text.decode()] for text in pieces[1::2]]
        return list(zip(pieces[:-1:2], parts, strict=True)), pieces[-1]


def member_heads(names: Iterable[str], is_json: bool) -> list[bytes]:
    """Return what goes before each member of an object with these names; nothing in Avro."""
    return [
        f"{',' if index else '{'}{json.dumps(name, ensure_ascii=False)}:".encode() if is_json else b""
        for index, name in enumerate(names)
    ]


def plain_slots(columns: Sequence[Column], is_json: bool, names: Sequence[str], key: bool = False) -> list[ColumnSlot]:
    """Return the slots of the columns of our own rows, which have `names` at the beginning of an object."""
    null = b"null" if is_json else b"\0"
    heads = member_heads(names, is_json)
    return [
        ColumnSlot(row_part(column.type, is_json, key), head + null, head)
        for column, head in zip(columns, heads[len(heads) - len(columns) :], strict=True)
    ]


def row_part(t: CqlType, is_json: bool, key: bool = False, is_optional: bool = True) -> ValuePart:
    """Return how the values of a type are written in our own rows, of columns of a `key` or others."""
    function: Callable[[bytes], bytes | str] = to_json.encoder(t, key) if is_json else to_avro.plain(t, key)
    encode = function if is_json or not is_optional else with_present(function)
    if not t.shown_as and not key:
        if t.name in ("list", "set"):
            return array_part(row_part(t.args[0], is_json, is_optional=False), encode, is_optional)
        if t.name == "map" and t.args[0].name in ("ascii", "text"):
            name, value = (row_part(a, is_json, is_optional=False) for a in t.args)
            return entries_part(name, value, encode, True, is_optional)
        if t.name in ("tuple", "udt") and not is_json:
            return record_part([row_part(a, is_json) for a in t.args], (), encode, is_optional)
    return scalar_part(t, is_json, encode, is_optional, key)


def with_present(encode: Callable[[bytes], bytes | str]) -> Callable[[bytes], bytes]:
    """Return a function to the union of null and a type in Avro, of a value that is not null."""

    def encode_present(data: bytes) -> bytes:
        piece = encode(data)
        assert isinstance(piece, bytes)
        return b"\2" + piece

    return encode_present
