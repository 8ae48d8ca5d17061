"""Keys of all shapes are read in few statements, and each gets its own row."""

from __future__ import annotations

import json
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from cassandra import ConsistencyLevel
from cassandra.concurrent import execute_concurrent_with_args
from integration.staged import Staged

from helenus_connector.cassandra_rows import row_reader as reread
from helenus_schemas.event.change import Scope
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

GROUP = 16
SHAPES = {
    "one_column": ("a int PRIMARY KEY", [(n,) for n in range(64)], 4),
    "tenants": ("a int, b text, PRIMARY KEY ((a, b))", [(n % 2, f"user {n}") for n in range(64)], 4),
    "days": ("a text, b int, PRIMARY KEY ((a, b))", [(f"sensor {n}", n % 2) for n in range(64)], 4),
    "three_columns": ("a int, b int, c int, PRIMARY KEY ((a, b, c))", [(1, n, n % 4) for n in range(64)], 4),
    "partitions": ("a int, b int, c text, PRIMARY KEY (a, b, c)", [(n % 2, n, f"{n}") for n in range(64)], 4),
    "a_row_each": ("a int, b text, PRIMARY KEY (a, b)", [(n, "now") for n in range(64)], 4),
    "a_row_each_of_two": ("a int, b int, c int, PRIMARY KEY ((a, b), c)", [(n, 7, n % 2) for n in range(64)], 4),
    "nothing_shared": ("a int, b int, PRIMARY KEY ((a, b))", [(n, n) for n in range(64)], 64),
}
"""Columns of the key, keys, and statements that read them."""


@pytest.mark.parametrize("shape", SHAPES)
def test_each_key_gets_its_row(status: Status, session: Any, tmp_path: Path, shape: str) -> None:
    columns, keys, statements = SHAPES[shape]
    session.execute(
        "CREATE KEYSPACE IF NOT EXISTS groups WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    key, _, key_clause = columns.partition(", PRIMARY")
    with_value = f"{key}, v text, PRIMARY{key_clause}" if key_clause else f"{key}, v text"
    session.execute(f"CREATE TABLE groups.{shape} ({with_value}) WITH cdc = true")
    names = ["a", "b", "c"][: len(keys[0])]
    stage = Staged(status, tmp_path / "cache", f"groups.{shape}", query_group_size=GROUP)
    try:
        insert = session.prepare(
            f"INSERT INTO groups.{shape} ({', '.join(names)}, v) VALUES ({'?, ' * len(names)}?) USING TIMESTAMP 1"
        )
        there = keys[::2] + keys[1::4]  # of a quarter there is no row
        for values in there:
            session.execute(insert, (*values, f"of {values}"))
        encoded = [[v.encode() if isinstance(v, str) else v.to_bytes(4, "big") for v in values] for values in keys]
        for _ in range(10):  # rows are taken for large ones until some were seen
            stage.run([stage.event(*encoded[0])])
        outcome = stage.run([stage.event(*key) for key in encoded])
        assert outcome.statements == statements
        values_by_key = {
            tuple(json.loads(r.key())[name] for name in names): r.value() and json.loads(r.value())["v"]
            for r in stage.records()
        }
        assert values_by_key == {values: f"of {values}" if values in there else None for values in keys}
    finally:
        stage.close()


@pytest.mark.parametrize("within", [(), (7,)])
def test_partitions_whose_keys_compare_equal(
    status: Status, session: Any, tmp_path: Path, within: tuple[int, ...]
) -> None:
    """1.0 and 1.00 are two partitions, and one of them is what Cassandra reads where both are in one IN."""
    session.execute(
        "CREATE KEYSPACE IF NOT EXISTS groups WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    table = f"groups.equal_{len(within)}"
    before = "b, " * len(within)
    session.execute(f"CREATE TABLE {table} (b int, a decimal, v text, PRIMARY KEY (({before}a))) WITH cdc = true")
    stage = Staged(status, tmp_path / "cache", table, query_group_size=GROUP)
    try:
        insert = session.prepare(f"INSERT INTO {table} ({before}a, v) VALUES ({'?, ' * len(within)}?, ?)")
        numbers = [(n * 10**zeros, zeros) for n in range(1, 9) for zeros in range(3)]
        for unscaled, scale in numbers:
            session.execute(insert, (*within, Decimal(unscaled).scaleb(-scale), f"{unscaled} by {scale}"))
        keys = [
            [
                *(b.to_bytes(4, "big") for b in within),
                scale.to_bytes(4, "big") + unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big"),
            ]
            for unscaled, scale in numbers
        ]
        for _ in range(10):
            stage.run([stage.event(*keys[0])])
        outcome = stage.run([stage.event(*key) for key in keys])
        published = {r.key(): r.value() and json.loads(r.value())["v"] for r in stage.records()}
        assert sorted(map(str, published.values())) == sorted(f"{unscaled} by {scale}" for unscaled, scale in numbers)
        assert outcome.statements == 3
    finally:
        stage.close()


SCOPES = {
    "alone": ("a int, c int, s int STATIC, v text, PRIMARY KEY (a, c)", 1),
    "paired": ("a int, b int, c int, s int STATIC, v text, PRIMARY KEY ((a, b), c)", 2),
    "plain": ("a int, c int, v text, PRIMARY KEY (a, c)", 1),
}


@pytest.mark.parametrize("shape", SCOPES)
def test_markers_of_many_partitions(status: Status, session: Any, tmp_path: Path, shape: str) -> None:
    """Each is followed by the rows of its scope that live; partitions are read by groups, ranges side by side."""
    columns, width = SCOPES[shape]
    session.execute(
        "CREATE KEYSPACE IF NOT EXISTS groups WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    session.execute(f"CREATE TABLE groups.{shape} ({columns}) WITH cdc = true")
    stage = Staged(status, tmp_path / "cache", f"groups.{shape}", query_group_size=GROUP)
    try:
        has_static = "STATIC" in columns
        pk = "a, b"[: 3 * width - 2]
        live: dict[int, list[int]] = {}
        for n in range(64):
            value = f"{n}, 7" if width == 2 else f"{n}"
            live[n] = list(range(n % 4)) if n % 8 else list(range(1200 if n == 8 else 0))
            for c in live[n]:
                session.execute_async(f"INSERT INTO groups.{shape} ({pk}, c, v) VALUES ({value}, {c}, 'v')").result()
            if has_static and n % 3 == 0:
                session.execute(f"INSERT INTO groups.{shape} ({pk}, s) VALUES ({value}, {n})")

        def key(n: int) -> list[bytes | None]:
            return [part.to_bytes(4, "big") for part in (n, 7)[:width]] + [None]

        def published(before: int) -> dict[int, list[tuple[int | None, Any]]]:
            rows_by_partition: dict[int, list[tuple[int | None, Any]]] = {}
            for record in stage.records()[before:]:
                name, value = json.loads(record.key()), json.loads(record.value() or b"null")
                rows_by_partition.setdefault(name["a"], []).append((name["c"], value and (value["v"], value.get("s"))))
            return rows_by_partition

        def statics(n: int) -> Any:
            return n if has_static and n % 3 == 0 else None

        outcome = stage.run([stage.event(*key(n), scope=Scope.PARTITION) for n in range(64)])
        assert outcome.published == 64
        assert outcome.statements <= 32, "groups, and the pages of a partition of 1,200 rows"
        of_partitions = published(0)
        for n in range(64):
            is_there = has_static and (live[n] or statics(n) is not None)
            marker = (None, (None, statics(n)) if is_there else None)
            assert of_partitions[n] == [marker, *((c, ("v", statics(n))) for c in live[n])], n
        before = len(stage.records())
        if not has_static:
            return
        outcome = stage.run([stage.event(*key(n), scope=Scope.STATIC) for n in range(64)])
        assert outcome.published == 64
        assert {n: len(records) for n, records in published(before).items()} == dict.fromkeys(range(64), 1)
    finally:
        stage.close()


@pytest.mark.parametrize("skip", [-1, 10**9])
def test_the_rows_of_a_topic_partition(
    status: Status, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skip: int
) -> None:
    """By the stripes of the ring that it has, or by reading through: the same rows, each once, in the ring's order."""
    session.execute(
        "CREATE KEYSPACE IF NOT EXISTS groups WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    session.execute("CREATE TABLE IF NOT EXISTS groups.ring (a int, b text, PRIMARY KEY ((a, b))) WITH cdc = true")
    insert = session.prepare("INSERT INTO groups.ring (a, b) VALUES (?, ?)")
    execute_concurrent_with_args(session, insert, [(n, f"{n}") for n in range(2000)])
    keys = [(n.to_bytes(4, "big"), f"{n}".encode()) for n in range(2000)]
    stage = Staged(status, tmp_path / "cache", "groups.ring")
    monkeypatch.setattr(reread, "_MAX_SKIPPED_ROWS", skip)
    try:
        stage.run([])
        reader = stage.stage._resolver.reader
        for parts in (1, 8192):
            for partition in {reread.stripe_of(key) % parts for key in keys[:10]}:
                mine = sorted(key for key in keys if reread.stripe_of(key) % parts == partition)
                keys_read = [key for key, _ in reader.read_topic_partition(partition, parts, ConsistencyLevel.ONE)]
                assert sorted(keys_read) == mine
                stripes = [reread.stripe_of(key) for key in keys_read]
                assert stripes == sorted(stripes)
                last = stripes[-1]
                keys_from_last = [
                    key for key, _ in reader.read_topic_partition(partition, parts, ConsistencyLevel.ONE, last)
                ]
                assert keys_from_last == [key for key in keys_read if reread.stripe_of(key) >= last]
    finally:
        stage.close()


ODD_NAMES = {
    # What these have in common: their names in hexadecimal are decimal digits, or not of ASCII, or digits themselves.
    "digits": ("named", "test", "data"),
    "letters": ("named", "user", "straße"),
    "numbered": ("12345", "address", "user"),
}


@pytest.mark.parametrize("names", ODD_NAMES)
def test_vectors_of_a_user_type_with_names_that_look_like_types(
    status: Status, session: Any, tmp_path: Path, names: str
) -> None:
    """As a column and in the key."""
    space, udt, field = ODD_NAMES[names]
    session.execute(
        f'CREATE KEYSPACE IF NOT EXISTS "{space}" WITH replication = '
        "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    session.execute(f'CREATE TYPE "{space}"."{udt}" ("{field}" int, other text)')
    vector_type = f'vector<frozen<"{udt}">, 2>'
    session.execute(
        f'CREATE TABLE "{space}".{names} (k int, c {vector_type}, v {vector_type}, PRIMARY KEY (k, c)) WITH cdc = true'
    )
    session.execute(f'CREATE TABLE "{space}".beside_{names} (k int PRIMARY KEY, v int) WITH cdc = true')
    value = f"{{\"{field}\": 7, other: 'x'}}"
    session.execute(f'INSERT INTO "{space}".{names} (k, c, v) VALUES (1, [{value}, {value}], [{value}, {value}])')
    session.execute(f'INSERT INTO "{space}".beside_{names} (k, v) VALUES (1, 5)')
    element = struct.pack(">ii", 4, 7) + struct.pack(">i", 1) + b"x"
    vector = 2 * (bytes([len(element)]) + element)
    staged = Staged(status, tmp_path / "cache", f"{space}.{names}")
    beside = Staged(status, tmp_path / "beside", f"{space}.beside_{names}")
    try:
        single_key = bytes((0, 0, 0, 1))
        staged.run([staged.event(single_key, vector)])
        beside.run([beside.event(single_key)])
        (record,) = staged.records()
        shown = {field: 7, "other": "x"}
        assert json.loads(record.value())["v"] == [shown, shown]
        assert json.loads(record.key()) == {"k": 1, "c": [shown, shown]}
        (record,) = beside.records()
        assert json.loads(record.value()) == {"v": 5}
    finally:
        staged.close()
        beside.close()
