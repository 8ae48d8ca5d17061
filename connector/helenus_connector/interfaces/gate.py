"""The interface of a gate, which decides which change events are passed on to the resolver.

    RF 3: three replicas report one INSERT, so three events come in. One is admitted; the others are duplicates.
    At level LOCAL_QUORUM the first one waits, the second one completes the change and is admitted, the third is a
    duplicate.

A gate works with digests, with the nodes that reported them and with consistency levels. It reads no rows. The driver
keeps the changes that wait at the gate: it gives them to each batch and takes the batch's result back.
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
    """The changes that wait at the gate of a topic when a batch begins, and how many more may wait after it.

    `reports` maps partition and change id to the nodes that reported a waiting change and the number of its events.
    `overdue` are the waiting changes whose timeout has passed, or that are handed out early. `room` is the number of
    further bytes that may wait.
    """

    reports: Mapping[int, Mapping[bytes, tuple[Nodes, int]]] = {}
    overdue: Sequence[WaitingChange] = ()
    room: float = float("inf")


NOTHING_WAITS = GateWaits()


@dataclass(slots=True)
class GateState:
    """The changes that a batch leaves at the gate. The driver applies it once the batch is complete.

    `waits` are changes that wait, new ones or ones with more reports than before; `gone` are those that no longer wait,
    as partition and change id.
    `truncated` lists partition and node where a node has truncated the table: its earlier reports no longer count.
    `stopped` maps each partition that was not read to its end, because no more changes may wait, to the offset from
    which on it was not read.
    `completed`, `verified`, `released` and `dropped` count the changes that had waited, by outcome.
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
    """The outcome of a batch's events that are not admitted.

    read + waiting before = copies of admitted changes + confirmed + outdated + dropped + poison + waiting `at_gate`
    now. `paused` counts, by node, the events of changes that the node logged repeatedly. `confirmed` counts copies of
    changes that are fully processed, and gaps, which `gaps` lists. `dropped` counts events of changes that not enough
    nodes reported in time. `outdated` counts events of keys that the table can no longer have: it was recreated, or a
    type in its partition key got a field, which older rows never have. `poison` are events that can't be decoded.
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
    """The gate of one table in one process. All methods are called by the thread that runs the table's batch.

    There is one batch at a time, with these steps: `begin_batch`, its `admit` once, `mark` after the records are
    flushed, its `save` once. Reports and marks that are not saved are forgotten when the next batch begins. So a batch
    that failed can be repeated: the same events are admitted again.
    """

    def begin_batch(self, codec: KeyCodec, made_at: float, waits: GateWaits = NOTHING_WAITS) -> GateBatch:
        """Begin a batch of events whose keys `codec` decodes.

        The table was created at `made_at`, s since the epoch: an event whose key the table can't have is poison only if
        it was written since. `waits` are the changes that wait at the gate.
        """
        ...

    def count_replicas(self, topic: str, partition: int, values: Key, change: bytes) -> int:
        """Return how many current replicas of a key, among those that the connector reads, reported a change.

        `change` is the change's `id`. Called by the resolver during a batch, when it judges a read.
        """
        ...

    def mark(
        self, topic: str, partition: int, changes: Iterable[bytes], is_confirmed: bool, by_age: bool = False
    ) -> None:
        """Mark changes as published, and as confirmed if `is_confirmed`: from now on their copies are dropped.

        Called by the resolver in `confirm`, so only after the log has acknowledged the flush of their records. A change
        that is confirmed `by_age` alone is admitted once more if a node reports it a second time. Unknown changes are
        ignored. The call is idempotent. The mark is durable once the batch's `save` returns.
        """
        ...

    def close(self) -> None:
        """Close files. Called once, between two batches. Reports and marks that are not saved are forgotten."""
        ...


class GateBatch(Protocol):
    """One batch at the gate. `intake` counts the events that are not admitted, and has what is left at the gate."""

    intake: Intake

    def admit(self, events: Iterable[Event]) -> Iterator[AdmittedChange]:
        """Yield the admitted changes in the order of their events, each at the event that completed it; then the
        overdue ones of the changes that wait.

        Called once; the caller consumes the iterator to its end. All other events are counted in `intake`, whose
        `at_gate` has the changes that wait afterwards. No event raises: one that can't be decoded is added to
        `intake.poison`.
        """
        ...

    def save(self) -> None:
        """Make the reports and marks of this batch visible to later batches and to the host's other processes.

        Called once, after the last `mark`. They survive the end of this process, not the loss of the host's disk: after
        that, changes may be published once more.
        """
        ...

    def settle_verified(
        self, verified_changes: Iterable[AdmittedChange], unseen_changes: Iterable[AdmittedChange]
    ) -> int:
        """End the wait of verified changes, and of those that a read finally did not show; return the latter's events.

        Called once, before `save`, with what the resolver found of the changes that were admitted with `verifying`.
        """
        ...
