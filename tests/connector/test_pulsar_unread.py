"""What a subscription has not read, against a broker that is made up: by where it stands, not by how long it takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pulsar
import pytest
from sinks.test_pulsar_client import Broker, brokers  # noqa: F401

from helenus_connector.log import _pulsar_unread as pulsar_unread
from helenus_connector.log._pulsar_offsets import offset, parts
from helenus_connector.log._pulsar_unread import unread
from helenus_schemas.errors import HelenusError
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.wire import command

NONE = 2**64 - 1
TOPIC, GROUP = "dlq-ks.t", "helenus-replay-n"


class Message:
    """What pulsar-client has of one."""

    def __init__(self, position: int) -> None:
        self._id = pulsar.MessageId(0, *parts(position))

    def message_id(self) -> pulsar.MessageId:
        return self._id

    def partition_key(self) -> str:
        return ""

    def data(self) -> bytes:
        return b"dead_letter"

    def publish_timestamp(self) -> int:
        return 0

    def properties(self) -> dict[str, str]:
        return {"__connect.errors.topic": "events-ks.t"}


class DeadLetters:
    """A topic with dead_letters at these offsets, and one group's subscription; a reader waits `slow` times."""

    def __init__(self, broker: Broker, *dead_letters: int) -> None:
        self.dead_letters = list(dead_letters)
        self.mark: dict[str, int] | None = None
        self.slow = 0
        for name in ("partitioned_metadata", "subscribe", "last_id", "ack", "close_consumer"):
            broker.answers[name] = getattr(self, name)

    def partitioned_metadata(self, request: Any) -> list[bytes]:
        return [command("partitioned_metadata_response", request_id=request.request_id, partitions=1)]

    def subscribe(self, request: Any) -> list[bytes]:
        assert (request.subscription, request.durable) == (GROUP, True)
        return self.close_consumer(request)

    def close_consumer(self, request: Any) -> list[bytes]:
        return [command("success", request_id=request.request_id)]

    def last_id(self, request: Any) -> list[bytes]:
        ledger, entry, index = parts(self.dead_letters[-1]) if self.dead_letters else (NONE, NONE, 0)
        fields = {"last_message_id": {"ledgerId": ledger, "entryId": entry, "batch_index": index}}
        if self.mark is not None:
            fields["consumer_mark_delete_position"] = self.mark
        return [command("last_id_response", request_id=request.request_id, **fields)]

    def ack(self, request: Any) -> list[bytes]:
        (message_id,) = request.message_id
        self.mark = {"ledgerId": message_id.ledgerId, "entryId": message_id.entryId}
        return [command("ack_response", request_id=request.request_id)]

    @contextmanager
    def opened(self, config: PulsarConfig, topic: str, partition: int, position: int) -> Iterator[DeadLetters]:
        assert (topic, partition) == (TOPIC, 0)
        self.left = [dead_letter for dead_letter in self.dead_letters if dead_letter >= position]
        yield self

    def has_message_available(self) -> bool:
        return bool(self.left)

    def read_next(self, timeout_ms: int) -> Message:
        if self.slow:
            self.slow -= 1
            raise pulsar.Timeout
        return Message(self.left.pop(0))


@pytest.fixture
def dead_letters(brokers: list[Broker], monkeypatch: pytest.MonkeyPatch) -> DeadLetters:  # noqa: F811
    letters = DeadLetters(brokers[0], *(offset(7, 0, i) for i in range(3)), offset(7, 1, 0), offset(9, 0, 0))
    monkeypatch.setattr(pulsar_unread, "opened", letters.opened)
    return letters


@pytest.fixture
def config(brokers: list[Broker]) -> PulsarConfig:  # noqa: F811
    return PulsarConfig(brokers[0].url)


def offsets(config: PulsarConfig) -> list[int]:
    return [m.offset() for chunk in unread(config, GROUP, TOPIC, 0) for m in chunk]


def test_each_dead_letter_is_read_once_however_slow_the_first_is(
    dead_letters: DeadLetters, config: PulsarConfig
) -> None:
    dead_letters.slow = 30
    (chunk,) = unread(config, GROUP, TOPIC, 0)
    assert [m.offset() for m in chunk] == dead_letters.dead_letters
    assert dict(chunk[0].headers()) == {"__connect.errors.topic": b"events-ks.t"}
    assert offsets(config) == []
    dead_letters.dead_letters += [offset(9, 1, 0)]
    assert offsets(config) == [offset(9, 1, 0)]


@pytest.mark.parametrize(
    ("mark", "first"),
    [
        (None, 0),
        ({"ledgerId": NONE, "entryId": NONE}, 0),
        ({"ledgerId": 7, "entryId": NONE}, 0),
        ({"ledgerId": 7, "entryId": 0}, 3),
        ({"ledgerId": 9, "entryId": NONE}, 4),  # where a broker moves what was read to the end of an older ledger
        ({"ledgerId": 9, "entryId": 0}, 5),
        ({"ledgerId": 11, "entryId": NONE}, 5),
    ],
)
def test_reading_starts_at_the_subscriptions_position(
    dead_letters: DeadLetters, config: PulsarConfig, mark: dict[str, int] | None, first: int
) -> None:
    dead_letters.mark = mark
    assert offsets(config) == dead_letters.dead_letters[first:]


def test_unacknowledged_dead_letters_are_read_again(
    dead_letters: DeadLetters, config: PulsarConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulsar_unread, "_CHUNK", 2)
    chunks = unread(config, GROUP, TOPIC, 0)
    assert [len(next(chunks)) for _ in range(2)] == [2, 2]
    chunks.close()  # type: ignore[attr-defined]
    # The second pair was not acknowledged, and a whole entry is the least that can be acknowledged.
    assert offsets(config) == dead_letters.dead_letters


def test_a_topic_without_dead_letters_and_one_that_lost_them(dead_letters: DeadLetters, config: PulsarConfig) -> None:
    there, dead_letters.dead_letters = dead_letters.dead_letters, []
    assert offsets(config) == []
    dead_letters.dead_letters = there
    dead_letters.has_message_available = lambda: False  # type: ignore[method-assign]
    assert offsets(config) == []


def test_a_reader_without_an_answer_raises_an_error(
    dead_letters: DeadLetters, config: PulsarConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulsar_unread, "_PATIENCE_S", 0.0)
    dead_letters.slow = 1_000_000
    with pytest.raises((pulsar.Timeout, HelenusError)):
        offsets(config)
    assert dead_letters.mark is None
