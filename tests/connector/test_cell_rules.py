"""Cassandra's rules between two cells of one column, which its versions do not share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from agent.writer import Cell as WrittenCell
from agent.writer import Row, Update
from connector.celled import OTHER
from connector.test_state_index import DictStore
from connector.test_state_rows import CODEC, NOW, TABLE, i
from connector.test_state_truncations import US, logged

from helenus_connector.interfaces.merged_change import ReadRequest
from helenus_connector.state.rows._cell_rules import wins
from helenus_connector.state.rows._merge import TopicPartitionMerger
from helenus_connector.state.rows._topic_partition_history import TopicPartitionHistory
from helenus_schemas.event.cells import Cell
from helenus_schemas.service.cassandra import is_cassandra_3


def live(value: bytes, ttl: int | None = None, written_at: int = 100) -> Cell:
    """A cell of write time 5."""
    return Cell("v", 5, value, None, ttl, None if ttl is None else written_at + ttl)


def tombstone(deleted_at: int) -> Cell:
    return Cell("v", 5, None, deleted_at=deleted_at)


@pytest.mark.parametrize(
    ("a", "b", "winner", "winner_on_3"),
    [
        (live(b"a"), live("é".encode()), "b", "a"),
        (live(b"\x7f"), live(b"\x80"), "b", "a"),
        (live(i(1)), live(i(-1)), "b", "a"),
        (live(b"x\x00"), live(b"x\xff"), "b", "a"),
        (live(b"\xfe"), live(b"\xff"), "b", "b"),
        (live(b"x"), live(b"x\xff"), "b", "b"),  # a prefix is less, whatever follows
        (live(b"\xff"), live(b"\xff\x00"), "b", "b"),
        (live(b""), live(b"\x80"), "b", "b"),
        (live(b"a", ttl=1000), live(b"b"), "a", "b"),
        (live(b"a"), live(b"b", ttl=1000), "b", "b"),
        (live(b"a", ttl=1000), live(b"a"), "a", "b"),
        (live(b"a", ttl=1000), live(b"b", ttl=500), "a", "b"),
        (live(b"a", ttl=1000), live(b"a", ttl=500), "a", "a"),
        (live(b"b", ttl=1000), live(b"a", ttl=999, written_at=101), "b", "a"),  # both expire at once
        (tombstone(100), live(b"\x7f"), "a", "a"),
        (tombstone(100), live(b"\x7f", ttl=1000), "a", "a"),
        (tombstone(100), live(b""), "a", "a"),
        (tombstone(100), tombstone(101), "b", "b"),
    ],
)
def test_which_of_two_cells_of_one_write_time_wins(a: Cell, b: Cell, winner: str, winner_on_3: str) -> None:
    """As nodes of 3.11.19 and 4.0.19 answered, asked in both orders."""
    for is_3, name in ((False, winner), (True, winner_on_3)):
        assert wins(a, b, is_3) == (name == "a")
        assert wins(b, a, is_3) == (name == "b")
        assert not wins(a, a, is_3)
        newer = a._replace(write_time=6)
        assert wins(newer, b, is_3)
        assert not wins(b, newer, is_3)


@pytest.mark.parametrize(
    ("appended_at", "is_cassandra_3", "asks"),
    [(NOW + 9, True, False), (NOW + 10, True, True), (NOW + 10, False, False), (NOW + 1000, True, False)],
)
@pytest.mark.parametrize("is_expiring_first", [True, False])
def test_a_tie_that_expiry_decides_on_cassandra_3_is_read(
    appended_at: int, is_cassandra_3: bool, asks: bool, is_expiring_first: bool
) -> None:
    """Which cell wins there depends on whether one had expired when nodes merged them, if the other had not."""
    store = DictStore()
    store.put_many({b"m": TopicPartitionHistory(TABLE.id.bytes).dumps()})

    def expiring(value: int, ttl: int) -> Update:
        cell = WrittenCell(i(value), NOW * US, (ttl, NOW + ttl))
        return Update(TABLE, i(1), [Row((i(1),), {"v": cell}, NOW * US)])

    def merge(events: list[Any], now: int) -> list[Any]:
        merger = TopicPartitionMerger(TABLE, CODEC, store, 0, is_cassandra_3=is_cassandra_3)
        return list(merger.take(events, now))

    first, second = (expiring(2, 10), expiring(1, 1000)) if is_expiring_first else (expiring(1, 1000), expiring(2, 10))
    merge(logged(first, 100), NOW)
    changes = merge(logged(second, 200, appended_at=appended_at), appended_at)
    assert any(isinstance(change, ReadRequest) for change in changes) == asks
    copies = merge(logged(first, 100, OTHER, appended_at=NOW), appended_at)
    assert not any(isinstance(change, ReadRequest) for change in copies)


@pytest.mark.parametrize(
    ("releases", "expected"),
    [
        (["3.11.19", "3.0.29"], True),
        (["3.11.19", None], True),
        (["3.11.19", "4.0.19"], False),
        (["5.0.9"], False),
        ([None], False),
        ([], False),
    ],
)
def test_a_cluster_in_an_upgrade_is_no_longer_of_cassandra_3(releases: list[str | None], expected: bool) -> None:
    hosts = [SimpleNamespace(release_version=release) for release in releases]
    session = SimpleNamespace(cluster=SimpleNamespace(metadata=SimpleNamespace(all_hosts=lambda: hosts)))
    assert is_cassandra_3(session) == expected
