"""Follows a statement through the topics: its event, known by its write time, then the record that it leads to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from helenus_connector.log.events import Message
from helenus_schemas.event.change import Change
from helenus_stack.readers import Reader
from helenus_stack.records import Record

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Trace:
    """What became of a statement. Times in s, by this process's clock.

    `event_after`: from the driver's acknowledgement to the event in our consumer. `record_after`: from there to the
    record in our consumer.
    """

    change: Change
    record: Record
    event_after: float
    record_after: float


@dataclass(frozen=True)
class Arrival:
    """A message and when our consumer got it, s of the monotonic clock."""

    message: Message
    arrived_at: float


@dataclass
class Search:
    """What is known of one statement while its event and record are on their way; messages may come in any order."""

    reader: Reader
    write_time: int
    event: Arrival | None = None
    _records: list[Arrival] = field(default_factory=list)

    def add_event(self, arrival: Arrival) -> None:
        """Takes it if it is the first event of the statement: the agent may send one twice."""
        if self.event is None and self.reader.change(arrival.message).write_time == self.write_time:
            self.event = arrival

    def add_record(self, arrival: Arrival) -> None:
        """Keeps a record that may be the one."""
        self._records.append(arrival)

    @property
    def record(self) -> Arrival | None:
        """The first record of the event's key that was made after the event."""
        if self.event is None:
            return None
        key, since = self.event.message.key(), self.event.message.timestamp()[1]
        # A record's key is the event's, after the bytes that name its schema.
        later = (r for r in self._records if r.message.timestamp()[1] >= since)
        return next((r for r in later if (r.message.key() or b"")[self.reader.frame :] == key), None)


class Tracer:
    """Reads the events and the data topic of a table from their start, as soon as they exist."""

    def __init__(self, reader: Reader, events: str, data: str) -> None:
        self._reader = reader
        self._events = events
        self._missing = {events, data}

    def trace(self, write_time: int, acknowledged: float, waiting: Callable[[Search], None]) -> Trace:
        """Waits for the event with this write time (µs) and its record; `acknowledged` in s of the monotonic clock.

        Calls `waiting` several times a second, which may raise to end it. Raises StackError if the brokers refuse.
        """
        search = Search(self._reader, write_time)
        while (event := search.event) is None or (record := search.record) is None:
            waiting(search)
            self._follow()
            message = self._reader.arrival(_POLL_SECONDS)
            if message is not None:
                arrival = Arrival(message, time.monotonic())
                (search.add_event if message.topic() == self._events else search.add_record)(arrival)
        return Trace(
            self._reader.change(event.message),
            self._reader.record(record.message),
            max(0.0, event.arrived_at - acknowledged),
            max(0.0, record.arrived_at - event.arrived_at),
        )

    def _follow(self) -> None:
        if self._missing:
            for topic in self._missing & self._reader.topics():
                self._reader.follow(topic, whole=True)
                self._missing.remove(topic)
