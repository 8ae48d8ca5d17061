"""One attempt to read the keys of a batch, and how a key that was read goes to the stage.

An attempt ends when the table was altered, say: then another begins, with the table's new version and an empty outcome.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from helenus_connector.cassandra_rows.row_reader import KeyRefused, RowReader
from helenus_connector.gate.event_content import event_time
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.resolver import ResolverOutcome
from helenus_connector.reread._evidence import Evidence
from helenus_connector.reread._key_read import PROVEN, KeyRead
from helenus_connector.reread._live_rows import LiveRows
from helenus_connector.reread._unread_keys import UnreadKeys
from helenus_connector.unconfirmed.unconfirmed_key import Place, PublishedKeys
from helenus_schemas.errors import HelenusError, Kind

PROOF_S = 2.0
"""How long reads that only confirm keys may take, of all levels together: changes must not wait for them."""
ResolvedGroups = Iterator[Sequence[ResolvedKey]]


@dataclass(slots=True)
class ReadAttempt:
    """One attempt to read the keys of a batch, with one version of its table.

    `published` are the keys that the batch published, by events partition, in earlier attempts too. `outcome` is what
    the attempt has come to so far. The table was created at `created_at`, s since the epoch. Changed keys are read at
    level `consistency`. The stage sets `failure`: why the rows of the marker that it got last could not be read.

    Reads that only confirm keys give up at `proof_deadline`, monotonic s; `unreached` are the levels at which one has.
    """

    reader: RowReader
    evidence: Evidence
    unread: UnreadKeys
    live: LiveRows
    published: Mapping[Place, PublishedKeys]
    outcome: ResolverOutcome
    created_at: float
    consistency: int
    count_partitions: Callable[[], int]
    trusts_digests: bool = False
    failure: Exception | None = None
    unreached: set[int] = field(default_factory=set)
    proof_deadline: float = field(default_factory=lambda: time.monotonic() + PROOF_S)

    def deliver(self, key_read: KeyRead) -> ResolvedGroups:
        """Yield a key by itself. Raises what kept the stage from publishing all of it."""
        self.outcome.keys_read += 1
        self.prepare(key_read)
        self.failure = None
        yield [key_read]
        if self.failure is not None:
            failure, self.failure = self.failure, None
            if not isinstance(failure, HelenusError) or failure.kind is Kind.CASSANDRA_READ:
                key_read.read_at = key_read.read_at if isinstance(failure, KeyRefused) else None  # not all was read
            raise failure
        if key_read.read_rows is not None:
            key_read.proof = self.evidence.proof(key_read)

    def prepare(self, key_read: KeyRead) -> None:
        """Fill in what the stage and the shape go by."""
        # A marker's time is that of the deletion. Of the same partition a newer change of its static columns may wait,
        # and who goes by times must not take rows for deleted that were written between the two.
        deleted_at = key_read.newest if key_read.read_rows is None else key_read.deleted_at
        key_read.last_digest, key_read.write_time, key_read.expires = None, deleted_at, None
        if key_read.unconfirmed and self.trusts_digests and not key_read.events and not self._is_covered(key_read):
            key_read.last_digest = key_read.unconfirmed.image
        if key_read.read_rows is not None:
            return
        key_read.proof = proof = self.evidence.proof(key_read)
        key_read.is_confirmed = not proof.unproven
        image = key_read.after
        if image is None:
            return
        if image.write_time is not None:
            key_read.write_time = image.write_time
            if key_read.newest is not None and key_read.newest > image.write_time and not self.reader.shows_all_times:
                key_read.write_time = key_read.newest
        # Of columns of many cells the read does not show it.
        first, of_row = key_read.first_expires, image.expires
        key_read.expires = of_row if first is None else first if of_row is None else min(first, of_row)

    def refuse(self, key_read: KeyRead, refusal: KeyRefused) -> ResolvedGroups:
        """Do without a key that no row can have: the table of before had it, or it is poison."""
        since = [event_time(key_read.event)] if key_read.event else []
        since += [key_read.unconfirmed.since] if key_read.unconfirmed else []
        key_read.is_outdated = min(since) < self.created_at
        if not (key_read.is_asked_for or key_read.verifying or key_read.is_outdated):
            key_read.read_at = None  # it was read before
            return
        key_read.proof = PROVEN
        if not key_read.is_outdated:
            name = self.reader.table.full_name
            key_read.failure = HelenusError(Kind.POISON_EVENT, f"no key of this table: {refusal}", name)
            yield [key_read]

    def _is_covered(self, key_read: KeyRead) -> bool:
        """Return whether a key may have been published with a marker of this batch."""
        return self.published[key_read.topic, key_read.partition].covers(key_read.key)
