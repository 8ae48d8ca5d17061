"""One pass over the keys of a batch, and how a key that was read goes to the stage.

A pass ends early when the table turns out to have been altered: then all keys are read in another pass, with the
table's new version and an empty outcome.
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
from helenus_connector.reread._row_proofs import first_expiry, set_record_times
from helenus_connector.reread._unread_keys import UnreadKeys
from helenus_connector.unconfirmed.unconfirmed_key import PublishedKeys, TopicPartition
from helenus_schemas.errors import HelenusError, Kind

PROOF_S = 2.0
"""How long reads that only confirm keys may take, of all levels together: changes must not wait for them."""
ResolvedGroups = Iterator[Sequence[ResolvedKey]]


@dataclass(slots=True)
class ReadPass:
    """One pass over the keys of a batch, with one version of its table.

    `published` are the keys that the batch published, by events partition, in earlier passes too. `outcome` is the
    batch's outcome as far as this pass has come. The table was created at `created_at`, s since the epoch. Changed keys
    are read at level `consistency`. The stage sets `failure`: why the rows of the marker that it got last could not be
    read.

    Reads that only confirm keys give up at `proof_deadline`, monotonic s. At the `unavailable_levels` one has given up
    or was refused: no other is begun.
    """

    reader: RowReader
    evidence: Evidence
    unread_keys: UnreadKeys
    live_rows: LiveRows
    published: Mapping[TopicPartition, PublishedKeys]
    outcome: ResolverOutcome
    created_at: float
    consistency: int
    count_partitions: Callable[[], int]
    trusts_digests: bool = False
    failure: Exception | None = None
    unavailable_levels: set[int] = field(default_factory=set)
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
            key_read.proof = self.evidence.prove(key_read)

    def is_verified(self, key_read: KeyRead) -> bool:
        """Return whether a read at the gate's level shows some of the changes that a row, or a partition's static
        columns, are read for; note which it does not.
        """
        key_read.unseen = self.evidence.find_unseen(key_read)
        return len(key_read.unseen) < len(key_read.awaited)

    def prepare(self, key_read: KeyRead) -> None:
        """Set what stage and shape need of a key that was read: digest, write time and expiry; of a row its proof too,
        of a marker that follows once its rows are read.
        """
        key_read.last_digest = None
        if key_read.unconfirmed and self.trusts_digests and not key_read.events and not self._is_covered(key_read):
            key_read.last_digest = key_read.unconfirmed.image
        if key_read.read_rows is not None:
            # A marker's time is that of the deletion. A newer change of the same partition's static columns may wait
            # with it; by its time, sinks would take rows for deleted that were written between the two.
            key_read.write_time, key_read.expires = key_read.deleted_at, first_expiry(key_read, key_read.after)
            return
        key_read.proof = proof = self.evidence.prove(key_read)
        key_read.is_confirmed = not proof.unproven
        set_record_times(key_read, key_read.after, self.reader.shows_all_times)

    def refuse(self, key_read: KeyRead, refusal: KeyRefused) -> ResolvedGroups:
        """Give up a key that no row of the table can have: it is of an earlier table of that name, and outdated, or the
        event is invalid, and becomes a dead letter.
        """
        since = [event_time(key_read.event)] if key_read.event else []
        since += [key_read.unconfirmed.since] if key_read.unconfirmed else []
        key_read.is_outdated = min(since) < self.created_at
        if not (key_read.must_be_published or key_read.verifying or key_read.is_outdated):
            key_read.read_at = None  # an earlier batch read and published it: it goes on waiting
            return
        key_read.proof = PROVEN
        if not key_read.is_outdated:
            name = self.reader.table.full_name
            key_read.failure = HelenusError(Kind.POISON_EVENT, f"no key of this table: {refusal}", name)
            yield [key_read]

    def _is_covered(self, key_read: KeyRead) -> bool:
        """Return whether a key may have been published with a marker of this batch."""
        return self.published[key_read.topic, key_read.partition].covers(key_read.key)
