"""A stage of one table with brokers and rows in memory: what its tests share."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.image import Image
from helenus_connector.pipeline import _table_version as version
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.pipeline.stage import Stage
from helenus_connector.reread import resolver
from helenus_connector.testing.cassandra import Host, MemoryReader, MemorySession
from helenus_connector.testing.log import FaultyLog, MemoryLog, MemoryRecord
from helenus_connector.unconfirmed.unconfirmed_key import UnconfirmedKey
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.event.change import Change
from helenus_schemas.event.wire import encode

NODE = str(uuid.UUID(int=1))
EVENTS, DATA, DEAD_LETTERS = "events-ks.t", "data-ks.t", "dlq-ks.t"
ALL = {"errors.tolerance": "all"}


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


def table(*keys: tuple[str, str, str]) -> Table:
    made = [Column(n, parse(t), k, sum(before[2] == k for before in keys[:i])) for i, (n, t, k) in enumerate(keys)]
    return Table("ks", "t", uuid.UUID(int=1), (*made, Column("v", parse("int"))), cdc=True)


def rows(*keys_and_values: tuple[Key, bytes | None]) -> list[tuple[Key, Image]]:
    return [(key, Image((value,), 1)) for key, value in keys_and_values]


CLUSTERED = table(("a", "int", "partition_key"), ("c", "int", "clustering"))


class Staged:
    """A stage whose one node has the rows of `live`, by key. `records` are those of all topics."""

    def __init__(self, definition: Table, directory: Path, monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
        properties = {"name": "n", "keyspace": "ks", "table": "t", "output.format": "key-value-json", **more}
        self.live: dict[Key, Image] = {}
        self.codec = KeyCodec(definition)
        self.log = FaultyLog(MemoryLog())
        self.session: Any = MemorySession([Host(NODE)], {"ks": 1})
        monkeypatch.setattr(
            version,
            "read_definition",
            lambda session, settings, known_version=None, version_request=None: (
                None if known_version else (1, definition)
            ),
        )
        monkeypatch.setattr(resolver, "RowReader", lambda session, table, settings: MemoryReader(self.live, table))
        self.stage = Stage(ConnectorSettings.from_properties(properties, "test"), self.session, self.log, directory)

    def run(self, change: Change, key: bytes | None, due_keys: Sequence[UnconfirmedKey] = ()) -> BatchOutcome:
        return self.stage.run([Event(EVENTS, 0, 7, 1000, key, encode(change))], due_keys, trust_images=True)

    def records_of(self, topic: str) -> list[tuple[Any, Any]]:
        """Keys and values of a topic's records, read as JSON."""
        records = (record for record in self.appended if record.topic == topic)
        return [(json.loads(record.key or b"null"), json.loads(record.value or b"null")) for record in records]

    @property
    def appended(self) -> list[MemoryRecord]:
        return self.log.log.appended
