"""A task that reads data topics: what their records say of keys, in order, as rows of `source.COLUMNS`."""

from __future__ import annotations

import marshal
import time
from collections.abc import Callable, Iterator, Sequence
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
from helenus_connector.query import cassandra_sessions
from helenus_connector.query.cassandra_sessions import end_with_parent
from helenus_connector.shape.encoding.registry import Registry
from helenus_connector.state.keys._key_index import KeyReport
from helenus_connector.state.keys._plan import FollowedTopic, KeysPlan
from helenus_connector.state.store.packing import LAST_SECOND
from helenus_connector.verify.keys import RecordKeys
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError, Kind

_SCHEMA = pa.schema([("place", pa.string()), ("tick", pa.float64()), ("said", pa.binary())])
_FRAME = 5
_CHECK_S = 1.0
_SCOPES = (b"partition", b"range", b"table")
Schemas = Callable[[Any], str | None]
"""Gives a schema by what names it in records."""
_log = structlog.get_logger(__name__)
_decoders: dict[tuple[str, str], tuple[KeyRecords, ExitStack]] = {}


def place_name(topic: str, partition: int) -> str:
    """A place: of a topic of markers, that of its data topic."""
    return f"{topic}/{partition}"


def read_share(plan: KeysPlan, ranges: Sequence[OffsetRange], tick: float) -> Iterator[pa.RecordBatch]:
    """What the records of these ranges say; of each place one row at least, so that it is looked at."""
    end_with_parent()
    failed: list[HelenusError] = []
    for place in ranges:
        yield _row(_place(plan, place.topic, place.partition), tick, None)
    open_ones = [place for place in ranges if place.start < place.end]
    if open_ones:
        for chunk in read_data(plan.worker, open_ones, lambda _, error: failed.append(error)):
            by_place: dict[tuple[str, int], tuple[int, list[tuple[Any, ...]]]] = {}
            for message in chunk:
                if said := _of(plan, message.topic()).said(message):
                    of_place = by_place.setdefault((message.topic(), message.partition()), (message.offset(), []))
                    of_place[1].extend(map(tuple, said))
            for (topic, partition), (first, some) in by_place.items():
                pack = marshal.dumps((plan.tables[topic].markers, first, some))
                yield _row(_place(plan, topic, partition), tick, pack)
    if failed:
        raise failed[0]


def unpack_reports(packs: Sequence[bytes]) -> Iterator[KeyReport]:
    """What the rows of one place say: of the data topic first, then of that of the markers, each in its order."""
    # By the first offset of each: Spark does not promise to keep the order of a place's rows.
    for _, _, some in sorted(marshal.loads(pack) for pack in packs):
        yield from map(KeyReport._make, some)


def _row(place: str, tick: float, said: bytes | None) -> pa.RecordBatch:
    arrays = [pa.array([place], pa.string()), pa.array([tick], pa.float64()), pa.array([said], pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _place(plan: KeysPlan, topic: str, partition: int) -> str:
    return place_name(plan.tables[topic].settings.data, partition)


def _of(plan: KeysPlan, topic: str) -> KeyRecords:
    """This process's decoder for a topic, made again when what is followed changed."""
    followed = plan.tables[topic]
    known, opened = _decoders.get((plan.name, topic), (None, ExitStack()))
    if known is None or known.followed != followed:
        opened.close()
        opened = ExitStack()
        keeps_schemas = plan.worker.log_of_data == "pulsar"
        known = KeyRecords(followed, keeps_schemas, _schemas(plan, followed.settings, keeps_schemas, opened))
        _decoders[plan.name, topic] = known, opened
    return known


def _schemas(plan: KeysPlan, settings: ConnectorSettings, keeps_schemas: bool, opened: ExitStack) -> Schemas:
    """The schemas of keys, by what names them in records."""
    if not settings.is_avro:
        return lambda _: None
    if keeps_schemas:
        texts = opened.enter_context(data_schemas(plan.worker, settings.data))
        return lambda version: texts(version)[0]
    directory = use(Path(plan.directory)) / "state"
    directory.mkdir(mode=0o700, exist_ok=True)
    registry = Registry(settings, directory / f"{settings.data}.json")
    opened.callback(registry.close)
    return registry.schema


class KeyRecords:
    """What the records of one topic say. `schemas` gives those of keys; `keeps_schemas`: the broker does, as Pulsar."""

    def __init__(self, followed: FollowedTopic, keeps_schemas: bool, schemas: Schemas) -> None:
        self.followed = followed
        settings, table = followed.settings, followed.table
        self._frames = settings.is_avro and not keeps_schemas
        self._gone = b"{}" if settings.output_format == "json" else None
        self._is_envelope = settings.is_envelope
        self._codec = KeyCodec(table)
        self._clustering = len(table.clustering)
        self._is_said = False
        self._check_at = 0.0
        self._keys = RecordKeys(table, settings, keeps_schemas, schemas)

    def said(self, message: Message) -> list[KeyReport]:
        """What a record says: nothing if its key is none of this table. A marker says what its partition's own row is,
        too.
        """
        headers = {name: content or b"" for name, content in message.headers() or ()}
        scope = headers.get("scope")
        if scope not in _SCOPES:  # of somebody else
            scope = None
        at = None if self.followed.markers else message.offset().to_bytes(16, "big")
        if scope == b"table":
            return [KeyReport(b"", b"", at, scope="table")]
        try:
            name, values, is_partition = self._keys.decode(*self._key(message), headers)
        except Malformed as error:
            self._check_definition()
            if not self._is_said:
                self._is_said = True
                _log.warning("state.key_unknown", topic=message.topic(), offset=message.offset(), reason=str(error))
            return []
        group = name
        if self._clustering and not is_partition:
            group = self._codec.encode([*values[: self._codec.partition_columns], *[None] * self._clustering])
        value = message.value()
        lives = value is not None and value != self._gone
        # A marker in a form of rows has the static columns as value.
        if headers.get("op") == b"d" and (scope is None or self._is_envelope):
            lives = False
        expires = _expiry(headers.get("expires")) if lives else None
        row = KeyReport(group, name, at, lives, expires)
        if scope is None:
            return [row]
        bounds = b"\n".join(headers.get(end, b"") for end in ("start", "end")) if scope == b"range" else None
        marker = KeyReport(group, group, at, scope=scope.decode(), bounds=bounds)
        return [marker] if self.followed.markers else [marker, row]

    def _check_definition(self) -> None:
        """Raise HelenusError BATCH_FAILED if the key is another by now: the query begins again with the table as it is.
        Otherwise the records of a table whose key column was renamed would be passed over.
        """
        if time.monotonic() < self._check_at:
            return
        self._check_at = time.monotonic() + _CHECK_S
        settings, table = self.followed.settings, self.followed.table
        found = read_definition(cassandra_sessions.session_for(settings), settings)
        if found is not None and found[1].primary_key != table.primary_key:
            raise HelenusError(
                Kind.BATCH_FAILED, "the table's key was altered", table.full_name, "it goes on by itself"
            )

    def _key(self, message: Message) -> tuple[bytes | None, Any]:
        data = message.key()
        if not self._frames:
            return data, getattr(message, "version", -1)
        if data is None or data[:1] != b"\0" or len(data) < _FRAME:
            raise Malformed("a key without schema")
        return data[_FRAME:], int.from_bytes(data[1:_FRAME], "big")


def _expiry(header: bytes | None) -> int | None:
    """When a record says that its row expires, s since the epoch; None for a time at which none can."""
    try:
        expires = int(header or b"")
    except ValueError:
        return None
    return expires if 0 <= expires <= LAST_SECOND else None
