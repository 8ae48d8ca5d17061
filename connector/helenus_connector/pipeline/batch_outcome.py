"""The outcome of a batch of one table's events."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from helenus_connector.interfaces.event import Gap
from helenus_connector.interfaces.gate import GateState, Intake
from helenus_connector.interfaces.resolver import ResolverOutcome
from helenus_connector.unconfirmed.unconfirmed_key import PublishedKeys, TopicPartition, UnconfirmedKey
from helenus_schemas.errors import HelenusError


@dataclass(slots=True)
class BatchOutcome:
    """What became of a batch.

    Events: read = published + unchanged + confirmed + outdated + dead_lettered + dropped + those that now wait.

    `dropped` are events of changes that too few replicas reported, `at_gate` is what the batch left at the gate. The
    events that it read are of `read_from` to `read_until`, s since the epoch, None if there were none. `waiting` are
    the keys that wait to be confirmed from now on, and `done` those that no longer do. `copies` of a key say how many
    events wait with it. `too_large` are records that were no records of the whole row, for their size. `unread` are
    keys that wait because they can't be read, `error` is why the first of them can't. `contradicted` are changes that
    are believed although their row spoke against them to the end. `unpublished` are rows without a record: dead
    letters for a value that can't be published, and rows after a marker whose key has no form. `lost` are events that
    the topic no longer had, `paused` counts by node the events of changes that it logged again and again, `gaps`
    those of nodes' commit logs. `places` say what was published where.
    """

    read: int = 0
    published: int = 0
    unchanged: int = 0
    confirmed: int = 0
    outdated: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    records: int = 0
    too_large: int = 0
    unpublished: int = 0
    unread: int = 0
    contradicted: int = 0
    paused: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    gaps: list[Gap] = field(default_factory=list)
    keys_read: int = 0
    statements: int = 0
    query_seconds: float = 0.0
    newest_write_time: int | None = None
    waiting: list[UnconfirmedKey] = field(default_factory=list)
    done: list[UnconfirmedKey] = field(default_factory=list)
    places: dict[TopicPartition, PublishedKeys] = field(default_factory=lambda: defaultdict(PublishedKeys))
    error: HelenusError | None = None
    at_gate: GateState = field(default_factory=GateState)
    read_from: float | None = None
    read_until: float | None = None

    @classmethod
    def from_intake(cls, intake: Intake) -> BatchOutcome:
        """Return the outcome of a batch so far: what the gate has decided."""
        return cls(
            read=intake.read,
            confirmed=intake.confirmed,
            outdated=intake.outdated,
            dropped=intake.dropped,
            paused=intake.paused,
            gaps=intake.gaps,
            at_gate=intake.at_gate,
        )

    def add(self, resolver_outcome: ResolverOutcome) -> None:
        """Take over what the resolver returned."""
        self.published, self.unchanged = resolver_outcome.published, resolver_outcome.unchanged
        self.outdated += resolver_outcome.outdated
        self.dead_lettered += resolver_outcome.dead_lettered
        self.keys_read, self.statements, self.query_seconds = (
            resolver_outcome.keys_read,
            resolver_outcome.statements,
            resolver_outcome.query_seconds,
        )
        self.unread, self.contradicted, self.error = (
            resolver_outcome.unread,
            resolver_outcome.contradicted,
            resolver_outcome.error,
        )
        self.waiting, self.done, self.places = (
            resolver_outcome.waiting_keys,
            resolver_outcome.settled_keys,
            resolver_outcome.published_keys,
        )
