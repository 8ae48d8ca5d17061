"""A sink that is not ours: through Kafka Connect and Debezium's JDBC sink a table of PostgreSQL becomes Cassandra's."""

from __future__ import annotations

import datetime
import json
import random
import re
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import javaproperties
import psycopg
import pytest
from docs.test_sink_types import documented as documented_types
from integration.pipeline import Lasting, Pipeline
from patience import eventually
from psycopg.rows import dict_row

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.shape.encoding.registry import Registry
from helenus_connector.shape.row.row import row_schemas
from helenus_schemas.cql.table import read_tables
from helenus_schemas.errors import HelenusError
from helenus_stack import connect
from helenus_stack.settings import Settings
from helenus_stack.stack import Stack
from helenus_stack.status import Status
from helenus_stack.workload import CHAPTERS, SCHEMA

pytestmark = pytest.mark.integration

DOCS = Path(__file__).parents[2] / "docs" / "sinks.md"
TABLE = "sink.orders"
SHOP = "shop.orders"
KEY = ["p", "q", "c", "d"]
JSON = "org.apache.kafka.connect.json.JsonConverter"
ENVELOPES = {"sink.as_avro": {}, "sink.as_json": {f"{part}.converter": JSON for part in ("key", "value")}}
"""Tables whose records are in Debezium's envelope, and the converters of both ends."""
BARE, ENVELOPED, MERGED = "sink.bare", "sink.enveloped", "sink.merged"
"""Tables that are followed by a sink without any filter, through deletes that name no row: with state=keys, as rows and
in Debezium's envelope, and with state=rows.
"""
NESTED = "sink.nested"
KINDS = {
    "ascii": "'a'",
    "text": "'ü'",
    "inet": "'::1'",
    "uuid": "8f9e0b4c-5a3d-4b5e-9c1d-000000000001",
    "timeuuid": "50554d6e-29bb-11e5-b345-feff819cdc9f",
    "decimal": "-1.50",
    "varint": "100000000000000000000",
    "tinyint": "-128",
    "smallint": "-32768",
    "int": "-2147483648",
    "bigint": "-9223372036854775808",
    "time": "'12:30:15.123456789'",
    "float": "0.5",
    "double": "1e300",
    "boolean": "true",
    "blob": "0x00ff",
    "date": "'0001-01-01'",
    "timestamp": "'1969-12-31 23:59:59.123'",
    "list<int>": "[1, 2]",
    "set<int>": "{1, 2}",
    "vector<float,3>": "[1.5, -2, 0.25]",
    "map<int,text>": "{7: 'seven'}",
}
"""CQL's types that the sink stores without a transform, each with a value. A counter has a table of its own."""
KIND_TABLE, COUNTER_TABLE = "sink.kinds", "sink.counted"
FLATTEN = {
    "transforms": "flat",
    "transforms.flat.type": "org.apache.kafka.connect.transforms.Flatten$Value",
    "transforms.flat.delimiter": "_",
}
SINK_TABLE = (
    "CREATE TABLE orders (p integer, q text, c bigint, d timestamp, u uuid, de numeric, vi numeric,"
    " PRIMARY KEY (p, q, c, d))"
)
MARKED = 100
"""Partitions from this one on see deletes that name no row. A sink that knows nothing of markers keeps those rows."""
EPOCH = datetime.datetime(1970, 1, 1)
MILLISECOND = datetime.timedelta(milliseconds=1)
LETTERS = ["", "a", "ünïcode ✓", "'quoted'", "null"]
Rows = dict[tuple[Any, ...], dict[str, Any]]


@pytest.fixture(scope="module")
def sinks(stack: Stack) -> Iterator[Status]:
    """The stack with its Connect worker and its PostgreSQL."""
    yield stack.up("connect", "postgres")
    stack.stop("connect")
    stack.stop("postgres")


@pytest.fixture(scope="module")
def pipeline(sinks: Status, session: Any, lasting: Lasting) -> Iterator[Pipeline]:
    session.execute("CREATE KEYSPACE sink WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    session.execute(
        f"CREATE TABLE {TABLE} (p int, q text, c bigint, d timestamp, t text, i int, l bigint, f double, b boolean,"
        " de decimal, vi varint, ts timestamp, da date, u uuid, PRIMARY KEY ((p, q), c, d))"
        " WITH CLUSTERING ORDER BY (c DESC, d ASC) AND cdc = true"
    )
    for table in (BARE, ENVELOPED, MERGED):
        session.execute(f"CREATE TABLE {table} (k int, c int, v text, PRIMARY KEY (k, c)) WITH cdc = true")
    columns = ", ".join(f"v{i} {kind}" for i, kind in enumerate(KINDS))
    session.execute(f"CREATE TABLE {KIND_TABLE} (k int PRIMARY KEY, {columns}) WITH cdc = true")
    session.execute(f"CREATE TABLE {COUNTER_TABLE} (k int PRIMARY KEY, v counter) WITH cdc = true")
    for cql in SCHEMA:
        session.execute(cql)
    numbers = {f"{kind}.handling.mode": "string" for kind in ("decimal", "varint")}
    for table in ENVELOPES:
        session.execute(
            f"CREATE TABLE {table} (k int, c int, t text, v bigint, at timestamp, PRIMARY KEY (k, c)) WITH cdc = true"
        )
    session.execute("CREATE TYPE sink.inner (a text, b int)")
    session.execute("CREATE TYPE sink.place (x int, inner frozen<inner>)")
    session.execute(
        f"CREATE TABLE {NESTED} (k int, c int, v text, home place, spot tuple<int, text>, d duration,"
        " PRIMARY KEY (k, c)) WITH cdc = true"
    )
    envelopes = {table: {"output.format": "debezium", **more} for table, more in ENVELOPES.items()}
    keyed = {"state": "keys", "markers": "false"}
    others = {BARE: keyed, ENVELOPED: {**keyed, "output.format": "debezium"}, NESTED: FLATTEN}
    plain = dict.fromkeys((TABLE, SHOP, KIND_TABLE, COUNTER_TABLE), numbers)
    with lasting("kafka").connected({**plain, **envelopes, **others}) as pipeline:
        yield pipeline


@pytest.fixture(scope="module")
def database(sinks: Status) -> Iterator[Any]:
    assert sinks.postgres_url
    with psycopg.connect(
        sinks.postgres_url,
        autocommit=True,
        row_factory=dict_row,
        prepare_threshold=None,  # the sink alters its tables
    ) as connection:
        yield connection


def documented(number: int) -> dict[str, str]:
    """The properties file `number` of docs/sinks.md."""
    return javaproperties.loads(re.findall(r"```properties\n(.*?)```", DOCS.read_text(), re.DOTALL)[number])


def sink(status: Status) -> dict[str, str]:
    """The connector of docs/sinks.md, with this stack's addresses and our table."""
    assert status.postgres_url
    address = urlsplit(status.postgres_url).netloc.removeprefix("helenus@")
    properties = {key: value.replace("postgres:5432", address) for key, value in documented(1).items()}
    return properties | {"topics": f"data-{TABLE}"}


def test_the_worker_is_the_documented_one() -> None:
    worker = connect.configuration(Settings())
    for key, value in documented(0).items():
        assert worker[key] == re.sub("kafka:|registry:", "127.0.0.1:", value)


def test_the_sinks_table_becomes_the_table(pipeline: Pipeline, session: Any, database: Any) -> None:
    writer = Writer(session)
    writer.rows(20, MARKED)
    session.execute(f"TRUNCATE {TABLE}")
    writer.rows(150)
    pipeline.converges(TABLE)
    database.execute(SINK_TABLE)
    put(pipeline.status, "orders", sink(pipeline.status))
    writer.rows(150)
    session.execute(f"ALTER TABLE {TABLE} ADD added text")
    writer.columns["added"] = lambda r: r.choice(LETTERS)
    writer.rows(150)
    restart(pipeline.status, "orders")
    writer.rows(50, MARKED)
    writer.deletes_without_keys(MARKED)
    writer.rows(100)
    pipeline.converges(TABLE)

    scopes = {record.headers.get("scope") for record in pipeline.records(TABLE)}
    assert scopes == {None, b"table", b"partition", b"range"}
    expected, sink_rows = of_cassandra(session), Rows()
    assert len(expected) > 15
    for name in writer.columns:
        assert {row[name] is None for row in expected.values()} == {True, False}, name

    def agree() -> bool:
        nonlocal sink_rows
        check(pipeline.status, "orders")
        sink_rows = of_postgres(database)
        return sink_rows == expected

    try:
        eventually(agree, "PostgreSQL agrees")
    except AssertionError:
        differ = [(key, sink_rows.get(key), expected.get(key)) for key in {*sink_rows, *expected}]
        differ = [(key, ours, theirs) for key, ours, theirs in differ if ours != theirs]
        raise AssertionError(f"{len(differ)} rows, as key, PostgreSQL's, Cassandra's: {differ[:5]}") from None


def test_the_demo_s_table(pipeline: Pipeline, session: Any, database: Any) -> None:
    """It has a user-defined type and a map: the one needs a transform that refuses the other."""
    made = "customer text, order_id integer, PRIMARY KEY (customer, order_id)"
    database.execute("CREATE EXTENSION IF NOT EXISTS hstore")
    database.execute(f"CREATE TABLE flat (total numeric, {made})")
    database.execute(f"CREATE TABLE maps (total numeric, {made})")
    for number, table in ((2, "flat"), (3, "maps")):
        own = {"topics": f"data-{SHOP}", "collection.name.format": table}
        put(pipeline.status, table, sink(pipeline.status) | documented(number) | own)
    statements = [cql for _, chapter in CHAPTERS for cql in chapter]
    for cql in statements:
        if cql != "DELETE FROM shop.orders WHERE customer = 'grace'":  # it names no row
            session.execute(cql)
    pipeline.converges(SHOP)

    expected = {}
    for row in session.execute(f"SELECT * FROM {SHOP}"):
        values = row._asdict() | {"placed": row.placed and row.placed.date()}
        for name in ("tags", "notes"):
            values[name] = values[name] and list(values[name])
        values |= {f"ship_to_{name}": getattr(row.ship_to, name, None) for name in ("street", "city")}
        values["lines"] = row.lines and {key: str(value) for key, value in row.lines.items()}
        expected[row.customer, row.order_id] = values
    assert {row["ship_to_city"] is None for row in expected.values()} == {True, False}
    for table, left_out in (("flat", {"ship_to", "lines"}), ("maps", {"ship_to", "ship_to_street", "ship_to_city"})):
        wanted = {key: {n: v for n, v in row.items() if n not in left_out} for key, row in expected.items()}
        agrees(pipeline.status, database, table, wanted)

    properties = pipeline.connector_properties(SHOP) | {"decimal.handling.mode": "double"}
    settings = ConnectorSettings.from_properties({key: str(value) for key, value in properties.items()}, "test")
    of_shop = next(t for t in read_tables(session, "shop").values() if t.full_name == SHOP)
    registry = Registry(settings, pipeline.directory / "ids")
    with pytest.raises(HelenusError, match=r"was decimal\.handling\.mode changed\?"):
        registry.register(f"data-{SHOP}-value", row_schemas(of_shop.with_forms(settings.forms), settings)[1])
    registry.close()


def test_types_are_those_of_the_page(pipeline: Pipeline, session: Any, database: Any) -> None:
    """Each of CQL's types becomes the column that the page names, and its value and a null are there."""
    database.execute("CREATE EXTENSION IF NOT EXISTS hstore")
    names = [f"v{i}" for i in range(len(KINDS))]
    session.execute(f"INSERT INTO {KIND_TABLE} (k, {', '.join(names)}) VALUES (1, {', '.join(KINDS.values())})")
    session.execute(f"INSERT INTO {KIND_TABLE} (k) VALUES (2)")
    session.execute(f"UPDATE {COUNTER_TABLE} SET v = v + 5 WHERE k = 1")
    session.execute(f"UPDATE {COUNTER_TABLE} SET v = v - 7 WHERE k = 1")
    for table in (KIND_TABLE, COUNTER_TABLE):
        name = table.partition(".")[2]
        database.execute(f"CREATE TABLE {name} (k integer PRIMARY KEY)")
        properties = sink(pipeline.status) | {"topics": f"data-{table}", "collection.name.format": name}
        put(pipeline.status, name, properties)

    def rows_of(name: str) -> Rows:
        check(pipeline.status, name)
        return {(row["k"],): row for row in database.execute(f"SELECT * FROM {name}").fetchall()}

    eventually(lambda: rows_of("counted") == {(1,): {"k": 1, "v": -2}}, lambda: f"counters: {rows_of('counted')}")
    eventually(lambda: len(rows_of("kinds")) == 2, lambda: f"{rows_of('kinds')}\n{pipeline.connector.tail()}")
    described = database.execute(
        "SELECT attrelid::regclass::text AS name, attname, format_type(atttypid, NULL) AS type FROM pg_attribute"
        " WHERE attrelid IN ('kinds'::regclass, 'counted'::regclass) AND attnum > 0 AND attname <> 'k'"
    ).fetchall()
    types = {(column["name"], column["attname"]): column["type"] for column in described}
    shown = {kind: types["kinds", name] for kind, name in zip(KINDS, names, strict=True)}
    shown["counter"] = types["counted", "v"]
    page = documented_types("postgresql")
    assert {kind for kind in page if kind not in shown} == {"tuple<int,text>", "place", "duration"}
    assert shown == {kind: page[kind] for kind in shown}
    rows = rows_of("kinds")
    assert {value for name, value in rows[2,].items() if name != "k"} == {None}
    assert dict(zip(KINDS, (rows[1,][name] for name in names), strict=True)) == {
        "ascii": "a",
        "text": "ü",
        "inet": "::1",
        "uuid": "8f9e0b4c-5a3d-4b5e-9c1d-000000000001",
        "timeuuid": "50554d6e-29bb-11e5-b345-feff819cdc9f",
        "decimal": "-1.50",
        "varint": str(10**20),
        "tinyint": -128,
        "smallint": -32768,
        "int": -(2**31),
        "bigint": -(2**63),
        "time": 45015123456789,
        "float": 0.5,
        "double": 1e300,
        "boolean": True,
        "blob": b"\x00\xff",
        "date": datetime.date(1, 1, 1),
        "timestamp": datetime.datetime(1969, 12, 31, 23, 59, 59, 123000),
        "list<int>": [1, 2],
        "set<int>": [1, 2],
        "vector<float,3>": [1.5, -2.0, 0.25],
        "map<int,text>": '"7"=>"seven"',
    }


def test_debezium_s_envelopes(pipeline: Pipeline, session: Any, database: Any) -> None:
    """In Avro and in JSON with schemas, and as Debezium's own transform takes the row out of them."""
    extract = {
        **documented(1),
        "transforms": "rows,row",
        "transforms.row.type": "io.debezium.transforms.ExtractNewRecordState",
        "transforms.row.delete.tombstone.handling.mode": "tombstone",
    }
    sinks = {
        "as_avro": ("sink.as_avro", {}),
        "as_json": ("sink.as_json", ENVELOPES["sink.as_json"]),
        "extracted": ("sink.as_avro", {key: value for key, value in extract.items() if key.startswith("transforms")}),
    }
    for name, (table, more) in sinks.items():
        database.execute(f"CREATE TABLE {name} (k integer, c integer, PRIMARY KEY (k, c))")
        own = {"topics": f"data-{table}", "collection.name.format": name, **more}
        put(pipeline.status, name.replace("_", "-"), sink(pipeline.status) | own)
    for table in ENVELOPES:
        for cql in (
            "INSERT INTO {} (k, c, t, v, at) VALUES (1, 1, 'one', 9007199254740993, '2026-01-02 03:04:05')",
            "INSERT INTO {} (k, c, t) VALUES (1, 2, 'two')",
            "INSERT INTO {} (k, c, t) VALUES (2, 1, 'gone')",
            "UPDATE {} SET t = 'ünïcode', v = 2 WHERE k = 1 AND c = 2",
            "DELETE FROM {} WHERE k = 2 AND c = 1",
            "DELETE t FROM {} WHERE k = 1 AND c = 1",
            "UPDATE {} SET v = -1 WHERE k = 3 AND c = 3",
        ):
            session.execute(cql.format(table))
    timestamp = datetime.datetime(2026, 1, 2, 3, 4, 5)
    wanted = {
        (1, 1): {"k": 1, "c": 1, "t": None, "v": 9007199254740993, "at": timestamp},
        (1, 2): {"k": 1, "c": 2, "t": "ünïcode", "v": 2, "at": None},
        (3, 3): {"k": 3, "c": 3, "t": None, "v": -1, "at": None},
    }

    def rows_of(name: str) -> Rows:
        check(pipeline.status, name.replace("_", "-"))
        return {(row["k"], row["c"]): row for row in database.execute(f"SELECT * FROM {name}").fetchall()}

    def agree() -> None:
        for name in sinks:
            eventually(
                lambda name=name: rows_of(name) == wanted, lambda name=name: f"{name}: {rows_of(name)}, wanted {wanted}"
            )

    agree()
    for name in sinks:
        restart(pipeline.status, name.replace("_", "-"))
    for table in ENVELOPES:
        session.execute(f"ALTER TABLE {table} ADD note text")
        session.execute(f"UPDATE {table} SET note = 'new', v = 3 WHERE k = 1 AND c = 2")
        session.execute(f"DELETE FROM {table} WHERE k = 3 AND c = 3")
    del wanted[3, 3]
    wanted = {key: {**row, "note": None} for key, row in wanted.items()}
    wanted[1, 2] |= {"v": 3, "note": "new"}
    agree()


def test_rows_that_helenus_flattens(pipeline: Pipeline, session: Any, database: Any) -> None:
    """User-defined types, tuples and durations as columns by the source's own transforms, through all changes, and
    columns and fields that are added meanwhile.
    """
    properties = sink(pipeline.status) | {"topics": f"data-{NESTED}", "collection.name.format": "nested"}
    put(pipeline.status, "nested", properties)
    database.execute("CREATE TABLE nested (k integer, c integer, PRIMARY KEY (k, c))")
    wanted: Rows = {}

    def write(statement: str, key: tuple[int, int], **row: Any) -> None:
        session.execute(statement.format(NESTED))
        if row:
            wanted[key] = {**dict(zip("kc", key, strict=True)), **row}
        else:
            del wanted[key]

    def is_equal(columns: list[str]) -> None:
        expected = {key: {**dict.fromkeys(columns), **row} for key, row in wanted.items()}
        shown: Any = None

        def same() -> bool:
            nonlocal shown
            check(pipeline.status, "nested")
            shown = {(row["k"], row["c"]): row for row in database.execute("SELECT * FROM nested").fetchall()}
            return bool(shown == expected)

        eventually(same, lambda: f"PostgreSQL has {shown}, wanted {expected}\n{pipeline.connector.tail()}")

    home = {"home_x": 1, "home_inner_a": "ü", "home_inner_b": None}
    spot = {"spot_index_0": 3, "spot_index_1": "z"}
    time = {"d_months": 1, "d_days": 2, "d_nanoseconds": 3_000_000}
    write(
        "INSERT INTO {} (k, c, v, home, spot, d) VALUES (1, 1, 'a', {{x: 1, inner: {{a: 'ü'}}}}, (3, 'z'), 1mo2d3ms)",
        (1, 1),
        **{"v": "a", **home, **spot, **time},
    )
    write("INSERT INTO {} (k, c, v) VALUES (1, 2, 'b')", (1, 2), v="b")
    write("INSERT INTO {} (k, c, home) VALUES (2, 1, {{x: 2}})", (2, 1), home_x=2)
    columns = ["k", "c", "v", *home, *spot, *time]
    is_equal(columns)
    write("UPDATE {} SET home = null, v = 'c' WHERE k = 1 AND c = 1", (1, 1), **{"v": "c", **spot, **time})
    write("DELETE FROM {} WHERE k = 1 AND c = 2", (1, 2))
    is_equal(columns)
    session.execute("ALTER TYPE sink.place ADD z bigint")
    session.execute(f"ALTER TABLE {NESTED} ADD note text")
    write("UPDATE {} SET home = {{x: 5, z: 7}}, note = 'n' WHERE k = 2 AND c = 1", (2, 1), home_x=5, home_z=7, note="n")
    write("INSERT INTO {} (k, c, note) VALUES (3, 1, 'new')", (3, 1), note="new")
    write("DELETE FROM {} WHERE k = 1 AND c = 1", (1, 1))
    is_equal([*columns, "home_z", "note"])


@pytest.mark.parametrize("table", [BARE, pytest.param(ENVELOPED, marks=pytest.mark.long)])
def test_a_sink_without_a_filter_for_markers(table: str, pipeline: Pipeline, session: Any, database: Any) -> None:
    """With state: a partition delete, range deletes, TRUNCATE and TTLs reach PostgreSQL as deletes of rows. In
    Debezium's envelope through new and dropped columns and a restart, too.
    """
    is_mirrored(table, pipeline, session, database, with_changes=table == ENVELOPED)


@pytest.mark.long  # the state alone is another
def test_a_sink_of_rows_that_are_kept(pipeline: Pipeline, session: Any, database: Any) -> None:
    with pipeline.connected({MERGED: {"state": "rows", "query.group": "merged", "markers": "false"}}):
        is_mirrored(MERGED, pipeline, session, database)


def is_mirrored(table: str, pipeline: Pipeline, session: Any, database: Any, with_changes: bool = False) -> None:
    name = table.partition(".")[2]
    database.execute(f"CREATE TABLE {name} (k integer, c integer, v text, PRIMARY KEY (k, c))")
    plain = {key: value for key, value in sink(pipeline.status).items() if not key.startswith(("transforms", "pred"))}
    put(pipeline.status, name, plain | {"topics": f"data-{table}", "collection.name.format": name})

    def mirrored(least: int) -> None:
        sink_rows: Any = None

        def same() -> bool:
            nonlocal sink_rows
            check(pipeline.status, name)
            theirs = {(row.k, row.c): row._asdict() for row in session.execute(f"SELECT * FROM {table}")}
            sink_rows = {(row["k"], row["c"]): row for row in database.execute(f"SELECT * FROM {name}").fetchall()}
            return sink_rows == theirs and len(theirs) >= least

        eventually(same, lambda: f"PostgreSQL has {sink_rows}\n{pipeline.connector.tail()}")

    for k in range(4):
        for c in range(6):
            ttl = " USING TTL 4" if c == 5 else ""
            session.execute(f"INSERT INTO {table} (k, c, v) VALUES ({k}, {c}, 'v{k}{c}'){ttl}")
    mirrored(20)
    if with_changes:
        session.execute(f"ALTER TABLE {table} ADD note text")
        session.execute(f"INSERT INTO {table} (k, c, v, note) VALUES (0, 0, 'new', 'ü')")
        mirrored(20)
        restart(pipeline.status, name)
    for cql in ("WHERE k = 1", "WHERE k = 2 AND c > 1 AND c <= 3", "WHERE k = 3 AND c >= 4"):
        session.execute(f"DELETE FROM {table} {cql}")
    session.execute(f"INSERT INTO {table} (k, c, v) VALUES (1, 2, 'again')")
    mirrored(12)
    session.execute(f"TRUNCATE {table}")
    session.execute(f"INSERT INTO {table} (k, c, v) VALUES (7, 7, 'after')")
    mirrored(1)
    if not with_changes:
        return
    session.execute(f"ALTER TABLE {table} DROP v")  # the column stays, null in rows that change
    session.execute(f"INSERT INTO {table} (k, c, note) VALUES (8, 8, 'later')")

    def values_of_column() -> dict[Any, Any]:
        check(pipeline.status, name)
        return {row["k"]: row["v"] for row in database.execute(f"SELECT k, v FROM {name}").fetchall()}

    eventually(lambda: values_of_column() == {7: "after", 8: None}, lambda: str(values_of_column()))


def agrees(status: Status, database: Any, table: str, wanted: Rows) -> None:
    """Wait until a table of PostgreSQL has these rows, its hstore as a dictionary."""

    def sink_rows() -> Rows:
        check(status, table)
        rows = database.execute(f"SELECT * FROM {table}").fetchall()
        for row in rows:
            if row.get("lines"):
                row["lines"] = dict(re.findall(r'"(\w+)"=>"(\w+)"', row["lines"]))
        return {(row["customer"], row["order_id"]): row for row in rows}

    eventually(lambda: sink_rows() == wanted, lambda: f"{table} agrees: {sink_rows()}, wanted {wanted}")


class Writer:
    """Random statements, each of which names one row of a few, in the partitions from `first` on."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.random = random.Random(1)
        self.columns: dict[str, Callable[[random.Random], Any]] = {
            "t": lambda r: r.choice(LETTERS),
            "i": lambda r: r.randint(-(2**31), 2**31 - 1),
            "l": lambda r: r.choice([-(2**63), 2**63 - 1, r.getrandbits(60)]),
            "f": lambda r: r.choice([-1.5e300, 5e-324, float("inf"), r.random()]),
            "b": lambda r: r.random() < 0.5,
            "de": lambda r: Decimal(
                (r.getrandbits(1), (1, *r.choices(range(10), k=r.randrange(40))), r.randint(-5, 30))
            ),
            "vi": lambda r: r.randint(-(2**100), 2**100),
            "ts": lambda r: EPOCH + r.randint(-(2**43), 2**43) * MILLISECOND,
            "da": lambda r: EPOCH.date() + datetime.timedelta(days=r.randint(-(2**17), 2**17)),
            "u": lambda r: uuid.UUID(int=r.getrandbits(128), version=4),
        }

    def rows(self, statements: int, first: int = 0) -> None:
        for _ in range(statements):
            self.write_statement(first)

    def write_statement(self, first: int) -> None:
        r = self.random
        key = [
            first + r.randrange(2),
            r.choice("ab"),
            r.choice([-(2**40), 0, 1]),
            EPOCH.replace(year=r.choice([1950, 2026])),
        ]
        names = r.sample(sorted(self.columns), r.randint(1, len(self.columns)))
        values = [None if r.random() < 0.2 else self.columns[name](r) for name in names]
        where = " AND ".join(f"{name} = %s" for name in KEY)
        match r.choices(["insert", "update", "columns", "row"], [50, 25, 10, 15])[0]:
            case "insert":
                marks = ", ".join(["%s"] * (len(KEY) + len(names)))
                self.session.execute(f"INSERT INTO {TABLE} ({', '.join(KEY + names)}) VALUES ({marks})", key + values)
            case "update":
                changes = ", ".join(f"{name} = %s" for name in names)
                self.session.execute(f"UPDATE {TABLE} SET {changes} WHERE {where}", values + key)
            case "columns":
                self.session.execute(f"DELETE {', '.join(names)} FROM {TABLE} WHERE {where}", key)
            case "row":
                self.session.execute(f"DELETE FROM {TABLE} WHERE {where}", key)

    def deletes_without_keys(self, first: int) -> None:
        for where in ("c = 0", "c >= 0", "c > -5 AND c <= 1", "c = 1 AND d > '1970-01-01'"):
            self.session.execute(f"DELETE FROM {TABLE} WHERE p = {first} AND q = 'a' AND {where}")
        self.session.execute(f"DELETE FROM {TABLE} WHERE p = {first} AND q = 'b'")


def of_cassandra(session: Any) -> Rows:
    """The rows of the partitions that a plain sink can follow, by key."""
    rows = [row._asdict() for row in session.execute(f"SELECT * FROM {TABLE}") if row.p < MARKED]
    for row in rows:
        row["da"] = row["da"] and row["da"].date()
        # Not by value: 1.50 is not 1.5. But PostgreSQL has no zeros before the point that are none: 15E+2 is 1500.
        row["de"] = row["de"] and Decimal(f"{row['de']:f}").as_tuple()
        # The driver goes through a float and may be off by a microsecond.
        row["ts"] = row["ts"] and EPOCH + round((row["ts"] - EPOCH) / MILLISECOND) * MILLISECOND
    return {tuple(row[name] for name in KEY): row for row in rows}


def of_postgres(database: Any) -> Rows:
    """The same rows as the sink wrote them."""
    rows = database.execute("SELECT * FROM orders WHERE p < %s", (MARKED,)).fetchall()
    for row in rows:
        row["de"] = row["de"] and row["de"].as_tuple()
    return {tuple(row[name] for name in KEY): row for row in rows}


def put(status: Status, name: str, properties: dict[str, str]) -> None:
    """Give the worker a connector."""
    body, headers = json.dumps(properties).encode(), {"Content-Type": "application/json"}
    url = f"{status.connect_url}/connectors/{name}/config"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers, method="PUT"), timeout=60) as answer:
        assert answer.status == 201


def restart(status: Status, name: str) -> None:
    """Restart a connector and its tasks, which go on at the offsets that the sink has committed."""
    url = f"{status.connect_url}/connectors/{name}/restart?includeTasks=true&onlyFailed=false"
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=60) as answer:
        assert answer.status == 202


def check(status: Status, name: str) -> None:
    """Fail with the worker's own trace if a task has failed."""
    try:
        with urllib.request.urlopen(f"{status.connect_url}/connectors/{name}/status", timeout=10) as answer:
            state = json.load(answer)
    except urllib.error.HTTPError as error:  # the worker is assigning its tasks again
        error.close()
        return
    for part in (state["connector"], *state["tasks"]):
        if part["state"] == "FAILED":
            pytest.fail(part["trace"])
