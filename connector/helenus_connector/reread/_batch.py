"""One batch of the resolver `reread`: its keys are read, if need be in several passes, and confirmed.

1. begin a pass  with the table's current version, and an outcome that is empty
2. read          `_read_turns`: truncations, then markers, then rows
3. let wait      keys that could not be read, each alone
4. confirm       mark at the gate what is published and proven; have the other keys wait
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from helenus_connector.cassandra_rows.row_reader import RowReader
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate.cache import Caches
from helenus_connector.interfaces.gate import Gate
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.resolver import ResolverOutcome, RowsFailed
from helenus_connector.reread._evidence import Evidence
from helenus_connector.reread._key_outcome import hand_back, last_published, take_verified
from helenus_connector.reread._key_read import PROVEN, KeyRead
from helenus_connector.reread._key_reads import KeyReads
from helenus_connector.reread._live_rows import LiveRows
from helenus_connector.reread._read_pass import ReadPass, ResolvedGroups
from helenus_connector.reread._read_turns import order_reads, read_turns
from helenus_connector.reread._row_outcomes import mark_confirmed, note_published
from helenus_connector.reread._unread_keys import MOST_READS, StuckKeys, UnreadKeys
from helenus_connector.unconfirmed.unconfirmed_key import PublishedKeys, TopicPartition
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Scope

_log = structlog.get_logger(__name__)
_TABLE = Scope.TABLE  # an enum's members are slow to look up


@dataclass(frozen=True, slots=True)
class RereadResources:
    """What the batches of one table share in one process.

    `consistency` is the level at which changed keys are read. `open_reader` returns the reader of a version of the
    table; its second argument says whether that version was read just now.
    """

    settings: ConnectorSettings
    consistency: int
    gate: Gate
    caches: Caches
    stuck_keys: StuckKeys
    count_partitions: Callable[[], int]
    open_reader: Callable[[Table, bool], RowReader]


class RereadBatch:
    """Reads the keys of one batch, and confirms those of which a read proves what was published."""

    def __init__(
        self,
        resources: RereadResources,
        reader: RowReader,
        codec: KeyCodec,
        key_reads: KeyReads,
        evidence: Evidence,
        created_at: float,
    ) -> None:
        self._resources = resources
        self._reader = reader
        self._codec = codec
        self._key_reads = key_reads
        self._evidence = evidence
        self._created_at = created_at
        # By events partition; of all passes, as records of one that failed may be durable.
        clustering = len(reader.table.clustering)
        self._published: dict[TopicPartition, PublishedKeys] = defaultdict(partial(PublishedKeys, clustering))
        self._read_pass: ReadPass | None = None
        self._reads = [*key_reads.by_name.values(), *key_reads.verifications.values()]  # of the last pass
        self._reads_to_confirm: list[KeyRead] = []  # all but those that wait because they could not be read

    def use_table(self, table: Table, codec: KeyCodec) -> None:
        self._reader, self._codec = self._resources.open_reader(table, True), codec

    def resolve(self, trusts_digests: bool, may_wait: int) -> ResolvedGroups:
        # 1. begin a pass
        if self._read_pass is not None:
            self._reads = [key_read.for_next_pass() for key_read in self._reads]
        key_reads = self._reads
        if trusts_digests:
            self._published.clear()  # nothing of a former pass is durable
        read_pass = self._read_pass = self._begin_pass(trusts_digests)
        reader = read_pass.reader
        statements_before, seconds_before = reader.statements, reader.seconds
        # 2. read
        is_clustered, partition_columns = len(reader.table.clustering) > 0, self._codec.partition_columns
        yield from read_turns(read_pass, order_reads(key_reads, is_clustered, partition_columns, read_pass.unread_keys))
        if reader.saw_ttl:
            for topic, partition in {(key_read.topic, key_read.partition) for key_read in key_reads}:
                self._resources.caches.cache_for(topic, partition).note_expiry()
        read_pass.outcome.statements = reader.statements - statements_before
        read_pass.outcome.query_seconds = reader.seconds - seconds_before
        # 3. let wait
        yield from self._leave_unread(read_pass, key_reads, may_wait)

    def note_publishing(self, resolved: Iterable[ResolvedKey]) -> None:
        note_published(resolved, self._published)

    def note_failure(self, error: RowsFailed) -> None:
        assert self._read_pass is not None
        self._read_pass.failure = error.cause

    def confirm(self) -> ResolverOutcome:
        # 4. confirm
        read_pass = self._read_pass
        assert read_pass is not None, "resolve() comes first"
        confirm_key = partial(self._confirm_key, read_pass)
        gate, unfinished = self._resources.gate, read_pass.live_rows.next_stripes
        published = mark_confirmed(self._reads_to_confirm, unfinished, gate.mark, confirm_key)
        read_pass.outcome.published += published  # after the call: `confirm_key` adds to it as well
        return read_pass.outcome

    def _begin_pass(self, trusts_digests: bool) -> ReadPass:
        resources, reader, key_reads = self._resources, self._reader, self._key_reads
        settings = resources.settings
        shows_expiry = "expires" in settings.headers and (key_reads.asks_ttl or resources.caches.has_expiring)
        reader.asks_ttl = settings.state == "keys" or shows_expiry
        reader.saw_ttl = False
        outcome = ResolverOutcome(
            outdated=sum(unconfirmed.copies for unconfirmed in key_reads.outdated),
            waiting_keys=list(key_reads.waiting.values()),
            settled_keys=list(key_reads.outdated),
            published_keys=self._published,
        )
        return ReadPass(
            reader,
            self._evidence,
            UnreadKeys(resources.stuck_keys),
            LiveRows(reader, self._codec),
            self._published,
            outcome,
            self._created_at,
            resources.consistency,
            resources.count_partitions,
            trusts_digests,
        )

    def _leave_unread(self, read_pass: ReadPass, key_reads: Sequence[KeyRead], may_wait: int) -> ResolvedGroups:
        """Have the keys that were not read wait, each alone. After many reads a key may become a dead letter."""
        self._reads_to_confirm = list(key_reads)
        unread_reads = read_pass.unread_keys.select_unread(key_reads)
        if not unread_reads:
            return
        unread_keys, table, outcome = read_pass.unread_keys, read_pass.reader.table, read_pass.outcome
        outcome.error = unread_keys.to_error(unread_reads[0], table)
        if sum(key_read.events > 0 for key_read in unread_reads) > may_wait:
            advice = outcome.error.advice if outcome.error.kind is Kind.CASSANDRA_READ else ""
            raise HelenusError(Kind.CASSANDRA_READ, outcome.error.what, outcome.error.where, advice)
        waiting_ids = set()
        for key_read in unread_reads:
            cause, failed_reads = unread_keys.to_error(key_read, table), unread_keys.failed_reads(key_read)
            if cause.kind is Kind.ROW_UNREADABLE:
                _log.warning("row.unreadable", reads=failed_reads + 1, error=str(cause))
                if failed_reads + 1 >= MOST_READS and self._resources.settings.errors_tolerance == "all":
                    key_read.read_at, key_read.proof, key_read.failure = time.time(), PROVEN, cause
                    yield [key_read]
                    continue
            waiting_ids.add(id(key_read))
            if key_read.unconfirmed and (failed_reads == 0 or key_read.unconfirmed.key != key_read.key):
                outcome.settled_keys.append(key_read.unconfirmed)
            outcome.waiting_keys.append(unread_keys.to_unconfirmed(key_read))
        outcome.unread = len(waiting_ids)
        self._reads_to_confirm = [key_read for key_read in key_reads if id(key_read) not in waiting_ids]

    def _confirm_key(self, read_pass: ReadPass, key_read: KeyRead) -> None:
        """Confirm a key, or have it wait: any that is not published and proven as most are (`mark_confirmed`)."""
        if key_read.verifying is not None and not take_verified(key_read, read_pass.outcome):
            return
        proof = key_read.proof
        is_plain = not (proof.unproven or proof.by_age or key_read.unconfirmed or key_read.dead_lettered)
        if key_read.published and is_plain:
            read_pass.outcome.published += key_read.events
        else:
            is_scope = key_read.is_marked and (len(read_pass.reader.table.clustering) > 0 or key_read.scope is _TABLE)
            published = self._published[key_read.topic, key_read.partition]
            hand_back(key_read, read_pass.outcome, last_published(key_read, published, is_scope))
        # Of a truncation a part may still have to be read.
        if key_read.read_at is not None and id(key_read) not in read_pass.live_rows.next_stripes:
            for change in key_read.awaited:
                is_confirmed = change not in proof.unproven
                self._resources.gate.mark(
                    key_read.topic, key_read.partition, [change], is_confirmed, change in proof.by_age
                )
