"""What records of `resolver=none` cost the stage in each form, without servers, in one process.

    python -m bench written [--changes 20000] [--rounds 5] [--tables wide] [--forms debezium-json] [--profile]

Each form at the gate `one`, where every event is another change: as it is, and without the way straight from cells to
bytes, in turns. Debezium's envelope also at `local_quorum` with three copies of each change, as three nodes report
them. The log takes records and forgets them.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import hashlib
import json
import os
import pstats
import struct
import tempfile
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.event import Event
from helenus_connector.pipeline import _table_version as version
from helenus_connector.pipeline.stage import Stage
from helenus_connector.query.garbage import freeze
from helenus_connector.testing.cassandra import Host, MemorySession
from helenus_connector.testing.log import MemoryLog
from helenus_schemas.codec.avro_long import long_bytes
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.event.change import Change, Effect, column_bit
from helenus_schemas.event.wire import encode

NODES = [f"ad310466-96a7-4cb2-acf4-59535a96081{n}" for n in range(3)]
T = 1_700_000_000_000_000
UNSET = 1_442_880_000_000_000, 1_442_880_000, 0  # what Cassandra takes as lowest where there are none
BATCH = 10_000
TABLES = {
    "narrow": {"n": "int", "v": "text"},
    "wide": {
        "a": "bigint",
        "b": "double",
        "c": "timestamp",
        "d": "uuid",
        "e": "text",
        "f": "boolean",
        "m": "map<text, int>",
    },
}

REGISTRY = {"value.converter.schema.registry.url": "http://127.0.0.1:1"}
JSON = {
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
}
FORMS = {
    f"{shape}-{name}": {"output.format": shape, **form}
    for shape in ("debezium", "debezium-cassandra", "cep44")
    for name, form in (("avro", REGISTRY), ("json", JSON))
}


def table_of(name: str) -> Table:
    """A table of `TABLES` with the partition key `k int`; of the wide one, and a clustering key `c text`."""
    keys = [Column("k", parse("int"), "partition_key", 0)]
    if name == "wide":
        keys.append(Column("ck", parse("text"), "clustering", 0))
    values = [Column(column, parse(t)) for column, t in TABLES[name].items()]
    return Table("bench", name, uuid.UUID(int=1), (*keys, *values), cdc=True)


def insert(table: Table, values: Sequence[bytes | Sequence[tuple[bytes, bytes]]], written: int = T) -> bytes:
    """The field `cells` of an INSERT of all columns, as an agent writes it: a map as its entries."""
    columns = sorted(table.values, key=lambda c: (c.type.multicell, c.name))
    text = json.dumps({"columns": [[c.name, str(c.type)] for c in columns]}, separators=(",", ":")).encode()
    data = [b"\x24\0"]  # with a write time, and all columns
    for column, value in zip(columns, values, strict=True):
        if isinstance(value, bytes):
            data += [b"\x08", b"" if column.type.width else bytes([len(value)]), value]
            continue
        data.append(bytes([len(value)]))  # entries
        for path, item in value:
            data += [b"\x08", bytes([len(path)]), path, bytes([len(item)]), item]
    row = b"".join(data)
    head = b"\2" + table.id.bytes + bytes(16) + long_bytes(len(text)) + text
    return b"".join([head, long_bytes(written), *map(long_bytes, UNSET[1:]), long_bytes(len(row)), row])


def narrow(table: Table, n: int) -> tuple[tuple[bytes, ...], bytes]:
    """Key and cells of the nth row: about 110 bytes."""
    raw = struct.pack(">i", n)
    return (raw,), insert(table, (raw, b"x" * 100))


def wide(table: Table, n: int) -> tuple[tuple[bytes, ...], bytes]:
    """Key and cells of the nth row: seven columns, one of them a map of two entries."""
    raw, long = struct.pack(">i", n), struct.pack(">q", n)
    entries = [(b"a", raw), (b"b", raw)]
    event = insert(table, (long, long, long, raw * 4, b"hello world %d" % n, b"\1", entries))
    return (raw, b"c%d" % (n % 100)), event


ROWS = {"narrow": narrow, "wide": wide}


def value(cells: bytes, node: str, n: int, names: Iterable[str]) -> bytes:
    """An event's value, the nth of its segment."""
    effect = Effect.LIVE | Effect.ROW | sum({column_bit(name) for name in names})
    digest = hashlib.md5(struct.pack(">q", n), usedforsecurity=False).hexdigest()
    change = Change(digest, node, segment=T // 1000, position=100 * n, write_time=T, effect=int(effect), cells=cells)
    return encode(change)


def events(table: Table, count: int, copies: int) -> list[Event]:
    """So many inserts, each with its copies."""
    codec, made = KeyCodec(table), []
    names = [c.name for c in table.values]
    for n in range(count):
        key, cells = ROWS[table.name](table, n)
        encoded = codec.encode(key)
        for node in NODES[:copies]:
            made.append(
                Event(f"events-bench.{table.name}", 0, len(made), T // 1000, encoded, value(cells, node, n, names))
            )
    return made


class Ids:
    """The schemas of a table, all with the same id."""

    is_registration_due = False

    def register(self, subject: str, schema: str) -> int:
        return 1

    def keep(self, subject: str, schema: str, other: str) -> int:
        return 1

    def close(self) -> None:
        pass


class Nothing(MemoryLog):
    """Forgets its records."""

    def append(self, topic: str, partition: int, key: Any, value: Any, headers: Any = ()) -> None:
        pass


def stage(table: Table, form: str, gate: str, directory: Path) -> Stage:
    properties = {
        "name": table.name,
        "keyspace": table.keyspace,
        "table": table.name,
        "resolver": "none",
        "gate": gate,
        "tombstones.on.delete": "false",
        **FORMS[form],
    }
    version.read_definition = lambda session, settings, schema_state=None, request=None: (
        None if schema_state else (1, table)
    )  # type: ignore[assignment]
    session = MemorySession([Host(node) for node in NODES], {table.keyspace: 3})
    made = Stage(ConnectorSettings.from_properties(properties, "bench"), session, Nothing(), directory)
    made._versions._registry = Ids()  # type: ignore[assignment]
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tables", nargs="*", default=list(TABLES))
    parser.add_argument("--forms", nargs="*", default=list(FORMS))
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    options = parser.parse_args()
    print(
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; CPU s per million changes, best of {options.rounds}"
    )
    for name in options.tables:
        table = table_of(name)
        batches = events(table, options.changes, 1)
        for form in options.forms:
            direct, general = [], []
            for _ in range(options.rounds):
                direct.append(measure(table, form, "one", batches, True, options.profile))
                if not options.profile:
                    general.append(measure(table, form, "one", batches, False))
            each = [f"{min(spent) / options.changes * 1e6:5.1f}" for spent in (direct, general) if spent]
            print(f"{name:8} {form:24} straight {each[0]}" + "".join(f", the long way {long}" for long in each[1:]))
        if "debezium-avro" in options.forms and not options.profile:
            copies = events(table, options.changes, 3)
            spent = min(measure(table, "debezium-avro", "local_quorum", copies) for _ in range(options.rounds))
            each_change = spent / options.changes * 1e6
            print(f"{name:8} debezium-avro, gate=local_quorum, 3 copies {each_change:5.1f}")


def measure(
    table: Table, form: str, gate: str, changes: list[Event], is_direct: bool = True, is_profiled: bool = False
) -> float:
    """CPU seconds of a stage that takes all events, and of a search of its garbage after each batch, as Spark does."""
    with tempfile.TemporaryDirectory() as directory:
        made = stage(table, form, gate, Path(directory))
        made.run([], (), True)
        if not is_direct:
            made._versions.current.shape._direct = None  # type: ignore[attr-defined]
        freeze((table.name, form, gate))
        gc.collect()
        profile = cProfile.Profile()
        start, records = time.process_time(), 0
        if is_profiled:
            profile.enable()
        for index in range(0, len(changes), BATCH):
            records += made.run(changes[index : index + BATCH], (), True).records
            gc.collect()
        spent = time.process_time() - start
        profile.disable()
        assert records == len({event.key for event in changes}), records
        made.close()
    if is_profiled:
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)
    return spent


if __name__ == "__main__":
    main()
