"""Encode CEP-44's envelope around a payload, in Avro or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.shape.cep44._payload import column_encoder
from helenus_connector.shape.cep44.predicates import SYMBOLS, Predicate
from helenus_connector.shape.cep44.schema import KINDS, VERSION
from helenus_connector.shape.encoding.forms import json_encoder
from helenus_connector.shape.envelope.avro_bytes import array_bytes, op_bytes, text_bytes, texts_bytes
from helenus_connector.shape.envelope.parsed_cells import ParsedCells
from helenus_schemas.codec.avro_long import long_bytes, sized_bytes
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.names import avro_name


class EnvelopeHead(NamedTuple):
    """An envelope without its payload. `write_time`: µs. `fields`: the columns that the payload says, key first; it is
    `partial` if the row has others. `ttl`: seconds, and when it is over, s since the epoch.
    """

    kind: str
    write_time: int
    fields: tuple[str, ...]
    partial: bool = True
    range: tuple[Predicate, ...] = ()
    ttl: tuple[int, int] | None = None
    changed: ParsedCells | None = None
    has_row: bool = True


Pack = Callable[[EnvelopeHead, bytes, "tuple[str, ...]"], bytes]
"""A function from an envelope's head, its payload and the columns that were left out of it to a record's value."""


def schema_uuid(table: Table) -> str:
    """Return the UUID, version 3, of this version of a table's definition: of the MD5 that the header `schema_id`
    has.
    """
    return str(UUID(hex=table.schema_id, version=3))


def json_pack(table: Table) -> Pack:
    names = {"sourceTable": table.name, "sourceKeyspace": table.keyspace, "schemaUuid": schema_uuid(table)}
    source = _text(names)[1:-1]
    values = [json_encoder([column]) for column in table.clustering]

    def predicate(item: Predicate) -> str:
        field, symbol = _text(table.clustering[item.column].name), item.symbol
        value = values[item.column]([item.value])
        return f'{{"field":{field},"rangePredicateType":"{symbol}","value":{value}}}'

    def pack(head: EnvelopeHead, payload: bytes, truncated: tuple[str, ...]) -> bytes:
        within = f"[{','.join(map(predicate, head.range))}]" if head.range else "null"
        ttl = None if head.ttl is None else dict(zip(("ttl", "deletedAt"), head.ttl, strict=True))
        return (
            f'{{"timestampMicros":{head.write_time},{source},'
            f'"truncatedFields":{_names(truncated)},"version":"{VERSION}",'
            f'"operationType":"{head.kind}","isPartial":{"true" if head.partial else "false"},'
            f'"updateFields":{_names(head.fields)},"range":{within},"ttl":{_text(ttl)},"payload":{payload.decode()},'
            f'"written":{_text(head.changed and head.changed._asdict())}}}'
        ).encode()

    return pack


@lru_cache(1024)
def _names(names: tuple[str, ...]) -> str:
    """Encode names. Cached: a table's changes write the same few columns."""
    return _text(names)


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def avro_pack(value_frame: bytes, table: Table, settings: ConnectorSettings) -> Pack:
    constants = b"".join(map(text_bytes, (table.name, table.keyspace, schema_uuid(table))))
    version = b"\2" + text_bytes(VERSION)
    kinds = {kind: long_bytes(number) for number, kind in enumerate(KINDS)}
    is_in_bytes = settings.cep44_payload == "bytes"
    names = {c.name: avro_name(c.name) for c in table.columns}
    predicate = _predicates(table.clustering, len(table.partition_key), len(table.primary_key) + len(table.values))

    def avro_names(columns: tuple[str, ...]) -> bytes:
        return texts_bytes(tuple([names[name] for name in columns]))

    def pack(head: EnvelopeHead, payload: bytes, truncated: tuple[str, ...]) -> bytes:
        ttl = head.ttl
        return b"".join(
            (
                value_frame,
                long_bytes(head.write_time),
                constants,
                avro_names(truncated) if truncated else b"\0",
                version,
                kinds[head.kind],
                b"\1" if head.partial else b"\0",
                b"\2" + avro_names(head.fields),
                b"\2" + array_bytes([predicate(item) for item in head.range]) if head.range else b"\0",
                b"\0" if ttl is None else b"\2" + long_bytes(ttl[0]) + long_bytes(ttl[1]),
                sized_bytes(payload) if is_in_bytes else payload,
                b"\0" if head.changed is None else b"\2" + op_bytes(head.changed),
            )
        )

    return pack


def _predicates(clustering: Sequence[Column], before: int, width: int) -> Callable[[Predicate], bytes]:
    """Return a function that encodes a predicate: its value is a payload with one field, after `before` fields of
    `width`.
    """
    encoders = [column_encoder(column) for column in clustering]
    names = [text_bytes(avro_name(column.name)) for column in clustering]
    symbols = {symbol: long_bytes(number) for number, symbol in enumerate(SYMBOLS)}

    def encode(item: Predicate) -> bytes:
        index = before + item.column
        value = bytes(index) + encoders[item.column](item.value) + bytes(width - index - 1)
        return names[item.column] + symbols[item.symbol] + sized_bytes(value)

    return encode
