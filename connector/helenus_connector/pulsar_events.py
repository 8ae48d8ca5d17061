"""Reading events topics on Pulsar: positions for the planner, records for the tasks.

An offset is a message's id as one number, which orders as ids do: its ledger, the entry in it, and its index in the
entry, 32 bits for each of the last two. A range has the ids from its start up to, not including, its end; the numbers
between hold no messages, so that a difference of two is no count.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from base64 import b64decode
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pulsar
import structlog

from helenus_connector.events import Range
from helenus_connector.positions import Offsets
from helenus_schemas.datastax import unsorted_value
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.pulsar import PulsarConfig
from helenus_sinks.pulsar_client import TOPIC_NOT_FOUND, Answered, Client, Connection, end_loop

_CHUNK = 5_000
_TIMEOUT_S = 10.0
_READ_TIMEOUT_S = 60.0
_IMPATIENT_S = 2.0
_END_S = 3.0
_FIRST_S = 5.0
_FEW = 128  # entries whose events are not counted: a thousand each is the most
_KEPT = 64  # readers, each with up to a thousand messages
_SLICE_MS = 500
_NONE = 2**64 - 1  # an id's way to say -1
_EXCLUSIVE, _CUMULATIVE, _LATEST, _EARLIEST = 0, 1, 0, 1
T = TypeVar("T")


class Message:
    """The `events.Message` of Pulsar."""

    __slots__ = ("_headers", "_key", "_offset", "_partition", "_time", "_topic", "_value")

    def __init__(
        self,
        place: Range,
        at: int,
        time_ms: int,
        key: bytes | None,
        value: bytes,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        self._topic, self._partition = place.topic, place.partition
        self._offset, self._time = at, time_ms
        self._key, self._value = key, value
        self._headers = headers

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        """1, and ms since the epoch."""
        return 1, self._time

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes:
        return self._value

    def headers(self) -> Sequence[tuple[str, bytes]]:
        """Those of `unread`: events need none."""
        return self._headers


def offset(ledger: int, entry: int, index: int) -> int:
    """The number of an id; a message that is alone in its entry has the index 0 or -1."""
    return (ledger << 64) | (entry << 32) | max(index, 0)


def parts(number: int) -> tuple[int, int, int]:
    """Ledger, entry and index of an offset."""
    return number >> 64, number >> 32 & 0xFFFFFFFF, number & 0xFFFFFFFF


class Planner:
    """The `events.Planner` of Pulsar."""

    def __init__(self, config: PulsarConfig) -> None:
        self._config = config
        self._client = Client(config.service_url, config.access)
        self._loop = asyncio.new_event_loop()
        self._numbers = itertools.count(1)
        # A consumer for each (topic, subscription), and its connection.
        self._consumers: dict[tuple[str, str], tuple[Connection, int]] = {}
        # By topic: how many messages an entry has, of late.
        self._in_entry: dict[str, float] = {}
        self._ends: dict[tuple[str, int], int] = {}
        self._whole: set[str] = set()  # topics without partitions
        self._refused: set[str] = set()
        self._committed: set[tuple[str, str, int, int]] = set()
        self._followed: set[tuple[str, str]] = set()  # subscriptions, by topic, that are where their group is

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        async def ask() -> list[int | BaseException | None]:
            asked = (self._client.partitions(self._config.name(topic)) for topic in topics)
            return await asyncio.gather(*asked, return_exceptions=True)

        answers = self._run(ask())
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        if failed and len(failed) == len(answers):
            raise failed[0]
        told = {t: None if isinstance(n, BaseException) else n for t, n in zip(topics, answers, strict=True)}
        self._whole = {*(self._whole - told.keys()), *(topic for topic, found in told.items() if found == 0)}
        self._followed = {(group, topic) for group, topic in self._followed if topic not in told}
        return {topic: 1 if found == 0 else found or 0 for topic, found in told.items()}

    def latest(self, partitions: Mapping[str, int]) -> Offsets:
        places = [(topic, p) for topic, n in partitions.items() for p in range(n)]

        async def ask() -> list[int | HelenusError]:
            return await asyncio.gather(*(self._end(topic, p) for topic, p in places))

        found: Offsets = {}
        refused: dict[str, HelenusError] = {}
        for (topic, p), end in zip(places, self._run(ask()), strict=True):
            if isinstance(end, HelenusError):
                refused[topic] = end
            else:
                found.setdefault(topic, {})[str(p)] = end
        for topic, error in refused.items():
            if not isinstance(error, Answered) or error.code != TOPIC_NOT_FOUND:
                if refused.keys() >= partitions.keys():
                    raise error
                if topic not in self._refused:
                    structlog.get_logger(__name__).warning("source.refused", topic=topic, error=error.what)
                self._refused.add(topic)
        self._refused -= found.keys() - refused.keys()
        return {topic: ends for topic, ends in found.items() if topic not in refused}

    def earliest(self, partitions: Mapping[str, int]) -> Offsets:
        """Before all there is."""
        return {topic: {str(p): 0 for p in range(n)} for topic, n in partitions.items()}

    def since(self, partitions: Mapping[str, int], timestamp_ms: int) -> Offsets:
        """Goes by the time of publishing, and by entries."""
        found: Offsets = {}
        for topic, n in partitions.items():
            for p in range(n):
                with _opened(self._config, topic, p, 0) as reader:
                    reader.seek(timestamp_ms)
                    there = reader.has_message_available()
                    found.setdefault(topic, {})[str(p)] = _offset(reader.read_next(_ms(_TIMEOUT_S))) if there else -1
        return found

    def size(self, place: Range) -> int:
        """By how many messages entries had of late. Of several ledgers only the last is counted: the others' sizes are
        not known.
        """
        if place.start >= place.end:
            return 0
        ledger, entry, index = parts(place.start)
        last_ledger, last_entry, last_index = parts(place.end - 1)
        if ledger != last_ledger:
            entry = index = 0
        if entry == last_entry:
            return last_index - index + 1
        return max(1, int((last_entry - entry) * self._in_entry.get(place.topic, 1)) + last_index + 1 - index)

    def advance(self, place: Range, events: int) -> int:
        """Reads the events, unless there are few entries, and less events by `size`, which can be wrong."""
        if place.start >= place.end:
            return place.end
        (ledger, entry, _), (last_ledger, last_entry, _) = parts(place.start), parts(place.end - 1)
        if ledger == last_ledger and last_entry - entry < _FEW and self.size(place) <= events:
            return place.end
        at, count = place.start, 0
        entries: set[tuple[int, int]] = set()
        with _opened(self._config, place.topic, place.partition, place.start) as reader:
            while count < events and at < place.end and reader.has_message_available():
                found = _offset(reader.read_next(_ms(_TIMEOUT_S)))
                if found >= place.start:
                    at, count = found + 1, count + 1
                    entries.add(parts(found)[:2])
        if entries:
            self._in_entry[place.topic] = count / len(entries)
        return min(at, place.end)

    def commit(self, group: str, offsets: Offsets) -> None:
        """Move a durable subscription: so the broker keeps what is unread, and dashboards see the lag."""
        places = [(group, t, int(p), at) for t, ends in offsets.items() for p, at in ends.items()]
        wanted = [place for place in places if place not in self._committed]

        async def tell() -> list[None]:
            return await asyncio.gather(*(self._acknowledge(*place) for place in wanted))

        self._run(tell())
        self._committed = {place for place in self._committed if place[0] != group} | set(places)

    def gone(self, group: str, starts: Offsets) -> list[tuple[str, str]]:
        """Goes by the group's subscription: a message TTL, a backlog quota or somebody's hand moves it past what was
        not read, and then the broker may drop that. While the start's ledger is there, so is what follows.

        Asks when it is first called for a topic, which makes the subscription, and again when `commit` has found it to
        be ahead.
        """
        places = [
            (topic, p, at)
            for topic, by_partition in starts.items()
            for p, at in by_partition.items()
            if (group, topic) not in self._followed
        ]

        async def ask() -> list[Any]:
            asked = (self._asked(self._place(topic, int(p)), group, "last_id") for topic, p, _ in places)
            return await asyncio.gather(*asked)

        found = [
            (topic, p)
            for (topic, p, at), said in zip(places, self._run(ask()), strict=True)
            if 0 < at <= _done(said) and self._begins_elsewhere(topic, int(p), at)
        ]
        lost = {topic for topic, _ in found}
        self._followed |= {(group, topic) for topic, _, _ in places if topic not in lost}
        return found

    def close(self) -> None:
        """Let go of the brokers."""
        self._client.close()
        end_loop(self._loop)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        async def limited() -> T:
            for _ in range(3):  # connections that were closed while nobody ran the loop are found out
                await asyncio.sleep(0)
            return await asyncio.wait_for(work, _TIMEOUT_S)

        try:
            return self._loop.run_until_complete(limited())
        except asyncio.TimeoutError:
            what = f"Pulsar does not answer within {_TIMEOUT_S:.0f} s"
            raise HelenusError(Kind.BROKER_UNREACHABLE, what, self._config.service_url) from None

    async def _end(self, topic: str, partition: int) -> int | HelenusError:
        try:
            said = await asyncio.wait_for(self._asked(self._place(topic, partition), "", "last_id"), _END_S)
        except HelenusError as error:
            return error
        except asyncio.TimeoutError:
            what = f"Pulsar does not answer within {_END_S:.0f} s"
            return HelenusError(Kind.BROKER_UNREACHABLE, what, f"topic {topic}, partition {partition}")
        end = _behind(said.last_message_id)
        if end >= 0 and self._ends.get((topic, partition)) != end:
            self._ends[topic, partition] = end
            index = parts(end - 1)[2]
            self._in_entry[topic] = 0.8 * self._in_entry.get(topic, index + 1) + 0.2 * (index + 1)
        return end

    async def _acknowledge(self, group: str, topic: str, partition: int, at: int) -> None:
        if not at:
            return
        said = await self._asked(self._place(topic, partition), group, "last_id")
        if _done(said) >= at:
            self._followed.discard((group, topic))
        ledger, entry, _ = parts(at)
        # All before this id: an entry that is read in part stays whole.
        before = {"ledgerId": ledger, "entryId": entry - 1 if entry else _NONE}
        if at == _behind(said.last_message_id):
            before["entryId"] = entry
        await self._asked(self._place(topic, partition), group, "ack", ack_type=_CUMULATIVE, message_id=[before])

    def _begins_elsewhere(self, topic: str, partition: int, at: int) -> bool:
        """Whether the first message that is there, from an offset on, is in another ledger."""
        with _opened(self._config, topic, partition, at) as reader:
            # If nothing is there the next one tells.
            there = reader.has_message_available()
            return there and parts(_offset(reader.read_next(_ms(_TIMEOUT_S))))[0] != parts(at)[0]

    def _place(self, topic: str, partition: int) -> str:
        full = self._config.name(topic)
        return full if topic in self._whole else f"{full}-partition-{partition}"

    async def _asked(self, topic: str, group: str, name: str, **fields: Any) -> Any:
        """The answer to what is asked by a consumer: the group's, or one that reads nothing and leaves no trace."""
        held = self._consumers.get((topic, group))
        try:
            if held is None or held[0].closed or held[1] not in held[0].consumers:
                held = self._consumers[topic, group] = await self._subscribe(topic, group)
            connection, number = held
            return await connection.ask(name, consumer_id=number, **fields)
        except Answered as error:
            raise Answered(error.kind, error.what, f"{error.where}, topic {topic}", error.code) from None

    async def _subscribe(self, topic: str, group: str) -> tuple[Connection, int]:
        # A consumer would make a topic that was deleted, where brokers make topics by themselves.
        if await self._client.partitions(topic.partition("-partition-")[0]) is None:
            raise Answered(
                Kind.BROKER_REFUSED, "Pulsar: there is no such topic", self._config.service_url, TOPIC_NOT_FOUND
            )
        connection = await self._client.broker(topic)
        number = next(self._numbers)
        where = {"initialPosition": _EARLIEST} if group else {"start_message_id": {"ledgerId": _NONE, "entryId": _NONE}}
        await connection.ask(
            "subscribe",
            topic=topic,
            subscription=group or f"helenus-look-{number}-{id(self)}",
            subType=_EXCLUSIVE,
            consumer_id=number,
            durable=bool(group),
            **where,
        )
        connection.consumers.add(number)
        return connection, number


def _behind(told: Any) -> int:
    """The offset behind a last message's id, which is behind its whole entry; -1 if there is none."""
    if _NONE in (told.ledgerId, told.entryId):
        return -1
    return offset(told.ledgerId, told.entryId, told.batch_index if told.HasField("batch_index") else 0) + 1


def _done(said: Any) -> int:
    """The offset of the last entry that a subscription does not wait for; -1 if that is none, or not told."""
    told = said.consumer_mark_delete_position
    if not said.HasField("consumer_mark_delete_position") or _NONE in (told.ledgerId, told.entryId):
        return -1
    return offset(told.ledgerId, told.entryId, 0)


class _Reading:
    """A reader of one partition, and the offset that it gives next."""

    def __init__(self, config: PulsarConfig, topic: str, partition: int, at: int) -> None:
        self.reader = _reader(config, topic, partition, at)
        self.at = at


_readings: dict[tuple[str, str, int], _Reading] = {}
_clients: dict[PulsarConfig, pulsar.Client] = {}


def read(
    config: PulsarConfig,
    places: Sequence[Range],
    data_loss: str,
    lost: Callable[[Range, int], None],
    failed: Callable[[Range, HelenusError], None],
) -> Iterator[list[Message]]:
    """As `brokers.read`, one range after the other. The process keeps its latest readers between calls.

    How many events are lost nobody knows: `lost` hears of one, where a topic ends before a range does.
    """
    patience = _READ_TIMEOUT_S
    for place in places:
        if place.start >= place.end:
            continue
        name = (config.service_url, config.name(place.topic), place.partition)
        try:
            reading = _readings.get(name)
            if reading is None or reading.at != place.start:
                _forget(name)
                reading = _Reading(config, place.topic, place.partition, place.start)
            _readings.pop(name, None)
            _readings[name] = reading  # the latest is the last
            if not (yield from _read(reading, place, patience)):
                if data_loss == "continue":
                    lost(place, 1)
                else:
                    what = "the topic no longer has events that were not read"
                    failed(place, HelenusError(Kind.OFFSETS_LOST, what, str(place)))
        except HelenusError as error:
            failed(place, error)
        except pulsar.PulsarException as error:
            _forget(name)
            failed(place, _error(error, str(place)))
            patience = _IMPATIENT_S  # not as long again for every partition of a broker that hangs
    while len(_readings) > _KEPT:
        _forget(next(iter(_readings)))


def _read(reading: _Reading, place: Range, patience: float) -> Generator[list[Message], None, bool]:
    """Reads to the range's end; False if the topic's comes first."""
    chunk: list[Message] = []
    whole = True
    deadline = time.monotonic() + patience
    while reading.at < place.end:
        if not reading.reader.has_message_available():
            whole, reading.at = False, -1
            break
        try:
            message = reading.reader.read_next(_SLICE_MS)
        except pulsar.Timeout:
            if time.monotonic() > deadline:
                raise
            continue
        at, deadline = _offset(message), time.monotonic() + patience
        if at < place.start:  # it is in the entry that the range starts in
            continue
        if at >= place.end:  # which lies between two messages; this one is for a new reader
            reading.at = -1
            break
        reading.at = at + 1
        chunk.append(_message(place, message))
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
    return whole


def unread(config: PulsarConfig, group: str, topic: str, partition: int) -> Iterator[list[Message]]:
    """As `brokers.unread`."""
    where = f"topic {topic}, partition {partition}"
    consumer = None
    try:
        consumer = _client(config).subscribe(
            f"{config.name(topic)}-partition-{partition}", group, initial_position=pulsar.InitialPosition.Earliest
        )
        last = consumer.get_last_message_id()
        end = offset(last.ledger_id(), last.entry_id(), last.batch_index()) if last.entry_id() >= 0 else -1
        at = -1
        while at < end:
            try:
                taken = [consumer.receive(_ms(_FIRST_S if at < 0 else _TIMEOUT_S))]
            except pulsar.Timeout:
                if at < 0:  # all of it was read before
                    return
                raise
            while len(taken) < _CHUNK and _offset(taken[-1]) < end:
                taken.append(consumer.receive(_ms(_TIMEOUT_S)))
            at = _offset(taken[-1])
            place = Range(topic, partition, 0, end)
            yield [_message(place, m, [(n, v.encode()) for n, v in m.properties().items()]) for m in taken]
            consumer.acknowledge_cumulative(taken[-1])
    except pulsar.PulsarException as error:
        raise _error(error, where) from None
    finally:
        if consumer is not None:
            _close(consumer)


def _message(place: Range, message: Any, headers: Sequence[tuple[str, bytes]] = ()) -> Message:
    told = message.partition_key()
    try:
        key = b64decode(told, validate=True) if told else None
    except ValueError:  # no agent's: a text
        key = told.encode()
    time_ms = message.publish_timestamp()
    return Message(place, _offset(message), time_ms, key, unsorted_value(message.data()), headers)


@contextlib.contextmanager
def _opened(config: PulsarConfig, topic: str, partition: int, at: int) -> Iterator[pulsar.Reader]:
    """A reader for a moment. Raises HelenusError for what goes wrong with it."""
    reader = _reader(config, topic, partition, at)
    try:
        yield reader
    except pulsar.PulsarException as error:
        raise _error(error, f"topic {topic}, partition {partition}") from None
    finally:
        _close(reader)


def _reader(config: PulsarConfig, topic: str, partition: int, at: int) -> pulsar.Reader:
    where = f"topic {topic}, partition {partition}"
    start = pulsar.MessageId(partition, *parts(at)) if at else pulsar.MessageId.earliest
    try:
        full = config.name(topic)
        # One without partitions is its own only one.
        whole = partition == 0 and _client(config).get_topic_partitions(full) == [full]
        name = full if whole else f"{full}-partition-{partition}"
        return _client(config).create_reader(name, start, start_message_id_inclusive=True)
    except pulsar.PulsarException as error:
        raise _error(error, where) from None


def _client(config: PulsarConfig) -> pulsar.Client:
    """This process's client."""
    client = _clients.get(config)
    if client is None:
        client = _clients[config] = pulsar.Client(
            config.service_url,
            authentication=pulsar.AuthenticationToken(config.token) if config.token else None,
            operation_timeout_seconds=int(_TIMEOUT_S),
            tls_trust_certs_file_path=str(config.cafile) if config.cafile else None,
            tls_validate_hostname=config.check_hostname,
            # Errors are told where they matter, and a broker that is away would be told for ever.
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"),
        )
    return client


def _forget(name: tuple[str, str, int]) -> None:
    reading = _readings.pop(name, None)
    if reading is not None:
        _close(reading.reader)


def _close(reader: Any) -> None:
    with contextlib.suppress(pulsar.PulsarException):  # a broker that hangs does not answer to this either
        reader.close()


def _offset(message: Any) -> int:
    told = message.message_id()
    return offset(told.ledger_id(), told.entry_id(), told.batch_index())


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _error(error: Exception, where: str) -> HelenusError:
    """pulsar-client's errors as ours."""
    refused = (pulsar.AuthenticationError, pulsar.AuthorizationError, pulsar.TopicNotFound, pulsar.InvalidTopicName)
    kind = Kind.BROKER_REFUSED if isinstance(error, refused) else Kind.BROKER_UNREACHABLE
    return HelenusError(kind, f"Pulsar: {error or type(error).__name__}", where)
