"""The resolver `reread`: asks Cassandra what a key's row is now. `interfaces.resolver` has the contract.

take     the changes of a key become one read
resolve  truncations, then markers, then rows: no record shows an older read than one before
confirm  what a read does not prove waits with its key, and is read again
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import structlog
from cassandra import ConsistencyLevel

from helenus_connector.cassandra_rows.budget import ReadBudget
from helenus_connector.cassandra_rows.row_reader import KeyRefused, RowReader, UnreadReason
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate.cache import Caches
from helenus_connector.gate.event_content import event_time
from helenus_connector.gate.levels import read_level
from helenus_connector.gate.replicas import Replicas
from helenus_connector.interfaces.admitted_change import AdmittedChange
from helenus_connector.interfaces.gate import Gate
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.resolver import ResolverOutcome, RowsFailed, SchemaChanged
from helenus_connector.reread._evidence import Evidence, note_deletion
from helenus_connector.reread._key_outcome import hand_back, last_published
from helenus_connector.reread._key_read import PROVEN, KeyRead
from helenus_connector.reread._key_reads import KeyReads, order_reads
from helenus_connector.reread._live_rows import LiveRows, first_stripe
from helenus_connector.reread._proof import lowest_level
from helenus_connector.reread._row_outcomes import mark_confirmed, note_published
from helenus_connector.reread._row_proofs import prove_row_reads
from helenus_connector.reread._row_reads import index_by_key
from helenus_connector.reread._unread_keys import MOST_READS, UnreadKeys
from helenus_connector.unconfirmed.unconfirmed_key import AWAY, Place, PublishedKeys, UnconfirmedKey
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Scope

_PROOF_S = 2.0
_VERIFY_S = 5.0
_log = structlog.get_logger(__name__)
Groups = Iterator[Sequence[ResolvedKey]]
_TABLE = Scope.TABLE  # an enum's members are slow to look up


class RereadResolver:
    """The resolver of one table in one process. Keeps its statements between batches.

    `partitions` says how many partitions the data topic has.
    """

    def __init__(
        self,
        settings: ConnectorSettings,
        session: Any,
        gate: Gate,
        replicas: Replicas,
        caches: Caches,
        budget: ReadBudget,
        partitions: Callable[[], int],
    ) -> None:
        self.consistency: int = getattr(ConsistencyLevel, settings.query_consistency)
        self._settings = settings
        self._session = session
        self._gate = gate
        self._replicas = replicas
        self._caches = caches
        self._budget = budget
        self._partitions = partitions
        self._unread = UnreadKeys()
        self._reader: RowReader | None = None
        self._codec: KeyCodec
        self._works: KeyReads
        self._evidence: Evidence
        self._read: list[KeyRead] = []
        self._handed = ResolverOutcome()
        self._published: dict[Place, PublishedKeys] = {}
        self._made_at = self._patience = 0.0
        self._trusts_digests = self._has_begun = False
        self._failure: Exception | None = None
        self._unreached: set[int] = set()
        self._live: LiveRows

    @property
    def reader(self) -> RowReader:
        assert self._reader is not None, "use() comes first"
        return self._reader

    def use_table(self, table: Table, codec: KeyCodec, is_certain: bool = False) -> None:
        if self._reader is None or self._reader.table is not table:
            self._reader = RowReader(self._session, table, self._settings)
            self._reader.budget = self._budget
        self._codec = codec
        self._reader.is_current = is_certain

    def take_changes(self, changes: Iterable[AdmittedChange], due: Sequence[UnconfirmedKey], made_at: float) -> None:
        self._made_at = made_at
        self._published = defaultdict(partial(PublishedKeys, len(self.reader.table.clustering)))
        works = self._works = KeyReads(self._codec, self.consistency, read_level(self._settings))
        self._has_begun = False
        min_age_s = self._settings.settle_min_age_ms / 1000
        self._evidence = Evidence(self._gate, self._replicas, self._caches, self._codec, min_age_s)
        works.take(changes, partial(note_deletion, self._caches))
        works.add_due(due, self._level)

    def resolve(self, trusts_digests: bool, may_wait: int) -> Iterator[Sequence[ResolvedKey]]:
        reader, key_reads = self.reader, self._works
        shows_expiry = "expires" in self._settings.headers and (key_reads.asks_ttl or self._caches.has_expiring)
        reader.asks_ttl = self._settings.state == "keys" or shows_expiry
        reader.saw_ttl = False
        self._handed = ResolverOutcome(
            outdated=sum(unconfirmed.copies for unconfirmed in key_reads.gone),
            waiting_keys=list(key_reads.waiting.values()),
            settled_keys=list(key_reads.gone),
            published_keys=self._published,
        )
        self._trusts_digests = trusts_digests
        self._patience = time.monotonic() + _PROOF_S
        self._unread.begin()
        self._unreached.clear()
        self._live = LiveRows(reader, self._codec)
        statements, seconds = reader.statements, reader.seconds
        works = [*key_reads.by_name.values(), *key_reads.verified.values()]
        for work in works if self._has_begun else ():
            work.begin()
        self._has_begun = True
        yield from self._resolve(works)
        if reader.saw_ttl:
            for topic, partition in {(work.topic, work.partition) for work in works}:
                self._caches.cache_for(topic, partition).note_expiry()
        self._handed.statements = reader.statements - statements
        self._handed.query_seconds = reader.seconds - seconds
        yield from self._leave(works, may_wait)

    def note_publishing(self, resolved: Iterable[ResolvedKey]) -> None:
        note_published(resolved, self._published)

    def note_failure(self, error: RowsFailed) -> None:
        self._failure = error.cause

    def close(self) -> None:
        self._budget.close()

    def _level(self, unconfirmed: UnconfirmedKey, values: Key, changes: Iterable[bytes]) -> int:
        """The level at which a read of a due key confirms all of its changes."""
        topic, partition = unconfirmed.place
        nodes = min((self._gate.count_replicas(topic, partition, values, change) for change in changes), default=1)
        return lowest_level(self.consistency, nodes, self._evidence.factor)

    def _resolve(self, works: Sequence[KeyRead]) -> Groups:
        clustered = len(self.reader.table.clustering) > 0
        turns = order_reads(works, clustered, self._codec.partition_columns, self._unread)
        for work in turns.tables:
            yield from self._or_wait([work], partial(self._truncated, work))
        for (_, _, stuck, _), members in sorted(turns.scopes.items(), key=lambda item: item[0][:3]):
            cut: list[tuple[KeyRead, HelenusError]] = []
            yield from self._or_wait(members, partial(self._scopes, members, cut), stuck)
            for work, error in cut:
                yield from self._again(work, error)
        for (_, stuck, consistency), members in sorted(turns.rows.items(), key=lambda item: item[0][:2]):
            yield from self._or_wait(members, partial(self._rows, members, consistency), stuck)

    def _or_wait(self, works: Sequence[KeyRead], read: Callable[[], Groups], stuck: bool = False) -> Groups:
        """Read keys. Those that are read to be confirmed alone give up after 2 s instead of failing the batch, and none
        more is read at their level when that took long. Those that are `stuck` are read one by one, and wait too.
        """
        consistency = works[0].consistency
        alone = not any(w.events for w in works)
        if alone and not stuck and consistency in self._unreached:
            return
        reader = self.reader
        verifies = works[0].verifying is not None
        soon = time.monotonic() + (_VERIFY_S if verifies else _PROOF_S)
        reader.until = soon if stuck or verifies else self._patience if alone else math.inf
        reader.is_single = stuck
        try:
            yield from read()
        except HelenusError as error:
            if error.kind is not Kind.CASSANDRA_READ or not (alone or stuck):
                raise
            for work in works:
                if work.read_at is None:
                    self._unread.note(work, UnreadReason(error, True))
            if not stuck and time.monotonic() > self._patience:
                self._unreached.add(consistency)
        except SchemaChanged:
            # Or a guardrail refuses the level, say: that is no reason to stop.
            if not alone or not reader.is_current:
                raise
            self._unreached.add(consistency)
        finally:
            reader.is_single = False

    def _truncated(self, work: KeyRead) -> Groups:
        """A truncation, and the rows that live. A table that is full again may take long: what is left after some
        seconds, or when a read fails, is left to a later batch.
        """
        if work.event is None:
            work.parts = self._partitions()
        work.continues = first_stripe(work) > 0
        work.read_rows = self._live.of_table
        work.read_at = start = time.time()
        is_whole = False
        try:
            yield from self._give(work)
            is_whole = id(work) not in self._live.left
        except HelenusError as error:
            if error.kind is not Kind.CASSANDRA_READ or id(work) not in self._live.left:
                raise
            work.read_at, work.published = start, True
        if not is_whole:
            since = work.event.timestamp / 1000 if work.event else work.unconfirmed.since if work.unconfirmed else start
            stripe = self._live.left[id(work)]
            rest = UnconfirmedKey(
                work.topic, work.partition, work.key, work.scope, since=since, unread=AWAY, stripe=stripe
            )
            rest.newest, rest.deleted_at = work.newest, work.deleted_at
            self._handed.waiting_keys.append(rest)

    def _scopes(self, works: Sequence[KeyRead], cut: list[tuple[KeyRead, HelenusError]]) -> Groups:
        """Markers, each with the rows of its scope that live, and static columns. A partition is in one work. `cut` is
        to hold those of which a part was published, and why no more.
        """
        asked: list[KeyRead] = []
        for work in works:
            if self._unread.was_cut(work):
                error = HelenusError(Kind.CASSANDRA_READ, "the read failed when a part of the rows was there")
                self._unread.note(work, UnreadReason(error, False))
            else:
                asked.append(work)
        start, consistency = time.time(), works[0].consistency
        for place, found in self.reader.scopes([(w.scope, w.values, w.bounds) for w in asked], consistency):
            work = asked[place]
            if isinstance(found, UnreadReason):
                self._unread.note(work, found)
                continue
            work.read_at = start
            if isinstance(found, KeyRefused):
                yield from self._refuse(work, found)
                continue
            work.after, self._live.ahead[id(work)] = found
            try:
                yield from self._give_scope(work)
            except KeyRefused as refusal:
                yield from self._refuse(work, refusal)
            except HelenusError as failure:
                if failure.kind is not Kind.CASSANDRA_READ:
                    raise
                if work.records:
                    cut.append((work, failure))
                    continue
                self._unread.note(work, UnreadReason(failure, False))
                keys = self._published[work.topic, work.partition].keys
                if keys[-1:] == [work.key]:
                    keys.pop()

    def _again(self, work: KeyRead, error: HelenusError) -> Groups:
        """For who honours the marker, the rows that did not follow are gone: what can't be published whole is not
        published at all.
        """
        if work.is_asked_for or work.verifying:
            self._unread.cut(work)
            raise error
        work.consistency, self.reader.until = self.consistency, math.inf
        self._published[work.topic, work.partition].keys.remove(work.key)
        start = time.time()
        try:
            work.after = self.reader.statics(work.values, work.consistency)
            work.read_at = start
            yield from self._give_scope(work)
        except KeyRefused as refusal:
            work.read_at = start
            yield from self._refuse(work, refusal)

    def _rows(self, works: Sequence[KeyRead], consistency: int) -> Groups:
        """Rows as the answers come: a batch's images are never held together, and reads go on meanwhile."""
        asked, again = index_by_key(works)
        start, least = time.time(), self._evidence.nodes_needed(consistency)
        for answers in self._images(asked, consistency):
            if isinstance(answers[0][1], (KeyRefused, UnreadReason)):
                for key, answer in answers:
                    for work in (asked[key], *again.get(key, ())):
                        yield from self._unanswered(work, answer, start)
                continue
            evidence = self._evidence.has_deletions, self._evidence.is_undone, self.reader.shows_all_times
            group = prove_row_reads(
                asked, answers, again, start, least, self._gate.count_replicas, *evidence, self._prepare
            )
            self._handed.keys_read += len(group)
            yield group if works[0].verifying is None else [work for work in group if self._is_verified(work)]
            for work in group:
                work.after = None

    def _unanswered(self, work: KeyRead, answer: KeyRefused | UnreadReason, start: float) -> Groups:
        if isinstance(answer, UnreadReason):
            self._unread.note(work, answer)
            return
        work.read_at = start
        yield from self._refuse(work, answer)

    def _is_verified(self, work: KeyRead) -> bool:
        """Whether a read at the gate's level shows some of the changes that a row is read for."""
        work.unseen = self._evidence.unseen(work)
        return len(work.unseen) < len(work.awaited)

    def _images(self, asked: Mapping[Key, KeyRead], consistency: int) -> Iterator[list[tuple[Key, Any]]]:
        """Each key once, with its row, as `RowReader.answers`. What changed comes first: it does not wait for what a
        snapshot scanned, most of which is read in the order of the ring.
        """
        scanned: list[Key] = []
        if not self.reader.is_single:
            scanned = [key for key, work in asked.items() if work.is_scanned and not work.awaited]
        left = dict.fromkeys(scanned)
        if len(left) < len(asked):
            yield from self.reader.answers([key for key in asked if key not in left] if left else asked, consistency)
        for answers in self.reader.read_along_ring(scanned, consistency) if left else ():
            for key, _ in answers:
                del left[key]
            yield answers
        if left:
            yield from self.reader.answers(left, consistency)

    def _give_scope(self, work: KeyRead) -> Groups:
        if work.is_marked:
            work.read_rows = self._live.of_scope
        return self._give(work)

    def _give(self, work: KeyRead) -> Groups:
        """Give one, and raise what kept the stage from publishing all of it."""
        self._handed.keys_read += 1
        self._prepare(work)
        self._failure = None
        yield [work]
        if self._failure is not None:
            failure, self._failure = self._failure, None
            if not isinstance(failure, HelenusError) or failure.kind is Kind.CASSANDRA_READ:
                work.read_at = work.read_at if isinstance(failure, KeyRefused) else None  # not all of it was read
            raise failure
        if work.read_rows is not None:
            work.proof = self._evidence.proof(work)

    def _prepare(self, work: KeyRead) -> None:
        """Fill in what the stage and the shape go by."""
        # A marker's time is that of the deletion. Of the same partition a newer change of its static columns may wait,
        # and who goes by times must not take rows for deleted that were written between the two.
        deleted_at = work.newest if work.read_rows is None else work.deleted_at
        work.last_digest, work.write_time, work.expires = None, deleted_at, None
        if work.unconfirmed and self._trusts_digests and not work.events and not self._is_covered(work):
            work.last_digest = work.unconfirmed.image
        if work.read_rows is not None:
            return
        work.proof = proof = self._evidence.proof(work)
        work.is_confirmed = not proof.unproven
        image = work.after
        if image is None:
            return
        if image.write_time is not None:
            work.write_time = image.write_time
            if work.newest is not None and work.newest > image.write_time and not self.reader.shows_all_times:
                work.write_time = work.newest
        # Of columns of many cells the read does not show it.
        first, of_row = work.first_expires, image.expires
        work.expires = of_row if first is None else first if of_row is None else min(first, of_row)

    def _refuse(self, work: KeyRead, refusal: KeyRefused) -> Groups:
        """Do without a key that no row can have: the table of before had it, or it is poison."""
        since = [event_time(work.event)] if work.event else []
        work.is_outdated = min(since + ([work.unconfirmed.since] if work.unconfirmed else [])) < self._made_at
        if not (work.is_asked_for or work.verifying or work.is_outdated):
            work.read_at = None  # it was read before
            return
        work.proof = PROVEN
        if not work.is_outdated:
            name = self.reader.table.full_name
            work.failure = HelenusError(Kind.POISON_EVENT, f"no key of this table: {refusal}", name)
            yield [work]

    def _leave(self, works: Sequence[KeyRead], may_wait: int) -> Groups:
        """Have the keys that were not read wait, each alone. After many reads a key may become a dead letter."""
        self._read = list(works)
        left = self._unread.left(works)
        if not left:
            return
        table, handed = self.reader.table, self._handed
        handed.error = self._unread.cause(left[0], table)
        if sum(work.events > 0 for work in left) > may_wait:
            raise HelenusError(Kind.CASSANDRA_READ, handed.error.what, handed.error.where)
        waiting = set()
        for work in left:
            cause, attempts = self._unread.cause(work, table), self._unread.attempts(work)
            if cause.kind is Kind.ROW_UNREADABLE:
                _log.warning("row.unreadable", reads=attempts + 1, error=str(cause))
                if attempts + 1 >= MOST_READS and self._settings.errors_tolerance == "all":
                    work.read_at, work.proof, work.failure = time.time(), PROVEN, cause
                    yield [work]
                    continue
            waiting.add(id(work))
            if work.unconfirmed and (attempts == 0 or work.unconfirmed.key != work.key):
                handed.settled_keys.append(work.unconfirmed)
            handed.waiting_keys.append(self._unread.unconfirmed(work))
        handed.unread = len(waiting)
        self._read = [work for work in works if id(work) not in waiting]

    def confirm(self) -> ResolverOutcome:
        handed = self._handed
        published = mark_confirmed(self._read, self._live.left, self._gate.mark, self._confirm)
        handed.published += published
        # Of a batch that is over nothing is held until the next one.
        self._works, self._read, self._handed, self._published = KeyReads(self._codec, 0), [], ResolverOutcome(), {}
        return handed

    def _confirm(self, work: KeyRead) -> None:
        if work.verifying is not None and not self._takes(work):
            return
        proof = work.proof
        if work.published and not (proof.unproven or proof.by_age or work.unconfirmed or work.dead_lettered):
            self._handed.published += work.events
        else:
            is_scope = work.is_marked and (len(self.reader.table.clustering) > 0 or work.scope is _TABLE)
            published = self._published[work.topic, work.partition]
            hand_back(work, self._handed, last_published(work, published, is_scope))
        if work.read_at is not None and id(work) not in self._live.left:  # of a truncation in part, a part is left
            for change in work.awaited:
                is_confirmed = change not in proof.unproven
                self._gate.mark(work.topic, work.partition, [change], is_confirmed, change in proof.by_age)

    def _takes(self, work: KeyRead) -> bool:
        """Whether changes that a read was to show are published now: as if their events had come with this batch."""
        if work.read_at is None:
            return False
        found = [held for held in work.verifying or () if held.id not in work.unseen]
        self._handed.verified_changes += found
        self._handed.unseen_changes += [held for held in work.verifying or () if held.id in work.unseen]
        work.events = sum(held.copies for held in found)
        work.awaited = {change: one for change, one in work.awaited.items() if change not in work.unseen}
        unproven = {change: one for change, one in work.proof.unproven.items() if change in work.awaited}
        work.proof = work.proof._replace(unproven=unproven)
        return bool(found)

    def _is_covered(self, work: KeyRead) -> bool:
        """Whether a key may have been published with a marker of this batch."""
        return self._published[work.topic, work.partition].covers(work.key)
