"""What a record costs: CPU µs per row in each form, its key and headers included."""

from __future__ import annotations

import json
import struct
import time
import uuid
from collections.abc import Callable

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.image import Image
from helenus_connector.shape.row.row import RowShape
from helenus_connector.testing.registry import MemoryRegistry
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse

REPEATS, ROWS = 40, 500


def _sized(*values: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(v)) + v for v in values)


VALUES = {
    "text": b"some text of a row",
    "int": struct.pack(">i", 123_456),
    "bigint": struct.pack(">q", 1 << 40),
    "timestamp": struct.pack(">q", 1_700_000_000_000),
    "uuid": uuid.UUID(int=1 << 100).bytes,
    "double": struct.pack(">d", 3.14),
    "boolean": b"\1",
    "decimal": struct.pack(">i", 2) + b"\x10\x11",
    "date": struct.pack(">I", (1 << 31) + 19_000),
    "map<text, int>": struct.pack(">i", 2) + _sized(b"a", b"\0\0\0\1", b"b", b"\0\0\0\2"),
}


def main() -> None:
    """Prints a line for each width of a table and form: the least of many repeats."""
    for width in (10, 60):
        kinds = list(VALUES)
        columns = [Column(f"column_{i:02}", parse(kinds[i % len(kinds)])) for i in range(width)]
        keys = [Column("id", parse("int"), "partition_key", 0), Column("ck", parse("text"), "clustering", 0)]
        table = Table("ks", "t", uuid.UUID(int=1), (*keys, *columns))
        key = KeyCodec(table).encode((b"\0\0\0\1", b"ck"))
        image = Image(tuple(VALUES[str(c.type)] for c in table.values), 5)
        for form in ("key-value-avro", "key-value-json", "json"):
            properties = {"name": "n", "keyspace": "ks", "table": "t", "output.format": form}
            settings = ConnectorSettings.from_properties(
                {**properties, "value.converter.schema.registry.url": "http://none"}, "bench"
            )
            shape = RowShape(table, settings, MemoryRegistry())
            value = shape.row(key, image, 123).value or b""
            line = f"{width} columns, {form}: {_cost(lambda s=shape, k=key, i=image: s.row(k, i, 123)):.1f} µs"
            if form == "key-value-json":
                built = json.loads(value)
                line += f" (json.dumps alone of built values: {_cost(lambda b=built: json.dumps(b)):.1f})"
            print(f"{line}, {len(value)} bytes")


def _cost(function: Callable[[], object]) -> float:
    least = float("inf")
    for _ in range(REPEATS):
        start = time.process_time()
        for _ in range(ROWS):
            function()
        least = min(least, time.process_time() - start)
    return least / ROWS * 1e6
