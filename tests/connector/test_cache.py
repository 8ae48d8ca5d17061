"""The MD5 cache: shared between processes, bounded by entries and age."""

import uuid
from pathlib import Path

import pytest

from helenus_connector.cache import PUBLISHED, SETTLED, ChangeCache, Entry, change_id

NODES = [str(uuid.UUID(int=i)) for i in range(1, 80)]
DIGEST = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def cache(tmp_path: Path) -> ChangeCache:
    return ChangeCache(tmp_path / "c", 1024, 60)


def test_a_change_is_known_by_key_scope_and_digest() -> None:
    ids = {change_id(k, s, d) for k in (b"a", b"b") for s in (0, 1) for d in (DIGEST, DIGEST[::-1])}
    assert len(ids) == 8


def test_nodes_are_counted_not_copies(cache: ChangeCache) -> None:
    change = change_id(b"k", 0, DIGEST)
    for node in (NODES[0], NODES[1], NODES[0]):
        entry = cache.report(change, node)
    assert cache.nodes(entry) == {NODES[0], NODES[1]}


def test_flags_are_seen_by_another_process_of_the_host(tmp_path: Path, cache: ChangeCache) -> None:
    change = change_id(b"k", 0, DIGEST)
    cache.report(change, NODES[0])
    cache.mark(change, PUBLISHED)
    cache.mark(change, SETTLED)
    other = ChangeCache(tmp_path / "c", 1024, 60)
    assert other.look(change) == Entry(nodes=1, flags=PUBLISHED | SETTLED)


def test_nothing_is_known_of_an_unreported_change(cache: ChangeCache) -> None:
    assert cache.look(change_id(b"k", 0, DIGEST)) == Entry()


def test_it_forgets_with_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000_000.0
    monkeypatch.setattr("helenus_connector.cache.time.time", lambda: now)
    cache = ChangeCache(tmp_path / "c", 1024, 60)
    change = change_id(b"k", 0, DIGEST)
    cache.report(change, NODES[0])
    cache.mark(change, SETTLED)
    now += 61
    assert cache.look(change) == Entry()


def test_it_is_bounded_and_forgets_the_oldest_of_a_set(tmp_path: Path) -> None:
    cache = ChangeCache(tmp_path / "c", 8, 60)
    size = (tmp_path / "c").stat().st_size
    ids = [change_id(str(i).encode(), 0, DIGEST) for i in range(100)]
    for change in ids:
        cache.report(change, NODES[0])
    assert sum(cache.look(change).nodes for change in ids) == 8
    assert (tmp_path / "c").stat().st_size == size


def test_a_node_too_many_is_not_counted(cache: ChangeCache) -> None:
    change = change_id(b"k", 0, DIGEST)
    for node in NODES:
        entry = cache.report(change, node)
    assert len(cache.nodes(entry)) == 64


def test_a_node_that_is_no_uuid_is_not_counted(cache: ChangeCache) -> None:
    assert cache.report(change_id(b"k", 0, DIGEST), "node-1") == Entry()
