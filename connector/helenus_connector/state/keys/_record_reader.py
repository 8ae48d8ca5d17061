"""A task that reads data topics: the key reports of their records, in order, as rows of `_source.COLUMNS`."""

from __future__ import annotations

import marshal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import structlog

from helenus_connector.cassandra_rows.table_definition import read_definition
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.run_directory import use
from helenus_connector.log.choice import data_schemas, read_data
from helenus_connector.log.events import Message, OffsetRange
from helenus_connector.query import worker_process
from helenus_connector.schema_registration.choice import record_schemas
from helenus_connector.shape.encoding.frames import split_frame
from helenus_connector.state.keys._key_index import KeyReport
from helenus_connector.state.keys._plan import FollowedTopic, KeysPlan
from helenus_connector.state.store.packing import LAST_SECOND
from helenus_connector.verify.keys import RecordKeys
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError, Kind

_SCHEMA = pa.schema(
    [
        ("place", pa.string()),
        ("tick", pa.float64()),
        ("ends", pa.int64()),
        ("is_behind", pa.bool_()),
        ("said", pa.binary()),
    ]
)
_NO_END = -1
"""Where nobody asks how far a data topic was read. On Pulsar that is no number of 64 bits."""
_CHECK_S = 1.0
_SCOPES = (b"partition", b"range", b"table")
Schemas = Callable[[Any], str | None]
"""Gives a schema by what names it in records."""
_log = structlog.get_logger(__name__)


def place_name(topic: str, partition: int) -> str:
    """Return the name of a topic partition: of a topic of markers, that of its data topic."""
    return f"{topic}/{partition}"


def read_share(
    plan: KeysPlan, ranges: Sequence[OffsetRange], tick: float, behind: Mapping[str, Sequence[str]]
) -> Iterator[pa.RecordBatch]:
    """Return the key reports of these ranges; at least one row of each topic partition, so that it is looked at, which
    says where the batch ends, and whether it is `behind`.
    """
    worker_process.end_with_parent()
    failures: list[HelenusError] = []
    for offset_range in ranges:
        topic, number = offset_range.topic, offset_range.partition
        end = _NO_END if plan.owner is None or plan.tables[topic].markers else offset_range.end
        yield _row(_data_place(plan, topic, number), tick, None, end, str(number) in behind.get(topic, ()))
    ranges_with_records = [offset_range for offset_range in ranges if offset_range.start < offset_range.end]
    if ranges_with_records:
        for chunk in read_data(plan.worker, ranges_with_records, lambda _, error: failures.append(error)):
            packs: dict[tuple[str, int], tuple[int, list[tuple[Any, ...]]]] = {}
            for message in chunk:
                if reports := _decoder_for(plan, message.topic()).parse_record(message):
                    pack = packs.setdefault((message.topic(), message.partition()), (message.offset(), []))
                    pack[1].extend(map(tuple, reports))
            for (topic, partition), (first_offset, report_tuples) in packs.items():
                pack_bytes = marshal.dumps((plan.tables[topic].markers, first_offset, report_tuples))
                yield _row(_data_place(plan, topic, partition), tick, pack_bytes)
    if failures:
        raise failures[0]


def unpack_reports(packs: Sequence[bytes]) -> Iterator[KeyReport]:
    """Unpack the reports of one topic partition: those of the data topic first, then of its markers, each in order."""
    # By the first offset of each: Spark does not promise to keep the order of a place's rows.
    for _, _, reports in sorted(marshal.loads(pack) for pack in packs):
        yield from map(KeyReport._make, reports)


def _row(
    topic_partition: str, tick: float, pack: bytes | None, end: int = _NO_END, is_behind: bool = False
) -> pa.RecordBatch:
    fields = topic_partition, tick, end, is_behind, pack
    arrays = [pa.array([field], kind) for field, kind in zip(fields, _SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _data_place(plan: KeysPlan, topic: str, partition: int) -> str:
    return place_name(plan.tables[topic].settings.data, partition)


def _decoder_for(plan: KeysPlan, topic: str) -> KeyRecords:
    """Return this process's decoder for a topic, made again when what is followed changed."""
    followed = plan.tables[topic]

    def make() -> KeyRecords:
        resources = ExitStack()
        keeps_schemas = plan.worker.log_of_data == "pulsar"
        schemas = _key_schemas(plan, followed.settings, keeps_schemas, resources)
        return KeyRecords(followed, keeps_schemas, schemas, resources)

    return worker_process.reuse(("decoder", plan.name, topic), followed, make)


def _key_schemas(plan: KeysPlan, settings: ConnectorSettings, keeps_schemas: bool, resources: ExitStack) -> Schemas:
    """Return what gives the schemas of keys, by what names them in records."""
    if not settings.is_avro:
        return lambda _: None
    if keeps_schemas:
        texts = resources.enter_context(data_schemas(plan.worker, settings.data))
        return lambda version: texts(version)[0]
    directory = use(Path(plan.directory)) / "state"
    directory.mkdir(mode=0o700, exist_ok=True)
    record_names = record_schemas(plan.worker, settings, directory / settings.data)
    resources.callback(record_names.close)
    return record_names.schema


class KeyRecords:
    """Parses the records of one topic. `schemas` gives those of keys; `keeps_schemas`: the broker does, as Pulsar.
    `resources` are closed with it.
    """

    def __init__(
        self, followed: FollowedTopic, keeps_schemas: bool, schemas: Schemas, resources: ExitStack | None = None
    ) -> None:
        self._resources = resources or ExitStack()
        self.followed = followed
        settings, table = followed.settings, followed.table
        self._has_frames = settings.is_avro and not keeps_schemas
        self._null_value = b"{}" if settings.output_format == "json" else None
        self._is_envelope = settings.is_envelope
        self._codec = KeyCodec(table)
        self._clustering_count = len(table.clustering)
        self._has_warned = False
        self._next_check_at = 0.0
        self._keys = RecordKeys(table, settings, keeps_schemas, schemas)

    def close(self) -> None:
        """Close what it reads schemas by."""
        self._resources.close()

    def parse_record(self, message: Message) -> list[KeyReport]:
        """Return the reports of a record: none if its key is not one of this table. A marker also reports its
        partition's own row.
        """
        headers = {name: content or b"" for name, content in message.headers() or ()}
        scope = headers.get("scope")
        if scope not in _SCOPES:  # a header of another producer
            scope = None
        offset = None if self.followed.markers else message.offset().to_bytes(16, "big")
        if scope == b"table":
            return [KeyReport(b"", b"", offset, scope="table")]
        try:
            name, values, is_partition = self._keys.decode(*self._split_key(message), headers)
        except Malformed as error:
            self._check_definition()
            if not self._has_warned:
                self._has_warned = True
                _log.warning("state.key_unknown", topic=message.topic(), offset=message.offset(), reason=str(error))
            return []
        group = name
        if self._clustering_count and not is_partition:
            group = self._codec.encode([*values[: self._codec.partition_columns], *[None] * self._clustering_count])
        value = message.value()
        is_live = value is not None and value != self._null_value
        # A marker in a form of rows has the static columns as value.
        if headers.get("op") == b"d" and (scope is None or self._is_envelope):
            is_live = False
        expires = _parse_expiry(headers.get("expires")) if is_live else None
        row = KeyReport(group, name, offset, is_live, expires)
        if scope is None:
            return [row]
        bounds = b"\n".join(headers.get(end, b"") for end in ("start", "end")) if scope == b"range" else None
        marker = KeyReport(group, group, offset, scope=scope.decode(), bounds=bounds)
        return [marker] if self.followed.markers else [marker, row]

    def _check_definition(self) -> None:
        """Raise HelenusError BATCH_FAILED if the table has another key by now: the query restarts with the current
        definition. Otherwise the records of a table whose key column was renamed would be skipped.
        """
        if time.monotonic() < self._next_check_at:
            return
        self._next_check_at = time.monotonic() + _CHECK_S
        settings, table = self.followed.settings, self.followed.table
        definition = read_definition(worker_process.session_for(settings), settings)
        if definition is not None and definition[1].primary_key != table.primary_key:
            raise HelenusError(
                Kind.BATCH_FAILED, "the table's key was altered", table.full_name, "it goes on by itself"
            )

    def _split_key(self, message: Message) -> tuple[bytes | None, Any]:
        """Return a record's key without its frame, and what names its schema."""
        data = message.key()
        if not self._has_frames:
            return data, getattr(message, "version", -1)
        if (framed := split_frame(data or b"")) is None:
            raise Malformed("a key without schema")
        return framed[1], framed[0]


def _parse_expiry(header: bytes | None) -> int | None:
    """Return when a record says that its row expires, s since the epoch; None for a time at which none can."""
    if not header:  # as of most records
        return None
    try:
        expires = int(header)
    except ValueError:
        return None
    return expires if 0 <= expires <= LAST_SECOND else None
