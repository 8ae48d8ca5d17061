"""The interface of a gate: which change events go on to the resolver.

    RF 3: three replicas report one INSERT, so three events come in. One goes on; the others are its copies.

A gate knows digests, the nodes that reported them and consistency levels. It knows no reads and no rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.errors import HelenusError
from helenus_schemas.event.change import Change


class Event(NamedTuple):
    """A record of an events topic; `timestamp` in ms since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class Gap(NamedTuple):
    """A gap in a node's commit log, `until` a write time in µs: its agent reports it in each partition of a topic."""

    partition: int
    offset: int
    node: str | None
    until: int | None


@dataclass(slots=True)
class Admitted:
    """A change event that goes on: the `event` as it was read, and what was decoded of it.

    `key` is the key in today's form, `values` are the CQL bytes of its columns (none if it concerns the whole table).
    `id` names the change among its replicas' copies; None if they can't be recognised, then each of them goes on.
    `copies` counts the events of this batch that are it, itself included: it is right once all events are read. With
    `is_published` an earlier batch published the change, and its read is not confirmed yet.
    """

    event: Event
    change: Change
    key: bytes
    values: Key
    id: bytes | None
    copies: int = 1
    is_published: bool = False


@dataclass(slots=True)
class Intake:
    """What became of a batch's events that do not go on.

    read = copies of those that go on + confirmed + outdated + poison. `confirmed` are copies of changes that are fully
    processed, and `gaps`. `outdated` are events of keys that the table can't have any more: it was recreated, or a type
    in its partition key got a field, which older rows never have.
    """

    read: int = 0
    confirmed: int = 0
    outdated: int = 0
    poison: list[tuple[Event, HelenusError]] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


class Gate(Protocol):
    """The gate of one table in one process.

    One batch at a time: `admit`, then `mark` once the records are flushed, then `save`. What is not saved is forgotten
    when the next batch is admitted, so a batch that failed can be done again: the same events go on.
    """

    def admit(self, events: Iterable[Event], codec: KeyCodec, made_at: float, intake: Intake) -> Iterator[Admitted]:
        """The change events that go on, in the order in which they came; counts the others in `intake`.

        To be read to its end. The table was made at `made_at`, s since the epoch: a key that it can't have is poison
        only if it was written since. Raises nothing for an event: what can't be decoded is in `intake.poison`.
        """
        ...

    def nodes(self, topic: str, partition: int, values: Key, change: bytes) -> int:
        """How many current replicas of a key, where it is read, reported a change, by its `id`."""
        ...

    def mark(self, topic: str, partition: int, change: bytes, is_confirmed: bool, by_age: bool = False) -> None:
        """Note that a change is published, and whether it is confirmed: its copies are dropped from now on.

        One that is confirmed `by_age` alone goes on once more if a node reports it a second time. Only after the flush
        of its record is acknowledged. Unknown changes are ignored; the same call twice is the same as one.
        """
        ...

    def save(self) -> None:
        """Keep for later batches, and other processes of this host, what was reported and marked in this one."""
        ...

    def close(self) -> None:
        """Let go of files. What is not saved is forgotten."""
        ...
