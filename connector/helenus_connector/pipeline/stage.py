"""What is done with one batch of one table's events: gate → resolve → shape → append → flush → mark. Knows no Spark.

Order matters for promise 1: nothing is marked in the cache before the flush is acknowledged, and whatever raises before
leaves the same events to be done again.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate.gate import Admitted, Event, Gap, Gate, Work, asks_for, written_at
from helenus_connector.pipeline.table_version import Version, Versions
from helenus_connector.reread.budget import Budget
from helenus_connector.reread.pending import AWAY, Pending, Place, Told
from helenus_connector.reread.proof import packed
from helenus_connector.reread.reader import Image, KeyRefused, Rows, SchemaChanged, Unread, stripe_of
from helenus_connector.reread.replicas import Replicas
from helenus_connector.reread.unread import MOST_READS, MOST_WAITING, UnreadKeys
from helenus_connector.shape.registry import Registry
from helenus_connector.shape.row import Record
from helenus_schemas.codec.key import Key
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Change, Scope
from helenus_schemas.event.wire import encode
from helenus_schemas.service.failpoints import reach
from helenus_sinks import dead_letters
from helenus_sinks.log import Log

FLUSH_TIMEOUT_S = 60.0
_ATTEMPTS = 3
_PROOF_S = 2.0
_SCAN_S = 10.0
_log = structlog.get_logger(__name__)

_Make = Callable[["Image | None"], Record]


@dataclass(slots=True)
class Outcome:
    """What became of a batch.

    Events: read = published + unchanged + settled + outdated + dead_lettered + those that now wait.

    `found` and `resolved` are the keys that wait for a proven read from now on, and no longer. `copies` of a key say
    how many events wait with it. `too_large` are records that were no records of the whole row, for their size.
    `unread` are keys that wait because they can't be read, `error` is why the first of them can't. `contradicted` are
    changes that are believed although their row spoke against them to the end.
    `untold` are rows without a record: dead letters for a value that can't be told, and rows behind a marker whose key
    has no form. `lost` are events that the topic no longer had, `gaps` those of nodes' logs. `told` is what was
    published where.
    """

    connector: str
    read: int = 0
    published: int = 0
    unchanged: int = 0
    settled: int = 0
    outdated: int = 0
    dead_lettered: int = 0
    records: int = 0
    too_large: int = 0
    untold: int = 0
    unread: int = 0
    contradicted: int = 0
    lost: int = 0
    gaps: list[Gap] = field(default_factory=list)
    keys_read: int = 0
    statements: int = 0
    query_seconds: float = 0.0
    newest_write_time: int | None = None
    found: list[Pending] = field(default_factory=list)
    resolved: list[Pending] = field(default_factory=list)
    told: dict[Place, Told] = field(default_factory=lambda: defaultdict(Told))
    error: HelenusError | None = None


class Stage:
    """The work on one table's events in one process. Keeps its sessions and statements between batches.

    Its caches lie in `directory`, what all tables of its connector share in `shared`. `registered` is as in `Registry`.
    """

    def __init__(
        self,
        settings: ConnectorSettings,
        session: Any,
        log: Log,
        directory: Path,
        shared: Path | None = None,
        registered: Path | None = None,
    ) -> None:
        self.settings = settings
        self.session = session
        self.log = log
        self._name = f"{settings.keyspace}.{settings.table}"
        self._registry = None if log.keeps_schemas else Registry(settings, directory / "schemas.json", registered)
        self._replicas = Replicas(session, settings)
        self._gate = Gate(settings, self._replicas, directory)
        connector = hashlib.md5(settings.name.encode(), usedforsecurity=False).hexdigest()
        self._budget = Budget((shared or directory) / f"{connector}.budget", settings.query_max_rate)
        self._versions = Versions(settings, session, self._registry, self._budget)
        self._began = self._patience = 0.0
        self._unread = UnreadKeys()
        self._ahead: dict[int, Rows] = {}
        self._scanned: dict[int, int] = {}

    def run(
        self, events: Iterable[Event], due: Sequence[Pending], trust_images: bool, may_wait: int = MOST_WAITING
    ) -> Outcome:
        """Do one batch. `due` are pending keys of the same partitions, to be read again. `trust_images` says that no
        earlier attempt at this batch can have published something newer than a due key's image. At most `may_wait` keys
        with events are left to wait because they can't be read.

        Raises HelenusError; then nothing is marked, and the batch is to be done again or the connector stopped.
        """
        self._replicas.check()
        self._versions.follow(self.log)
        self._now.reader.is_current = False
        admitted = self._gate.admit(events, due, self._now.codec, self._now.made_at)
        if "expires" in self.settings.headers and self._gate.has_expiring:
            self._now.reader.asks_ttl = True
        if admitted.poison:
            self._versions.renew(self.log)  # or is it of a table that the node that was asked does not know yet?
        works = list(admitted.works.values())
        attempts = 0
        told: dict[Place, Told] = defaultdict(partial(Told, len(self._now.table.clustering)))
        while True:
            attempts += 1
            if self._now.shape.schemas is not None:
                self.log.declare(self._now.topic, self._now.shape.schemas)
            outcome = Outcome(self.settings.name, read=admitted.read, settled=admitted.settled, told=told)
            outcome.outdated = admitted.outdated + sum(p.copies for p in admitted.gone)
            outcome.resolved.extend(admitted.gone)
            outcome.found.extend(admitted.waiting.values())
            outcome.gaps = admitted.gaps
            try:
                done = self._publish(works, outcome, trust_images and attempts == 1, may_wait)
                self._dead_letter(admitted, outcome)
                if self._versions.is_altered():
                    if attempts == _ATTEMPTS:
                        what = "the table is altered over and over, or nodes do not agree on it"
                        raise HelenusError(Kind.BATCH_FAILED, what, self._name)
                    self._versions.renew(self.log)
                    continue
                self.log.flush(FLUSH_TIMEOUT_S)
                break
            except SchemaChanged as error:
                if attempts == _ATTEMPTS:
                    what = f"Cassandra refuses to read rows: {error}"
                    raise HelenusError(Kind.CASSANDRA_READ, what, self._name) from None
                self._versions.renew(self.log)
            except HelenusError as error:
                # The topic takes less than the producer was told: now the producer knows, and says which record it is.
                if attempts == _ATTEMPTS or error.kind is not Kind.RECORD_TOO_LARGE:
                    raise
                self.log.close()
        reach("connector.after-flush")
        self._mark(done, outcome)
        reach("connector.after-mark")
        return outcome

    def close(self) -> None:
        """Let go of all but the session and the Log, which others use too."""
        self._gate.close()
        self._budget.close()
        if self._registry is not None:
            self._registry.close()

    @property
    def _now(self) -> Version:
        return self._versions.now

    def _publish(self, works: Sequence[Work], outcome: Outcome, trust_images: bool, may_wait: int) -> list[Work]:
        """Read and append. Whole partitions and more come before rows: no record shows an older read than one before.
        Gives what is done; keys that can't be read wait from now on.

        Raises SchemaChanged: then it is to be done once more, from the start.
        """
        statements, waited = self._now.reader.statements, self._now.reader.seconds
        self._began = time.monotonic()
        self._patience = self._began + _PROOF_S
        self._unread.begin()
        self._ahead.clear()
        self._scanned.clear()
        unreached: set[int] = set()
        scopes: dict[tuple[int, bool, int], list[Work]] = {}
        rows: dict[tuple[bool, int], list[Work]] = {}
        turns: dict[Key, int] = defaultdict(int)
        for work in sorted(works, key=lambda w: -w.scope):
            stuck, level = self._unread.is_stuck(work), work.consistency
            if work.scope is Scope.TABLE:
                self._or_wait([work], unreached, partial(self._truncated, work, outcome, trust_images))
            elif work.scope is Scope.ROW or not self._now.table.clustering:
                rows.setdefault((stuck, level), []).append(work)
            else:
                # What lies within the same partition is read one after the other: rows of it may be in both.
                partition = work.values[: self._now.codec.partition_columns]
                scopes.setdefault((turns[partition], stuck, level), []).append(work)
                turns[partition] += 1
        for (_, stuck, _), members in sorted(scopes.items(), key=lambda item: item[0][:2]):
            cut: list[tuple[Work, HelenusError]] = []
            self._or_wait(members, unreached, partial(self._scopes, members, outcome, trust_images, cut), stuck)
            for work, error in cut:
                self._retell(work, error, outcome)
        for (stuck, level), members in sorted(rows.items(), key=lambda item: item[0][0]):
            self._or_wait(members, unreached, partial(self._rows, members, level, outcome, trust_images), stuck)
        outcome.statements += self._now.reader.statements - statements
        outcome.query_seconds += self._now.reader.seconds - waited
        return self._leave(works, outcome, may_wait)

    def _leave(self, works: Sequence[Work], outcome: Outcome, may_wait: int) -> list[Work]:
        """Have the keys that were not read wait, each alone. After many reads a key may become a dead letter."""
        left = self._unread.left(works)
        if not left:
            return list(works)
        outcome.error = self._unread.cause(left[0], self._now.table)
        if sum(work.events > 0 for work in left) > may_wait:
            raise HelenusError(Kind.CASSANDRA_READ, outcome.error.what, outcome.error.where)
        waiting = set()
        for work in left:
            cause = self._unread.cause(work, self._now.table)
            attempts = self._unread.attempts(work)
            if cause.kind is Kind.ROW_UNREADABLE:
                _log.warning("row.unreadable", reads=attempts + 1, error=str(cause))
                if attempts + 1 >= MOST_READS and self.settings.errors_tolerance == "all":
                    work.read_at, work.unproven = time.time(), {}
                    self._bury(work, work.key, self._placed(work, cause, cause.where))
                    continue
            waiting.add(id(work))
            if work.pending and (attempts == 0 or work.pending.key != work.key):
                outcome.resolved.append(work.pending)
            outcome.found.append(self._unread.pending(work))
        outcome.unread = len(waiting)
        return [work for work in works if id(work) not in waiting]

    def _or_wait(
        self, works: Sequence[Work], unreached: set[int], read: Callable[[], None], stuck: bool = False
    ) -> None:
        """Read keys. Those that are read for the proof alone go on waiting without it, and make no batch wait: what
        times out is hardly tried again, and nothing more at its level when that took long. Nor do those that are
        `stuck`, which are read one by one.
        """
        for work in works:  # an attempt before may have read and told it
            work.read_at = work.image = None
            work.published = work.dead_lettered = work.is_outdated = False
            work.digest = b""
        level = works[0].consistency
        alone = not any(w.events for w in works)
        if alone and not stuck and level in unreached:
            return
        reader = self._now.reader
        reader.until = time.monotonic() + _PROOF_S if stuck else self._patience if alone else math.inf
        reader.is_single = stuck
        try:
            read()
        except HelenusError as error:
            if error.kind is not Kind.CASSANDRA_READ or not (alone or stuck):
                raise
            for work in works:
                if work.read_at is None:
                    self._unread.note(work, Unread(error, True))
            if not stuck and time.monotonic() > self._patience:
                unreached.add(level)
        except SchemaChanged:
            # Or a guardrail refuses the level, say: that is no reason to stop.
            if not alone or not reader.is_current:
                raise
            unreached.add(level)
        finally:
            reader.is_single = False

    def _truncated(self, work: Work, outcome: Outcome, trust_images: bool) -> None:
        """Append the marker of a truncation and the rows that live. A table that is full again may take long: what is
        left after some seconds, or when a read fails, is told by a later batch.
        """
        if work.event is None:
            work.parts = self.log.topics()[self._now.topic]
        work.read_at = start = time.time()
        is_whole = False
        try:
            self._append(work, outcome, trust_images)
            is_whole = id(work) not in self._scanned
        except HelenusError as error:
            if error.kind is not Kind.CASSANDRA_READ or id(work) not in self._scanned:
                raise
            work.read_at, work.published = start, True
        if not is_whole:
            since = work.event.timestamp / 1000 if work.event else work.pending.since if work.pending else start
            stripe = self._scanned[id(work)]
            rest = Pending(work.topic, work.partition, work.key, work.scope, since=since, unread=AWAY, stripe=stripe)
            outcome.found.append(rest)

    def _scopes(
        self, works: Sequence[Work], outcome: Outcome, trust_images: bool, cut: list[tuple[Work, HelenusError]]
    ) -> None:
        """Append markers, each with the rows of its scope that live, and static columns. A partition is in one work.
        `cut` is to hold those of which a part was told, and why no more.
        """
        asked: list[Work] = []
        for work in works:
            if self._unread.was_cut(work):
                error = HelenusError(Kind.CASSANDRA_READ, "the read failed when a part of the rows was there")
                self._unread.note(work, Unread(error, False))
            else:
                asked.append(work)
        start, consistency = time.time(), works[0].consistency
        for place, found in self._now.reader.scopes([(w.scope, w.values, w.bounds) for w in asked], consistency):
            work = asked[place]
            if isinstance(found, Unread):
                self._unread.note(work, found)
                continue
            work.read_at, before = start, outcome.records
            if isinstance(found, KeyRefused):
                self._refuse(work, found)
                continue
            work.image, self._ahead[id(work)] = found
            try:
                self._append(work, outcome, trust_images)
            except KeyRefused as refusal:
                self._refuse(work, refusal)
            except HelenusError as error:
                if error.kind is not Kind.CASSANDRA_READ:
                    raise
                if outcome.records > before:
                    cut.append((work, error))
                    continue
                self._unread.note(work, Unread(error, False))
                told = outcome.told[work.topic, work.partition].keys
                if told[-1:] == [work.key]:
                    told.pop()

    def _retell(self, work: Work, error: HelenusError, outcome: Outcome) -> None:
        """For who honours the marker, the rows that did not follow are gone: what can't be told whole is not told."""
        if work.events or (work.pending and work.pending.unread):
            self._unread.cut(work)
            raise error
        work.consistency, self._now.reader.until = self._gate.consistency, math.inf
        outcome.told[work.topic, work.partition].keys.remove(work.key)
        self._whole(work, outcome, False)

    def _whole(self, work: Work, outcome: Outcome, trust_images: bool) -> None:
        start = time.time()
        try:
            work.image = self._now.reader.statics(work.values, work.consistency)
            work.read_at = start
            self._append(work, outcome, trust_images)
        except KeyRefused as error:
            work.read_at = start
            self._refuse(work, error)

    def _rows(self, works: Sequence[Work], consistency: int, outcome: Outcome, trust_images: bool) -> None:
        """Append rows as the answers come: a batch's images are never held together, and reads go on meanwhile."""
        asked: dict[Key, list[Work]] = {}
        for work in works:
            asked.setdefault(work.values, []).append(work)
        start = time.time()
        for key, image in self._now.reader.rows(asked, consistency):
            for work in asked[key]:
                if isinstance(image, Unread):
                    self._unread.note(work, image)
                    continue
                work.read_at = start
                if isinstance(image, KeyRefused):
                    self._refuse(work, image)
                    continue
                work.image = image
                self._append(work, outcome, trust_images)
                if image is not None:
                    work.image = Image((), image.write_time)

    def _refuse(self, work: Work, refusal: KeyRefused) -> None:
        """Do without a key that no row can have: the table of before had it, or it is poison."""
        since = [written_at(work.event)] if work.event else []
        work.is_outdated = min(since + ([work.pending.since] if work.pending else [])) < self._now.made_at
        is_new = work.event is not None or (work.pending is not None and work.pending.unread > 0)
        if not is_new and not work.is_outdated:
            work.read_at = None  # it was read before
            return
        work.unproven = {}
        if not work.is_outdated:
            cause = self._placed(work, HelenusError(Kind.POISON_EVENT, f"no key of this table: {refusal}"), self._name)
            if self.settings.errors_tolerance == "none":
                raise cause
            self._bury(work, work.key, cause)

    def _append(self, work: Work, outcome: Outcome, trust_images: bool) -> None:
        """Hand over the records of a work, unless nothing is new about it. How many rows live is not known before."""
        outcome.keys_read += 1
        told = outcome.told[work.topic, work.partition]
        known = None
        if work.pending and trust_images and not work.events and not told.covers(work.key):
            known = work.pending.image
        try:
            if self._is_row(work):
                work.unproven = self._gate.unproven(work)
                make = self._row_of(work)
                record, cause = _tried(make, work.image)
                if known or cause or work.unproven:
                    work.digest = _digest([record])
                    if work.digest == known:
                        return
                told.add(work.key, False)
                self._hand_over(work, record, cause, make, work.key, work.image, outcome)
            else:
                if known:
                    work.digest = _digest(self._records(work))
                    if work.digest == known:
                        work.unproven = self._gate.unproven(work)
                        return
                told.add(work.key, True)
                work.digest = _digest(self._records(work, outcome))
                work.unproven = self._gate.unproven(work)
        except (HelenusError, SchemaChanged) as error:
            if not isinstance(error, HelenusError) or error.kind is Kind.CASSANDRA_READ:
                work.read_at = None  # not all of it was read
            raise
        work.published = True
        if work.write_time is not None:
            outcome.newest_write_time = max(work.write_time, outcome.newest_write_time or work.write_time)

    def _is_row(self, work: Work) -> bool:
        return not work.is_marked or (work.scope is not Scope.TABLE and not self._now.table.clustering)

    def _row_of(self, work: Work) -> _Make:
        event = work.event.value if work.event else None
        shown = work.image.write_time if work.image else None
        write_time = work.write_time if shown is None else shown
        if not self._now.reader.tells_all_times and work.image and work.write_time is not None:
            write_time = max(write_time or work.write_time, work.write_time)
        # Of columns of many cells the read does not tell it.
        known = [at for at in (work.expires, work.image.expires if work.image else None) if at is not None]
        expires = min(known, default=None) if work.image else None
        return lambda image: self._now.shape.row(work.key, image, write_time, event, expires, work.values)

    def _records(self, work: Work, outcome: Outcome | None = None) -> Iterator[Record]:
        """The records of a marker and of the live rows of its scope: handed over with an `outcome`, else only made.

        A row that cannot be told holds up no other.
        """
        work.oldest, work.timeless = None, False
        for place, told in enumerate(self._marked(work)):
            # With the marker come the statics, which may all be null, and which a range has none of.
            statics = not place and work.scope is Scope.RANGE
            if told is None or (
                told[2] and not statics and (place or told[2].values.count(None) < len(told[2].values))
            ):
                work.saw(told and told[2])
            if told is None:
                if outcome is not None:
                    outcome.untold += 1
                continue
            make, key, image = told
            record, cause = _tried(make, image)
            if outcome is not None:
                self._hand_over(work, record, cause, make, key, image, outcome)
            yield record

    def _marked(self, work: Work) -> Iterator[tuple[_Make, bytes, Image | None] | None]:
        """What makes a record, of which key and of which image: a marker and the live rows of its scope.

        Those rows are read as they are asked for. None is one whose key has no form: the agent skips its events too.
        """
        event = work.event.value if work.event else None
        if work.scope is Scope.TABLE:
            first = work.pending.stripe if work.pending and not work.event else 0
            if first == 0:
                yield lambda _: self._now.shape.truncation(work.write_time, event), work.key, None
            live = self._scan(work, first)
        else:
            marker = partial(
                self._now.shape.marker,
                work.key,
                write_time=work.write_time,
                event=event,
                bounds=work.bounds,
                values=work.values,
            )
            yield marker, work.key, work.image
            if id(work) in self._ahead:
                live = self._ahead.pop(id(work))
            else:
                live = self._now.reader.range(work.values, work.bounds or (None, None), work.consistency)
        for values, image in live:
            try:
                key = self._now.codec.encode(values)
            except Malformed:
                yield None
                continue
            made = partial(self._now.shape.row, key, write_time=image.write_time, expires=image.expires, values=values)
            yield made, key, image

    def _scan(self, work: Work, first: int) -> Rows:
        """The live rows of the table in a topic partition, from a stripe of the ring on, for some seconds. `_scanned`
        says where to go on; it says nothing when all are told.
        """
        reached: int | None = None
        for values, image in self._now.reader.part(work.partition, work.parts, work.consistency, first):
            stripe = stripe_of(values[: self._now.codec.partition_columns])
            if stripe != reached:
                late = time.monotonic() > self._began + _SCAN_S
                if reached is not None:
                    self._scanned[id(work)] = stripe
                    if late:
                        return
                reached = stripe
            yield values, image
        self._scanned.pop(id(work), None)

    def _hand_over(
        self,
        work: Work,
        record: Record,
        cause: HelenusError | None,
        make: _Make,
        key: bytes,
        image: Image | None,
        outcome: Outcome,
    ) -> None:
        """Append a record; with a `cause`, that is why there is none."""
        if cause is not None:
            outcome.untold += 1
            if self.settings.errors_tolerance == "none":
                if self._versions.is_altered():
                    raise SchemaChanged(cause.what)
                raise self._placed(work, cause, cause.where)
            self._bury(work, key, self._placed(work, cause, cause.where))
            return
        try:
            self.log.append(self._now.topic, work.partition, record.key, record.value, record.headers)
            outcome.records += 1
        except HelenusError as error:
            if error.kind is not Kind.RECORD_TOO_LARGE:
                raise
            self._too_large(work, make, key, image, outcome, error)

    def _too_large(
        self, work: Work, make: _Make, key: bytes, image: Image | None, outcome: Outcome, error: HelenusError
    ) -> None:
        """Do what `errors.large.record` says with a record that the producer does not take."""
        cause = self._placed(work, error, self._name)
        outcome.too_large += 1
        if self.settings.errors_large_record == "dead-letter":
            self._bury(work, key, cause)
            return
        if self.settings.errors_large_record == "reference" and image is not None:
            for smaller, left_out in self._now.shape.smaller(image):
                record = make(smaller)
                headers = [*record.headers, left_out]
                try:
                    self.log.append(self._now.topic, work.partition, record.key, record.value, headers)
                    outcome.records += 1
                    return
                except HelenusError as again:
                    if again.kind is not Kind.RECORD_TOO_LARGE:
                        raise
        raise cause

    def _placed(self, work: Work, error: HelenusError, where: str) -> HelenusError:
        offset = f", offset {work.event.offset}" if work.event else ""
        return error.at(f"{where}, event of {work.topic} {work.partition}{offset}")

    def _bury(self, work: Work, key: bytes, cause: HelenusError) -> None:
        """Append a dead letter: the event that asked for a key, or one that would."""
        own = key == work.key
        as_it_was = own and work.event is not None and asks_for(work) is work.scope
        event = work.event if as_it_was and work.event else self._event(work, key)
        dead_letters.append(self.log, self.settings.dead_letters, self.settings.name, event, cause)
        work.dead_lettered |= own

    def _event(self, work: Work, key: bytes) -> Event:
        """An event that asks for a key by itself: of a live row behind a marker, or of a key that is read again."""
        own = key == work.key
        start, end = work.bounds if own and work.bounds else (None, None)
        scope, parts = (work.scope, work.parts) if own else (Scope.ROW, 1)
        change = Change(None, None, scope, parts=parts, write_time=work.write_time, start=start, end=end)
        return Event(work.topic, work.partition, -1, 0, key, encode(change))

    def _dead_letter(self, admitted: Admitted, outcome: Outcome) -> None:
        for event, cause in admitted.poison:
            if self.settings.errors_tolerance == "none":
                raise cause
            dead_letters.append(self.log, self.settings.dead_letters, self.settings.name, event, cause)
            outcome.dead_lettered += 1

    def _mark(self, works: Sequence[Work], outcome: Outcome) -> None:
        """After the flush: settle what is proven, and hand the rest back as pending."""
        for work in works:
            pending = work.pending
            copies = pending.copies if pending else 0
            if work.is_outdated:
                outcome.outdated += work.events + copies
                copies = 0
            elif work.dead_lettered:
                outcome.dead_lettered += work.events + copies
                copies = 0
            elif work.published:
                outcome.published += work.events + copies
                copies = 0
            is_read = work.read_at is not None
            outcome.contradicted += work.contradicted if is_read else 0
            unproven = work.unproven if is_read else work.awaited
            settled = is_read and not unproven
            # What is left when others are proven came later: it waits anew.
            anew = len(unproven) < len(work.awaited)
            if pending and (settled or anew or pending.key != work.key):
                outcome.resolved.append(pending)
            if settled:
                outcome.unchanged += copies
            elif pending or unproven:
                attempts = pending.attempts + 1 if pending and not anew and pending.key == work.key else 0
                told = [work.event.timestamp / 1000] if work.event else []
                since = min(told + ([pending.since] if pending else []))
                image = work.digest or (pending.image if pending else None)
                if not self._is_row(work) and outcome.told[work.topic, work.partition].touches(
                    work.key, more_than=int(is_read and work.published)
                ):
                    image = None  # records of its scope are newer, or not all of them were read
                if not is_read and outcome.told[work.topic, work.partition].covers(work.key):
                    image = None  # a marker took it away, or told it otherwise
                outcome.found.append(
                    Pending(
                        work.topic,
                        work.partition,
                        work.key,
                        work.scope,
                        packed(unproven),
                        image,
                        copies,
                        attempts,
                        bounds=work.bounds,
                        since=since,
                        rest=work.rest,
                    )
                )
            if is_read and id(work) not in self._scanned:  # of a truncation that is told in part, a part is left
                self._gate.mark(work)
        self._gate.save()


def _tried(make: _Make, image: Image | None) -> tuple[Record, HelenusError | None]:
    """A record; or what stands for it in a digest, and why it cannot be told."""
    try:
        return make(image), None
    except HelenusError as error:
        if error.kind is not Kind.POISON_EVENT:
            raise
        return Record(None, str(error).encode(), ()), error


def _digest(records: Iterable[Record]) -> bytes:
    """What tells one image of a key, or of a scope's rows, from another."""
    told = hashlib.md5(usedforsecurity=False)
    for record in records:
        for part in (record.key, record.value):
            told.update(b"\0" if part is None else b"\1%d\0" % len(part) + part)
    return told.digest()
