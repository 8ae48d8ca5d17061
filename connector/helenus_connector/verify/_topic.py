"""Read the topic: a task reads some offsets, and yields an entry for the last record of each key among them."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from helenus_connector.log.choice import data_schemas, read_data
from helenus_connector.log.events import Message, OffsetRange
from helenus_connector.schema_registration.choice import record_schemas
from helenus_connector.shape.encoding.frames import split_frame
from helenus_connector.verify._contents import Contents, digest
from helenus_connector.verify._entry import MARKER, NEVER, STRAY, TRUNCATION, VerifyEntry, counts, offset_bytes
from helenus_connector.verify._job import Task, VerifyJob, numbered, token_of
from helenus_connector.verify._values import AvroValues, Headers, JsonValues, Schemas
from helenus_connector.verify.keys import RecordKeys
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError

OF_SCHEMA = "schema "
"""Prefix of the names of counts of records by their header `schema_id`."""
_MOST_SCHEMAS = 100


def read_topic(job: VerifyJob, shares: Sequence[Sequence[OffsetRange]], versions: bool = False) -> Task:
    """Return the task that reads a share of the topic; with `versions` all records of a key."""
    return numbered(job, partial(_read, job, shares, versions))


def _read(
    job: VerifyJob, shares: Sequence[Sequence[OffsetRange]], versions: bool, number: int
) -> Iterator[VerifyEntry]:
    errors: list[HelenusError] = []
    with _schemas(job) as (keys, values):
        records = TopicRecords(job, keys, values)
        for chunk in read_data(job.worker, shares[number], lambda _, error: errors.append(error)):
            yield from records.entries(chunk, versions)
    if errors:
        raise errors[0]
    yield from records.shared_entries()


@contextmanager
def _schemas(job: VerifyJob) -> Iterator[tuple[Schemas, Schemas]]:
    """Yield functions to the schemas of keys and of values, by what names them in records."""
    if not job.settings.is_avro:
        yield _none, _none
    elif job.keeps_schemas:
        with data_schemas(job.worker, job.topic) as texts:
            yield (lambda version: texts(version)[0]), (lambda version: texts(version)[1])
    else:
        with tempfile.TemporaryDirectory() as directory:
            schemas = record_schemas(job.worker, job.settings, Path(directory) / "schemas")
            try:
                yield schemas.schema, schemas.schema
            finally:
                schemas.close()


def _none(_: Any) -> str | None:
    return None


class TopicRecords:
    """Makes entries of records. `keys` and `values` give the schemas of either."""

    def __init__(self, job: VerifyJob, keys: Schemas, values: Schemas) -> None:
        table, settings = job.table, job.settings
        self._job = job
        self._table_name = table.full_name.encode()
        self._frames = settings.is_avro and not job.keeps_schemas
        self._keys = RecordKeys(table, settings, job.keeps_schemas, keys)
        self._values: AvroValues | JsonValues = (
            AvroValues(table, settings, job.keeps_schemas, values) if settings.is_avro else JsonValues(table, settings)
        )
        self._contents = Contents(table, settings, job.keeps_schemas)
        self._gone = b"{}" if settings.output_format == "json" else None
        self._has_markers = bool(table.clustering)
        self._partition_columns = len(table.partition_key)
        self._truncated: dict[int, bytes] = {}
        self._read = self._known = 0
        self._schema_ids = Counter[bytes]()

    def entries(self, chunk: Sequence[Message], versions: bool) -> Iterator[VerifyEntry]:
        """Yield the entries of a chunk's records, the last ones first."""
        seen: set[tuple[int, bytes | None]] = set()
        for message in reversed(chunk):
            key = message.partition(), message.key()
            is_repeated = key in seen
            if is_repeated and not self._has_markers:
                self._read += 1
                continue
            headers: Headers = {name: content or b"" for name, content in message.headers() or ()}
            if self._other_table(headers):
                continue
            self._read += 1
            scope = headers.get("scope")
            if is_repeated and scope is None:
                continue
            schema_id = headers.get("schema_id")
            if schema_id and (schema_id in self._schema_ids or len(self._schema_ids) < _MOST_SCHEMAS):
                self._schema_ids[schema_id] += 1
            if scope == b"table":
                partition = message.partition()
                self._truncated[partition] = max(offset_bytes(message.offset()), self._truncated.get(partition, NEVER))
                self._known += 1
                continue
            if not versions:
                seen.add(key)
            yield from self._record_entries(message, headers, scope, is_repeated)

    def _other_table(self, headers: Headers) -> bool:
        """Return whether a record says that it is of another table that shares the topic."""
        return headers.get("table", self._table_name) != self._table_name

    def shared_entries(self) -> Iterator[VerifyEntry]:
        """Yield what is complete at the end only: truncations, for all parts, and counts."""
        for partition, offset in self._truncated.items():
            for part in range(self._job.parts):
                yield VerifyEntry(part, rank=TRUNCATION, partition=partition, at=offset)
        of_schemas = {OF_SCHEMA + schema_id.decode(errors="replace"): n for schema_id, n in self._schema_ids.items()}
        yield counts(records=self._read, known=self._known, **of_schemas)

    def _record_entries(
        self, message: Message, headers: Headers, scope: bytes | None, is_repeated: bool
    ) -> Iterator[VerifyEntry]:
        job, partition, offset = self._job, message.partition(), offset_bytes(message.offset())
        data, stamp = message.key(), message.timestamp()[1]
        try:
            name, key, static = self._key(data, message, headers)
        except Malformed:
            if job.tokens is None and not is_repeated:
                value = message.value()
                value_digest = None if value is None or value == self._gone else digest(value)
                raw = data or b""
                yield VerifyEntry(
                    job.part_of_name(raw), None, STRAY, raw, False, partition=partition, at=offset, digest=value_digest
                )
            return
        self._known += 1
        token = token_of(key[: self._partition_columns])
        if not job.has(token):
            return
        part = job.part(token)
        if scope is not None:
            bounds = None
            if scope == b"range":
                bounds = b"\n".join(headers.get(end, b"") for end in ("start", "end"))
            yield VerifyEntry(part, token, MARKER, name, partition=partition, at=offset, note=bounds)
            if is_repeated:
                return
        expires = _number(headers.get("expires"))
        # A marker's write time is that of the deletion: older than the static columns that it shows.
        written = None if expires is None or scope is not None else _number(headers.get("writetime"))
        left_out = headers.get("left_out")
        value_digest = self._digest(message, name, headers, static)
        yield VerifyEntry(
            part, token, name=name, static=static, partition=partition, at=offset, stamp=stamp, digest=value_digest,
            expires=expires, note=left_out, written=written,
        )  # fmt: skip

    def _key(self, data: bytes | None, message: Message, headers: Headers) -> Any:
        if not self._frames:
            return self._keys.decode(data, _version(message), headers)
        if (framed := split_frame(data or b"")) is None:
            raise Malformed("a key without schema")
        return self._keys.decode(framed[1], framed[0], headers)

    def _digest(self, message: Message, name: bytes, headers: Headers, static: bool) -> bytes | None:
        """Return the digest of a record's value; None if it says that the row is deleted."""
        value = message.value()
        if value is None or value == self._gone:
            return None
        number: Any = _version(message)
        if self._frames:
            if (framed := split_frame(value)) is None:
                return digest(value)
            number, value = framed
        shown = self._values.value(value, number, headers, static)
        if shown is None or (static and shown == self._contents.no_statics(name)):
            return None
        return digest(shown, *self._values.hidden_columns(number, headers, static))


def _number(header: bytes | None) -> int | None:
    """Return the number of 64 bits in a header; None for anything else."""
    try:
        number = int(header or b"")
    except ValueError:
        return None
    return number if -1 << 63 <= number < 1 << 63 else None


def _version(message: Message) -> int:
    """Return the version of a record's schemas if the broker keeps them, else -1."""
    return getattr(message, "version", -1)
