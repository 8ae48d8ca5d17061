"""Rows from the source's workers to an operator with state: events, many to a row, and notes of partitions."""

from __future__ import annotations

import marshal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, repeat
from typing import Any

from helenus_connector.gate.cache import change_id
from helenus_connector.interfaces.event import Event
from helenus_connector.log.events import Message
from helenus_schemas.errors import HelenusError
from helenus_schemas.event.own_format import match_cells, match_own_format

_PACK_EVENTS = 1_000
_PACK_BYTES = 1 << 20
_WITHOUT_REFERENCES = 2  # a version of marshal's: later ones look each object up, as it may come again
_new = tuple.__new__


@dataclass(frozen=True, slots=True)
class PartitionNote:
    """What a task must know of a partition, in addition to its records.

    In this batch only this task reads the partition: from `start` up to `planned_end`, as planned in `epoch` of its
    topic. `lost` counts events that the topic no longer has, `error` is why it cannot be read. With an `end` it was
    read only up to, not including, that offset: more would have been too many bytes. Up to `read` an earlier run has
    read it. Only for an operator with state: `now` is the batch's time, s since the epoch, and `rules` are what the
    operator goes by, both the same if the batch is repeated; `copies` counts by node what was left out as `CopyFilter`
    says.
    """

    topic: str
    partition: int
    start: int
    epoch: int
    lost: int = 0
    error: HelenusError | None = None
    end: int | None = None
    now: float = 0.0
    rules: Mapping[str, Any] = field(default_factory=dict)
    read: int = 0
    planned_end: int = 0
    copies: Mapping[str, int] = field(default_factory=dict)


class CopyFilter:
    """Leaves out of a partition's events, in one batch, what another node has reported before: the same digest for the
    same key, both with cells. Such a copy would change nothing, and to shuffle it costs more than to find it. `copies`
    counts them by node.

    A node that reports a digest once more has logged that mutation again, as of a client that sets write times itself:
    what was deleted in between may live again. And what a TRUNCATE removed is no copy of what a node logged after it.
    """

    def __init__(self) -> None:
        self._reporters: dict[bytes, int] = {}  # by 16 bytes, as keys may be large and a batch has many: bits of nodes
        self._bits: dict[bytes, int] = {}
        self.copies = Counter[str]()

    def remove_copies(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages, in order, without copies."""
        return [message for message in messages if not self._is_copy(message)]

    def _is_copy(self, message: Message) -> bool:
        value, key = message.value(), message.key()
        match = match_own_format(value) if value else None
        if match is None:
            if key is None:  # of a whole table
                self._reporters.clear()
            return False
        if match_cells(match) is None:
            return False
        change_digest = change_id(key or b"", match.scope, match.digest)  # as `event_content.identity`
        bit = self._bits.setdefault(match.node, 1 << len(self._bits))
        nodes = self._reporters.get(change_digest, 0)
        self._reporters[change_digest] = nodes | bit
        if not nodes or nodes & bit:
            return False
        self.copies[match.node.decode()] += 1
        return True


def pack_events(messages: Sequence[Message]) -> Iterator[bytes]:
    """Yield messages of one partition as the fields of `Event`s, many in one byte string, for `unpack_events`."""
    index = 0
    while index < len(messages):
        # A field of all of them after the other: that takes two thirds of the time.
        chunk = messages[index : index + _PACK_EVENTS]
        keys, values = [m.key() for m in chunk], [m.value() for m in chunk]
        sizes = accumulate(map(_size, keys, values))
        count = next((n for n, size in enumerate(sizes, 1) if size >= _PACK_BYTES), len(chunk))
        if count < len(chunk):
            chunk, keys, values = chunk[:count], keys[:count], values[:count]
        offsets, times = [m.offset() for m in chunk], [m.timestamp()[1] for m in chunk]
        yield marshal.dumps((chunk[0].topic(), chunk[0].partition(), offsets, times, keys, values), _WITHOUT_REFERENCES)
        index += count


def _size(key: bytes | None, value: bytes | None) -> int:
    return len(key or b"") + len(value or b"")


def unpack_events(events: bytes) -> list[Event]:
    """Return the events of one byte string that a process of this run packed: at least one, all of one partition."""
    topic, partition, *columns = marshal.loads(events)
    # By its own constructor a named tuple takes twice as long.
    return list(map(_new, repeat(Event), zip(repeat(topic), repeat(partition), *columns, strict=False)))
