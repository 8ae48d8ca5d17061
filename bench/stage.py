"""What events cost the stage with `resolver=reread`, without servers: CPU of one process that reads no socket.

    python -m bench stage [--events 50000] [--rounds 5] [--only unique ...] [--profile]

- unique: every event another row. hot: each row 200 times. copies: three nodes report each change, in one batch.
- deleted: every event is the delete of a row that is gone: of its partition, as the table has no clustering columns.
- after: as unique, but another row of the events partition was deleted before.

Events come as a client's messages, Cassandra's answers as the bytes of its protocol, and Python looks for garbage after
each batch, as Spark has it do. The log takes records and forgets them. With HELENUS_PURE=1 at the build
(`hatch_build.py`) it measures plain Python.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import hashlib
import os
import pstats
import struct
import tempfile
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.written import NODES, Ids, Nothing, T
from helenus_connector.cassandra_rows.raw_rows import parse as rows_of
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.pipeline import _table_version as version
from helenus_connector.pipeline.stage import Stage
from helenus_connector.query._task_reader import events_of
from helenus_connector.query.garbage import freeze
from helenus_connector.testing.cassandra import Host, MemorySession
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.event.change import Change, Effect, Scope, column_bit
from helenus_schemas.event.wire import encode

BATCH = 25_000  # a task's share of max.batch.size, with two tasks
TABLE = Table(
    "bench",
    "single",
    uuid.UUID(int=1),
    (Column("k", parse("int"), "partition_key", 0), Column("n", parse("int")), Column("v", parse("text"))),
    cdc=True,
)
TOPIC = "events-bench.single"


class Message:
    """An event as a consumer gives it."""

    def __init__(self, n: int, key: bytes, value: bytes) -> None:
        self._n, self._key, self._value = n, key, value

    def topic(self) -> str:
        return TOPIC

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._n

    def timestamp(self) -> tuple[int, int]:
        return 1, T // 1000

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes:
        return self._value

    def headers(self) -> None:
        return None


def rows(kind: str, count: int) -> Iterable[int]:
    return (n % (count // 200) for n in range(count)) if kind == "hot" else range(count)


def events(kind: str, count: int) -> list[list[Message]]:
    """So many events as a client has them, by batch."""
    codec, made = KeyCodec(TABLE), []
    effect = Effect.GONE if kind == "deleted" else Effect.LIVE | Effect.ROW | column_bit("v") | column_bit("n")
    copies, scope = 3 if kind == "copies" else 1, Scope.PARTITION if kind == "deleted" else Scope.ROW
    for n, row in enumerate(rows(kind, count // copies)):
        key = codec.encode((struct.pack(">i", row),))
        digest = hashlib.md5(struct.pack(">q", n), usedforsecurity=False).hexdigest()
        for node in NODES[:copies]:
            change = Change(digest, node, scope, segment=T // 1000, position=100 * n, write_time=T, effect=int(effect))
            made.append(Message(len(made), key, encode(change)))
    return [made[start : start + BATCH] for start in range(0, count, BATCH)]


def answer(cql: str, values: list[Any], state: bytes | None, size: int | None) -> Any:
    """Cassandra's: a row for each key, of about 110 bytes, its columns and their write times; without `v` no row."""
    if "WHERE" not in cql:
        return (), None
    rows = []
    for key in dict.fromkeys(values):
        fields = key, key, b"x" * 100, T.to_bytes(8, "big"), T.to_bytes(8, "big")
        rows.append(b"".join(struct.pack(">i", len(field)) + field for field in fields))
    return struct.pack(">i", len(rows)) + b"".join(rows), None


class Bytes(MemorySession):
    """A session that is answered in bytes, and has them parsed as the driver does. Its own cost is in `spent`."""

    def __init__(self, kind: str) -> None:
        super().__init__([Host(node) for node in NODES[:1]], {"bench": 1})
        self._answers: dict[tuple[bytes, ...], bytes] = {}
        self._is_gone = kind == "deleted"
        self.spent = 0.0

    def answer(self, cql: str, values: list[Any], paging_state: bytes | None, page_size: int | None) -> Any:
        start = time.process_time()
        name = tuple(values)
        data = self._answers.get(name)
        if data is None:
            data = bytes(4) if self._is_gone or "WHERE" not in cql else answer(cql, values, None, None)[0]
            self._answers[name] = data
        self.spent += time.process_time() - start
        return rows_of(data, 5), None


def stage(kind: str, directory: Path) -> tuple[Stage, Bytes]:
    properties = {
        "name": TABLE.name,
        "keyspace": TABLE.keyspace,
        "table": TABLE.name,
        "value.converter.schema.registry.url": "http://127.0.0.1:1",
    }
    version.read_definition = lambda session, settings, schema_state=None, request=None: (
        None if schema_state else (1, TABLE)
    )  # type: ignore[assignment]
    session = Bytes(kind)
    settings = ConnectorSettings.from_properties(properties, "bench")
    return Stage(settings, session, Nothing(), directory, None, Ids()), session


KINDS = "unique", "hot", "copies", "deleted", "after"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(KINDS), choices=KINDS, metavar="KIND")
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; best of {options.rounds}")
    for kind in options.only:
        batches = events(kind, options.events)
        best = min(measure(kind, batches, options.profile) for _ in range(options.rounds))
        each = best / options.events * 1e6
        print(f"{kind}: {1e6 / each:.0f} events per CPU s, {each:.1f} µs each", flush=True)


def measure(kind: str, batches: list[list[Message]], is_profiled: bool = False) -> float:
    """CPU seconds of a stage that takes all events."""
    with tempfile.TemporaryDirectory() as directory:
        made, session = stage(kind, Path(directory))
        made.run(events_of(events("deleted", 1)[0])[0] if kind == "after" else [], (), True)
        freeze((kind,))
        gc.collect()
        profile = cProfile.Profile()
        start, before = time.process_time(), session.spent
        if is_profiled:
            profile.enable()
        for batch in batches:
            batch_events, _ = events_of(batch)
            made.run(batch_events, (), True)
            del batch_events
            gc.collect()
        profile.disable()
        spent = time.process_time() - start - (session.spent - before)
        made.close()
    if is_profiled:
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
    return spent


if __name__ == "__main__":
    main()
