"""Reading events topics on a real Pulsar: every position, replay, steps back by time, and what the broker keeps."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pulsar
import pytest
from patience import eventually

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.log import _pulsar_reader as pulsar_events
from helenus_connector.log._pulsar_offsets import offset, parts
from helenus_connector.log._pulsar_planner import PulsarPlanner
from helenus_connector.log._pulsar_reader import PulsarMessage, read
from helenus_connector.log._pulsar_unread import unread
from helenus_connector.log.events import OffsetRange
from helenus_connector.node_loss._last_report import find_last_report
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Change, Scope
from helenus_schemas.event.datastax import sorted_value
from helenus_schemas.event.wire import encode
from helenus_sinks.pulsar._admin import Admin, Refused
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.log import PulsarLog
from helenus_stack.stack import Stack

pytestmark = pytest.mark.integration

NO_RETENTION = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}


@pytest.fixture(scope="module")
def stack(only_pulsar: Stack) -> Stack:
    return only_pulsar


@pytest.fixture(scope="module")
def config(stack: Stack) -> PulsarConfig:
    status = stack.status()
    assert status.pulsar_url
    return PulsarConfig(status.pulsar_url, status.pulsar_admin_url)


@pytest.fixture
def planner(config: PulsarConfig) -> Iterator[PulsarPlanner]:
    planner = PulsarPlanner(config)
    yield planner
    planner.close()


@pytest.fixture
def other(config: PulsarConfig) -> Iterator[PulsarPlanner]:
    planner = PulsarPlanner(config)
    yield planner
    planner.close()


def write(config: PulsarConfig, topic: str, partitions: int, sizes: list[int], first: int = 0) -> int:
    """Numbers into each partition, in batches of these sizes; gives the next number."""
    log = PulsarLog(replace(config, linger=60.0))  # until the flush
    log.create(topic, partitions, {"retention.ms": "3600000"})
    for size in sizes:
        for partition in range(partitions):
            log.extend(topic, partition, [(b"k\xff%d" % n, b"%d" % n) for n in range(first, first + size)])
        log.flush(30)
        first += size
    log.close()
    return first


def got(config: PulsarConfig, *places: OffsetRange, data_loss: str = "fail") -> list[PulsarMessage]:
    failures: list[HelenusError] = []
    messages = [
        message
        for chunk in read(config, places, data_loss, lambda *_: None, lambda _, error: failures.append(error))
        for message in chunk
    ]
    assert not failures, failures
    return messages


def numbers(messages: list[PulsarMessage]) -> list[int]:
    return [int(message.value()) for message in messages]


def test_an_offset_orders_as_ids_do() -> None:
    ids = [(ledger, entry, index) for ledger in (0, 1, 2**40) for entry in (0, 5, 2**31) for index in (0, 1, 999)]
    random.shuffle(ids)
    assert sorted(ids) == [parts(number) for number in sorted(offset(*i) for i in ids)]
    assert offset(3, 4, -1) == offset(3, 4, 0)


def test_any_two_offsets_bound_a_range(config: PulsarConfig, planner: PulsarPlanner) -> None:
    """Batches, single messages, an unload in the middle: each range gives exactly what lies in it."""
    total = write(config, "ranges", 1, [5, 1, 1, 7])
    assert config.admin_url
    Admin(config.admin_url, config.access).ask("PUT", "persistent/public/default/ranges/unload")
    total = write(config, "ranges", 1, [1, 4], total)
    assert planner.partitions(["ranges", "no such"]) == {"ranges": 1, "no such": 0}
    end = planner.latest({"ranges": 1})["ranges"]["0"]
    start = planner.earliest({"ranges": 1})["ranges"]["0"]
    everything = got(config, OffsetRange("ranges", 0, start, end))
    assert numbers(everything) == list(range(total))
    assert [m.key() for m in everything] == [b"k\xff%d" % n for n in range(total)]
    assert all(m.topic() == "ranges" and m.partition() == 0 for m in everything)
    offsets = [m.offset() for m in everything]
    assert offsets == sorted(set(offsets))
    assert end == offsets[-1] + 1
    bounds = [start, *offsets, *(event_offset + 1 for event_offset in offsets)]
    pairs = [sorted(random.sample(bounds, 2)) for _ in range(20)]
    for low, high in [*pairs, *((start, high) for high in bounds)]:
        inside = [n for n, event_offset in enumerate(offsets) if low <= event_offset < high]
        assert numbers(got(config, OffsetRange("ranges", 0, low, high))) == inside


def test_the_end_of_an_empty_topic_needs_no_read(planner: PulsarPlanner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner asks many times a second."""
    monkeypatch.setattr(pulsar_events, "_reader", None)
    for start, end in ((0, 0), (0, -1), (offset(5, 6, 7), -1), (offset(5, 6, 7), offset(5, 6, 7))):
        assert planner.advance(OffsetRange("empty", 0, start, end), 10) == end


def test_a_range_is_cut_to_a_number_of_events(config: PulsarConfig, planner: PulsarPlanner) -> None:
    write(config, "cut", 2, [300, 1, 500])
    ends = planner.latest({"cut": 2})["cut"]
    for partition in (0, 1):
        position, seen = 0, 0
        while position < ends[str(partition)]:
            end = planner.advance(OffsetRange("cut", partition, position, ends[str(partition)]), 250)
            numbers_read = numbers(got(config, OffsetRange("cut", partition, position, end)))
            assert numbers_read == list(range(seen, min(seen + 250, 801)))
            position, seen = end, seen + len(numbers_read)
        assert seen == 801
    assert planner.advance(OffsetRange("cut", 0, 0, ends["0"]), 10_000) == ends["0"]


def test_the_last_event_that_is_alone_in_its_entry(config: PulsarConfig, planner: PulsarPlanner) -> None:
    write(config, "alone", 1, [3, 1])
    (end,) = planner.latest({"alone": 1})["alone"].values()
    assert numbers(got(config, OffsetRange("alone", 0, end - 1, end))) == [3]


def test_messages_that_a_subscription_has_not_read(config: PulsarConfig) -> None:
    """A dead letter comes alone, or with others."""

    def dead_letters() -> list[int]:
        return numbers([m for chunk in unread(config, "helenus-replay", "dead-letters", 0) for m in chunk])

    first = write(config, "dead-letters", 1, [])
    assert dead_letters() == []
    for sizes in ([1], [3, 1], [2], [1]):
        after = write(config, "dead-letters", 1, sizes, first)
        assert dead_letters() == list(range(first, after))
        assert dead_letters() == []
        first = after


def test_reading_on_and_reading_again(config: PulsarConfig, planner: PulsarPlanner, stack: Stack) -> None:
    """As micro-batches do: from where the last one ended, and the same range again after the broker was killed."""
    total, position = 0, 0
    ranges = []
    for _ in range(5):
        total = write(config, "again", 1, [10, 3], total)
        end = planner.latest({"again": 1})["again"]["0"]
        ranges.append((OffsetRange("again", 0, position, end), total))
        assert numbers(got(config, ranges[-1][0])) == list(range(total - 13, total))
        position = end
    stack.kill("pulsar")
    with pytest.raises(HelenusError) as error:
        planner.latest({"again": 1})
    assert error.value.kind is Kind.BROKER_UNREACHABLE
    stack.start("pulsar")
    for offset_range, last in ranges:
        assert numbers(got(config, offset_range)) == list(range(last - 13, last))
    assert planner.latest({"again": 1})["again"]["0"] == position
    total = write(config, "again", 1, [2], total)
    end = planner.latest({"again": 1})["again"]["0"]
    assert numbers(got(config, OffsetRange("again", 0, position, end))) == [65, 66]


def test_a_step_back_by_time(config: PulsarConfig, planner: PulsarPlanner, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write(config, "times", 2, [20])
    time.sleep(0.5)
    then = int(time.time() * 1000)
    time.sleep(0.5)
    total = write(config, "times", 2, [20], first)
    ends = planner.latest({"times": 2})["times"]
    for partition, first_offset in planner.since({"times": 2}, then)["times"].items():
        numbers_read = numbers(got(config, OffsetRange("times", int(partition), first_offset, ends[partition])))
        assert numbers_read == list(range(first, total))
    assert planner.since({"times": 2}, then + 3_600_000) == {"times": {"0": -1, "1": -1}}
    expected = planner.since({"times": 2}, then)
    monkeypatch.setattr(pulsar_events, "_clients", {})
    with ThreadPoolExecutor(8) as pool:  # as a reader asks for many topics, in a process that begins
        assert list(pool.map(lambda _: planner.since({"times": 2}, then), range(16))) == [expected] * 16


def test_a_commit_lets_the_broker_drop_what_is_read(config: PulsarConfig, planner: PulsarPlanner) -> None:
    write(config, "kept", 1, [10, 10, 10])
    offsets = [m.offset() for m in got(config, OffsetRange("kept", 0, 0, planner.latest({"kept": 1})["kept"]["0"]))]
    assert config.admin_url
    admin = Admin(config.admin_url, config.access)

    def entries_acknowledged() -> int:
        """The last entry that the subscription does not keep."""
        stats = admin.ask("GET", "persistent/public/default/kept-partition-0/internalStats")
        return int(stats["cursors"]["helenus-c"]["markDeletePosition"].split(":")[1])

    for committed in (offsets[0], offsets[5], offsets[10], offsets[15]):
        planner.commit("helenus-c", {"kept": {"0": committed}})
        assert entries_acknowledged() == parts(committed)[1] - 1, "an entry that is read in part is kept"
    planner.commit("helenus-c", {"kept": {"0": offsets[29] + 1}})
    assert entries_acknowledged() == parts(offsets[29])[1]
    planner.commit("helenus-c", {"kept": {"0": offsets[3]}})
    assert entries_acknowledged() == parts(offsets[29])[1], "it never goes back"


def test_a_group_taken_by_another_planner_or_deleted(
    config: PulsarConfig, planner: PulsarPlanner, other: PulsarPlanner
) -> None:
    """Its subscription has one consumer at a time, and while it has one nobody can delete it."""
    write(config, "moves", 2, [5])
    ends = planner.latest({"moves": 2})
    assert config.admin_url
    admin = Admin(config.admin_url, config.access)
    topic = "persistent/public/default/moves"
    planner.commit("helenus-c", ends)
    with ThreadPoolExecutor(1) as pool:
        commit_done = pool.submit(other.commit, "helenus-c", ends)
        while not commit_done.done():
            planner.latest({"moves": 2})  # one that does not answer the broker now loses what it has
    with pytest.raises(HelenusError, match="already connected"):
        commit_done.result()
    planner.keep({"helenus-d": ["moves"]})
    other.commit("helenus-c", ends)
    assert other.gone("helenus-c", ends) == []
    with pytest.raises(Refused, match="active connected consumers"):
        admin.ask("DELETE", f"{topic}/subscription/helenus-c")
    planner.latest({"moves": 2})
    other.keep({})
    admin.ask("DELETE", f"{topic}/subscription/helenus-c")
    assert not [name for name in admin.ask("GET", f"{topic}-partition-1/subscriptions") if name == "helenus-c"]
    planner.keep({})
    eventually(lambda: not admin.ask("GET", f"{topic}-partition-1/subscriptions"), every=0.1)
    # It begins again, for one that has the same name.
    other.commit("helenus-c", ends)
    assert admin.ask("GET", f"{topic}-partition-1/subscriptions") == ["helenus-c"]


def test_events_that_the_broker_drops_before_they_are_read(config: PulsarConfig) -> None:
    """As by a message TTL. What was read may go, and so may what the subscription still waits for stay."""
    assert config.admin_url
    admin = Admin(config.admin_url, config.access)
    partition_path = "persistent/public/default/dropped-partition-0"

    def look(start: int) -> tuple[int, bool]:
        """Where the topic ends, and whether events from an offset on are gone, to a planner that begins."""
        planner = PulsarPlanner(config)
        end = planner.latest({"dropped": 1})["dropped"]["0"]
        gone = planner.gone("helenus-c", {"dropped": {"0": start}})
        assert gone in ([], [("dropped", "0")])
        planner.commit("helenus-c", {"dropped": {"0": start}})
        planner.close()
        return end, bool(gone)

    write(config, "dropped", 1, [1] * 5)
    position, _ = look(0)
    assert look(position) == (position, False)
    admin.ask("PUT", f"{partition_path}/unload")
    trim(admin, partition_path, parts(position)[0])
    end, gone = look(position)
    assert (end in (-1, position), gone) == (True, False)
    write(config, "dropped", 1, [1] * 3)
    position, gone = look(position)
    assert not gone, "it goes on in another ledger, and all is read"
    write(config, "dropped", 1, [1] * 3)
    admin.ask("PUT", f"{partition_path}/unload")
    write(config, "dropped", 1, [1])
    time.sleep(2)
    total = write(config, "dropped", 1, [1])
    admin.ask("POST", f"{partition_path}/subscription/helenus-c/expireMessages/1")
    assert look(position)[1] is False, "they have expired, and are there"
    trim(admin, partition_path, parts(position)[0])
    end, gone = look(position)
    assert gone
    assert numbers(got(config, OffsetRange("dropped", 0, position, end)))[-1] == total - 1
    planner = PulsarPlanner(config)
    assert planner.gone("helenus-c", {"dropped": {"0": end}}) == []
    planner.close()


def test_a_topic_that_is_recreated_is_read_from_its_start_and_its_loss_is_known(
    config: PulsarConfig, planner: PulsarPlanner
) -> None:
    """Under a planner that looks at it all the time: an offset of before is none of an event of now."""
    assert config.admin_url
    write(config, "recreated", 1, [1] * 10)
    end = planner.latest({"recreated": 1})["recreated"]["0"]
    committed = got(config, OffsetRange("recreated", 0, 0, end))[4].offset() + 1
    assert planner.gone("helenus-c", {"recreated": {"0": committed}}) == []
    planner.commit("helenus-c", {"recreated": {"0": committed}})
    before = planner.leaders()["recreated"]
    assert planner.cut("recreated", before, {"0": committed}) == {}
    Admin(config.admin_url, config.access).ask("DELETE", "persistent/public/default/recreated/partitions?force=true")
    write(config, "recreated", 1, [1] * 20)
    ends: dict[str, dict[str, int]] = {}
    eventually(lambda: ends.update(planner.latest(planner.partitions(["recreated"]))) or bool(ends), every=0.2)
    assert ends["recreated"]["0"] > end
    assert numbers(got(config, OffsetRange("recreated", 0, committed, ends["recreated"]["0"]))) == list(range(20))
    (first,) = planner.cut("recreated", before, {"0": committed}).values()
    assert numbers(got(config, OffsetRange("recreated", 0, first, ends["recreated"]["0"]))) == list(range(20))
    assert planner.cut("recreated", before, {"0": end}) == {}, "all of the one before was read"
    after = planner.leaders()["recreated"]
    write(config, "recreated", 1, [1] * 3)
    Admin(config.admin_url, config.access).ask("PUT", "persistent/public/default/recreated-partition-0/unload")
    write(config, "recreated", 1, [1])
    planner.latest({"recreated": 1})
    assert parts(planner.leaders()["recreated"]["0"])[0] > parts(after["0"])[0], "it goes on in another ledger"
    assert planner.cut("recreated", after, {"0": first}) == {}


def trim(admin: Admin, partition_path: str, ledger: int) -> None:
    """Have a partition drop what nobody waits for, until it has not that ledger."""
    topic = partition_path.rsplit("-partition-", 1)[0]

    def dropped() -> bool:
        admin.ask("POST", f"{topic}/retention", NO_RETENTION)
        admin.ask("POST", f"{partition_path}/trim")
        return all(
            ledger_left["ledgerId"] != ledger
            for ledger_left in admin.ask("GET", f"{partition_path}/internalStats")["ledgers"]
        )

    eventually(dropped, every=0.2)


def test_a_topic_without_partitions(config: PulsarConfig, planner: PulsarPlanner) -> None:
    """As brokers make them by themselves, for DataStax's agents too: it is its own one partition."""
    assert config.admin_url
    Admin(config.admin_url, config.access).ask("PUT", "persistent/public/default/whole")
    log = PulsarLog(config)
    assert log.topics()["whole"] == 1
    log.extend("whole", 0, [(b"k", b"%d" % n) for n in range(30)])
    log.flush(20)
    log.close()
    assert planner.partitions(["whole", "no such"]) == {"whole": 1, "no such": 0}
    end = planner.latest({"whole": 1})["whole"]["0"]
    messages = got(config, OffsetRange("whole", 0, 0, end))
    assert numbers(messages) == list(range(30))
    middle = planner.advance(OffsetRange("whole", 0, 0, end), 7)
    assert numbers(got(config, OffsetRange("whole", 0, middle, end))) == list(range(7, 30))
    assert planner.since({"whole": 1}, 0)["whole"]["0"] == messages[0].offset()
    planner.commit("helenus-c", {"whole": {"0": end}})
    assert planner.gone("helenus-c", {"whole": {"0": end}}) == []


def test_a_key_that_no_agent_wrote(config: PulsarConfig, planner: PulsarPlanner) -> None:
    """Text, in base64's letters or not."""
    talking = pulsar.Client(config.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"))
    write(config, "texts", 1, [1])
    producer = talking.create_producer(f"{config.name('texts')}-partition-0")
    for key in ("abc", "ä€", "a b==", ""):
        producer.send(b"1", partition_key=key)
    talking.close()
    end = planner.latest({"texts": 1})["texts"]["0"]
    messages = got(config, OffsetRange("texts", 0, 0, end))
    assert [m.key() for m in messages[1:]] == [b"abc", "ä€".encode(), b"a b==", None]


def test_a_topic_that_ended_before(config: PulsarConfig, planner: PulsarPlanner) -> None:
    write(config, "short", 1, [5])
    end = planner.latest({"short": 1})["short"]["0"]
    beyond = OffsetRange("short", 0, 0, end + (1 << 64))
    lost: list[int] = []
    failures: list[HelenusError] = []
    for data_loss in ("continue", "fail"):
        chunks = read(config, [beyond], data_loss, lambda _, n: lost.append(n), lambda _, e: failures.append(e))
        assert numbers([m for chunk in chunks for m in chunk]) == [0, 1, 2, 3, 4]
    assert lost == [1]
    assert [error.kind for error in failures] == [Kind.OFFSETS_LOST]
    assert planner.latest({"short": 1, "no such": 1}) == {"short": {"0": end}}, "a topic that is not there is left out"


@pytest.mark.long
def test_a_broker_that_hangs_fails_its_ranges_and_no_more(
    config: PulsarConfig, planner: PulsarPlanner, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even to close a reader is answered then."""
    open_partitions = pulsar_events._OpenPartitions()
    for name, value in (
        ("TIMEOUT_S", 2.0),
        ("_READ_TIMEOUT_S", 3.0),
        ("_clients", {}),
        ("_open_partitions", open_partitions),
    ):
        monkeypatch.setattr(pulsar_events, name, value)
    write(config, "hangs", 2, [5, 5])
    ends = planner.latest({"hangs": 2})["hangs"]
    places = [OffsetRange("hangs", p, 0, ends[str(p)]) for p in (0, 1)]
    assert numbers(got(config, *places)) == [*range(10), *range(10)]
    failures: list[tuple[int, Kind]] = []
    stack.pause("pulsar")
    try:
        for _ in read(config, places, "fail", lambda *_: None, lambda r, e: failures.append((r.partition, e.kind))):
            raise AssertionError("what is read is not there")
        with pytest.raises(HelenusError):
            planner.latest({"hangs": 2})
        with pytest.raises(HelenusError):
            planner.since({"hangs": 2}, 0)
    finally:
        stack.resume("pulsar")
    assert failures == [(0, Kind.BROKER_UNREACHABLE), (1, Kind.BROKER_UNREACHABLE)]
    assert numbers(got(config, *places)) == [*range(10), *range(10)]
    for broker in open_partitions.brokers.values():
        broker.close()


def test_the_last_event_of_a_lost_node(config: PulsarConfig, stack: Stack, tmp_path: Path) -> None:
    """Its events end, and those of others go on."""
    status = stack.status()
    worker = WorkerSettings.from_properties(
        {"log": "pulsar", **{k: str(v) for k, v in status.pulsar().items()}, "checkpoint.dir": str(tmp_path)}, "worker"
    )
    lost, other = (str(UUID(int=n)) for n in (1, 2))
    log = PulsarLog(config)
    log.create("lost-node", 2, {"retention.ms": "3600000"})
    last_at = 0
    for n in range(60):
        for node in (lost, other) if n < 40 else (other,):
            change = Change(f"{n:032x}", node, Scope.ROW, segment=5, position=n)
            log.append("lost-node", n % 2, b"k", sorted_value(encode(change)))
            log.flush(30)
        last_at = time.time_ns() // 1_000_000 if n == 39 else last_at
        time.sleep(0.1)
    log.close()
    now_ms = time.time_ns() // 1_000_000
    report = find_last_report(worker, {"lost-node": 2}, lost, now_ms)
    assert report is not None
    assert last_at - 1500 <= report.timestamp <= last_at
    assert report.position in range(25, 40)
    assert find_last_report(worker, {"lost-node": 2}, str(UUID(int=3)), now_ms) is None
