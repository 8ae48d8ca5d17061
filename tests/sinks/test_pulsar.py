"""The Log on a real Pulsar that unloads, hangs, dies and comes back: nothing lost, each partition in order."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pulsar as client
import pytest
import trustme
from patience import eventually

from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.log import DeclaredSchemas
from helenus_sinks.pulsar import _session, connection
from helenus_sinks.pulsar import log as log_module
from helenus_sinks.pulsar._admin import Admin
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.epochs import first_epoch, run_epoch
from helenus_sinks.pulsar.log import PulsarLog
from helenus_sinks.pulsar.owners import claim, next_epochs
from helenus_stack.secure import AGENT, STRANGER
from helenus_stack.stack import Stack

pytestmark = pytest.mark.integration

KEEP = {"retention.ms": "3600000"}
KEY = '{"type":"record","name":"t","namespace":"ks","fields":[{"name":"id","type":"int"}]}'

LONGER_THAN_A_TEST_S = 3600
"""What waits so long is cut short, or the test's timeout ends it."""


def value_schema(*columns: str) -> str:
    fields = ",".join(f'{{"name":"{column}","type":["null","string"],"default":null}}' for column in columns)
    return f'{{"type":"record","name":"t","namespace":"ks","fields":[{fields}]}}'


def settings_of(stack: Stack) -> PulsarConfig:
    status = stack.status()
    assert status.pulsar_url
    return PulsarConfig(status.pulsar_url, status.pulsar_admin_url)


@pytest.fixture(scope="module")
def stack(only_pulsar: Stack) -> Stack:
    return only_pulsar


@pytest.fixture
def settings(stack: Stack) -> PulsarConfig:
    return settings_of(stack)


@pytest.fixture
def log(settings: PulsarConfig) -> Iterator[PulsarLog]:
    log = PulsarLog(settings)
    yield log
    log.close()


def admin(settings: PulsarConfig) -> Admin:
    assert settings.admin_url
    return Admin(settings.admin_url, settings.access)


def messages(settings: PulsarConfig, topic: str, partition: int = 0) -> list[Any]:
    """All messages of a partition, as pulsar-client gives them."""
    quiet = client.FileLogger(client.LoggerLevel.Error, "/dev/null")
    talking = client.Client(settings.service_url, logger=quiet)
    try:
        reader = talking.create_reader(f"{settings.name(topic)}-partition-{partition}", client.MessageId.earliest)
        messages_read = []
        while reader.has_message_available():
            messages_read.append(reader.read_next(20_000))
        return messages_read
    finally:
        talking.close()


def numbers(settings: PulsarConfig, topic: str, partition: int = 0) -> list[int]:
    return [int(message.data()) for message in messages(settings, topic, partition)]


def test_records_arrive_as_they_were(settings: PulsarConfig, log: PulsarLog) -> None:
    assert log.create("bytes", 3, KEEP) == 3
    assert log.create("bytes", 5, KEEP) == 3, "it is there"
    assert log.topics()["bytes"] == 3
    everything = bytes(range(256))
    log.append("bytes", 1, everything, everything * 700, [("text", "µ".encode()), ("raw", b"\xff\0")])
    log.append("bytes", 1, b"", b"")
    log.append("bytes", 1, b"deleted", None)
    log.append("bytes", 1, None, b"without a key")
    log.extend("bytes", 2, ((b"%d" % n, b"%d" % n) for n in range(2500)))
    log.flush(20)
    first, second, third, fourth = messages(settings, "bytes", 1)
    assert first.data() == everything * 700
    assert first.properties() == {"text": "µ", "raw": "/wA=\n".strip()}
    assert second.data() == third.data() == b""
    assert [m.partition_key() for m in (second, third, fourth)] == ["", "ZGVsZXRlZA==", ""]
    assert numbers(settings, "bytes", 2) == list(range(2500))
    assert not messages(settings, "bytes", 0)


def test_an_idle_connection_is_kept(log: PulsarLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker asks every 2 s whether we live, and we ask it."""
    monkeypatch.setattr(connection, "_KEEP_ALIVE", 0.5)
    log.create("idle", 1, KEEP)
    log.append("idle", 0, b"k", b"0")
    log.flush(20)
    assert log._session
    (writer,) = log._session.writers.values()
    before = writer._connection
    time.sleep(7)
    assert writer._connection is before
    assert before
    assert not before.closed


class Writing:
    """Numbers, written and flushed as fast as it goes, to two partitions, until stopped."""

    def __init__(self, log: PulsarLog, topic: str) -> None:
        self.log, self.topic = log, topic
        self.next = self.flushed = 0
        self.gap = 0.0
        self.failure: HelenusError | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write_records)
        self._thread.start()

    def _write_records(self) -> None:
        last = time.monotonic()
        try:
            while not self._stop.is_set():
                for _ in range(50):
                    for partition in (0, 1):
                        self.log.append(self.topic, partition, b"%d" % (self.next % 7), b"%d" % self.next)
                    self.next += 1
                self.log.flush(120)
                self.gap, last = max(self.gap, time.monotonic() - last), time.monotonic()
                self.flushed = self.next
        except HelenusError as error:
            self.failure = error

    def wait(self, more: int = 2000) -> None:
        wanted = self.flushed + more
        eventually(lambda: self.flushed >= wanted or self.failure, every=0.01)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(150)
        assert self.failure is None, self.failure


def unload(stack: Stack, topic: str) -> None:
    for _ in range(3):
        admin(settings_of(stack)).ask("PUT", f"persistent/public/default/{topic}/unload")
        time.sleep(0.3)


def restart(stack: Stack, topic: str) -> None:
    stack.stop("pulsar")
    stack.start("pulsar")


def kill(stack: Stack, topic: str) -> None:
    stack.kill("pulsar")
    stack.start("pulsar")


@pytest.mark.parametrize("disturb", [unload, pytest.param(restart, marks=pytest.mark.long), kill])
def test_nothing_is_lost_and_all_is_in_order(
    stack: Stack, settings: PulsarConfig, log: PulsarLog, disturb: Callable[[Stack, str], None]
) -> None:
    topic = disturb.__name__
    log.create(topic, 2, KEEP)
    writing = Writing(log, topic)
    try:
        writing.wait()
        disturb(stack, topic)
        writing.wait()
    finally:
        writing.stop()
    for partition in (0, 1):
        numbers_read = numbers(settings, topic, partition)
        assert list(dict.fromkeys(numbers_read)) == list(range(writing.next))
        # What was stored but not acknowledged when the topic closed comes twice, a batch at a time.
        assert len(numbers_read) - writing.next <= 150


@pytest.mark.long  # as above, where an operator turned this on
def test_a_deduplicating_broker_stores_each_once(stack: Stack, settings: PulsarConfig, log: PulsarLog) -> None:
    admin(settings).ask("PUT", "namespaces/public/dedup", {})
    admin(settings).ask("POST", "namespaces/public/dedup/deduplication", True)
    log = PulsarLog(replace(settings, namespace="dedup"))
    log.create("once", 2, KEEP)
    writing = Writing(log, "once")
    try:
        writing.wait()
        for _ in range(3):
            admin(settings).ask("PUT", "persistent/public/dedup/once/unload")
            time.sleep(0.3)
        kill(stack, "once")
        writing.wait()
    finally:
        writing.stop()
    for partition in (0, 1):
        assert numbers(replace(settings, namespace="dedup"), "once", partition) == list(range(writing.next))
    # A flush that failed is followed by records of their own: none is taken for one that is there.
    writer = log._session and next(iter(log._session.writers.values()))
    assert writer
    log.close()
    for partition in (0, 1):
        log.extend("once", partition, [(b"k", b"%d" % n) for n in range(writing.next, writing.next + 10)])
    log.flush(20)
    log.close()
    assert numbers(replace(settings, namespace="dedup"), "once", 0)[-10:] == list(
        range(writing.next, writing.next + 10)
    )


def test_a_hanging_broker(stack: Stack, settings: PulsarConfig, log: PulsarLog) -> None:
    """A flush gives up in time, what is appended again arrives after what was in flight."""
    log.create("stalls", 1, KEEP)
    log.append("stalls", 0, b"k", b"0")
    log.flush(20)
    stack.pause("pulsar")
    try:
        log.extend("stalls", 0, ((b"k", b"%d" % n) for n in range(1, 1000)))
        with pytest.raises(HelenusError, match="did not acknowledge 999 records in time") as error:
            log.flush(1)
        assert error.value.kind is Kind.APPEND_FAILED
        log.extend("stalls", 0, ((b"k", b"%d" % n) for n in range(1, 2000)))
        timer = threading.Timer(0.3, log.hurry, [0.3])
        timer.start()
        with pytest.raises(HelenusError):
            log.flush(LONGER_THAN_A_TEST_S)
        timer.join()
        log._deadline = float("inf")
        log.extend("stalls", 0, ((b"k", b"%d" % n) for n in range(1, 2000)))
    finally:
        stack.resume("pulsar")
    log.flush(60)
    numbers_read = numbers(settings, "stalls")
    assert set(numbers_read) == set(range(2000))
    assert numbers_read[-1999:] == list(range(1, 2000)), "nothing old after something new"


def test_room_is_bounded(stack: Stack, log: PulsarLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "_QUEUE_TIMEOUT_S", 1.0)
    log.create("full", 1, KEEP)
    log.append("full", 0, b"k", b"v")
    log.flush(20)
    stack.pause("pulsar")
    accepted = 0
    try:
        with pytest.raises(HelenusError, match="the queue is full") as error:  # noqa: PT012
            while True:
                log.append("full", 0, b"k", bytes(100_000))
                accepted += 1
        assert error.value.kind is Kind.APPEND_FAILED
        assert accepted < 400
    finally:
        stack.resume("pulsar")
    log.flush(60)


def test_a_record_that_is_too_large(stack: Stack, settings: PulsarConfig, log: PulsarLog) -> None:
    log.create("large", 1, KEEP)
    log.append("large", 0, b"k", b"1")
    largest = 5 * 1024 * 1024 - 2048
    log.append("large", 0, b"k", bytes(largest))
    with pytest.raises(HelenusError, match="a record of 6000001 bytes") as error:
        log.append("large", 0, b"k", bytes(6_000_000))
    assert error.value.kind is Kind.RECORD_TOO_LARGE
    log.append("large", 0, b"k", b"3")
    log.flush(60)
    assert [len(m.data()) for m in messages(settings, "large")] == [1, largest, 1]


def test_stored_values_have_their_message_ids(settings: PulsarConfig, log: PulsarLog) -> None:
    log.create("stored", 2, KEEP)
    log.append("stored", 1, None, b"before")
    log.flush(20)
    for number in range(2):
        values = [(bytes([number]) * 300_000, [("n", b"0")]), (b"b" * 300_000, [("n", b"1")]), (b"c", [("n", b"2")])]
        first, last = log.store("stored", 1, values, 20)
        log.append("stored", 0, b"k", b"of another partition")
        ids = [(m.message_id().ledger_id(), m.message_id().entry_id()) for m in messages(settings, "stored", 1)]
        assert (first, last) == (ids[1 + 3 * number], ids[3 + 3 * number])
    assert log.largest_record() == 5 * 1024 * 1024 - 1024


@pytest.mark.long  # a broker of its own
def test_a_broker_that_takes_more(tmp_path: Path) -> None:
    """Records, and events, of more than Pulsar's default, from the first one on."""
    sizes = {"maxMessageSize": 8 << 20, "nettyMaxFrameSizeBytes": (8 << 20) + 10_240}
    properties = {key: str(size) for key, size in sizes.items()}
    with Stack(tmp_path / "large", only=["pulsar"], log="pulsar", pulsar_properties=properties) as stack:
        settings = settings_of(stack)
        log = PulsarLog(settings)
        log.create("large", 1, KEEP)
        log.append("large", 0, b"k", bytes(7_000_000))
        log.flush(60)
        with pytest.raises(HelenusError, match="where 8387584 are allowed"):
            log.append("large", 0, b"k", bytes(9_000_000))
        log.close()
        assert [len(m.data()) for m in messages(settings, "large")] == [7_000_000]


def test_schemas_follow_the_table_and_an_unfit_one_is_refused(settings: PulsarConfig, log: PulsarLog) -> None:
    log.create("schemas", 1, KEEP)
    for columns in (("a",), ("a", "b"), ("a",), ("b",)):
        log.declare("schemas", DeclaredSchemas(KEY, value_schema(*columns)))
        log.append("schemas", 0, b"\2", b"\0" * len(columns))
    log.flush(20)
    assert [m._message.int_schema_version() for m in messages(settings, "schemas")] == [0, 1, 0, 2]
    with pytest.raises(HelenusError, match="schema") as error:
        log.declare("schemas", DeclaredSchemas(KEY.replace("int", "string"), value_schema("a")))
    assert error.value.kind is Kind.REGISTRY_REFUSED
    with pytest.raises(HelenusError, match="Illegal character in: my col") as error:
        log.declare("schemas", DeclaredSchemas(KEY, value_schema("my col")))
    assert error.value.kind is Kind.REGISTRY_REFUSED
    log.append("schemas", 0, b"\2", b"\0")
    log.flush(20)
    assert messages(settings, "schemas")[-1]._message.int_schema_version() == 2


def test_times_of_another_unit_are_refused(log: PulsarLog) -> None:
    """As of records that DataStax's connector wrote: to Pulsar both are longs."""

    def schemas_of(kind: str) -> DeclaredSchemas:
        return DeclaredSchemas(KEY, value_schema("a").replace('"string"', f'{{"type":"long","logicalType":"{kind}"}}'))

    assert schemas_of("cql_time").value != schemas_of("time-micros").value
    log.create("units", 1, KEEP)
    log.declare("units", schemas_of("time-micros"))
    with pytest.raises(HelenusError, match=r"set time\.precision\.mode") as error:
        log.declare("units", schemas_of("cql_time"))
    assert error.value.kind is Kind.REGISTRY_REFUSED
    log.declare("units", DeclaredSchemas(KEY, value_schema("b")))


def test_records_are_decoded_as_the_documentation_says(settings: PulsarConfig, log: PulsarLog) -> None:
    """Those of before an ALTER by the schema they were written with."""
    (code,) = re.findall(r"```python\n(import io.*?)```", Path("docs/pulsar.md").read_text(), re.DOTALL)
    constants = dict(re.findall(r'^(ADMIN), TOPIC = "(.*?)"', code, re.MULTILINE))
    code = code.replace(constants["ADMIN"], settings.admin_url or "").replace("data-shop.orders", "decoded")
    names: dict[str, Any] = {}
    exec(code, names)
    log.create("decoded", 1, KEEP)
    for columns in (("a",), ("a", "b")):
        log.declare("decoded", DeclaredSchemas(KEY, value_schema(*columns)))
        log.append("decoded", 0, b"\x0e", b"".join(b"\2\2" + column.encode() for column in columns))
    log.append("decoded", 0, b"\2", None)
    log.flush(20)
    rows = [names["row"](message) for message in messages(settings, "decoded")]
    assert rows == [({"id": 7}, {"a": "a"}), ({"id": 7}, {"a": "a", "b": "b"}), ({"id": 1}, None)]


def test_a_key_that_gets_another_name_keeps_its_schema(settings: PulsarConfig, log: PulsarLog) -> None:
    """Its bytes are the same; the value's schema goes on, and a key of another type is refused as before."""
    log.create("renamed", 1, KEEP)
    log.declare("renamed", DeclaredSchemas(KEY, value_schema("a")))
    renamed = KEY.replace('"id"', '"number"')
    log.declare("renamed", DeclaredSchemas(renamed, value_schema("a", "b")))
    log.append("renamed", 0, b"\2", b"\0\0")
    log.flush(20)
    answer = admin(settings).ask("GET", "schemas/public/default/renamed/schema")
    schema = json.loads(answer["data"])
    assert [field["name"] for field in schema["key"]["fields"]] == ["id"]
    assert [field["name"] for field in schema["value"]["fields"]] == ["a", "b"]
    assert answer["version"] == 1
    with pytest.raises(HelenusError) as error:
        log.declare("renamed", DeclaredSchemas(renamed.replace('"int"', '"string"'), value_schema("a", "b")))
    assert error.value.kind is Kind.REGISTRY_REFUSED


def test_keys_stay_with_their_consumer(settings: PulsarConfig) -> None:
    """Two consumers share a subscription by key: batches of one key each are given whole to the right one."""
    log = PulsarLog(replace(settings, batches="key"))
    log.create("shared", 1, KEEP)
    quiet = client.FileLogger(client.LoggerLevel.Error, "/dev/null")
    talking = client.Client(settings.service_url, logger=quiet)
    kind = client.ConsumerType.KeyShared
    start = client.InitialPosition.Earliest
    # Both before there is anything: what the first got while it was alone might be of the other's keys.
    first, other = (talking.subscribe("shared", "s", kind, initial_position=start) for _ in range(2))
    log.extend("shared", 0, ((b"%d" % (n // 3 % 20), b"%d" % n) for n in range(600)))
    log.flush(20)
    log.close()
    seen: list[dict[str, list[int]]] = [{}, {}]
    unread, deadline = 600, time.monotonic() + 120
    while unread:
        assert time.monotonic() < deadline, unread
        for consumer, keys in zip((first, other), seen, strict=True):
            try:
                message = consumer.receive(10)
            except client.Timeout:
                continue
            keys.setdefault(message.partition_key(), []).append(int(message.data()))
            consumer.acknowledge(message)
            unread -= 1
    talking.close()
    assert not seen[0].keys() & seen[1].keys()
    assert all(numbers_of_key == sorted(numbers_of_key) for keys in seen for numbers_of_key in keys.values())


def owned(settings: PulsarConfig, topic: str, epoch: int) -> PulsarLog:
    """A Log of the run that has this epoch."""
    log = PulsarLog(settings)
    log.declare(topic, DeclaredSchemas(None, value_schema("a")))
    log.own(epoch)
    return log


def epoch_now() -> int:
    return run_epoch(first_epoch(time.time_ns() // 10**6, 0), 1)


def test_a_newer_owner_fences_the_older(settings: PulsarConfig, log: PulsarLog) -> None:
    """The older one stood still while it had records to write, as a process does that is swapped out."""
    log.create("fenced", 1, KEEP)
    older, newer = (owned(settings, "fenced", epoch) for epoch in (10, 20))
    older.append("fenced", 0, b"k", b"1")
    older.flush(20)
    assert older._session
    older._session.loop.call_soon_threadsafe(time.sleep, 3)
    older.append("fenced", 0, b"k", b"3")
    newer.append("fenced", 0, b"k", b"2")
    newer.flush(20)
    for _ in range(2):
        with pytest.raises(HelenusError, match="another worker writes these records") as error:
            older.flush(20)
        assert error.value.kind is Kind.NOT_OWNER
        older.append("fenced", 0, b"k", b"3")
    newer.append("fenced", 0, b"k", b"4")
    newer.flush(20)
    older.close()
    newer.close()
    assert numbers(settings, "fenced") == [1, 2, 4]


def test_an_owner_whose_batch_is_under_way(settings: PulsarConfig, log: PulsarLog) -> None:
    """Its records that the broker took are before the newer one's, none comes after, and it learns of it."""
    log.create("mid-batch", 1, KEEP)
    older, newer = (owned(settings, "mid-batch", epoch) for epoch in (10, 20))
    written = threading.Event()
    failures: list[HelenusError] = []

    def write() -> None:
        try:
            for number in range(10**6):
                older.append("mid-batch", 0, b"k", b"%d" % number)
                if number == 20_000:
                    written.set()
        except HelenusError:
            pass  # the flush says it, too
        try:
            older.flush(20)
        except HelenusError as error:
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    assert written.wait(30)
    for number in range(1000):
        newer.append("mid-batch", 0, b"k", b"-%d" % number)
        newer.flush(20)
        if number > 50 and failures:
            break
    thread.join(60)
    older.close()
    newer.close()
    assert [error.kind for error in failures] == [Kind.NOT_OWNER]
    stored = numbers(settings, "mid-batch")
    first = next(index for index, message in enumerate(messages(settings, "mid-batch")) if message.data() == b"-0")
    assert stored[:first] == list(range(first)), "some of the older one's, in order"
    assert all(message.data().startswith(b"-") for message in messages(settings, "mid-batch")[first:])


@pytest.mark.parametrize("disturb", [unload, pytest.param(restart, marks=pytest.mark.long), kill])
def test_an_owner_stays_while_its_topic_moves(
    stack: Stack, settings: PulsarConfig, log: PulsarLog, disturb: Callable[[Stack, str], None]
) -> None:
    """Nobody writes meanwhile: the broker keeps who may."""
    topic = f"owned-{disturb.__name__}"
    log.create(topic, 2, KEEP)
    earlier, epoch = epoch_now(), epoch_now() + 2
    older = owned(settings, topic, earlier)
    older.append(topic, 1, b"k", b"1")
    older.flush(20)
    assert claim(settings, {topic: epoch}, set(), lambda: False) == {}
    disturb(stack, topic)
    older.append(topic, 1, b"k", b"3")
    with pytest.raises(HelenusError, match="another worker writes these records: since 2") as error:
        older.flush(60)
    assert error.value.kind is Kind.NOT_OWNER
    newer = owned(settings, topic, epoch)
    newer.append(topic, 1, b"k", b"2")
    newer.flush(60)
    older.close()
    newer.close()
    assert numbers(settings, topic, 1) == [1, 2]
    refused = claim(settings, {topic: earlier}, set(), lambda: False)
    assert refused[topic].kind is Kind.NOT_OWNER
    assert next_epochs(settings, [topic], lambda: False) == {topic: epoch + 1}


def test_a_topic_that_is_made_anew_forgets_its_owner(settings: PulsarConfig, log: PulsarLog) -> None:
    """An epoch is a time, so that the newer owner has the higher one all the same."""
    log.create("anew", 1, KEEP)
    older = owned(settings, "anew", epoch_now())
    time.sleep(0.01)
    newer = epoch_now()
    assert claim(settings, {"anew": newer}, set(), lambda: False) == {}
    admin(settings).ask("DELETE", "persistent/public/default/anew/partitions?force=true")
    log.create("anew", 1, KEEP)
    older.append("anew", 0, b"k", b"1")
    older.flush(20)
    assert claim(settings, {"anew": newer}, set(), lambda: False) == {}
    older.append("anew", 0, b"k", b"2")
    with pytest.raises(HelenusError, match="another worker writes these records"):
        older.flush(20)
    older.close()


def test_a_namespace_that_asks_producers_for_a_schema(settings: PulsarConfig, log: PulsarLog) -> None:
    log.create("enforced", 2, KEEP)
    writer = owned(settings, "enforced", 10)
    enforced = "namespaces/public/default/schemaValidationEnforced"
    admin(settings).ask("POST", enforced, True)
    try:

        def is_refused() -> bool:
            log.append("enforced", 0, b"k", b"1")
            try:
                log.flush(20)
            except HelenusError as error:
                return "without a schema" in str(error)
            log.close()
            return False

        eventually(is_refused, "the policy is in force")
        assert claim(settings, {"enforced": 20}, set(), lambda: False) == {}
    finally:
        admin(settings).ask("POST", enforced, False)
    writer.append("enforced", 1, b"k", b"2")
    with pytest.raises(HelenusError, match="another worker writes these records"):
        writer.flush(20)
    writer.close()


@pytest.mark.long
def test_claims_while_the_former_owner_takes_turns(settings: PulsarConfig, log: PulsarLog) -> None:
    """A producer of it that was let in just before a claim may set the epoch back after it: without a wait in the
    claim, one in some 25 of them.
    """
    log.create("turns", 4, KEEP)
    for _ in range(10):
        older = owned(settings, "turns", epoch_now())
        failures: list[HelenusError] = []
        thread = threading.Thread(target=take_turns, args=(older, failures))
        thread.start()
        time.sleep(0.2)
        epoch = epoch_now()
        assert claim(settings, {"turns": epoch}, set(), lambda: False) == {}
        claimed = [len(numbers(settings, "turns", partition)) for partition in range(4)]
        time.sleep(0.2)
        thread.join(30)
        older.close()
        assert [error.kind for error in failures] == [Kind.NOT_OWNER]
        assert [len(numbers(settings, "turns", partition)) for partition in range(4)] == claimed
        assert claim(settings, {"turns": epoch - 1}, set(), lambda: False)["turns"].kind is Kind.NOT_OWNER


def take_turns(log: PulsarLog, failures: list[HelenusError]) -> None:
    """Write until the broker refuses it, with new producers for each record."""
    try:
        for number in range(10**6):
            for partition in range(4):
                log.append("turns", partition, b"k", b"%d" % number)
            log.flush(20)
    except HelenusError as error:
        failures.append(error)


def test_two_processes_of_a_run_that_take_turns_at_once(settings: PulsarConfig, log: PulsarLog) -> None:
    """A producer is fenced just when its process has no use for it any more. If that closed it by a command, brokers
    would wait for themselves, for ever, after some hundred turns.
    """
    log.create("contested", 4, KEEP)
    logs = [owned(settings, "contested", 10) for _ in range(2)]
    failures: list[HelenusError] = []

    def take_turns(number: int) -> None:
        try:
            for turn in range(200):
                for partition in range(4):
                    logs[number].append("contested", partition, b"k", b"%d" % (number * 1000 + turn))
                logs[number].flush(60)
        except HelenusError as error:
            failures.append(error)

    threads = [threading.Thread(target=take_turns, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for log_of_process in logs:
        log_of_process.close()
    for partition in range(4):
        assert set(numbers(settings, "contested", partition)) == {*range(200), *range(1000, 1200)}


def test_a_writer_without_epochs_is_kept_out_meanwhile(
    settings: PulsarConfig, log: PulsarLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of an earlier version: while a producer of the owner is there it waits, and says for whom; then not."""
    log.create("others", 1, KEEP)
    owner = owned(settings, "others", 10)
    owner.append("others", 0, b"k", b"1")
    owner.flush(20)
    log.append("others", 0, b"k", b"2")
    with pytest.raises(HelenusError, match="Topic has an existing exclusive producer: helenus-") as error:
        log.flush(2)
    assert error.value.kind is Kind.APPEND_FAILED
    monkeypatch.setattr(_session, "_LEFT_S", 1.0)
    owner.append("others", 0, b"k", b"3")
    owner.flush(20)
    log.append("others", 0, b"k", b"4")
    log.flush(20)
    owner.append("others", 0, b"k", b"5")
    owner.flush(20)
    owner.close()
    assert numbers(settings, "others") == [1, 3, 4, 5]


def test_a_topic_that_is_deleted_under_us_can_be_made_again(settings: PulsarConfig, log: PulsarLog) -> None:
    log.create("gone", 1, KEEP)
    for columns in (("a",), ("a", "b")):
        log.declare("gone", DeclaredSchemas(KEY, value_schema(*columns)))
    log.append("gone", 0, b"k", b"1")
    log.flush(20)
    admin(settings).ask("DELETE", "persistent/public/default/gone/partitions?force=true")
    log.append("gone", 0, b"k", b"2")
    with pytest.raises(HelenusError, match="not found") as error:
        log.flush(20)
    assert error.value.kind is Kind.TOPIC_MISSING
    log.create("gone", 1, KEEP)
    log.declare("gone", DeclaredSchemas(KEY, value_schema("a", "b")))
    log.append("gone", 0, b"k", b"2")
    log.flush(20)
    assert numbers(settings, "gone") == [2]
    (message,) = messages(settings, "gone")
    last = admin(settings).ask("GET", "schemas/public/default/gone/schema")
    assert message._message.int_schema_version() == last["version"]


def failure(settings: PulsarConfig, topic: str = "t") -> HelenusError:
    """What it says when a topic is made and written to."""
    log = PulsarLog(settings)
    try:
        log.create(topic, 1, KEEP)
        log.append(topic, 0, b"k", b"v")
        log.flush(15)
    except HelenusError as error:
        return error
    finally:
        log.close()
    raise AssertionError("nothing went wrong")


def test_missing_tenants_namespaces_and_topics_are_named(settings: PulsarConfig) -> None:
    error = failure(replace(settings, tenant="nobody"))
    assert (error.kind, "enant" in error.what or "namespace" in error.what.lower()) == (Kind.BROKER_REFUSED, True), (
        error
    )
    error = failure(replace(settings, namespace="nothing"))
    assert (error.kind, "namespace" in error.what.lower()) == (Kind.BROKER_REFUSED, True), error
    error = failure(replace(settings, admin_url=None), "unmade")
    assert error.kind is Kind.BROKER_REFUSED
    assert "pulsar.admin.url" in error.what
    error = failure(replace(settings, service_url="pulsar://127.0.0.1:1"))
    assert error.kind is Kind.BROKER_UNREACHABLE
    error = failure(replace(settings, service_url=settings.service_url.replace("pulsar:", "pulsar+ssl:")))
    assert error.kind is Kind.BROKER_UNREACHABLE
    with pytest.raises(HelenusError, match=r"pulsar\.service\.url") as wrong:
        PulsarLog(replace(settings, service_url="localhost:6650"))
    assert wrong.value.kind is Kind.CONFIG


def test_a_service_of_several_addresses(settings: PulsarConfig) -> None:
    there = settings.service_url.removeprefix("pulsar://")
    log = PulsarLog(replace(settings, service_url=f"pulsar://127.0.0.1:1,{there}"))
    log.create("several", 1, KEEP)
    log.append("several", 0, b"k", b"1")
    log.flush(20)
    log.close()
    assert numbers(settings, "several") == [1]


@pytest.mark.long  # ../integration/test_secure_pulsar.py has both
def test_tls_and_tokens(tmp_path: Path, stack: Stack) -> None:
    with Stack(tmp_path / "secure", only=["pulsar"], secure=True, log="pulsar") as secure:
        status = secure.status()
        access = status.security
        assert access
        boss = replace(settings_of(secure), token=access.token("admin"), cafile=Path(access.cafile))
        log = PulsarLog(boss)
        log.create("t", 1, KEEP)
        log.close()
        agent = replace(boss, token=access.token(AGENT))
        log = PulsarLog(agent)
        log.create("t", 1, KEEP)
        log.append("t", 0, b"k", b"1")
        log.flush(20)
        log.close()
        other = tmp_path / "other.pem"
        trustme.CA().cert_pem.write_to_path(str(other))
        wrong = {
            "Failed to authenticate": replace(agent, token=agent.token and agent.token[:-4] + "AAAA"),
            "authenticat": replace(agent, token=None),
            "ot authorized": replace(agent, token=access.token(STRANGER)),
            "certificate verify failed": replace(agent, cafile=other),
            "pulsar.tls.cafile": replace(agent, cafile=None),
        }
        for words, settings in wrong.items():
            error = failure(settings)
            assert error.kind is Kind.BROKER_REFUSED, error
            assert words in error.what, error
            assert (agent.token or "?") not in str(error)
        error = failure(agent, "unmade")
        assert error.kind is Kind.BROKER_REFUSED, error
