"""The stage of `state=rows`: rows that are shaped together go the way of any record."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent.writer import Cell, Row, Update, table_of
from bench.written import Ids
from connector.celled import events

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.merged_change import RowChange
from helenus_connector.pipeline import _table_version
from helenus_connector.pipeline._chunked_records import ChunkedRecords, _Partition
from helenus_connector.pipeline.merged_stage import MergedStage
from helenus_connector.testing.cassandra import Host, MemorySession
from helenus_connector.testing.log import MemoryLog
from helenus_schemas.event.change import Scope
from helenus_sinks.chunks import chunk_key, chunk_topic

TABLE = table_of("t", "k int pk, v text")
NODE = "00000000-0000-0000-0000-000000000001"


def test_a_row_that_is_small_again_has_its_chunks_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"keyspace": TABLE.keyspace, "table": TABLE.name, "name": "t", "state": "rows", "query.group": "rows"}
    more = {"value.converter.schema.registry.url": "http://127.0.0.1:1", "errors.large.record": "chunk"}
    settings = ConnectorSettings.from_properties({**keys, **more}, "test")
    monkeypatch.setattr(_table_version, "read_definition", lambda *_, **__: (1, TABLE))
    log = MemoryLog({settings.data: 1})
    session = MemorySession([Host(NODE)], {TABLE.keyspace: 1})
    stage = MergedStage(settings, session, log, lambda *_: None, tmp_path, Ids())
    stage.begin(TABLE)
    (event,) = events(Update(TABLE, b"\0\0\0\1", [Row((), {"v": Cell(b"x")}, time=1)]))
    assert event.key is not None
    change = RowChange(0, event.key, Scope.ROW, "u", None, {"v": b"x"}, 1, None, event, None)
    partition = _Partition(is_current=True)
    monkeypatch.setattr(ChunkedRecords, "_rows", lambda *_: partition)
    monkeypatch.setattr(stage, "_publish", None)  # no row is published by itself
    stage.take_all([change])
    (record,) = log.records(settings.data)
    partition.rows[record.key or b""] = 2, event.key
    stage.take_all([change])
    chunks = log.records(chunk_topic(settings.data))
    assert [(chunk.key, chunk.value) for chunk in chunks] == [
        (chunk_key(record.key or b"", number), None) for number in (0, 1)
    ]
