"""Segments recorded from a real Cassandra 5.0.9, 3.11.19 for version 6, and 6.0-alpha2 for version 9, and the events
that the statements in them must give.

`python tests/agent/golden.py directory [name ...]` records them again, in each form of their logs: it runs the
statements below, one after the other, on a node of helenus_stack in the directory, and keeps the segments that have an
index, of 3.11 all that it moves to cdc_raw. The expected events follow from the statements, not from a decoder.
"""

from __future__ import annotations

import gzip
import json
import re
import struct
import sys
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helenus_agent.positions import Positions
from helenus_agent.segments.segment_queue import SegmentQueue
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType
from helenus_schemas.event.change import Bound

DIRECTORY = Path(__file__).with_name("golden")
PIECE = 1 << 16
NODE = "ad310466-96a7-4cb2-acf4-59535a960812"
T = 1_700_000_000_000_000

OPTIONS = {
    "commitlog_segment_size": "1MiB",
    "commitlog_sync_period": "200ms",
    "materialized_views_enabled": "true",
}
_NATIVE = {"storage_compatibility_mode": "NONE"}
PLAIN = "7-plain"
RECORDINGS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "7-lz4": {"commitlog_compression": [{"class_name": "LZ4Compressor"}]},
    "8-plain": _NATIVE,
    "8-lz4": {**_NATIVE, "commitlog_compression": [{"class_name": "LZ4Compressor"}]},
    "8-snappy": {**_NATIVE, "commitlog_compression": [{"class_name": "SnappyCompressor"}]},
    "8-deflate": {**_NATIVE, "commitlog_compression": [{"class_name": "DeflateCompressor"}]},
    "8-zstd": {**_NATIVE, "commitlog_compression": [{"class_name": "ZstdCompressor"}]},
    "6-plain": {},
    "6-lz4": {
        "commitlog_compression": [{"class_name": "LZ4Compressor"}],
        "commitlog_sync_period_in_ms": 200,  # several sections, each compressed by itself
    },
    "9-plain": {},
    "9-lz4": {"commitlog_compression": [{"class_name": "LZ4Compressor"}]},
}
"""The name of each recording, its version and how it is compressed, and what cassandra.yaml said for it."""


@dataclass
class Expected:
    """A change: of which table, ROW, STATIC or PARTITION, its key as CQL bytes, and what of it is known."""

    table: str
    scope: str
    key: list[bytes | None]
    time: int | None = None  # None: the server chose it
    expires: bool = False
    part: int = 0
    parts: int = 1
    start: Bound | None = None
    end: Bound | None = None


def i(value: int) -> bytes:
    return struct.pack(">i", value)


def row(table: str, *key: bytes | None, time: int | None = None, **more: Any) -> Expected:
    return Expected(table, "ROW", list(key), time, **more)


def static(*key: bytes | None, time: int | None = None, **more: Any) -> Expected:
    return Expected("t", "STATIC", [*key, None], time, **more)


def deleted(table: str, *key: bytes | None, time: int | None = None, **more: Any) -> Expected:
    return Expected(table, "RANGE", list(key), time, **more)


def upto(inclusive: bool, *values: bytes) -> Bound:
    return Bound(inclusive, values)


def partition(table: str, *key: bytes | None, time: int | None = None, **more: Any) -> Expected:
    return Expected(table, "PARTITION", list(key), time, **more)


SETUP = [
    "CREATE KEYSPACE g WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
    "CREATE TYPE g.address (street text, zip int, tags set<text>)".replace("set<text>", "frozen<set<text>>"),
    """CREATE TABLE g.t (a int, b text, s int static, sl list<int> static, v int, w text, l list<int>, st set<text>,
       m map<text, int>, u address, fu frozen<address>, tp tuple<int, text>, vec vector<float, 3>, vt vector<text, 2>,
       d duration, vi varint, dc decimal, ti tinyint, sm smallint, da date, tm time, ine inet, bo boolean, tu timeuuid,
       gone int, gone_list list<int>, gone_udt frozen<address>, PRIMARY KEY (a, b)) WITH cdc = true""",
    "CREATE TABLE g.single (a uuid PRIMARY KEY, v int) WITH cdc = true",
    """CREATE TABLE g.keys (p1 int, p2 text, ti tinyint, sm smallint, bi bigint, vi varint, dc decimal, bo boolean,
       fl float, db double, uu uuid, ts timestamp, da date, tm time, ine inet, bl blob, ac ascii, v int,
       PRIMARY KEY ((p1, p2), ti, sm, bi, vi, dc, bo, fl, db, uu, ts, da, tm, ine, bl, ac))
       WITH CLUSTERING ORDER BY (ti ASC, sm DESC, bi ASC, vi DESC, dc ASC, bo DESC, fl ASC, db DESC, uu ASC, ts DESC,
       da ASC, tm DESC, ine ASC, bl DESC, ac ASC) AND cdc = true""",
    "CREATE TABLE g.wide (a int PRIMARY KEY, " + ", ".join(f"c{n:02} int" for n in range(70)) + ") WITH cdc = true",
    "CREATE TABLE g.only_key (a int, b int, PRIMARY KEY (a, b)) WITH cdc = true",
    "CREATE TABLE g.plain (a int, b text, v int, l list<int>, PRIMARY KEY (a, b))",
    "CREATE TABLE g.doomed (a int PRIMARY KEY, v int) WITH cdc = true",
    "CREATE TABLE g.source (a int, b int, v int, PRIMARY KEY (a, b)) WITH cdc = true",
    """CREATE MATERIALIZED VIEW g.by_v AS SELECT a, b, v FROM g.source
       WHERE a IS NOT NULL AND b IS NOT NULL AND v IS NOT NULL PRIMARY KEY (v, a, b)""",
]


def without_vectors(statement: str) -> str:
    """The statement with lists in place of the type that only 5.0 has."""
    return re.sub(r"vector<(.*?), \d>", r"frozen<list<\1>>", statement)


_UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
_KEYS = [
    i(-7),
    "ключ".encode(),
    b"\xff",
    struct.pack(">h", -2),
    struct.pack(">q", -(1 << 60)),
    b"\xff\x01",
    i(2) + b"\xcf\xc7",
    b"\x01",
    struct.pack(">f", 1.5),
    struct.pack(">d", -2.5),
    _UUID.bytes,
    struct.pack(">q", 1_700_000_000_123),
    struct.pack(">I", (1 << 31) - 1),
    struct.pack(">q", 3_723_123_456_789),
    bytes((10, 0, 0, 1)),
    b"\xca\xfe",
    b"end",
]
_KEYS_CQL = (
    "(p1, p2, ti, sm, bi, vi, dc, bo, fl, db, uu, ts, da, tm, ine, bl, ac) = "  # for the reader
    f"(-7, 'ключ', -1, -2, {-(1 << 60)}, -255, -123.45, true, 1.5, -2.5, {_UUID}, 1700000000123, '1969-12-31', "
    "'01:02:03.123456789', '10.0.0.1', 0xcafe, 'end')"
)
_KEYS_NAMES, _KEYS_VALUES = (part.strip(" ()") for part in _KEYS_CQL.split(" = "))

_ONE = (i(1), b"x")
STATEMENTS: list[tuple[str, list[Expected]]] = [
    (f"INSERT INTO g.t (a, b, v, w) VALUES (1, 'x', 2, 'w') USING TIMESTAMP {T}", [row("t", *_ONE, time=T)]),
    (
        f"INSERT INTO g.t (a, b, v) VALUES (1, 'x', 2) USING TIMESTAMP {T + 1} AND TTL 864000",
        [row("t", *_ONE, time=T + 1, expires=True)],
    ),
    (f"UPDATE g.t USING TIMESTAMP {T + 2} SET v = 3, w = null WHERE a = 1 AND b = 'x'", [row("t", *_ONE, time=T + 2)]),
    (
        f"UPDATE g.t USING TTL 777 AND TIMESTAMP {T + 3} SET w = 'y' WHERE a = 1 AND b = 'x'",
        [row("t", *_ONE, time=T + 3, expires=True)],
    ),
    (f"UPDATE g.t USING TIMESTAMP {T + 4} SET s = 5, sl = [1, 2] WHERE a = 1", [static(i(1), time=T + 4)]),
    (
        f"INSERT INTO g.t (a, b, s, v) VALUES (1, 'x', 6, 7) USING TIMESTAMP {T + 5}",
        [static(i(1), time=T + 5, parts=2), row("t", *_ONE, time=T + 5, part=1, parts=2)],
    ),
    (
        f"""INSERT INTO g.t (a, b, l, st, m, u, fu, tp, vec, vt, d, vi, dc, ti, sm, da, tm, ine, bo, tu) VALUES
        (1, 'x', [1, 2], {{'p', 'q'}}, {{'k': 1}}, {{street: 's', zip: 1, tags: {{'t'}}}}, {{street: 'f'}}, (1, 'two'),
        [1.0, 2.0, 3.0], ['a', 'bb'], 1mo2d3h, -12345678901234567890, -1.5, -1, -2, '2024-02-29', '23:59:59.999999999',
        '::1', true, 50554d6e-29bb-11e5-b345-feff819cdc9f) USING TIMESTAMP {T + 6}""",
        [row("t", *_ONE, time=T + 6)],
    ),
    (
        f"UPDATE g.t USING TIMESTAMP {T + 7} SET l = l + [3], st = st - {{'p'}}, m['k'] = 2, u.zip = 9 "
        "WHERE a = 1 AND b = 'x'",
        [row("t", *_ONE, time=T + 7)],
    ),
    # Nothing but deletions of whole collections, which Cassandra dates one µs before the write.
    (
        f"UPDATE g.t USING TIMESTAMP {T + 8} SET l = null, m = {{}} WHERE a = 1 AND b = 'x'",
        [row("t", *_ONE, time=T + 7)],
    ),
    (f"DELETE v, m['k'] FROM g.t USING TIMESTAMP {T + 9} WHERE a = 1 AND b = 'x'", [row("t", *_ONE, time=T + 9)]),
    (f"DELETE FROM g.t USING TIMESTAMP {T + 10} WHERE a = 1 AND b = 'x'", [row("t", *_ONE, time=T + 10)]),
    (
        f"DELETE FROM g.t USING TIMESTAMP {T + 11} WHERE a = 1 AND b >= 'a' AND b < 'm'",
        [deleted("t", i(1), None, time=T + 11, start=upto(True, b"a"), end=upto(False, b"m"))],
    ),
    (
        f"DELETE FROM g.t USING TIMESTAMP {T + 11} WHERE a = 1 AND b > 'z'",
        [deleted("t", i(1), None, time=T + 11, start=upto(False, b"z"))],
    ),
    (f"DELETE FROM g.t USING TIMESTAMP {T + 12} WHERE a = 1", [partition("t", i(1), None, time=T + 12)]),
    (
        f"""BEGIN UNLOGGED BATCH DELETE FROM g.t USING TIMESTAMP {T + 13} WHERE a = 1;
        INSERT INTO g.t (a, b, v) VALUES (1, 'x', 1) USING TIMESTAMP {T + 14};
        UPDATE g.t USING TIMESTAMP {T + 15} SET s = 1 WHERE a = 1;
        DELETE FROM g.t USING TIMESTAMP {T + 14} WHERE a = 1 AND b > 'y' AND b < 'yy';
        INSERT INTO g.t (a, b, w) VALUES (1, 'z', 'z') USING TIMESTAMP {T + 16}; APPLY BATCH""",
        [
            partition("t", i(1), None, time=T + 13, parts=5),
            static(i(1), time=T + 15, part=1, parts=5),
            row("t", i(1), b"x", time=T + 14, part=2, parts=5),
            deleted("t", i(1), None, time=T + 14, part=3, parts=5, start=upto(False, b"y"), end=upto(False, b"yy")),
            row("t", i(1), b"z", time=T + 16, part=4, parts=5),
        ],
    ),
    (
        f"""BEGIN UNLOGGED BATCH USING TIMESTAMP {T + 17} INSERT INTO g.plain (a, b, v, l) VALUES (1, 'x', 1, [1]);
        INSERT INTO g.t (a, b, v) VALUES (1, 'x', 1); INSERT INTO g.only_key (a, b) VALUES (1, 2);
        APPLY BATCH""",
        # One partition key, three tables, one mutation: in the order of the log, which is not that of the batch.
        [
            row("t", i(1), b"x", time=T + 17, parts=2),
            row("only_key", i(1), i(2), time=T + 17, part=1, parts=2),
        ],
    ),
    (f"INSERT INTO g.plain (a, b, v) VALUES (1, 'x', 1) USING TIMESTAMP {T + 18}", []),
    ("INSERT INTO g.t (a, b, v) VALUES (2, 'lwt', 1) IF NOT EXISTS", [row("t", i(2), b"lwt")]),
    ("UPDATE g.t SET v = 2 WHERE a = 2 AND b = 'lwt' IF v = 1", [row("t", i(2), b"lwt")]),
    ("UPDATE g.t SET v = 3 WHERE a = 2 AND b = 'lwt' IF v = 1", []),
    (f"INSERT INTO g.single (a, v) VALUES ({_UUID}, 1) USING TIMESTAMP {T}", [row("single", _UUID.bytes, time=T)]),
    (f"DELETE FROM g.single USING TIMESTAMP {T + 1} WHERE a = {_UUID}", [partition("single", _UUID.bytes, time=T + 1)]),
    (
        f"INSERT INTO g.single (a, v) VALUES ({_UUID}, 1) USING TIMESTAMP {-(1 << 62)}",
        [row("single", _UUID.bytes, time=-(1 << 62))],
    ),
    (
        f"INSERT INTO g.keys ({_KEYS_NAMES}, v) VALUES ({_KEYS_VALUES}, 1) USING TIMESTAMP {T}",
        [row("keys", *_KEYS, time=T)],
    ),
    (
        f"DELETE FROM g.keys USING TIMESTAMP {T + 1} WHERE p1 = -7 AND p2 = 'ключ'",
        [partition("keys", *_KEYS[:2], *[None] * 15, time=T + 1)],
    ),
    (
        f"DELETE FROM g.keys USING TIMESTAMP {T + 1} WHERE p1 = -7 AND p2 = 'ключ' AND ti = -1",
        [deleted("keys", *_KEYS[:2], *[None] * 15, time=T + 1, start=upto(True, b"\xff"), end=upto(True, b"\xff"))],
    ),
    (f"INSERT INTO g.wide (a, c03, c69) VALUES (1, 1, 1) USING TIMESTAMP {T}", [row("wide", i(1), time=T)]),
    (
        f"INSERT INTO g.wide (a, {', '.join(f'c{n:02}' for n in range(70))}) VALUES (1, {', '.join('1' * 70)}) "
        f"USING TIMESTAMP {T + 1}",
        [row("wide", i(1), time=T + 1)],
    ),
    (f"INSERT INTO g.only_key (a, b) VALUES (3, 4) USING TIMESTAMP {T}", [row("only_key", i(3), i(4), time=T)]),
    (f"INSERT INTO g.source (a, b, v) VALUES (1, 2, 3) USING TIMESTAMP {T}", [row("source", i(1), i(2), time=T)]),
    # Schema changes, and writes that only an older schema explains.
    (
        f"INSERT INTO g.t (a, b, gone, gone_list, gone_udt) VALUES (5, 'g', 1, [1], {{street: 's', zip: 2}}) "
        f"USING TIMESTAMP {T}",
        [row("t", i(5), b"g", time=T)],
    ),
    (f"UPDATE g.t USING TIMESTAMP {T} SET gone = 1 WHERE a = 5 AND b = 'g'", [row("t", i(5), b"g", time=T)]),
    ("ALTER TABLE g.t DROP gone", []),
    ("ALTER TABLE g.t DROP gone_list", []),
    ("ALTER TABLE g.t DROP gone_udt", []),
    ("ALTER TABLE g.t ADD fresh text", []),
    (
        f"INSERT INTO g.t (a, b, fresh) VALUES (6, 'f', 'new') USING TIMESTAMP {T}",
        [row("t", i(6), b"f", time=T)],
    ),
    (f"INSERT INTO g.doomed (a, v) VALUES (1, 1) USING TIMESTAMP {T}", []),  # unknown by the time it is read
    ("DROP TABLE g.doomed", []),
]
# Two values over columns of which most are missing: a batch over rows of one partition that touch different columns.
STATEMENTS.append(
    (
        "BEGIN UNLOGGED BATCH "
        + " ".join(
            f"INSERT INTO g.t (a, b, {column}) VALUES (7, '{column}', {value}) USING TIMESTAMP {T + n};"
            for n, (column, value) in enumerate((("bo", "true"), ("m", "{'k': 1}"), ("v", "1"), ("w", "'w'")))
        )
        + " APPLY BATCH",
        [
            row("t", i(7), column.encode(), time=T + n, part=n, parts=4)
            for n, column in enumerate(("bo", "m", "v", "w"))
        ],
    )
)


def type_json(t: CqlType) -> Any:
    if not t.args and not t.label:
        return t.name
    return [t.name, [type_json(a) for a in t.args], t.frozen, t.label, list(t.fields), t.dimension]


def type_of(saved: Any) -> CqlType:
    if isinstance(saved, str):
        return CqlType(saved)
    name, args, frozen, label, fields, dimension = saved
    return CqlType(name, tuple(type_of(a) for a in args), frozen, label, tuple(fields), dimension)


def column_json(c: Column) -> Any:
    return [c.name, type_json(c.type), c.kind, c.position, c.reversed]


def column_of(saved: Any) -> Column:
    return Column(saved[0], type_of(saved[1]), *saved[2:])


def tables_json(tables: Iterable[Table]) -> Any:
    return [
        [
            t.keyspace,
            t.name,
            str(t.id),
            [column_json(c) for c in t.columns],
            t.cdc,
            [column_json(c) for c in t.dropped.values()],
        ]
        for t in tables
    ]


def tables_of(saved: Any) -> dict[uuid.UUID, Table]:
    tables = {}
    for keyspace, name, number, columns, cdc, dropped in saved:
        gone = {c[0]: column_of(c) for c in dropped}
        table = Table(keyspace, name, uuid.UUID(number), tuple(column_of(c) for c in columns), cdc, gone)
        tables[table.id] = table
    return tables


@dataclass
class Recording:
    """The schema as it was in the end, the ids of views, and the files of cdc_raw by name."""

    tables: dict[uuid.UUID, Table]
    views: list[uuid.UUID]
    files: dict[str, bytes]

    @property
    def followed(self) -> list[Table]:
        return [t for t in self.tables.values() if t.cdc]

    def plans(self, decoder: Any, followed: list[Table]) -> dict[bytes, Any]:
        plans = {
            t.id.bytes: decoder.plan_table(t, followed.index(t) if t in followed else -1) for t in self.tables.values()
        }
        return plans | {view.bytes: decoder.TablePlan() for view in self.views}

    def unpack(self, directory: Path) -> None:
        for name, data in self.files.items():
            (directory / name).write_bytes(data)


def load(name: str = PLAIN) -> Recording:
    files = {p.name.removesuffix(".gz"): gzip.decompress(p.read_bytes()) for p in sorted((DIRECTORY / name).iterdir())}
    files.pop("events.json", None)
    saved = json.loads(files.pop("schema.json"))
    return Recording(tables_of(saved["tables"]), [uuid.UUID(v) for v in saved["views"]], files)


def read(decoder: Any, follow: SegmentQueue, plans: dict[bytes, Any]) -> tuple[list[Any], list[str], int]:
    """Every change that is to be read, the reasons of skipped ones, and how many mutations there were."""
    changes: list[Any] = []
    skipped: list[str] = []
    mutations = 0
    while segment := follow.next():
        live, padded = segment.live, segment.padded
        data, base, final = segment.read(PIECE)
        batch = decoder.decode(data, base, final, plans, NODE, segment.id, segment.version, 100, live, padded)
        assert (batch.problems, batch.broken) == ([], False)
        assert batch.next or batch.unknown
        changes += batch.changes
        skipped += batch.skipped
        mutations += batch.mutations
        segment.advance(base + batch.next)
        if batch.unknown:
            assert batch.unknown.column is None
            plans[batch.unknown.table] = decoder.TablePlan(is_known=False)
    return changes, skipped, mutations


def events_json(followed: list[Table], changes: list[tuple[int, bytes, bytes, bytes]]) -> Any:
    """Events as text: table, partition key, key, value."""
    return [[followed[index].name, pk.hex(), key.hex(), value.hex()] for index, pk, key, value in changes]


def expected_key(table: Table, key: list[bytes | None]) -> bytes:
    return KeyCodec(table).encode(key)


def record(name: str, directory: Path) -> None:
    import time

    from cassandra.cluster import Cluster
    from cassandra.query import SimpleStatement

    from helenus_schemas.cql.table import read_tables
    from helenus_stack.stack import Stack

    version = {"9": "6.0", "6": "3.11"}.get(name[0], "5.0")
    options = {**({} if version == "3.11" else OPTIONS), **RECORDINGS[name]}
    with Stack(directory / name, only=["cassandra"], cassandra=version, cassandra_yaml=options) as stack:
        status = stack.status()
        cluster = Cluster(status.contact_points, port=status.cql_port)
        session = cluster.connect()
        for statement in [without_vectors(line) for line in SETUP] if version < "5" else SETUP:
            session.execute(statement, timeout=60)
        for statement, _ in STATEMENTS:
            session.execute(SimpleStatement(statement), timeout=60)
        if version == "3.11":
            recycle_segments(session, Path(status.nodes[0].cdc_raw))
        time.sleep(1)  # some syncs later
        tables = read_tables(session)
        views = [r.id for r in session.execute("SELECT id FROM system_schema.views")]
        cluster.shutdown()
        target = DIRECTORY / name
        target.mkdir(parents=True, exist_ok=True)
        for old in target.iterdir():
            old.unlink()
        keep(
            target / "schema.json",
            json.dumps({"tables": tables_json(tables.values()), "views": [str(v) for v in views]}).encode(),
        )
        if version == "3.11":
            for path in Path(status.nodes[0].cdc_raw).glob("*.log"):
                keep(target / path.name, path.read_bytes())
        # Those with changes of CDC tables have an index, which is never ahead of its segment.
        for index in Path(status.nodes[0].cdc_raw).glob("*_cdc.idx"):
            keep(target / index.name, index.read_bytes())
            path = segment_path(index)
            keep(target / path.name, path.read_bytes())
    if name == PLAIN:
        record_events()


def recycle_segments(session: Any, cdc_raw: Path) -> None:
    """Have 3.11 move all segments there are now to cdc_raw, as it flushes and ends them before it drops a table."""
    segments = {path.name for path in (cdc_raw.parent / "commitlog").glob("*.log")}
    session.execute(f"CREATE KEYSPACE dropped {SETUP[0].partition(' g ')[2]}", timeout=60)
    while segments & {path.name for path in (cdc_raw.parent / "commitlog").glob("*.log")}:
        session.execute("CREATE TABLE dropped.t (k int PRIMARY KEY)", timeout=60)
        session.execute("DROP TABLE dropped.t", timeout=60)


def keep(path: Path, data: bytes) -> None:
    with gzip.GzipFile(f"{path}.gz", "wb", mtime=0) as file:
        file.write(data)


def segment_path(index: Path) -> Path:
    return index.with_name(index.name.replace("_cdc.idx", ".log"))


def record_events() -> None:
    """Keep the events as they are now: the test that compares them wants no change without a reason."""
    import tempfile

    from helenus_agent.commitlog import decoder

    recording = load()
    with tempfile.TemporaryDirectory() as directory:
        recording.unpack(Path(directory))
        follow = SegmentQueue(Path(directory), Positions(NODE))
        follow.refresh()
        changes, _, _ = read(decoder, follow, recording.plans(decoder, recording.followed))
        follow.close()
    keep(DIRECTORY / PLAIN / "events.json", json.dumps(events_json(recording.followed, changes)).encode())


if __name__ == "__main__":
    for name in sys.argv[2:] or RECORDINGS:
        record(name, Path(sys.argv[1]))
