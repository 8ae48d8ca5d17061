"""Follows a data topic, and gives it to a store in batches of Arrow: what the recipes beside this file are made of.

    class Store: ...  # as Target below
    if __name__ == "__main__":
        run(__doc__, ["file", "table"], Store)

Needs confluent-kafka[schemaregistry], fastavro and pyarrow, and the modules beside it that it imports. A
batch has the last record of each of its keys, and the keys that delete markers took. It has the offsets of the records
that come next: a store that keeps them with the data takes each batch once, whenever it is killed. In others a batch
may come again, and what is done with it must be right if it is done twice: by `_offset` it is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from confluent_kafka import Message
from markers import Bound, is_in_range, parse_bound
from records import Columns, Failure, Limits, Row, Schemas, fits, merge_schemas, to_rows
from registry import Registry
from settings import Notes, Settings, parse_settings, without_login
from topic import Topic

PARTITION, OFFSET = "_topic_partition", "_offset"
"""Columns of every row: where its record is. A TRUNCATE takes the rows of one topic partition at a time."""
FORMER_PARTITION = "_partition"
"""The first of them in tables of earlier recipes. Spark's MERGE takes no table of Iceberg's that has it."""
_NO_PARTITION = -1
notes = Notes()


@dataclass
class Change:
    """What a batch makes of a table. Apply it as a whole: delete, then insert or replace."""

    schema: pa.Schema
    """All columns that the table needs, those of the key first; types have grown to hold the table's values too."""
    key: list[str]
    partition_key: list[str]
    """Those of the key that are the partition key's."""
    rows: pa.Table
    """Rows to insert or replace, with all columns of the schema."""
    deleted: pa.Table
    """Keys of rows to delete, each once, none of them among the rows, with the place of the delete."""
    offsets: dict[int, int]
    """By topic partition the offset to go on with, of those that have been read since the start; and under -1 a number
    that tells the topic from a later one of its name.
    """


class Target(Protocol):
    """A store that a recipe fills. Its methods raise one of its `errors`, or Failure, which end the recipe."""

    errors: tuple[type[Exception], ...]
    limits: Limits

    def read_offsets(self, partitions: list[int]) -> dict[int, int]:
        """Return the offsets to go on with, of those of the topic's partitions of which records are stored, and the
        number under -1 that was stored with them: see `Change.offsets`.
        """

    def read_schema(self) -> pa.Schema | None:
        """Return the table's columns, and None if there is no table yet."""

    def read_keys(self, key: pa.Schema, partitions: pa.Table | None, topic_partition: int) -> pa.Table:
        """Return the keys of all rows with these partition keys, and maybe of others; or those of a topic partition."""

    def store(self, change: Change) -> None:
        """Store a change and its offsets, as a whole or not at all if the store can."""


class Connect(Protocol):
    """A target's class: opens it."""

    errors: tuple[type[Exception], ...]

    def __call__(self, settings: Settings) -> AbstractContextManager[Target]: ...


def run(doc: str | None, names: list[str], connect: Connect) -> None:
    """Follow the topic of the command line into a target until it is stopped; with --once, to its end."""
    settings = parse_settings(doc, names)
    try:
        with connect(settings) as target:
            for batch in follow(settings, target.read_offsets):
                change = batch.for_table(target)
                if len(change.rows) or len(change.deleted):
                    target.store(change)
                batch.commit()
                print(f"{len(change.rows)} rows, {len(change.deleted)} deletes", flush=True)
    except Failure as failure:
        sys.exit(f"{Path(sys.argv[0]).name}: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
    except connect.errors as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {without_login(' '.join(settings.target))}: {without_login(str(error))}")


def follow(settings: Settings, read_offsets: Callable[[list[int]], dict[int, int]]) -> Iterator[Batch]:
    """Give batches from the offsets that the target has. Raises Failure; with --once also for what may pass."""
    registry, topic = Registry(settings), Topic(settings, read_offsets)
    schemas = Schemas(registry.get_schema)
    offsets = dict(topic.identity)
    try:
        while True:
            if messages := topic.consume():
                batch = Batch.of_messages(settings.topic, registry, schemas, messages)
                offsets |= batch.offsets
                batch.offsets, batch.commit = dict(offsets), topic.commit
                yield batch
            if settings.once and topic.is_at_end:
                return
    finally:
        topic.close()


@dataclass
class _Record:
    """The last record of a key: `value` is None for a row that is gone."""

    key: Row
    value: Row | None
    partition: int
    offset: int


@dataclass
class _Wipe:
    """A marker: the rows of a partition, within bounds if there are any, or all of a topic partition."""

    partition_key: Row | None
    bounds: tuple[Bound | None, Bound | None] | None
    partition: int
    offset: int


@dataclass
class Batch:
    """Records of a topic, by their topic partition, table partition and key, and the delete markers among them."""

    key: Columns
    value: Columns
    records: dict[int, dict[str, dict[str, _Record]]] = field(default_factory=dict)
    wipes: list[_Wipe] = field(default_factory=list)
    offsets: dict[int, int] = field(default_factory=dict)
    commit: Callable[[], None] = lambda: None

    @classmethod
    def of_messages(cls, topic: str, registry: Registry, schemas: Schemas, messages: list[Message]) -> Batch:
        """Decode messages, which are in the order of their offsets."""
        batch = cls(registry.columns(f"{topic}-key"), registry.columns(f"{topic}-value"))
        for message in messages:
            batch._add(message, schemas)
            batch.offsets[message.partition()] = message.offset() + 1
        return batch

    @property
    def partition_key(self) -> list[str]:
        """The names of the partition key's columns: those of the key that are never null."""
        return [name for name in self.key.types if name not in self.key.nullable]

    @property
    def clustering(self) -> list[str]:
        """The names of the clustering columns."""
        return [name for name in self.key.types if name in self.key.nullable]

    def for_table(self, target: Target) -> Change:
        """Make a change of the records: for the table as it is, with the keys in it that the markers took."""
        stored = target.read_schema()
        partition = partition_column(stored)
        own = [(partition, pa.int32()), (OFFSET, pa.int64())]
        columns = {**self.value.types, **self.key.types}  # a table of key columns alone repeats them in its value
        if reserved := {name.lower() for name in columns} & {partition, OFFSET}:
            raise Failure(f"the table has a column {reserved.pop()}, as the recipe has: rename it in batches.py")
        names = [*self.key.types, *(name for name in columns if name not in self.key.types)]
        schema = merge_schemas(stored, pa.schema([*((name, columns[name]) for name in names), *own]))
        records = [
            record
            for parts in self.records.values()
            for keys in parts.values()
            for record in keys.values()
            if self._fits(record, schema, target.limits)
        ]
        rows = [{**r.value, **r.key, partition: r.partition, OFFSET: r.offset} for r in records if r.value is not None]
        deleted = [{**r.key, partition: r.partition, OFFSET: r.offset} for r in records if r.value is None]
        if stored is not None and self.wipes:
            present = {_identity(record.key) for record in records}
            deleted += [
                {**key, partition: wipe.partition, OFFSET: wipe.offset}
                for identity, (key, wipe) in self._wiped_keys(target).items()
                if identity not in present
            ]
        key_schema = pa.schema([*((name, schema.field(name).type) for name in self.key.types), *own])
        return Change(
            schema,
            list(self.key.types),
            self.partition_key,
            _to_table(rows, schema),
            _to_table(deleted, key_schema),
            self.offsets,
        )

    def _fits(self, record: _Record, schema: pa.Schema, limits: Limits) -> bool:
        """Return whether the store can hold the record's key. A value that it can't hold becomes null, and is named."""
        for column in schema if limits else ():
            part = record.key if column.name in record.key else record.value or {}
            if column.name not in part or fits(part[column.name], column.type, limits):
                continue
            problem = f"column {column.name} has a {column.type} that the store can't hold, {part[column.name]!r:.80}"
            if part is record.key:
                notes.say(f"left out: a row whose key {problem}", kind=column.name)
                return False
            notes.say(f"null in the table: {problem}", kind=column.name)
            part[column.name] = None
        return True

    def _add(self, message: Message, schemas: Schemas) -> None:
        headers = dict(message.headers() or ())
        partition, offset = message.partition(), message.offset()
        scope = headers.get("scope")
        parts = self.records.setdefault(partition, {})
        if scope == b"table":
            parts.clear()
            self.wipes.append(_Wipe(None, None, partition, offset))
            return
        try:
            key = schemas.read(message.key())
            value = None if message.value() is None or scope else schemas.read(message.value())
        except UnicodeDecodeError:
            notes.say("left out: rows whose key has text that is not UTF-8, which Arrow has none of")
            return
        identity = _identity(key, self.partition_key)
        if scope is not None:
            self._add_marker(_Wipe({name: key[name] for name in self.partition_key}, None, partition, offset), headers)
        elif None in key.values():
            _say_what_is_left_out(headers)
        else:
            if "left_out" in headers:
                names = ", ".join(json.loads(headers["left_out"]))
                notes.say(f"too large or not to be shown, and so null in the table: {names} of a row", kind="left_out")
            # The bytes of a key do not tell: they name its schema, which is another one when a type in it has grown.
            parts.setdefault(identity, {})[_identity(key, self.clustering)] = _Record(key, value, partition, offset)

    def _add_marker(self, wipe: _Wipe, headers: dict[str, bytes]) -> None:
        if headers["scope"] == b"range":
            if "exact_key" in headers:
                notes.say("a range delete under keys that are not exact (key.compat): its rows stay", kind="exact_key")
                return
            wipe.bounds = parse_bound(headers.get("start")), parse_bound(headers.get("end"))
        assert wipe.partition_key is not None
        identity = _identity(wipe.partition_key)
        parts = self.records.setdefault(wipe.partition, {})
        if wipe.bounds is None:
            parts.pop(identity, None)
        else:
            keys = parts.get(identity, {})
            for name in [name for name, record in keys.items() if self._is_wiped(record.key, wipe)]:
                keys[name].value = None
        self.wipes.append(wipe)

    def _wiped_keys(self, target: Target) -> dict[str, tuple[Row, _Wipe]]:
        """Keys in the table that markers took, by their identity, each with the last marker that did.

        Rows that came after a marker are among the records.
        """
        wiped: dict[str, tuple[Row, _Wipe]] = {}
        for key, wipe in self._matches(target):
            identity = _identity(key, self.key.types)
            if identity not in wiped or wiped[identity][1].offset < wipe.offset:
                wiped[identity] = key, wipe
        return wiped

    def _matches(self, target: Target) -> Iterator[tuple[Row, _Wipe]]:
        """Keys in the table, each with markers that took it: a key comes again with another, or if the store has it."""
        key_schema = pa.schema(list(self.key.types.items()))
        for wipe in self.wipes:
            if wipe.partition_key is None:
                for key in to_rows(target.read_keys(key_schema, None, wipe.partition)):
                    yield key, wipe
        by_partition: dict[str, list[_Wipe]] = {}
        for wipe in self.wipes:
            if wipe.partition_key is not None:
                by_partition.setdefault(_identity(wipe.partition_key), []).append(wipe)
        if not by_partition:
            return
        types = pa.schema([(name, self.key.types[name]) for name in self.partition_key])
        partitions = pa.Table.from_pylist([wipes[0].partition_key for wipes in by_partition.values()], types)
        for key in to_rows(target.read_keys(key_schema, partitions, _NO_PARTITION)):
            for wipe in reversed(by_partition.get(_identity(key, self.partition_key), [])):
                if wipe.bounds is None or self._is_wiped(key, wipe):
                    yield key, wipe
                    break

    def _is_wiped(self, key: Row, wipe: _Wipe) -> bool:
        assert wipe.bounds is not None
        kinds = [self.key.avro[name] for name in self.clustering]
        answer = is_in_range([key[name] for name in self.clustering], kinds, *wipe.bounds)
        if answer is None:
            warning = "a range delete whose order is not certain: rows stay that it may have deleted. With state=keys"
            notes.say(f"{warning} each of them would have a null record", kind="range")
        return bool(answer)


def partition_column(stored: pa.Schema | None) -> str:
    """Return the name of the column for the topic partition: of a table that is there, the one that it has."""
    is_former = stored is not None and FORMER_PARTITION in stored.names and PARTITION not in stored.names
    return FORMER_PARTITION if is_former else PARTITION


def first_values(partitions: pa.Table) -> tuple[str, pa.Array] | None:
    """Give a column of the partition keys by which a store may look for them, with its values; None if none will do."""
    for name, column in zip(partitions.column_names, partitions.columns, strict=True):
        if column.type in (pa.string(), pa.int32(), pa.int64()):
            return name, column.combine_chunks().unique()
    return None


def key_texts(keys: pa.Table) -> list[str]:
    """Make a text of each key that is the same for equal keys, however a store has their types."""
    return [_identity(row) for row in to_rows(keys)]


def _identity(key: Row, names: Iterable[str] | None = None) -> str:
    """Make a text that is the same for equal keys, or columns of keys, of a record and of a store."""
    return repr([_canonical(key[name]) for name in (key if names is None else names)])


def _canonical(value: Any) -> Any:
    """Records and stores may have the fields of a type in another order, and those that it grew later, or not."""
    if isinstance(value, dict):
        return sorted((name, _canonical(part)) for name, part in value.items() if part is not None)
    return [_canonical(part) for part in value] if isinstance(value, list) else value


def _to_table(rows: list[Row], schema: pa.Schema) -> pa.Table:
    try:
        return pa.Table.from_pylist(rows, schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise Failure(f"records of another type than the newest schema has: {error}") from None


def _say_what_is_left_out(headers: dict[str, bytes]) -> None:
    """A key with nulls is that of a partition's static columns, or has values of no bytes, which `empty` names."""
    if "empty" in headers:
        notes.say("left out: rows with a value of no bytes in their key, which Avro shows as null", kind="empty")
    else:
        notes.say("left out: records of static columns alone; rows show them as they were when the row was read")
