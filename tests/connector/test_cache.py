"""The MD5 cache: shared between processes, bounded by entries and age."""

import errno
import os
import random
import tempfile
import uuid
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from helenus_connector.config import run_directory as directory
from helenus_connector.gate import _cache_file
from helenus_connector.gate.cache import CONFIRMED, PUBLISHED, CacheEntry, ChangeCache, change_id, prune

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
        cache.report(change, entry := cache.look(change), cache.reporter(node).bit)
    assert cache.nodes(entry) == [{NODES[0].decode()}, {NODES[1].decode()}]


def test_flags_are_seen_by_another_process_of_the_host(tmp_path: Path, cache: ChangeCache) -> None:
    change = change_id(b"k", b"\0", DIGEST)
    cache.report(change, cache.look(change), cache.reporter(NODES[0]).bit)
    cache.mark([change], PUBLISHED)
    cache.save()
    cache.mark([change], CONFIRMED)
    cache.save()
    other = ChangeCache(tmp_path / "c", 1024, 60)
    assert other.look(change) == CacheEntry(nodes=1, flags=PUBLISHED | CONFIRMED)


def test_nothing_is_known_of_an_unreported_change(cache: ChangeCache) -> None:
    assert cache.look(change_id(b"k", b"\0", DIGEST)) == CacheEntry()


def test_changes_are_forgotten_with_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000_000.0
    monkeypatch.setattr("helenus_connector.gate.cache.time.time", lambda: now)
    cache = ChangeCache(tmp_path / "c", 1024, 60)
    change = change_id(b"k", b"\0", DIGEST)
    cache.report(change, cache.look(change), cache.reporter(NODES[0]).bit)
    cache.mark([change], CONFIRMED)
    cache.save()
    now += 61
    assert cache.look(change) == CacheEntry()


def test_the_cache_is_bounded_and_forgets_the_oldest_of_a_set(tmp_path: Path) -> None:
    cache = ChangeCache(tmp_path / "c", 8, 60)
    size = (tmp_path / "c").stat().st_size
    ids = [change_id(str(i).encode(), b"\0", DIGEST) for i in range(100)]
    for change in ids:
        cache.report(change, cache.look(change), cache.reporter(NODES[0]).bit)
    cache.save()
    assert sum(cache.look(change).nodes for change in ids) == 8
    assert (tmp_path / "c").stat().st_size == size


def test_nodes_share_bits_where_there_are_many(tmp_path: Path) -> None:
    """Replaced nodes leave their places, and clusters are large: each report counts, two of one bit as one."""
    nodes = [str(uuid.UUID(int=n + 1)) for n in range(1024)]
    change, cache = change_id(b"k", b"\0", DIGEST), ChangeCache(tmp_path / "c", 1024, 60)
    for node in nodes:
        assert cache.reporter(node.encode()).bit
    for node in nodes[900:902]:
        cache.report(change, entry := cache.look(change), cache.reporter(node.encode()).bit)
    cache.save()
    reopened = ChangeCache(tmp_path / "c", 1024, 60)
    assert [nodes[900 + n] in group for n, group in enumerate(reopened.nodes(reopened.look(change)))] == [True, True]
    assert [len(group) for group in reopened.nodes(entry)] == [16, 16]
    assert cache.reporter(str(uuid.uuid4()).encode()).bit == 0, "there is no more room"


def test_a_batch_reads_the_nodes_alone_that_report_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of a few events has few of a large cluster's nodes, and each table has a cache for each partition."""
    nodes = [str(uuid.UUID(int=n + 1)).encode() for n in range(256)]
    cache = ChangeCache(tmp_path / "c", 1024, 60)
    for node in nodes:
        cache.reporter(node).note(5, 7)
    cache.save()
    read: list[bytes] = []
    read_reporter = ChangeCache._read
    monkeypatch.setattr(
        ChangeCache, "_read", lambda self, reporter: read.append(reporter.name) or read_reporter(self, reporter)
    )
    cache.begin()
    reporter = cache.reporter(nodes[200])
    assert [reporter.is_new(5, position) for position in (7, 8)] == [False, True]
    assert read == [nodes[200]]
    cache.save()
    assert read == [nodes[200]]


def test_nodes_that_another_process_met_are_named(tmp_path: Path) -> None:
    cache, other = (ChangeCache(tmp_path / "c", 1024, 60) for _ in range(2))
    first, second = (str(uuid.UUID(int=n + 1)) for n in range(2))
    cache.report(b"1" * 16, entry := cache.look(b"1" * 16), cache.reporter(first.encode()).bit)
    assert cache.nodes(entry) == [{first}]
    cache.save()
    other.report(b"1" * 16, other.look(b"1" * 16), other.reporter(second.encode()).bit)
    other.save()
    cache.begin()
    assert cache.nodes(cache.look(b"1" * 16)) == [{first}, {second}]


def test_a_position_in_a_nodes_log_is_new_once(tmp_path: Path, cache: ChangeCache) -> None:
    reporter = cache.reporter(NODES[0])
    assert reporter.is_new(9, 50)
    reporter.note(9, 50)
    assert reporter.is_new(9, 50), "until it is saved"
    cache.save()
    assert not reporter.is_new(9, 50)
    other = ChangeCache(tmp_path / "c", 1024, 60)
    log_reporter = other.reporter(NODES[0])
    assert [log_reporter.is_new(*position) for position in ((9, 50), (8, 99), (9, 51), (10, 0))] == [
        False,
        False,
        True,
        True,
    ]
    assert other.reporter(NODES[1]).is_new(0, 0)
    assert not other.reporter(b"no node").is_new(9, 99)
    reporter.note(9, 40)
    cache.save()
    assert not reporter.is_new(9, 50), "what is sent again lies before"
    for position in (60, 55):
        reporter.note(9, position)
    cache.save()
    assert not reporter.is_new(9, 58), "nor does the place in what is sent again, in one batch with it, count"
    reporter.note(10, 1)
    cache.begin()
    cache.save()
    reporter = cache.reporter(NODES[0])
    assert reporter.is_new(10, 1), "a batch that is done again says it once more"
    reporter.note(10, 1)
    cache.save()
    other.begin()
    assert not other.reporter(NODES[0]).is_new(10, 1), "another process may have had the partition since"


def test_the_newest_deletion_of_a_key_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000_000.0
    monkeypatch.setattr("helenus_connector.gate.cache.time.time", lambda: now)
    cache = ChangeCache(tmp_path / "c", 1024, 60)
    assert not cache.has_deletions
    cache.delete(0, b"k", -5, 32)
    cache.delete(0, b"k", -9, 64)
    cache.begin()
    assert cache.deletion(0, b"k") is None, "the batch failed"
    cache.delete(0, b"k", -5, 32)
    cache.save()
    other = ChangeCache(tmp_path / "c", 1024, 60)
    assert (other.has_deletions, other.deletes(0), other.deletes(2)) == (True, True, False)
    assert other.deletion(0, b"k") == (-5, 32)
    assert other.deletion(0, b"other") is other.deletion(2, b"k") is None
    now += 61
    assert other.deletion(0, b"k") is None
    other.delete(2, b"k", 7, 32)
    other.clear()
    assert not other.has_deletions


def test_a_node_that_is_no_uuid_is_not_counted(cache: ChangeCache) -> None:
    change = change_id(b"k", b"\0", DIGEST)
    cache.report(change, entry := cache.look(change), cache.reporter(b"node-1").bit)
    assert entry == CacheEntry()


def test_marks_of_a_failed_batch_are_forgotten(cache: ChangeCache) -> None:
    change = change_id(b"k", b"\0", DIGEST)
    cache.report(change, cache.look(change), cache.reporter(NODES[0]).bit)
    cache.mark([change], PUBLISHED)
    cache.begin()
    cache.save()
    assert cache.look(change) == CacheEntry()


def test_a_cache_within_its_capacity_forgets_hardly_any_change(tmp_path: Path) -> None:
    """Each that it forgets may be published twice, also exactly once."""
    chance, forgotten, count = random.Random(1), 0, 0
    for n in range(4):
        cache, all_changes = ChangeCache(tmp_path / f"{n}.cache", 1_000_000, 600.0), list[bytes]()
        while len(all_changes) < 20_000:
            cache.begin()
            new = [chance.randbytes(16) for _ in range(chance.choice([20, 300, 1500]))]
            for change in new:
                cache.report(change, cache.look(change), 1)
            cache.mark(new, PUBLISHED)
            cache.save()
            all_changes += new
        cache.begin()
        forgotten += sum(not cache.look(change).flags for change in all_changes)
        count += len(all_changes)
        cache.close()
    assert forgotten <= 2, f"{forgotten} of {count}"


def test_a_cache_grows_with_recent_changes_and_allocates_its_room_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To store where the file system has no more would end the process, by SIGBUS."""
    now = 1_000_000.0
    monkeypatch.setattr("helenus_connector.gate.cache.time.time", lambda: now)
    cache, other, sizes = ChangeCache(tmp_path / "c", 131_072, 60), ChangeCache(tmp_path / "c", 131_072, 60), []
    names = [change_id(str(n).encode(), b"\0", DIGEST) for n in range(100_000)]
    cache.delete(0, b"k", 7, 32)

    def report(changes_reported: list[bytes]) -> None:
        cache.begin()
        for name in changes_reported:
            cache.report(name, cache.look(name), cache.reporter(NODES[0]).bit)
            cache.mark([name], CONFIRMED)
        cache.save()
        status = (tmp_path / "c").stat()
        assert status.st_blocks * 512 >= status.st_size
        sizes.append(status.st_size)

    for first in range(100):  # few in flight, however many come in an hour
        now += 10
        report(names[first * 100 : first * 100 + 100])
    assert max(sizes) < 300_000
    for first in (0, 100, 1_000, 10_000):
        report(names[first : first * 10 or 100])
        other.begin()
        entries = [other.look(name) for name in names[: first * 10 or 100]]
        known_entries = sum(entry == CacheEntry(nodes=1, flags=CONFIRMED) for entry in entries)
        assert known_entries > 0.999 * len(entries) if first < 10_000 else 0.9 * len(entries)
        assert other.deletion(0, b"k") == ((7, 32) if now < 1_000_060 else None)
    assert 131_072 * 32 < sizes[-1] < 131_072 * 33
    cache.begin()
    report(names[:100])
    assert sizes[-1] == sizes[-2]


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 400), st.integers(0, 2000)), min_size=1, max_size=30))
def test_what_a_growing_cache_knows_is_what_was_said(batches: list[tuple[int, int, int]]) -> None:
    """By one process or the other, in turns, as Spark has it. A name whose set was full is forgotten, which is rare."""
    with TemporaryDirectory() as folder:
        both = [ChangeCache(Path(folder) / "c", 16_384, 60) for _ in range(2)]
        nodes_by_change: dict[bytes, int] = {}
        forgotten = 0
        for which, count, first in batches:
            cache = both[which]
            cache.begin()
            for n in range(first, first + count):
                name = change_id(str(n).encode(), b"\0", DIGEST)
                entry = cache.look(name)
                if not entry.nodes:
                    forgotten += name in nodes_by_change
                    nodes_by_change[name] = 0
                assert entry.nodes == nodes_by_change[name]
                cache.report(name, entry, 1 << which)
                nodes_by_change[name] |= 1 << which
            cache.save()
        assert forgotten <= 1 + len(nodes_by_change) // 100


def test_killed_while_it_grows_a_cache_has_only_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [change_id(str(n).encode(), b"\0", DIGEST) for n in range(2_000)]
    cache = ChangeCache(tmp_path / "c", 131_072, 60)

    def report(cache: ChangeCache, changes_reported: list[bytes], node: bytes) -> None:
        cache.begin()
        for name in changes_reported:
            cache.report(name, cache.look(name), cache.reporter(node).bit)
        cache.save()

    class Killed(Exception):
        pass

    def killed(name: bytes) -> int:
        raise Killed if name == names[100] else AssertionError

    report(cache, names[:200], NODES[0])
    before = (tmp_path / "c").stat().st_size
    places = cache.oldest
    with monkeypatch.context() as patch:
        patch.setattr(ChangeCache, "oldest", lambda self, name: killed(name) if name == names[100] else places(name))
        with pytest.raises(Killed):
            report(cache, names[:400], NODES[1])
    assert (tmp_path / "c").stat().st_size > before
    other = ChangeCache(tmp_path / "c", 131_072, 60)
    assert {other.look(name).nodes for name in names} == {0, 1}
    report(other, names, NODES[1])
    assert {other.look(name).nodes for name in names} == {2, 3}


def no_more(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's directory, where caches have no room, and another temporary one."""
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "disk"))
    monkeypatch.setattr(directory, "_locks", {})
    run = directory.use(tmp_path / "memory" / "helenus-run-1")
    (run / "default").mkdir()
    there = _cache_file._fill

    def fill(file: int, size: int) -> None:
        (no_more if Path(f"/proc/self/fd/{file}").readlink().is_relative_to(run) else there)(file, size)

    monkeypatch.setattr(_cache_file, "_fill", fill)
    return run


def test_without_room_in_memory_the_cache_is_on_disk_and_still_shared(run: Path) -> None:
    change = change_id(b"k", b"\0", DIGEST)
    with capture_logs() as logs:
        cache = ChangeCache(run / "default" / "c", 1024, 60)
        ChangeCache(run / "default" / "d", 1024, 60)
    assert [entry["event"] for entry in logs] == ["cache.on_disk"], "once"
    cache.report(change, cache.look(change), cache.reporter(NODES[0]).bit)
    cache.save()
    assert ChangeCache(run / "default" / "c", 1024, 60).look(change).nodes == 1
    moved = Path(tempfile.gettempdir()) / run.name
    assert (run / "default" / "c").resolve() == moved / "default" / "c"
    assert directory.use(moved).stat().st_mode & 0o077 == 0
    directory.remove(run)
    assert not run.exists()
    assert not moved.exists()


def test_without_room_to_grow_the_cache_moves_to_disk_with_its_entries(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, there = run / "default" / "c", _cache_file._fill
    monkeypatch.setattr(_cache_file, "_fill", lambda file, size: (there if size > 70_000 else os.ftruncate)(file, size))
    cache, other = ChangeCache(path, 131_072, 60), ChangeCache(path, 131_072, 60)
    names = [change_id(str(n).encode(), b"\0", DIGEST) for n in range(2_000)]
    for half in (names[:100], names[100:]):
        cache.begin()
        for name in half:
            cache.report(name, cache.look(name), cache.reporter(NODES[0]).bit)
        assert not path.is_symlink()
        with capture_logs() as logs:
            cache.save()
    assert [entry["event"] for entry in logs] == ["cache.on_disk"]
    assert path.is_symlink()
    other.begin()
    assert {other.look(name).nodes for name in names} == {1}
    directory.remove(run)


def test_some_room_is_left_to_plans(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file_system = os.statvfs(run)
    monkeypatch.setattr(directory, "_SPARE_BYTES", file_system.f_bavail * file_system.f_frsize * 2)
    monkeypatch.setattr(_cache_file, "_fill", os.ftruncate)
    with pytest.raises(OSError, match="No space left"):
        ChangeCache(run / "default" / "c", 1024, 60)


def test_a_run_begins_on_disk_where_memory_has_no_room(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "_MEMORY", run.parent)
    made = directory.make()
    assert made.parent == run.parent
    directory.remove(made)
    abandoned_run = run.parent / f"{run.name}-left"
    abandoned_run.mkdir()
    (abandoned_run / "lock").touch()
    monkeypatch.setattr(directory, "has_room", lambda *_: not abandoned_run.exists())
    assert directory.make().parent == run.parent, "what a killed run left is removed before"
    monkeypatch.setattr(directory, "has_room", lambda *_: False)
    assert directory.make().parent == Path(tempfile.gettempdir())
    assert run.exists(), "it is in use"


@pytest.mark.parametrize("without", [errno.EOPNOTSUPP, None])
def test_without_fallocate_room_is_taken_as_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: int | None
) -> None:
    def fallocate(*_: object) -> None:
        raise OSError(without, "Operation not supported")

    if without is None:
        monkeypatch.delattr(os, "posix_fallocate")
    else:
        monkeypatch.setattr(os, "posix_fallocate", fallocate)
    cache = ChangeCache(tmp_path / "c", 1024, 60)
    assert cache.reporter(NODES[0]).bit == 1


def test_caches_of_tables_that_are_gone_are_removed(tmp_path: Path) -> None:
    """And those of before an operator moved a table; also where they lie on disk."""
    on_disk = tmp_path / "disk"
    on_disk.write_bytes(b"")
    for epoch, name in ((0, "events-ks.t-0"), (0, "events-ks.t-11"), (1, "events-ks.u-0"), (2, "events-ks.u-0")):
        (tmp_path / "default" / str(epoch)).mkdir(parents=True, exist_ok=True)
        (tmp_path / "default" / str(epoch) / f"{name}.cache").write_bytes(b"")
    (tmp_path / "default" / "0" / "events-ks.gone-0.cache").symlink_to(on_disk)
    (tmp_path / "default" / "0" / "schemas").mkdir()
    (tmp_path / "default" / "0" / "schemas" / "data-ks.t-key.json").write_text("{}")
    prune(tmp_path / "default", {"events-ks.t": 0, "events-ks.u": 2})
    remaining_files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*"))
    assert remaining_files == [
        *("default/0/events-ks.t-0.cache", "default/0/events-ks.t-11.cache"),
        *("default/0/schemas/data-ks.t-key.json", "default/2/events-ks.u-0.cache"),
    ]
    assert not on_disk.exists()
