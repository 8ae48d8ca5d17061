"""The MD5 cache: shared between processes, bounded by entries and age."""

import uuid
from pathlib import Path

import pytest

from helenus_connector.cache import PUBLISHED, SETTLED, ChangeCache, Entry, change_id

NODES = [str(uuid.UUID(int=i)).encode() for i in range(1, 80)]
DIGEST = b"0123456789abcdef0123456789abcdef"


@pytest.fixture
def cache(tmp_path: Path) -> ChangeCache:
    return ChangeCache(tmp_path / "c", 1024, 60)


def test_a_change_is_known_by_key_scope_and_digest() -> None:
    ids = {change_id(k, s, d) for k in (b"a", b"b") for s in (b"\0", b"\2") for d in (DIGEST, DIGEST[::-1])}
    assert len(ids) == 8


def test_nodes_are_counted_not_copies(cache: ChangeCache) -> None:
    change = change_id(b"k", b"\0", DIGEST)
    for node in (NODES[0], NODES[1], NODES[0]):
        cache.report(change, entry := cache.look(change), node)
    assert cache.nodes(entry) == {NODES[0].decode(), NODES[1].decode()}


def test_flags_are_seen_by_another_process_of_the_host(tmp_path: Path, cache: ChangeCache) -> None:
    change = change_id(b"k", b"\0", DIGEST)
    cache.report(change, cache.look(change), NODES[0])
    cache.mark(change, PUBLISHED)
    cache.save()
    cache.mark(change, SETTLED)
    cache.save()
    other = ChangeCache(tmp_path / "c", 1024, 60)
    assert other.look(change) == Entry(nodes=1, flags=PUBLISHED | SETTLED)


def test_nothing_is_known_of_an_unreported_change(cache: ChangeCache) -> None:
    assert cache.look(change_id(b"k", b"\0", DIGEST)) == Entry()


def test_it_forgets_with_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000_000.0
    monkeypatch.setattr("helenus_connector.cache.time.time", lambda: now)
    cache = ChangeCache(tmp_path / "c", 1024, 60)
    change = change_id(b"k", b"\0", DIGEST)
    cache.report(change, cache.look(change), NODES[0])
    cache.mark(change, SETTLED)
    cache.save()
    now += 61
    assert cache.look(change) == Entry()


def test_it_is_bounded_and_forgets_the_oldest_of_a_set(tmp_path: Path) -> None:
    cache = ChangeCache(tmp_path / "c", 8, 60)
    size = (tmp_path / "c").stat().st_size
    ids = [change_id(str(i).encode(), b"\0", DIGEST) for i in range(100)]
    for change in ids:
        cache.report(change, cache.look(change), NODES[0])
    cache.save()
    assert sum(cache.look(change).nodes for change in ids) == 8
    assert (tmp_path / "c").stat().st_size == size


def test_a_node_too_many_is_not_counted(cache: ChangeCache) -> None:
    change = change_id(b"k", b"\0", DIGEST)
    for node in NODES:
        cache.report(change, entry := cache.look(change), node)
    assert len(cache.nodes(entry)) == 64


def test_a_node_that_is_no_uuid_is_not_counted(cache: ChangeCache) -> None:
    change = change_id(b"k", b"\0", DIGEST)
    cache.report(change, entry := cache.look(change), b"node-1")
    assert entry == Entry()


def test_what_a_batch_that_failed_said_is_forgotten(cache: ChangeCache) -> None:
    change = change_id(b"k", b"\0", DIGEST)
    cache.report(change, cache.look(change), NODES[0])
    cache.mark(change, PUBLISHED)
    cache.begin()
    cache.save()
    assert cache.look(change) == Entry()
