"""How unconfirmed keys wait."""

import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from helenus_connector.control.positions import HeldPositions
from helenus_connector.unconfirmed.files import begins
from helenus_connector.unconfirmed.keys import UnconfirmedKeys
from helenus_connector.unconfirmed.unconfirmed_key import AWAY, PublishedKeys, UnconfirmedKey
from helenus_connector.unconfirmed.unproven_changes import UnprovenChange, pack_changes, unpack_changes
from helenus_schemas.errors import HelenusError
from helenus_schemas.event.change import Bound, Scope
from helenus_schemas.service import durable


def unconfirmed(
    key: bytes, change: bytes = b"c", copies: int = 0, attempts: int = 0, image: bytes | None = None
) -> UnconfirmedKey:
    return UnconfirmedKey(
        "t", 0, key, 0, pack_changes({change.ljust(16): UnprovenChange(None, 0.0)}), image, copies, attempts
    )


def test_keys_wait_their_time_and_longer_each_time() -> None:
    keys = UnconfirmedKeys({"t": 2.0}, {"t": 30.0}, Path("/nowhere"))
    keys.apply([], [unconfirmed(b"a")], now=100.0)
    assert keys.next_due() == 102.0
    assert keys.select_due(101.9, 9) == []
    assert [p.key for p in keys.select_due(102.0, 9)] == [b"a"]
    keys.apply([], [unconfirmed(b"a", attempts=1)], now=102.0)
    assert keys.next_due() == 106.0
    keys.apply([], [unconfirmed(b"a", attempts=30)], now=106.0)
    assert keys.next_due() == 166.0


def test_a_key_that_waits_for_days(tmp_path: Path) -> None:
    keys = UnconfirmedKeys({"t": 2.0}, {"t": 30.0}, tmp_path / "unconfirmed")
    keys.apply([], [unconfirmed(b"c", attempts=2000)], now=100.0)
    assert keys.next_due() == 160.0


def test_a_clock_that_is_put_back_makes_no_key_wait(tmp_path: Path) -> None:
    keys = UnconfirmedKeys({"t": 2.0}, {"t": 30.0}, tmp_path / "unconfirmed")
    keys.apply([], [unconfirmed(b"c")], now=10_000.0)
    assert keys.select_due(10_000.0, 10) == []
    assert [p.key for p in keys.select_due(5_000.0, 10)] == [b"c"]
    assert keys.next_due() == 5_002.0


def test_a_resolved_key_is_forgotten() -> None:
    keys = UnconfirmedKeys({"t": 2.0}, {"t": 30.0}, Path("/nowhere"))
    keys.apply([], [unconfirmed(b"a")], now=100.0)
    keys.apply(keys.select_due(102.0, 9), [], now=102.0)
    assert (len(keys), keys.next_due()) == (0, None)


def test_later_changes_and_copies_of_a_waiting_key_share_its_read() -> None:
    keys = UnconfirmedKeys({"t": 2.0}, {"t": 30.0}, Path("/nowhere"))
    keys.apply([], [unconfirmed(b"a", b"c1", image=b"old")], now=100.0)
    keys.apply([], [unconfirmed(b"a", b"c1", copies=2), unconfirmed(b"a", b"c2", copies=1, image=b"new")], now=101.0)
    (waiting_key,) = keys.select_due(102.0, 9)
    assert {change.strip() for change in unpack_changes(waiting_key.awaited)} == {b"c1", b"c2"}
    assert (waiting_key.copies, waiting_key.image) == (3, b"new")
    assert keys.counts("t") == (1, 3)


def test_keys_that_wait_longer_than_a_restart_steps_back_are_saved(tmp_path: Path) -> None:
    file = tmp_path / "unconfirmed"
    keys = UnconfirmedKeys({"t": 2.0, "gone": 2.0}, {"t": 30.0, "gone": 30.0}, file)
    keys.apply([], [UnconfirmedKey("t", 1, b"old", 3, copies=4, attempts=5, since=100.0)], now=150.0)
    keys.apply(
        [], [UnconfirmedKey("t", 1, b"new", 0, since=149.0), UnconfirmedKey("gone", 0, b"k", 0, since=1.0)], now=150.0
    )
    keys.save(150.0, ["t"])
    later = UnconfirmedKeys({"t": 2.0}, {"t": 30.0}, file)
    later.load(200.0)
    (waiting_key,) = later.select_due(202.0, 9)
    assert (waiting_key.name, waiting_key.scope, waiting_key.copies, waiting_key.image) == (
        ("t", 1, b"old", None),
        3,
        0,
        None,
    )
    assert [a.seen for a in unpack_changes(waiting_key.awaited).values()] == [200.0], "its proof begins again"
    later.apply([waiting_key], [], 203.0)
    later.save(230.0, ["t"])
    restarted = UnconfirmedKeys({"t": 2.0}, {"t": 30.0}, file)
    restarted.load(231.0)
    assert restarted.select_due(999.0, 9) == []
    restarted.use({"gone": 2.0}, {"gone": 30.0})
    assert [p.topic for p in restarted.select_due(999.0, 9)] == ["gone"], "kept for a connector that pauses"


def test_what_no_event_brings_again_is_saved_at_once(tmp_path: Path) -> None:
    """A snapshot's row that can't be read: a start passes over its event."""
    file = tmp_path / "unconfirmed"
    keys = UnconfirmedKeys({"t": 2.0}, {"t": 30.0}, file)
    keys.save(140.0, ["t"])
    change = pack_changes({b"c" * 16: UnprovenChange(1, 149.0)})
    keys.apply([], [UnconfirmedKey("t", 1, b"change", 0, change, since=149.0, unread=AWAY)], now=150.0)
    keys.save(150.0, ["t"])
    assert not file.with_suffix(".keys").exists() or b"change" not in file.with_suffix(".keys").read_bytes()
    keys.apply([], [UnconfirmedKey("t", 1, b"scanned", 0, since=150.0, copies=1, unread=AWAY)], now=151.0)
    keys.save(151.0, ["t"])
    later = UnconfirmedKeys({"t": 2.0}, {"t": 30.0}, file)
    later.load(152.0)
    assert [(p.key, p.unread) for p in later.select_due(999.0, 9)] == [(b"scanned", AWAY)]


def test_a_batch_gets_so_many_keys_and_those_that_wait_longest(tmp_path: Path) -> None:
    keys = UnconfirmedKeys({"t": 2.0}, {"t": 30.0}, tmp_path / "unconfirmed")
    for now in (100.0, 101.0):
        keys.apply([], [unconfirmed(b"%d %d" % (now, i)) for i in range(5)], now)
    handed_out = keys.select_due(200.0, 7)
    assert [p.key.startswith(b"100") for p in handed_out] == [True] * 5 + [False] * 2
    assert keys.next_due() == 103.0, "others are due"
    assert len(keys.select_due(200.0, 7)) == 3
    assert keys.next_due() == 202.0
    keys.apply(handed_out, [], 201.0)
    assert len(keys.select_due(202.0, 7)) == 3, "a batch said nothing of these"


@pytest.mark.parametrize(
    ("published", "hidden"),
    [
        ([(b"a1", False)], {b"a1", "partition a", "range a"}),
        ([(b"b1", False), (b"zz", False)], {b"b1"}),
        ([(b"a\0", True)], {b"a1", b"a2", "partition a", "range a"}),
        ([(b"", True)], {b"a1", b"a2", b"b1", "partition a", "range a"}),
        ([], set()),
    ],
)
def test_an_image_published_by_another_read_is_not_known(
    tmp_path: Path, published: list[tuple[bytes, bool]], hidden: set[object]
) -> None:
    """A row's key, the partition it is in, the rows of a partition that is marked."""
    keys = UnconfirmedKeys({"t": 2.0}, {"t": 30.0}, tmp_path / "unconfirmed")
    keys_by_name: dict[object, UnconfirmedKey] = {key: unconfirmed(key, image=b"i") for key in (b"a1", b"a2", b"b1")}
    keys_by_name["partition a"] = UnconfirmedKey("t", 0, b"a\0", Scope.PARTITION, image=b"i")
    keys_by_name["range a"] = UnconfirmedKey("t", 0, b"a\0", Scope.RANGE, image=b"i", bounds=(None, None))
    elsewhere = UnconfirmedKey("t", 1, b"a1", 0, image=b"i")
    batch = PublishedKeys(clustering=1)
    for key, is_marked in published:
        batch.add(key, is_marked)
    keys.apply([], [*keys_by_name.values(), elsewhere], 100.0)
    keys.apply([], [unconfirmed(b"b1", image=b"new")], 100.0, {("t", 0): pickle.loads(pickle.dumps(batch))})
    assert {name for name, p in keys_by_name.items() if p.image is None} == hidden - {b"b1"}
    assert (keys_by_name[b"b1"].image, elsewhere.image) == (b"new", b"i")


def test_a_markers_own_record_does_not_count_as_one_after_it() -> None:
    published = PublishedKeys(clustering=1)
    published.add(b"a\0", True)
    assert (published.touches(b"a\0"), published.touches(b"a\0", more_than=1)) == (True, False)
    published.add(b"a1", False)
    assert published.touches(b"a\0", more_than=1)
    assert not published.touches(b"b\0")


def test_a_partition_whose_key_is_zeros_is_that_partition_alone() -> None:
    published = PublishedKeys(clustering=1)
    published.add(b"\0\0", True)
    assert published.covers(b"\0\2\0")
    assert not published.covers(b"\2\0")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are written, each time."""
    names: list[str] = []
    write = durable.write

    def counted(file: Path, *more: Any) -> None:
        names.append(file.name)
        write(file, *more)

    monkeypatch.setattr(durable, "write", counted)
    return names


def test_the_file_is_written_when_it_must_be(tmp_path: Path, written: list[str]) -> None:
    """What is kept is not written with every batch, and yet a restart at any time misses nothing."""
    keys = UnconfirmedKeys({"t": 2.0}, {"t": 30.0}, tmp_path / "unconfirmed")
    since: dict[bytes, float] = {}
    for second in range(300):
        now = 1000.0 + second
        if second < 100:
            key = b"%d" % second
            since[key] = now - (3600 if second % 40 == 39 else 1)  # of a backlog, or of now
            keys.apply([], [UnconfirmedKey("t", 0, key, 0, pack_changes({}), since=since[key])], now)
        keys.save(now, ["t"])
        later = UnconfirmedKeys({"t": 2.0}, {"t": 30.0}, tmp_path / "unconfirmed")
        later.load(now)
        saved_keys = {p.key for p in later.select_due(1e9, 1000)}
        assert {key for key, then in since.items() if then < now - 30} <= saved_keys
        assert all(since[key] < now - 15 for key in saved_keys)
    assert 10 < written.count("unconfirmed.keys") < 30
    assert 30 < written.count("unconfirmed") < 50


YEAR = 365 * 86_400.0


@pytest.mark.parametrize("seed", range(20))
def test_agents_whose_clocks_are_a_year_off_lose_nothing_in_a_restart(tmp_path: Path, seed: int) -> None:
    """A start steps back to the first event that is not older than a time, by the events' own timestamps. Whatever
    these say, a key that waits is kept in the file, or comes again with its event.
    """
    chance = random.Random(seed)
    skews = [chance.choice((0.0, 8.0, 14.0, 31.0, 3600.0, YEAR)) * chance.choice((1, -1)) for _ in range(3)]
    keys = UnconfirmedKeys({"t": 2.0}, {"t": 30.0}, tmp_path / "unconfirmed")
    timestamps: list[float] = []
    waiting: dict[bytes, tuple[int, UnconfirmedKey]] = {}
    now = 2 * YEAR
    for _ in range(200):
        now += chance.choice((0.1, 1.0, 5.0)) * chance.random()
        waiting_keys = []
        for _ in range(chance.randrange(3)):
            lag = chance.choice((0.0, 1.0, 20.0, 100.0)) * chance.random()  # until it is read
            timestamps.append(now - lag + chance.choice(skews))
            key = b"%d" % len(timestamps)
            waiting_key = UnconfirmedKey(
                "t", 0, key, 0, pack_changes({key.ljust(16): UnprovenChange(5)}), since=timestamps[-1]
            )
            waiting_keys.append(waiting_key)
            waiting[key] = len(timestamps) - 1, waiting_key
        confirmed_keys = [waiting_key for _, waiting_key in waiting.values() if chance.random() < 0.02]
        for waiting_key in confirmed_keys:
            del waiting[waiting_key.key]
        keys.apply(confirmed_keys, [waiting_key for waiting_key in waiting_keys if waiting_key.key in waiting], now)
        keys.save(now, ["t"])
        died = now + chance.choice((0.0, 1.0, 3600.0))
        then = begins(tmp_path / "unconfirmed")("t", 30.0, died)
        first = next((offset for offset, timestamp in enumerate(timestamps) if timestamp >= then), len(timestamps))
        later = UnconfirmedKeys({"t": 2.0}, {"t": 30.0}, tmp_path / "unconfirmed")
        later.load(died)
        saved_keys = {waiting_key.key for waiting_key in later.select_due(1e12, 10_000)}
        missed = {key for key, (offset, _) in waiting.items() if offset < first and key not in saved_keys}
        assert not missed, (skews, first, [timestamps[waiting[key][0]] - now for key in missed])


def test_read_times_of_many_topics_are_not_saved_at_each_read(tmp_path: Path, written: list[str]) -> None:
    """Each is read after a while, one after the other. A restart steps back from where each was read last, or more."""
    topics = [f"t{n}" for n in range(50)]
    keys = UnconfirmedKeys(dict.fromkeys(topics, 2.0), dict.fromkeys(topics, 30.0), tmp_path / "unconfirmed")
    read: dict[str, float] = {}
    for half in range(600):
        now, topic = 1000.0 + half / 2, topics[half % 50]
        keys.save(now, [topic])
        read[topic] = now
        begin = begins(tmp_path / "unconfirmed")
        assert all(begin(name, 30.0, now) <= read_at - 30 for name, read_at in read.items())
        if half == 50:
            assert written.count("unconfirmed") == 50, "at once for a topic that is new"
    assert 75 < written.count("unconfirmed") < 95, "and then every 7.5 s"


def test_very_many_changes_of_a_key_are_not_listed(tmp_path: Path) -> None:
    keys = UnconfirmedKeys({"t": 2.0}, {"t": 30.0}, tmp_path / "unconfirmed")
    for n in range(20):
        awaited = {b"%16d" % (100 * n + i): UnprovenChange(None, 100.0) for i in range(100)}
        keys.apply([], [UnconfirmedKey("t", 0, b"k", 0, pack_changes(awaited), copies=100)], 100.0 + n / 100)
    (waiting_key,) = keys.select_due(200.0, 9)
    assert (len(unpack_changes(waiting_key.awaited)) <= 1001, waiting_key.copies) == (True, 2000)
    assert bytes(16) in unpack_changes(waiting_key.awaited), "no node reported it: level ALL"


@pytest.mark.parametrize("damaged", ["unconfirmed", "unconfirmed.keys"])
@pytest.mark.parametrize("how", [b"", b"\x80\x04K\x01.", None])
def test_topics_are_read_again_from_the_start_if_a_file_is_damaged(
    tmp_path: Path, damaged: str, how: bytes | None
) -> None:
    """Where unconfirmed keys are, nobody knows then. It holds for topics that join later, and after another kill."""
    file = tmp_path / "unconfirmed"
    keys = UnconfirmedKeys({"t": 2.0}, {"t": 30.0}, file)
    keys.apply([], [UnconfirmedKey("t", 1, b"old", 0, since=100.0)], now=1000.0)
    keys.save(1000.0, ["t", "paused"])
    assert begins(file)("t", 30.0, 2000.0) == 970.0
    (tmp_path / damaged).write_bytes((tmp_path / damaged).read_bytes()[:-9] if how is None else how)
    assert [begins(file)(topic, 30.0, 2000.0) for topic in ("t", "paused")] == [0.0, 0.0]
    logged: list[str] = []
    for _ in range(2):
        later = UnconfirmedKeys({"t": 2.0}, {"t": 30.0}, file)
        with capture_logs() as logs:
            later.load(2000.0)
        logged += [entry["event"] for entry in logs]
    assert (logged, len(later)) == (["unconfirmed.damaged"], int(damaged == "unconfirmed"))
    later.save(2000.0, ["t"])
    assert [begins(file)(topic, 30.0, 3000.0) for topic in ("t", "paused")] == [1970.0, 0.0]


def test_the_saved_file_cannot_run_code(tmp_path: Path) -> None:
    """Whoever may write to `checkpoint.dir` is no reason to run code."""

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "was run",)

    for name in ("unconfirmed", "unconfirmed.keys", "held"):
        (tmp_path / name).write_bytes(pickle.dumps(Evil()))
    UnconfirmedKeys({}, {}, tmp_path / "unconfirmed").load(0.0)
    with pytest.raises(HelenusError, match="held positions are damaged"):
        HeldPositions(tmp_path)
    assert not (tmp_path / "was run").exists()


@pytest.mark.parametrize("restarts", [True, False])
def test_a_shorter_step_back_forgets_no_key(tmp_path: Path, restarts: bool) -> None:
    """What waits for 40 s was not kept, as a start would have stepped back 100 s: then the setting becomes 10 s."""
    file = tmp_path / "unconfirmed"
    keys = UnconfirmedKeys({"t": 2.0}, {"t": 100.0}, file)
    keys.apply([], [UnconfirmedKey("t", 1, b"k", 0, since=960.0)], now=960.0)
    keys.save(1000.0, ["t"])
    if restarts:
        assert begins(file)("t", 10.0, 1001.0) <= 960.0
        keys = UnconfirmedKeys({"t": 2.0}, {"t": 10.0}, file)
        keys.load(1001.0)
        keys.apply([], [UnconfirmedKey("t", 1, b"k", 0, since=960.0)], now=1001.0)  # as it is read again
    keys.use({"t": 2.0}, {"t": 10.0})
    keys.save(1001.0, ["t"])
    later = UnconfirmedKeys({"t": 2.0}, {"t": 10.0}, file)
    later.load(1002.0)
    assert begins(file)("t", 10.0, 1002.0) <= 960.0 or len(later) == 1


def test_ranges_and_keys_are_kept_as_they_are(tmp_path: Path) -> None:
    bounds = (Bound(True, (b"\0\xff", b"")), None)
    stored_keys = [UnconfirmedKey("t", 7, b"\0k", Scope.RANGE, bounds=bounds), UnconfirmedKey("t", 7, b"", Scope.TABLE)]
    keys = UnconfirmedKeys({"t": 2.0}, {"t": 30.0}, tmp_path / "unconfirmed")
    keys.apply([], stored_keys, 100.0)
    keys.save(100.0, [])
    later = UnconfirmedKeys({"t": 2.0}, {"t": 30.0}, tmp_path / "unconfirmed")
    later.load(100.0)
    assert {(p.name, p.scope) for p in later.select_due(200.0, 9)} == {(p.name, p.scope) for p in stored_keys}
