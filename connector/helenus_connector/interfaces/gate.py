"""The interface of a gate: which change events go on to the resolver.

    RF 3: three replicas report one INSERT, so three events come in. One goes on; the others are its copies.
    At level LOCAL_QUORUM the first one waits, the second one completes the change and goes on, the third is a copy.

A gate knows digests, the nodes that reported them and consistency levels. It knows no reads and no rows. What waits at
it is kept by the driver, which gives it to each batch and takes back what became of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from helenus_connector.interfaces.admitted_change import AdmittedChange
from helenus_connector.interfaces.event import Event, Gap, Nodes, WaitingChange
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.errors import HelenusError


class GateWaits(NamedTuple):
    """What waits at the gate of a topic when a batch begins, and may wait after it.

    `reports` has by partition and id which nodes reported a change that waits, and in how many events. `overdue` are
    those of them that have waited for too long, or are handed out before that. `room` is how many bytes more may wait.
    """

    reports: Mapping[int, Mapping[bytes, tuple[Nodes, int]]] = {}
    overdue: Sequence[WaitingChange] = ()
    room: float = float("inf")


NOTHING_WAITS = GateWaits()


@dataclass(slots=True)
class GateState:
    """What a batch leaves at the gate, for the driver.

    `waits` are changes that wait, new or with more reports than before, `gone` those that no longer do, by partition
    and id.
    `truncated` says in which partition which node has truncated the table: its reports of before count no longer.
    `stopped` says for partitions that were not read to their end, since nothing more may wait, from which offset on.
    `completed`, `verified`, `released` and `dropped` count changes that had waited by what became of them.
    """

    waits: list[WaitingChange] = field(default_factory=list)
    gone: list[tuple[int, bytes]] = field(default_factory=list)
    truncated: list[tuple[int, str]] = field(default_factory=list)
    stopped: dict[int, int] = field(default_factory=dict)
    completed: int = 0
    verified: int = 0
    released: int = 0
    dropped: int = 0


@dataclass(slots=True)
class Intake:
    """What became of a batch's events that do not go on.

    read + those that waited before = copies of those that go on + confirmed + outdated + dropped + poison + those
    that wait `at_gate` now. `paused` counts by node the events of changes that the node logged again and again.
    `confirmed` are copies of changes that are fully processed, and `gaps`. `dropped` are events of changes that were
    not reported by enough nodes in time. `outdated` are events of keys that the table can't have any more: it was
    recreated, or a type in its partition key got a field, which older rows never have.
    """

    read: int = 0
    confirmed: int = 0
    outdated: int = 0
    dropped: int = 0
    poison: list[tuple[Event, HelenusError]] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    paused: dict[str, int] = field(default_factory=dict)
    at_gate: GateState = field(default_factory=GateState)


class Gate(Protocol):
    """The gate of one table in one process.

    One batch at a time: `admit`, then `mark` once the records are flushed, then `save`. What is not saved is forgotten
    when the next batch is admitted, so a batch that failed can be done again: the same events go on.
    """

    def admit(
        self,
        events: Iterable[Event],
        codec: KeyCodec,
        made_at: float,
        intake: Intake,
        waits: GateWaits = NOTHING_WAITS,
    ) -> Iterator[AdmittedChange]:
        """The change events that go on, in the order in which they came, a change with the event that completed it;
        then what is overdue of the changes that wait. Counts the others in `intake`, and says there what waits.

        To be read to its end. The table was made at `made_at`, s since the epoch: a key that it can't have is poison
        only if it was written since. Raises nothing for an event: what can't be decoded is in `intake.poison`.
        """
        ...

    def nodes(self, topic: str, partition: int, values: Key, change: bytes) -> int:
        """How many current replicas of a key, where it is read, reported a change, by its `id`."""
        ...

    def mark(
        self, topic: str, partition: int, changes: Iterable[bytes], is_confirmed: bool, by_age: bool = False
    ) -> None:
        """Note that changes are published, and whether they are confirmed: their copies are dropped from now on.

        One that is confirmed `by_age` alone goes on once more if a node reports it a second time. Only after the flush
        of their records is acknowledged. Unknown changes are ignored; the same call twice is the same as one.
        """
        ...

    def save(self) -> None:
        """Keep for later batches, and other processes of this host, what was reported and marked in this one."""
        ...

    def close(self) -> None:
        """Let go of files. What is not saved is forgotten."""
        ...
