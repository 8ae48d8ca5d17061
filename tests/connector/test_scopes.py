"""How many statements and rows it takes to read what markers, deletes and truncations leave: counted, never timed."""

from __future__ import annotations

import re
import struct
import time
import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra import ConsistencyLevel, InvalidRequest, ReadTimeout

from helenus_connector.cassandra_rows import _image_projection as asking
from helenus_connector.cassandra_rows import row_reader as reread
from helenus_connector.cassandra_rows.raw_rows import RowPage
from helenus_connector.cassandra_rows.row_reader import KeyRefused, RowReader, UnreadReason
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.image import Image
from helenus_connector.testing.cassandra import Answer, Host, MemorySession
from helenus_schemas.codec.key import Key
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.errors import HelenusError
from helenus_schemas.event import placement
from helenus_schemas.event.change import Bound, Scope

ONE = ConsistencyLevel.LOCAL_ONE
SETTINGS = ConnectorSettings.from_properties(
    {"name": "n", "keyspace": "ks", "table": "t", "output.format": "json"}, "test"
)
K, C = Column("k", parse("bigint"), "partition_key", 0), Column("c", parse("int"), "clustering", 0)
S, V = Column("s", parse("int"), "static"), Column("v", parse("blob"))
TTLS = {"v": struct.pack(">i", 1000), "s": struct.pack(">i", 700)}
_IN = re.compile(r'"?k"? (?:= \?|IN \(([^)]*)\))')


def table(*columns: Column) -> Table:
    return Table("ks", "t", uuid.uuid1(), columns)


def key(number: int, *clustering: int) -> Key:
    return (struct.pack(">q", number), *(struct.pack(">i", c) for c in clustering))


class Partitions(MemorySession):
    """A table whose rows are `live`: clustering keys by partition, whose number is its token. `answered` rows."""

    def __init__(self, definition: Table, live: dict[int, list[int]], size: int = 10) -> None:
        super().__init__([Host(1)])
        self.of, self.live, self.size = definition, live, size
        self.statics: dict[int, int] = {}
        self.fails: Callable[[list[int], bytes | None], Exception | None] = lambda partitions, state: None
        self.refuses: Callable[[str], Exception | None] = lambda cql: None
        self.tokens = sorted(live)
        self.answered = 0
        self.largest = 0
        self.under_way = self.most_under_way = 0

    def prepare(self, cql: str) -> Any:
        if error := self.refuses(cql):
            raise error
        return super().prepare(cql)

    def execute_async(self, bound: Any, paging_state: bytes | None = None, host: object = None) -> Any:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        request = super().execute_async(bound, paging_state, host)

        def result() -> Any:
            self.under_way -= 1
            page = request.result()
            self.answered += len(page.current_rows)
            self.largest = max(self.largest, page.current_rows.size)
            return page

        return SimpleNamespace(result=result, coordinator_host=None)

    def answer(self, cql: str, values: list[Any], paging_state: bytes | None, page_size: int | None) -> Answer:
        partitions = self._partitions(cql, values)
        if error := self.fails(partitions, paging_state) or self.refuses(cql):
            raise error
        start = int.from_bytes(paging_state or b"", "big")
        if "IN" not in cql and not self.of.clustering:  # a row each: those of a page alone are made
            count = len(partitions)
            end = start + (page_size or count)
            rows = self._rows(cql, partitions[start:end], values)
        else:
            rows = self._rows(cql, partitions, values)
            count = len(rows)
            end = start + (page_size or count)
            rows = rows[start:end]
        page = RowPage(rows)
        page.size = sum(sum(len(v or b"") for v in row) for row in page) + 4
        return page, end.to_bytes(8, "big") if end < count else None

    def _partitions(self, cql: str, values: list[bytes]) -> list[int]:
        if "token(" in cql or "WHERE" not in cql:
            low = number(values.pop(0)) if ">=" in cql else -(2**63)
            high = number(values.pop(0)) if "<" in cql else 2**63
            return self.tokens[bisect_left(self.tokens, low) : bisect_left(self.tokens, high)]
        in_clause = _IN.search(cql.split("WHERE")[1])
        count = in_clause[1].count("?") if in_clause and in_clause[1] else 1
        partitions_asked = dict.fromkeys(number(value) for value in values[:count])
        del values[:count]
        return sorted(partitions_asked)

    def _rows(self, cql: str, partitions: Iterable[int], values: list[bytes]) -> list[tuple[bytes | None, ...]]:
        rows: list[tuple[bytes | None, ...]] = []
        timed = re.findall(r'WRITETIME\("?(\w+)"?\)', cql)
        for p in partitions:
            static = [struct.pack(">i", self.statics[p]) if p in self.statics else None] if self.of.statics else []
            lives = {"s": p in self.statics}
            ttls = [TTLS[c] if lives.get(c, True) else None for c in re.findall(r'\bTTL\("?(\w+)"?\)', cql)]
            times = [struct.pack(">q", 9 if c == "s" else 5) if c != "s" or p in self.statics else None for c in timed]
            clustering_rows = self.live.get(p, [])
            if "DISTINCT" in cql:
                rows += [(*key(p), *static, *times, *ttls)] if clustering_rows or p in self.statics else []
                continue
            if values:
                clustering_rows = [c for c in clustering_rows if struct.pack(">i", c) == values[0]]
            value = bytes(self.size)
            width = len(self.of.clustering)
            rows += [(*key(p, *[c] * width), value, *static, *times, *ttls) for c in clustering_rows]
            if not clustering_rows and not values and p in self.statics:
                rows.append(
                    (
                        *key(p),
                        *[None] * width,
                        None,
                        *static,
                        *[t if c == "s" else None for c, t in zip(timed, times, strict=True)],
                        *[ttl if ttl == TTLS["s"] else None for ttl in ttls],
                    )
                )
        return rows


def number(value: bytes) -> int:
    return int.from_bytes(value, "big", signed=True)


@pytest.fixture(autouse=True)
def tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reread, "Murmur3Token", SimpleNamespace(hash_fn=number))


FLAT, WIDE, SHARED = table(K, V), table(K, C, V), table(K, C, V, S)


def read(session: Partitions, keys: list[Key], reader: RowReader | None = None) -> tuple[int, int]:
    """Rows that were found, and statements."""
    reader = reader or RowReader(session, session.of, SETTINGS)
    before = reader.statements
    answers = list(reader.read_rows(dict.fromkeys(keys), ONE))
    assert sorted(k for k, _ in answers) == sorted(keys)
    return sum(image is not None for _, image in answers), reader.statements - before


def test_deleted_rows_take_about_as_few_statements_as_live_ones() -> None:
    keys = [key(n) for n in range(4000)]
    live, statements = read(Partitions(FLAT, {n: [0] for n in range(4000)}), keys)
    gone, as_many = read(Partitions(FLAT, {}), keys)
    assert (live, gone) == (4000, 0)
    assert as_many <= 1.2 * statements < 100


def test_deletes_without_end() -> None:
    session = Partitions(FLAT, {})
    reader = RowReader(session, FLAT, SETTINGS)
    for n in range(1200):
        read(session, [key(n)], reader)
    assert read(session, [key(n) for n in range(1000)], reader) == (0, 10)


def test_large_rows_after_many_deleted_ones_are_not_answered_at_once() -> None:
    """How many lived says nothing of how large they are."""
    session = Partitions(FLAT, {n: [0] for n in range(4000, 4100)}, size=1 << 20)
    reader = RowReader(session, FLAT, SETTINGS)
    assert read(session, [key(n) for n in range(4000)], reader)[0] == 0
    assert read(session, [key(n) for n in range(3950, 4100)], reader)[0] == 100
    assert session.largest <= 9 << 20


def seconds_left(image: Image) -> int | None:
    return None if image.expires is None else round((image.expires - time.time()) / 100) * 100


def scoped(
    session: Partitions, scope_reads: list[tuple[Scope, Key, Any]], reader: RowReader | None = None
) -> dict[int, Any]:
    """By place: the statics' bytes, if any, and the clustering keys of the rows; or why there are none."""
    reader = reader or RowReader(session, session.of, SETTINGS)
    answers_by_index: dict[int, Any] = {}
    for index, answer in reader.read_scopes(scope_reads, ONE):
        assert index not in answers_by_index
        if isinstance(answer, (KeyRefused, UnreadReason)):
            answers_by_index[index] = answer
            continue
        statics, rows = answer
        static = None if statics is None or statics.values[-1] is None else number(statics.values[-1])
        if static is not None and statics is not None:
            assert statics.oldest_write_time() == 9, "their own time"
            assert seconds_left(statics) == (700 if reader.asks_ttl else None), "and their own TTL"
        try:
            images = list(rows)
            assert {image.oldest_write_time() for _, image in images} <= {5}
            assert all(seconds_left(image) == (1000 if reader.asks_ttl else None) for _, image in images)
            answers_by_index[index] = static, [number(k[1] or b"") for k, _ in images]
        except HelenusError as error:
            answers_by_index[index] = error
    return answers_by_index


@pytest.mark.parametrize("asks_ttl", [True, False])
def test_many_partition_deletes_are_few_statements(asks_ttl: bool) -> None:
    session = Partitions(SHARED, {7: [1, 2], 9: [3]})
    session.statics = {7: 70, 8: 80}
    reader = RowReader(session, SHARED, SETTINGS)
    reader.asks_ttl = asks_ttl
    answers_by_index = scoped(session, [(Scope.PARTITION, (*key(n), None), None) for n in range(10_000)], reader)
    assert {index: static for index, static in answers_by_index.items() if static != (None, [])} == {
        7: (70, [1, 2]),
        8: (80, []),
        9: (None, [3]),
    }
    assert len(answers_by_index) == 10_000
    assert reader.statements <= 110
    assert session.most_under_way > 1


@pytest.mark.parametrize("asks_ttl", [True, False])
def test_many_static_columns_are_few_statements(asks_ttl: bool) -> None:
    session = Partitions(SHARED, {7: [1, 2]})
    session.statics = {7: 70, 8: 80}
    reader = RowReader(session, SHARED, SETTINGS)
    reader.asks_ttl = asks_ttl
    answers_by_index = scoped(session, [(Scope.STATIC, (*key(n), None), None) for n in range(1000)], reader)
    assert {index: static for index, (static, _) in answers_by_index.items() if static} == {7: 70, 8: 80}
    assert reader.statements <= 12


def test_static_columns_of_a_table_without_any_are_not_read() -> None:
    """They were dropped since."""
    session = Partitions(WIDE, {7: [1, 2]})
    assert scoped(session, [(Scope.STATIC, (*key(7), None), None)]) == {0: (None, [])}
    assert session.most_under_way == 0


@pytest.mark.parametrize(("definition", "asks_ttl"), [(WIDE, False), (SHARED, False), (SHARED, True)])
def test_many_range_deletes_are_read_many_at_once(definition: Table, asks_ttl: bool) -> None:
    session = Partitions(definition, {n: [1, 2] for n in range(0, 1000, 2)})
    session.statics = {5: 50} if definition.statics else {}
    reader = RowReader(session, definition, SETTINGS)
    reader.asks_ttl = asks_ttl
    bounds = (Bound(True, (struct.pack(">i", 2),)),) * 2
    answers_by_index = scoped(session, [(Scope.RANGE, (*key(n), None), bounds) for n in range(1000)], reader)
    assert list(answers_by_index) == list(range(1000))
    assert all(answers_by_index[n] == (None, [2] if n % 2 == 0 else []) for n in range(1000) if n != 5)
    assert answers_by_index[5] == (50 if definition.statics else None, [])
    assert reader.statements == 1000 * (1 + len(definition.statics))
    assert session.most_under_way == SETTINGS.query_concurrency


def test_a_partition_of_many_pages_is_read_as_it_is_asked_for() -> None:
    session = Partitions(WIDE, {1: list(range(1000)), 2: [7], 3: list(range(600))}, size=100_000)
    reader = RowReader(session, WIDE, SETTINGS)
    answers = reader.read_scopes([(Scope.PARTITION, (*key(n), None), None) for n in (3, 1, 2)], ONE)
    counts = {}
    for index, (_, rows) in answers:  # type: ignore[misc]
        first = next(rows)
        pages_answered = session.answered
        assert pages_answered < 100 or counts, "no more than some pages are there"
        counts[index] = 1 + sum(1 for _ in rows)
        assert first[0][0] == key((3, 1, 2)[index])[0]
    assert counts == {0: 600, 1: 1000, 2: 1}
    assert session.largest < 9 << 20


@pytest.mark.parametrize("fails_at", [0, 1])
def test_partitions_of_a_statement_that_fails_are_not_gone(fails_at: int) -> None:
    """Neither at its first page, nor after a row that was returned."""
    session = Partitions(WIDE, {n: [1, 2] for n in range(4)})
    slow = ReadTimeout("as the server says it", consistency=6, required_responses=2, received_responses=1)
    session.fails = lambda partitions, state: slow if 2 in partitions and (state is not None) == fails_at else None
    answers_by_index = scoped(session, [(Scope.PARTITION, (*key(n), None), None) for n in range(4)])
    assert not any(static == (None, []) for static in answers_by_index.values())
    assert isinstance(answers_by_index[2], (UnreadReason, HelenusError))
    if not fails_at:
        assert [answers_by_index[n] for n in (0, 1, 3)] == [(None, [1, 2])] * 3


def scan(session: Partitions, parts: int) -> tuple[int, int]:
    """Statements, and rows that were answered, of all topic partitions."""
    reader = RowReader(session, session.of, SETTINGS)
    reader._row_bytes = 10.0
    tokens: list[int] = []
    for partition in range(parts):
        mine = [number(k[0] or b"") for k, _ in reader.read_topic_partition(partition, parts, ONE)]
        assert mine == sorted(mine)
        assert all(placement.partition(token, parts) == partition for token in mine)
        tokens += mine
    assert sorted(tokens) == session.tokens
    return reader.statements, session.answered


def stripes(count: int, rows: int) -> Partitions:
    """So many stripes of the ring that have so many rows each."""
    width = (1 << 16) // count
    return Partitions(FLAT, {((s * width - (1 << 15)) << 48) + n: [0] for s in range(count) for n in range(rows)})


def test_reading_a_truncated_table_costs_by_the_rows_left() -> None:
    """An empty table a statement for each topic partition; a full one about its rows, not that for each partition."""
    assert scan(stripes(1, 0), 12) == (12, 0)
    statements, rows = scan(stripes(4096, 1), 12)
    assert statements == 12 * 9, "few rows are read through"
    assert rows <= 12 * 4096
    session = Partitions(FLAT, {((s - 32) << 48) + n: [0] for s in range(64) for n in range(1000)})
    statements, rows = scan(session, 8)
    assert rows < 1.3 * 64 * 1000
    assert statements < 64 * 1000 / 500 * 2


@pytest.mark.parametrize("first", [0, 1, 32_765, 32_768, 65_535])
def test_a_scan_goes_on_from_a_stripe(first: int) -> None:
    session = stripes(1 << 12, 1)
    reader = RowReader(session, FLAT, SETTINGS)
    stripes_read = [reread.stripe_of(k) for k, _ in reader.read_topic_partition(3, 5, ONE, first)]
    assert stripes_read == [s for s in range(0, 1 << 16, 16) if s % 5 == 3 and s >= first]


@pytest.mark.parametrize("while_prepared", [True, False])
def test_a_cluster_of_two_versions_is_read_without_what_one_does_not_know(
    monkeypatch: pytest.MonkeyPatch, while_prepared: bool
) -> None:
    """MAXWRITETIME came with 5.0: while a cluster is upgraded, half of the nodes refuse it."""
    definition = table(K, V, Column("m", parse("list<int>")))
    session = Partitions(definition, {n: [0] for n in range(500)})
    reader = RowReader(session, definition, SETTINGS)
    assert reader.shows_all_times
    prepared_counter = iter(range(10**6))
    unknown = InvalidRequest("Unknown function 'maxwritetime'")
    session.refuses = lambda cql: (
        unknown if "MAXWRITETIME" in cql and next(prepared_counter) % 2 == while_prepared else None
    )
    reader.is_current = True
    live, statements = read(session, [key(n) for n in range(500)], reader)
    assert (live, reader.shows_all_times, statements < 60) == (500, False, True)
    assert len(list(reader.read_range(key(1), (None, None), ONE))) == 1
    now = asking.time.monotonic()
    monkeypatch.setattr(asking.time, "monotonic", lambda: now + 601)
    session.refuses = lambda cql: None
    assert read(session, [key(n) for n in range(500)], reader)[0] == 500
    assert reader.shows_all_times, "all are upgraded"
