"""What is done with one batch of one table's events: gate → resolve → shape → append → flush → mark. Knows no Spark.

Order matters for promise 1: nothing is marked in the cache before the flush is acknowledged, and whatever raises before
leaves the same events to be done again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from cassandra import DriverException
from cassandra.cluster import NoHostAvailable

from helenus_connector.config import ConnectorSettings
from helenus_connector.gate import Admitted, Event, Gate, Replicas, Work
from helenus_connector.registry import Registry
from helenus_connector.reread import Reader, SchemaChanged
from helenus_connector.settle import Pending
from helenus_connector.shape import Record, RowShape
from helenus_schemas.change import Scope
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.failpoints import reach
from helenus_schemas.key import KeyCodec
from helenus_schemas.table import Table, read_tables
from helenus_sinks import dead_letters
from helenus_sinks.log import Log

FLUSH_TIMEOUT_S = 60.0


@dataclass(slots=True)
class Outcome:
    """What became of a batch. Events: read = published + unchanged + settled + dead_lettered + those that now wait.

    `found` and `resolved` are the keys that wait for a proven read from now on, and no longer. `copies` of a key say
    how many events wait with it.
    """

    connector: str
    read: int = 0
    published: int = 0
    unchanged: int = 0
    settled: int = 0
    dead_lettered: int = 0
    records: int = 0
    keys_read: int = 0
    statements: int = 0
    newest_write_time: int | None = None
    found: list[Pending] = field(default_factory=list)
    resolved: list[Pending] = field(default_factory=list)
    error: HelenusError | None = None


class Stage:
    """The work on one connector's events in one process. Keeps its sessions and statements between batches."""

    def __init__(self, settings: ConnectorSettings, session: Any, log: Log, directory: Path) -> None:
        self.settings = settings
        self.session = session
        self.log = log
        self._registry = Registry(settings, directory / "schemas.json")
        self._gate = Gate(settings, Replicas(session, settings), directory)
        self._schema_version: object = None
        self._table: Table | None = None
        self._reader: Reader
        self._shape: RowShape
        self._codec: KeyCodec

    def run(self, events: Iterable[Event], due: Sequence[Pending], trust_images: bool) -> Outcome:
        """Do one batch. `due` are pending keys of the same partitions, to be read again. `trust_images` says that no
        earlier attempt at this batch can have published something newer than a due key's image.

        Raises HelenusError; then nothing is marked, and the batch is to be done again or the connector stopped.
        """
        self._refresh(force=False)
        admitted = self._gate.admit(events, due, self._codec)
        outcome = Outcome(self.settings.name, read=admitted.read, settled=admitted.settled)
        outcome.found.extend(admitted.waiting.values())
        works = list(admitted.works.values())
        undecoded = list(admitted.poison)
        try:
            self._publish(works, admitted, outcome, trust_images)
        except SchemaChanged:
            self._refresh(force=True)
            admitted.poison[:] = undecoded
            self._publish(works, admitted, outcome, trust_images)
        self._dead_letter(admitted, outcome)
        self.log.flush(FLUSH_TIMEOUT_S)
        reach("connector.after-flush")
        self._mark(works, outcome)
        reach("connector.after-mark")
        return outcome

    def _refresh(self, force: bool) -> None:
        """Follow the table's definition: one small read a batch tells whether any schema changed."""
        name = f"{self.settings.keyspace}.{self.settings.table}"
        try:
            version = self.session.execute("SELECT schema_version FROM system.local").one().schema_version
            if version == self._schema_version and not force:
                return
            tables = read_tables(self.session, self.settings.keyspace).values()
        except (DriverException, NoHostAvailable) as error:
            raise HelenusError(Kind.CASSANDRA_READ, f"cannot read the schema: {error}", name) from None
        table = next((t for t in tables if t.full_name == name), None)
        if table is None:
            raise HelenusError(Kind.TABLE_MISSING, "there is no such table", name)
        table = table.only(self.settings.columns)
        if force or self._table is None or (table.id, table.cql) != (self._table.id, self._table.cql):
            self._shape = RowShape(table, self.settings, self._registry)
            self._reader = Reader(self.session, table, self.settings)
            self._codec = KeyCodec(table)
            self._table = table
        self._schema_version = version

    def _publish(self, works: Sequence[Work], admitted: Admitted, outcome: Outcome, trust_images: bool) -> None:
        """Read and append. Whole partitions and more come before rows: no record shows an older read than one before.

        Raises SchemaChanged: then it is to be done once more, from the start.
        """
        before = self._reader.statements
        by_level: dict[int, list[Work]] = {}
        for work in sorted(works, key=lambda w: -w.scope):
            if work.scope is Scope.ROW or (work.scope is not Scope.TABLE and not self._reader.table.clustering):
                by_level.setdefault(work.consistency, []).append(work)
            else:
                self._read([work], partial(self._read_statics, work))
                self._append(work, admitted, outcome, trust_images)
        for consistency, members in by_level.items():
            self._read(members, partial(self._read_rows, members, consistency))
        for members in by_level.values():
            for work in members:
                self._append(work, admitted, outcome, trust_images)
        outcome.statements += self._reader.statements - before

    def _read(self, works: Sequence[Work], read: Callable[[], None]) -> None:
        start = time.time()
        try:
            read()
        except HelenusError:
            # A level above the configured one is asked for the proof alone: without it, the keys go on waiting.
            if any(w.events for w in works):
                raise
            return
        for work in works:
            work.read_at = start

    def _read_statics(self, work: Work) -> None:
        if work.scope is not Scope.TABLE:
            work.image = self._reader.statics(work.values, work.consistency)

    def _read_rows(self, works: Sequence[Work], consistency: int) -> None:
        found = self._reader.rows([w.values for w in works], consistency)
        for work in works:
            work.image = found.get(work.values)

    def _append(self, work: Work, admitted: Admitted, outcome: Outcome, trust_images: bool) -> None:
        """Hand over the records of a work, unless nothing is new about it. How many rows live is not known before."""
        if work.read_at is None:
            return
        outcome.keys_read += 1
        try:
            if not work.events and trust_images and work.pending and work.pending.image:
                work.digest = _digest(self._records(work))
                if work.digest == work.pending.image:
                    return
            work.digest = _digest(self._appended(work, outcome))
        except HelenusError as error:
            if work.event is None and error.kind is Kind.CASSANDRA_READ:
                work.read_at = None  # as in `_read`
                return
            if work.event is None or error.kind is not Kind.POISON_EVENT:
                raise
            admitted.poison.extend([(work.event, error)] * work.events)
            work.read_at = None
            work.awaited = {}
            return
        work.published = True
        if work.write_time is not None:
            outcome.newest_write_time = max(work.write_time, outcome.newest_write_time or work.write_time)

    def _appended(self, work: Work, outcome: Outcome) -> Iterator[Record]:
        for record in self._records(work):
            self.log.append(self.settings.data, work.partition, record.key, record.value, record.headers)
            outcome.records += 1
            yield record

    def _records(self, work: Work) -> Iterator[Record]:
        """A row's record; or a marker and the live rows of its scope, which are read as they are asked for."""
        event = work.event.value if work.event else None
        if not work.is_marked or (work.scope is not Scope.TABLE and not self._reader.table.clustering):
            shown = work.image.write_time if work.image else None
            yield self._shape.row(work.key, work.image, work.write_time if shown is None else shown, event)
            return
        if work.scope is Scope.TABLE:
            yield self._shape.truncation(work.write_time, event)
            live = self._reader.part(work.partition, work.parts, work.consistency)
        else:
            yield self._shape.marker(work.key, work.image, work.write_time, event, work.bounds)
            live = self._reader.range(work.values, work.bounds or (None, None), work.consistency)
        for key, image in live:
            yield self._shape.row(self._codec.encode(key), image, image.write_time)

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
            if work.published:
                outcome.published += work.events + copies
                copies = 0
            settled = self._gate.proven(work)
            if settled:
                outcome.unchanged += copies
                if pending:
                    outcome.resolved.append(pending)
            elif pending or work.awaited:
                attempts = pending.attempts + 1 if pending else 0
                image = work.digest or (pending.image if pending else None)
                outcome.found.append(
                    Pending(
                        work.topic,
                        work.partition,
                        work.key,
                        work.scope,
                        work.awaited,
                        image,
                        copies,
                        attempts,
                        bounds=work.bounds,
                    )
                )
            if work.read_at is not None:
                self._gate.mark(work, settled)


def _digest(records: Iterable[Record]) -> bytes:
    """What tells one image of a key, or of a scope's rows, from another."""
    values = hashlib.md5(usedforsecurity=False)
    for record in records:
        values.update(b"\0" if record.value is None else b"\1%d\0" % len(record.value) + record.value)
    return values.digest()
