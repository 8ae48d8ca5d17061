"""A key's history: the statements of its partition, the events that agents sent of it, and its records."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.chaos.plan import PlannedStatement
from helenus_connector.log.events import Message
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.event.wire import decode
from helenus_stack.compare import Key, record_key
from helenus_stack.records import Record

_SHOWN = 12
"""Of statements, events and records each: the last ones decide."""


@dataclass(frozen=True)
class ExecutedStatement:
    """A statement as it was sent."""

    planned: PlannedStatement
    cql: str
    sent_at: float
    """s since the epoch."""
    write_time: int
    """µs since the epoch."""
    outcome: str
    """Empty if Cassandra acknowledged it."""

    @property
    def is_acknowledged(self) -> bool:
        return not self.outcome


def key_story(
    table: Table,
    key: Key,
    statements: Iterable[ExecutedStatement],
    events: Iterable[Message],
    records: Iterable[Record],
) -> list[str]:
    """Return the lines of a key's history."""
    partition = key[: len(table.partition_key)]
    lines = [_statement_line(s) for s in statements if _concerns(s, partition)]
    story = _last("statement", lines)
    codec = KeyCodec(table)
    story += _last("event", [line for event in events if (line := _event_line(table, codec, key, event))])
    return story + _last("record", [_record_line(r) for r in records if _is_near(table, key, r)])


def _last(name: str, lines: Sequence[str]) -> list[str]:
    left_out = len(lines) - _SHOWN
    return ([f"    … {left_out} {name}s before"] if left_out > 0 else []) + list(lines[-_SHOWN:])


def _concerns(statement: ExecutedStatement, partition: Sequence[Any]) -> bool:
    literals = statement.planned.statement.partition
    # A batch writes to other partitions too.
    return not literals or statement.planned.statement.kind == "logged" or texts(literals) == texts(partition)


def texts(values: Iterable[Any]) -> list[str]:
    """Return values, or literals of CQL, as texts that compare."""
    return [str(value).strip("'") for value in values]


def clock(seconds: float) -> str:
    """Return a time of day with ms."""
    return time.strftime("%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03}"


def _statement_line(statement: ExecutedStatement) -> str:
    outcome = statement.outcome or "acknowledged"
    level = statement.planned.level + (" elsewhere" if statement.planned.data_center > 1 else "")
    return f"    {clock(statement.sent_at)} statement {statement.planned.number} {level}: {statement.cql} → {outcome}"


def _event_line(table: Table, codec: KeyCodec, key: Key, event: Message) -> str | None:
    """Return what an event says, if it is of the key, of more than a row of its partition, or of the table."""
    change = decode(event.value() or b"")
    if event.key():
        try:
            values = codec.decode(event.key() or b"")
        except ValueError:
            return None
        shown = [_cql_text(column.type.name, value) for column, value in zip(table.primary_key, values, strict=False)]
        width = len(table.partition_key)
        if shown[:width] != texts(key[:width]) or (
            None not in shown[width:] and shown[width:] and shown[width:] != texts(key[width:])
        ):
            return None
    digest = (change.digest or "-")[:8]
    return (
        f"    {clock(event.timestamp()[1] / 1000)} event {event.partition()}:{event.offset()} {change.scope.name} "
        f"{change.origin.name} written {change.write_time} node {str(change.node)[:8]} digest {digest} "
        f"effect {change.effect & 31}"
    )


def _cql_text(type_name: str, value: bytes | None) -> str | None:
    if value is None:
        return None
    if type_name == "int":
        return str(int.from_bytes(value, "big", signed=True))
    if type_name == "uuid":
        text = value.hex()
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    return value.decode(errors="replace")


def _is_near(table: Table, key: Key, record: Record) -> bool:
    """Whether a record is of the key, or of more than one row with the key's."""
    if record.headers.get("scope") == b"table":
        return True
    of_record, width = record_key(table, record), len(table.partition_key)
    return of_record == key or (of_record[:width] == key[:width] and None in of_record)


def _record_line(record: Record) -> str:
    headers = {name: value.decode(errors="replace")[:40] for name, value in record.headers.items()}
    headers.pop("schema_id", None)
    return (
        f"    {clock(record.timestamp / 1000)} record {record.partition}:{record.offset} "
        f"{json.dumps(record.value, default=str)[:300]} {headers}"
    )
