"""Which keys are read by one statement."""

from __future__ import annotations

import uuid
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.cassandra_rows._key_groups import Grouping, Span
from helenus_connector.cassandra_rows._requests import refuses_groups
from helenus_connector.testing.cassandra import MemorySession
from helenus_schemas.codec.key import Key
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse


def made(keys: list[Key], partition: int, columns: int, size: int = 4) -> list[tuple[Span, list[Key]]]:
    grouping = Grouping(partition, columns, 4, lambda key: key[0] == b"a")
    return list(grouping.groups(dict.fromkeys(keys), lambda: size))


@st.composite
def tables(draw: st.DrawFn) -> tuple[int, int, list[Key]]:
    partition, clustering = draw(st.integers(1, 3)), draw(st.integers(0, 2))
    value = st.sampled_from([b"a", b"b", b"c", b""])
    key = st.tuples(*[value] * (partition + clustering))
    return partition, partition + clustering, draw(st.lists(key, max_size=30))


@given(tables(), st.integers(1, 5))
def test_each_key_is_in_one_group_and_agrees_but_in_its_span(table: tuple[int, int, list[Key]], size: int) -> None:
    partition, columns, keys = table
    groups = made(keys, partition, columns, size)
    assert sorted(key for _, members in groups for key in members) == sorted(set(keys))
    for span, members in groups:
        assert len(members) <= size
        assert len({key[: span.start] + key[span.end :] for key in members}) == 1
        assert len({key[0] == b"a" for key in members}) == 1  # of one home
        # CQL takes IN over one column of a partition key, and over all clustering columns.
        assert (span.start, span.end) == (partition, columns) or span.end - span.start == 1 <= partition - span.start


def test_a_single_partition_key_is_grouped_by_home() -> None:
    groups = made([(b"a",), (b"b",), (b"c",)], 1, 1)
    assert groups == [(Span(0, 1), [(b"a",)]), (Span(0, 1), [(b"b",), (b"c",)])]


def test_a_composite_key_differs_where_it_differs_most() -> None:
    tenants = [(b"a", b"%d" % n) for n in range(8)]
    assert [(span, len(keys)) for span, keys in made(tenants, 2, 2)] == [(Span(1, 2), 4)] * 2
    days = [(b"a%d" % n, b"monday") for n in range(8)]
    assert [(span, len(keys)) for span, keys in made(days, 2, 2)] == [(Span(0, 1), 4)] * 2


def test_rows_of_shared_partitions_are_read_by_partition() -> None:
    rows = [(b"%d" % p, b"%d" % c) for p in range(4) for c in range(4)]
    assert {span for span, _ in made(rows, 1, 2)} == {Span(1, 2)}


def test_rows_share_a_statement_that_differ_in_the_partition_key_alone() -> None:
    rows = [(b"%d" % p, b"now") for p in range(8)]
    assert [(span, len(keys)) for span, keys in made(rows, 1, 2)] == [(Span(0, 1), 4)] * 2


def test_large_rows_are_read_in_smaller_groups() -> None:
    """Also those that were held when it turned out."""
    sizes = [6]
    rows = [(b"%d" % p, b"%d" % c) for p in range(3) for c in range(5)] + [(b"hot", b"%d" % c) for c in range(6)]
    group_reads = []
    for _, keys in Grouping(1, 2, 8, lambda _: None).groups(rows, lambda: sizes[-1]):
        group_reads.append(keys)
        sizes.append(2)
    assert [len(keys) for keys in group_reads] == [6, *[2, 2, 1] * 3]
    assert sorted(key for keys in group_reads for key in keys) == sorted(rows)


def test_the_cheapest_grouping_counts_what_a_statement_can_read() -> None:
    """Until rows were seen they are read one by one, and one batch has one way."""
    tenants = [(b"%d" % (n % 2), b"%d" % n) for n in range(100)]
    sizes = iter([1, 1, 1, *[50] * 200])
    groups = list(Grouping(2, 2, 50, lambda _: None).groups(tenants, lambda: next(sizes)))
    assert {span for span, _ in groups} == {Span(1, 2)}
    assert len(groups) < 10


def test_a_grouping_by_replicas_counts_its_replicas() -> None:
    """Forty sensors, five times each: by sensor they are forty statements, by time many more on many nodes."""
    rows = [(b"sensor %d" % n, b"%d" % time) for n in range(40) for time in range(5)]
    groups = list(Grouping(1, 2, 100, lambda key: key).groups(rows, lambda: 100))
    assert [span for span, _ in groups] == [Span(1, 2)] * 40


@pytest.mark.parametrize(
    ("releases", "kind", "refused"),
    [
        (["3.11.19", "4.1.10"], "list<int>", True),
        (["4.0.19", "5.0.9"], "list<int>", False),
        (["3.11.19"], "frozen<list<int>>", False),
        ([None], "list<int>", False),
    ],
)
def test_cassandra_3_takes_no_group_of_rows_with_collections(
    releases: list[str | None], kind: str, refused: bool
) -> None:
    keys = [Column("k", parse("int"), "partition_key", 0), Column("c", parse("int"), "clustering", 0)]
    table = Table("ks", "t", uuid.uuid1(), (*keys, Column("v", parse(kind))))
    hosts = [SimpleNamespace(release_version=release) for release in releases]
    assert refuses_groups(MemorySession(hosts), table) == refused
    assert not refuses_groups(MemorySession(hosts), replace(table, columns=(keys[0], table.columns[2])))
