"""Read the table: a task scans ranges of tokens, or reads some keys again, and yields an entry for each row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa
from cassandra import ConsistencyLevel

from helenus_connector.cassandra_rows import budget
from helenus_connector.cassandra_rows.row_reader import KeyRefused, RowReader, UnreadReason
from helenus_connector.config.run_directory import use
from helenus_connector.gate.event_content import decode_key
from helenus_connector.interfaces.resolver import SchemaChanged
from helenus_connector.query import worker_process
from helenus_connector.shape.selection.row_selection import make_selection
from helenus_connector.verify._contents import Contents, Values
from helenus_connector.verify._entry import ASKED, KEY, ROW, VerifyEntry, batches, counts, entries
from helenus_connector.verify._job import Task, Tokens, VerifyJob, begin, numbered, token_of
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Scope

_AT_ONCE = 1_000


def scan(job: VerifyJob, shares: Sequence[Sequence[Tokens]]) -> Task:
    """Return the task that scans a share of the ring."""
    return numbered(job, partial(_scan, job, shares))


def _scan(job: VerifyJob, shares: Sequence[Sequence[Tokens]], number: int) -> Iterator[VerifyEntry]:
    with _Altered(job):
        rows = TableRows(job, times=False)
        for tokens in shares[number]:
            yield from rows.between(*tokens)
        yield counts(rows=rows.count, keyless=rows.entries.keyless)


def look_again(job: VerifyJob) -> Task:
    """Return the task that reads keys again, and yields the entries of their records and of their rows."""
    return partial(_look_again, job)


def _look_again(job: VerifyJob, record_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    begin(job)
    with _Altered(job):
        rows = TableRows(job, times=True)
        yield from batches(_read_again(rows, entries(record_batches)))


def _read_again(rows: TableRows, requested: Iterable[VerifyEntry]) -> Iterator[VerifyEntry]:
    remaining = iter(requested)
    while chunk := list(islice(remaining, _AT_ONCE)):
        for entry in chunk:
            yield VerifyEntry(entry.part, entry.token, KEY, entry.name, entry.static, ASKED, at=entry.at)
            if entry.partition >= 0:
                yield entry
        yield from rows.for_keys(chunk)


class _Altered:
    """Raises HelenusError for what Cassandra refuses while the table is altered."""

    def __init__(self, job: VerifyJob) -> None:
        self._where = job.table.full_name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, SchemaChanged):
            problem = f"the table was altered meanwhile: {error}"
            raise HelenusError(Kind.BATCH_FAILED, problem, self._where, "verify it again") from None


class RowEntries:
    """Makes entries of rows. `keyless` counts those whose key has no form."""

    def __init__(self, job: VerifyJob) -> None:
        self._codec = KeyCodec(job.table)
        self._contents = Contents(job.table, job.settings, job.keeps_schemas)
        self._selection = make_selection(job.table, job.settings)
        self.keyless = 0

    def for_row(
        self,
        part: int,
        token: int | None,
        key: Key,
        values: Values,
        static: bool,
        left_out: bytes | None = None,
        written: int | None = None,
    ) -> Iterator[VerifyEntry]:
        """Yield the entry of a row, or of a partition's `static` columns, if some are not null; without the columns
        that a header `left_out` names. A row that is not to be published has none; values are masked as records are.
        """
        if self._selection is not None:
            if self._selection.excludes_key(key) or not (static or self._selection.matches(key, values)):
                return
            values = self._selection.mask(values)
        try:
            name = self._codec.encode(key)
        except Malformed:
            self.keyless += not static
            return
        make: Callable[..., bytes | None] = self._contents.statics if static else self._contents.row
        note = None
        try:
            digest = make(name, key, values, left_out)
        except HelenusError as error:
            if error.kind is not Kind.POISON_EVENT:
                raise
            digest, note = None, error.what.encode()
        if digest is not None or note is not None:
            yield VerifyEntry(part, token, KEY, name, static, ROW, digest=digest, note=note, written=written)


class TableRows:
    """Reads rows, and makes `entries` of them, with their write `times` if asked for. `count` of rows."""

    def __init__(self, job: VerifyJob, times: bool) -> None:
        self._job = job
        self.entries = RowEntries(job)
        self._codec = KeyCodec(job.table)
        self._reader = _reader(job, times)
        self._level = getattr(ConsistencyLevel, job.settings.query_consistency)
        self._n = len(job.table.partition_key)
        self._has_statics = bool(job.table.statics)
        self._has_clustering = bool(job.table.clustering)
        self.count = 0

    def between(self, first: int, last: int) -> Iterator[VerifyEntry]:
        """Yield the entries of the rows with these tokens, and those between."""
        n, nulls = self._n, (None,) * len(self._job.table.clustering)
        partition: Key | None = None
        token = part = 0
        for key, values in self._reader.read_token_range(first, last, self._level):
            if key[:n] != partition:
                partition = key[:n]
                token = token_of(partition)
                part = self._job.part(token)
                if self._has_statics:
                    yield from self.entries.for_row(part, token, (*partition, *nulls), values, True)
            if not self._has_clustering or key[n] is not None:
                self.count += 1
                yield from self.entries.for_row(part, token, key, values, False)

    def for_keys(self, requested: Sequence[VerifyEntry]) -> Iterator[VerifyEntry]:
        """Read the keys of some entries; yield the entries of the rows that exist."""
        by_key = {decode_key(self._codec, e.name or b""): e for e in requested if not e.static}
        left_out = {key: e.note for key, e in by_key.items()}
        for key, row_answer in self._reader.read_rows(by_key, self._level):
            image = _image_or_none(row_answer)
            if image is not None:
                entry = by_key[key]
                written = image.write_time
                yield from self.entries.for_row(
                    entry.part, entry.token, key, image.values, False, left_out[key], written
                )
        statics = [e for e in requested if e.static]
        scopes = [(Scope.STATIC, self._codec.decode(e.name or b""), None) for e in statics]
        for index, answer in self._reader.read_scopes(scopes, self._level) if scopes else ():
            image, _ = _image_or_none(answer) or (None, None)
            if image is not None:
                entry = statics[index]
                key, written = scopes[index][1], image.write_time
                yield from self.entries.for_row(entry.part, entry.token, key, image.values, True, entry.note, written)


def _image_or_none(answer: Any) -> Any:
    """Return the image that a read gave, None without a row. Raises HelenusError if the read failed."""
    if isinstance(answer, UnreadReason):
        raise answer.error
    return None if isinstance(answer, KeyRefused) else answer


def _reader(job: VerifyJob, times: bool) -> RowReader:
    """Return this process's reader of a table, whose statements are prepared; with write `times`, or without."""
    settings, session = job.settings, worker_process.session_for(job.settings)

    def make() -> RowReader:
        reader = RowReader(session, job.table, settings, times)
        reader.is_current = True  # a key of the topic that Cassandra can't take is no row; an ALTER is told from that
        return reader

    reader = worker_process.reuse(("row reader",), (session, settings, job.table, times), make, settings)
    if reader.budget is not None:
        reader.budget.close()
        reader.budget = None
    if job.directory is not None:
        directory = use(job.directory) / job.settings.query_group  # as the query's tasks have it
        directory.mkdir(mode=0o700, exist_ok=True)
        reader.budget = budget.budget_for(directory, job.settings)
    return reader
