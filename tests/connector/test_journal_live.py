"""Where a run begins of a topic that is published exactly once, on a real Kafka."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from patience import eventually
from structlog.testing import capture_logs

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.positions import HeldPositions
from helenus_connector.control.status import Task
from helenus_connector.gate.waiting import WaitingChanges, WaitingLimits
from helenus_connector.interfaces.event import Event, WaitingChange
from helenus_connector.journal import recovery
from helenus_connector.journal._positions import group_of, read_positions
from helenus_connector.journal._topic import Journals
from helenus_connector.journal.recovery import DriverMemory, JournalOfRun
from helenus_connector.journal.transaction import BatchTransaction, outcome_entry
from helenus_connector.log._kafka_planner import KafkaPlanner
from helenus_connector.log.choice import owned_data_log
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.unconfirmed.keys import UnconfirmedKeys
from helenus_connector.unconfirmed.unconfirmed_key import UnconfirmedKey
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.log import KafkaLog
from helenus_sinks.kafka.owned_log import OwnedKafkaLog
from helenus_sinks.kafka.owners import Made, NotOwner, RecordsOwner, claim

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
EVENTS = 20
"""In each of the two partitions."""


class Runs:
    """Runs of one query of one table, whose driver may lose its disk between them."""

    def __init__(self, address: str, directory: Path, name: str) -> None:
        self.directory = directory
        self.group = name
        self.worker = WorkerSettings.from_properties(
            {"bootstrap.servers": address, "checkpoint.dir": str(directory)}, "worker"
        )
        properties = {"name": name, "keyspace": "ks", "table": "t", "output.format": "json", "query.group": name}
        self.settings = ConnectorSettings.from_properties({**properties, "events.topic": f"events-{name}"}, name)
        self.number = 0
        log = KafkaLog(self.worker.producer_config)
        log.create(self.settings.events, 2, {})
        for partition in (0, 1):
            for event in range(EVENTS):
                log.append(self.settings.events, partition, b"k", b"%d" % event)
        log.flush(30)
        log.close()
        self.lose_disk()

    def lose_disk(self) -> None:
        """Begin with nothing on the disk, nor in memory."""
        self.disk = self.directory / f"{self.number}"
        self.disk.mkdir()
        self.restart()

    def restart(self) -> None:
        """Begin with what is on the disk."""
        limits = {self.settings.events: WaitingLimits(600.0, 1 << 20, True, 30.0)}
        times = {self.settings.events: 30.0}
        self.memory = DriverMemory(
            HeldPositions(self.disk),
            UnconfirmedKeys(times, times, self.disk / "unconfirmed"),
            WaitingChanges(self.disk / "gate.waiting"),
        )
        self.memory.waiting.use(limits)

    def begin(self, **more: Task) -> JournalOfRun:
        self.number += 1
        self.owner = RecordsOwner(f"helenus-{self.group}-{self.number}", 2, "a worker")
        journal = JournalOfRun(self.worker, self.owner, self.memory)
        tasks = {self.settings.events: Task(0, self.settings), **more}
        claim(self.worker.producer_config, [Made(t.connector, topic) for topic, t in tasks.items()], self.owner, {})
        self.errors = journal.begin(tasks)
        return journal

    @property
    def held_offsets(self) -> Mapping[str, int]:
        return self.memory.held_positions.read_offsets().get(self.settings.events, {})

    def publish(self, ends: dict[int, int], outcome: BatchOutcome | None = None, epoch: int = 0) -> BatchTransaction:
        """Do a batch up to these offsets, and have its outcome in memory."""
        log = owned_data_log(self.worker, self.owner, 0)
        outcome = outcome or BatchOutcome()
        transaction = self.transaction(log, ends, epoch)
        transaction.commit(outcome, 30)
        log.close()
        self.memory.unconfirmed.apply(outcome.done, outcome.waiting, time.time(), outcome.places)
        self.memory.waiting.apply(self.settings.events, outcome.at_gate, None, time.time())
        return transaction

    def transaction(self, log: OwnedKafkaLog, ends: dict[int, int], epoch: int = 0) -> BatchTransaction:
        times = dict.fromkeys(ends, int(time.time() * 1000))
        return BatchTransaction(
            log, self.worker.journal_topic(self.group), self.settings, epoch, ends, times, has_waiting=True
        )

    def waiting_outcome(self, *names: bytes) -> BatchOutcome:
        outcome = BatchOutcome()
        for name in names:
            outcome.waiting.append(UnconfirmedKey(self.settings.events, 0, name, 0, image=name))
            event = Event(self.settings.events, 1, 3, 4, name, b"v")
            outcome.at_gate.waits.append(WaitingChange(name.ljust(16), event, ("a",), 1))
        return outcome

    @property
    def waiting(self) -> tuple[dict[bytes, bytes | None], set[bytes]]:
        """The keys in memory with their images, and the changes at the gate."""
        topic = self.settings.events
        images = {key.key: key.image for key in self.memory.unconfirmed.of_topic(topic)}
        return images, {change.rstrip() for change in self.memory.waiting.awaited_changes(topic)}

    def journal_length(self) -> int:
        return sum(map(len, self.journal().values()))

    def journal(self) -> dict[str, list[Any]]:
        return Journals(self.worker).read([self.group])[self.group].entries


@pytest.fixture
def runs(only_kafka: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Runs:
    return Runs(str(only_kafka.status().bootstrap_servers), tmp_path, request.node.name.replace("_", "-")[5:45])


def test_a_journal_that_forgets_fails_its_connector(runs: Runs) -> None:
    log = KafkaLog(runs.worker.producer_config)
    log.create(runs.worker.journal_topic(runs.group), 1, {"cleanup.policy": "delete", "retention.ms": "604800000"})
    log.close()
    runs.begin()
    error = runs.errors[runs.settings.events]
    assert error.kind is Kind.CONFIG
    assert "retention.ms=604800000" in error.what
    assert "set retention.ms=-1 with" in error.advice


def test_what_was_committed_counts_whatever_is_on_the_disk(runs: Runs) -> None:
    topic = runs.settings.events
    runs.begin()
    assert runs.held_offsets == {}
    runs.publish({0: 5, 1: 7}, runs.waiting_outcome(b"a", b"b"))
    runs.publish({0: 9}, runs.waiting_outcome(b"c"))
    for lose in (runs.restart, runs.lose_disk):
        lose()
        journal = runs.begin()
        assert runs.held_offsets == {"0": 9, "1": 7}
        assert runs.waiting == ({b"a": b"a", b"b": b"b", b"c": b"c"}, {b"a", b"b", b"c"})
        assert journal.topics == {topic: {"0": 0, "1": 0}}, "all events came lately"
        assert runs.journal_length() == 1
    # A checkpoint that is ahead, as of a batch that was planned, and behind.
    for offset in (3, 19):
        runs.memory.held_positions.hold(topic, {"0": offset})
        runs.begin()
        assert runs.held_offsets == {"0": 9, "1": 7}


def test_the_first_time_begins_a_little_before_the_checkpoint(runs: Runs) -> None:
    """What was unconfirmed then is not known: its events are read again, and published."""
    runs.memory.held_positions.hold(runs.settings.events, {"0": 15, "1": 20})
    runs.memory.unconfirmed.apply([], [UnconfirmedKey(runs.settings.events, 0, b"k", 0)], time.time())
    with capture_logs() as log_lines:
        journal = runs.begin()
    assert runs.held_offsets == {"0": 0, "1": 0}
    assert journal.topics == {runs.settings.events: {}}
    assert [line["event"] for line in log_lines if line["event"].startswith("exactly")] == ["exactly_once.begins"]
    # Killed before its first batch, it has nothing left to step back to.
    runs.lose_disk()
    runs.begin()
    assert runs.held_offsets == {"0": 0, "1": 0}
    assert runs.waiting == ({b"k": None}, set())


def test_an_operators_move_counts(runs: Runs) -> None:
    runs.begin()
    runs.publish({0: 9, 1: 9})
    runs.memory.held_positions.move(runs.settings.events, {"0": 2, "1": 3})
    runs.restart()
    runs.begin()
    assert runs.held_offsets == {"0": 2, "1": 3}
    runs.publish({0: 4}, epoch=1)
    runs.lose_disk()
    runs.begin()
    assert runs.held_offsets["0"] == 4
    assert runs.memory.held_positions.epoch(runs.settings.events) == 1


def test_a_position_set_by_another_program_counts(runs: Runs) -> None:
    """As by kafka-consumer-groups --reset-offsets."""
    runs.begin()
    runs.publish({0: 9, 1: 9})
    settings = {**runs.worker.consumer_config, "group.id": group_of(runs.settings.name)}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(runs.settings.events, 0, 2)], asynchronous=False)
    consumer.close()
    runs.begin()
    assert runs.held_offsets == {"0": 2, "1": 9}


def test_a_transaction_that_was_not_committed_left_nothing(runs: Runs) -> None:
    runs.begin()
    runs.publish({0: 5})
    log = owned_data_log(runs.worker, runs.owner, 0)
    transaction = runs.transaction(log, {0: 9})
    outcome = runs.waiting_outcome(b"a")
    for record in outcome_entry(runs.group, runs.settings.events, outcome, has_waiting=True).to_records():
        log.append(transaction.journal, 0, b"k", record)
    transaction.flush(30)
    transaction.abort()
    runs.lose_disk()
    runs.begin()
    assert (runs.held_offsets, runs.waiting) == ({"0": 5, "1": 0}, ({}, set()))


def test_a_fenced_run_commits_no_position(runs: Runs) -> None:
    runs.begin()
    runs.publish({0: 5})
    former = owned_data_log(runs.worker, runs.owner, 0)
    former.append(runs.settings.events, 0, b"k", b"v")
    former.deliver(30)
    later = OwnedKafkaLog(runs.worker.producer_config, runs.owner, 0)  # as a claim fences it
    later.append(runs.settings.events, 0, b"k", b"v")
    transaction = runs.transaction(former, {0: 9})
    with pytest.raises(HelenusError):
        transaction.commit(BatchOutcome(), 30)
    for log in (former, later):
        log.close()
    positions = read_positions(runs.worker, runs.settings.name, {runs.settings.events: 2})
    assert positions[runs.settings.events]["0"].offset == 5


def test_entries_of_a_table_that_does_not_run_stay(runs: Runs) -> None:
    runs.begin()
    runs.publish({0: 5}, runs.waiting_outcome(b"a"))
    other = runs.settings.model_copy(update={"events_topic": f"events-{runs.group}-b"})
    log = KafkaLog(runs.worker.producer_config)
    log.create(other.events, 1, {})
    log.close()
    for _ in range(2):
        claim(runs.worker.producer_config, [Made(other.name, other.events)], runs.owner, {})
        assert JournalOfRun(runs.worker, runs.owner, runs.memory).begin({other.events: Task(0, other)}) == {}
    assert runs.journal().keys() == {runs.settings.events, other.events}
    runs.lose_disk()
    runs.begin()
    assert runs.waiting == ({b"a": b"a"}, {b"a"})
    assert runs.journal().keys() == {runs.settings.events, other.events}


def test_a_former_owner_writes_nothing_to_the_journal(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was stopped before that: what its successor noted meanwhile must stay."""
    former, former_memory = runs.begin(), runs.memory
    runs.restart()
    runs.begin()
    runs.publish({0: 9}, runs.waiting_outcome(b"a"))
    monkeypatch.setattr(recovery, "_LONGEST_JOURNAL", 0)
    assert former.memory is former_memory
    with pytest.raises(NotOwner):
        former.note_batch(1)
    runs.lose_disk()
    runs.begin()
    assert (runs.held_offsets["0"], runs.waiting) == (9, ({b"a": b"a"}, {b"a"}))


def test_a_journal_of_before_other_batches_is_not_believed(runs: Runs) -> None:
    """As of a connector that was set to `disabled` for a while: what waited then is in memory alone."""
    runs.begin()
    runs.publish({0: 9, 1: 9}, runs.waiting_outcome(b"old"))
    planner = KafkaPlanner(runs.worker.consumer_config, False)
    planner.commit(group_of(runs.settings.name), {runs.settings.events: {"0": 15, "1": 15}})
    topic = runs.settings.events
    eventually(lambda: read_positions(runs.worker, runs.settings.name, {topic: 1})[topic]["0"].is_loose)
    planner.close()
    runs.memory.held_positions.hold(runs.settings.events, {"0": 15, "1": 15})
    runs.memory.unconfirmed.restore(runs.settings.events, [((), [], {})], time.time())
    runs.memory.unconfirmed.apply([], [UnconfirmedKey(runs.settings.events, 0, b"new", 0)], time.time())
    runs.begin()
    assert runs.held_offsets == {"0": 0, "1": 0}
    assert runs.waiting[0] == {b"new": None}


def test_positions_are_committed_once_more(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka forgets those that nobody commits for a week."""
    journal = runs.begin()
    runs.publish({0: 9})
    partitions = {runs.settings.events: 2}
    before = read_positions(runs.worker, runs.settings.name, partitions)
    monkeypatch.setattr(recovery, "_COMMIT_AGAIN_S", 0.0)
    journal.note_batch(0)
    assert read_positions(runs.worker, runs.settings.name, partitions) == before


def test_no_more_of_the_past_is_read_than_a_cache_holds(runs: Runs) -> None:
    runs.begin()
    runs.publish({0: 19, 1: 19})
    runs.settings = runs.settings.model_copy(update={"cache_max_capacity": 2})
    assert runs.begin().topics == {runs.settings.events: {"0": 11, "1": 11}}


def test_a_long_journal_is_written_anew(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = runs.begin()
    written = sum(runs.publish({0: n}, runs.waiting_outcome(b"%d" % n)).journal_bytes for n in range(1, 9))
    journal.note_batch(written)
    assert runs.journal_length() == 9
    monkeypatch.setattr(recovery, "_LONGEST_JOURNAL", written)
    journal.note_batch(1)
    assert runs.journal_length() == 1
    journal.note_batch(1)
    runs.lose_disk()
    runs.begin()
    assert runs.waiting[0] == {b"%d" % n: b"%d" % n for n in range(1, 9)}


def test_the_past_goes_by_the_times_of_a_partitions_events(runs: Runs) -> None:
    """Not by the clock, as in a backlog of days; nor by another partition, which may be quiet for as long."""
    day_ms, now_ms = 86_400_000, int(time.time() * 1000)
    expire_ms = runs.settings.cache_expire_after_ms
    producer = Producer(runs.worker.consumer_config)
    times = {0: now_ms - 1000 * day_ms, 1: now_ms}
    runs.settings = runs.settings.model_copy(update={"events_topic": f"{runs.settings.events}-old"})
    log = KafkaLog(runs.worker.producer_config)
    log.create(runs.settings.events, 2, {"retention.ms": "-1", "message.timestamp.before.max.ms": str(2000 * day_ms)})
    log.close()
    for partition, last_ms in times.items():
        for event in range(EVENTS):  # half of them as old as a cache would know, and half older
            event_ms = last_ms - (EVENTS - 1 - event) * expire_ms // (EVENTS // 2)
            producer.produce(runs.settings.events, b"%d" % event, b"k", partition, timestamp=event_ms)
    assert producer.flush(30) == 0
    runs.begin()
    log = owned_data_log(runs.worker, runs.owner, 0)
    transaction = runs.transaction(log, {0: EVENTS, 1: EVENTS})
    transaction.times = times
    transaction.commit(BatchOutcome(), 30)
    log.close()
    runs.lose_disk()
    past = runs.begin().topics[runs.settings.events]
    for partition in ("0", "1"):
        assert EVENTS // 2 - 3 <= past[partition] <= EVENTS // 2, past


def test_a_journal_that_is_gone_is_begun_anew(runs: Runs) -> None:
    runs.begin()
    runs.publish({0: 15, 1: 15}, runs.waiting_outcome(b"a"))
    journals = Journals(runs.worker)
    journals.delete_before(journals.ends([runs.group]))
    runs.lose_disk()
    runs.begin()
    assert runs.held_offsets == {"0": 0, "1": 0}
    assert runs.journal_length() == 1


def test_a_damaged_entry_stops_its_connector_alone(runs: Runs) -> None:
    other = runs.settings.model_copy(update={"name": f"{runs.group}-b", "events_topic": f"events-{runs.group}-b"})
    log = KafkaLog(runs.worker.producer_config)
    log.create(other.events, 1, {})
    runs.begin(**{other.events: Task(1, other)})
    assert runs.errors == {}
    log.append(runs.worker.journal_topic(runs.group), 0, b"k", b"no entry")
    log.flush(30)
    log.close()
    journal = runs.begin(**{other.events: Task(1, other)})
    ((topic, error),) = runs.errors.items()
    assert (topic, error.kind) == (runs.settings.events, Kind.STATE)
    assert "delete the topic" in str(error)
    assert runs.worker.journal_topic(runs.group) in str(error)
    assert journal.topics.keys() == journal.connectors.keys() == {other.events}


def test_what_is_refused_is_not_published_in_another_way(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise HelenusError(Kind.BROKER_REFUSED, "no right to create", "here")

    monkeypatch.setattr(Journals, "create", refuse)
    journal = runs.begin()
    assert [error.kind for error in runs.errors.values()] == [Kind.BROKER_REFUSED]
    assert (journal.topics, journal.connectors) == ({}, {})


def test_a_topic_that_is_not_there_yet_begins_when_it_is(runs: Runs) -> None:
    missing = runs.settings.model_copy(update={"events_topic": "events-missing"})
    log = KafkaLog(runs.worker.producer_config)
    journal = JournalOfRun(runs.worker, RecordsOwner("helenus-none-1", 2, "a worker"), runs.memory)
    log.close()
    errors = journal.begin({"events-missing": Task(1, missing)})
    assert [error.kind for error in errors.values()] == [Kind.BROKER_UNREACHABLE]
    assert journal.topics == {}
