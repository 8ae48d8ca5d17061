"""Which topic a table's records go to, where the schemas of the one that it had refuse it."""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.pipeline import _table_version
from helenus_connector.pipeline.stage import Stage
from helenus_connector.shape.encoding import registry
from helenus_connector.shape.row.row import row_schemas
from helenus_connector.testing.cassandra import Host, MemorySession
from helenus_connector.testing.log import FaultyLog, MemoryLog
from helenus_connector.testing.registry import RegistryClient
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.errors import HelenusError, Kind

COLUMNS = (Column("k", parse("int"), "partition_key", 0), Column("v", parse("bigint")))
CLUSTERING = Column("c", parse("int"), "clustering", 0)
TABLE = Table("ks", "t", uuid.UUID("deadbeef-0000-1000-8000-000000000000"), COLUMNS, cdc=True)
OLD, NEW = "data-ks.t", "data-ks.t-deadbeef"


def refusing(keeps_schemas: bool = True) -> FaultyLog:
    """A Log that keeps schemas, as Pulsar does, unless that is switched off; its first topic has others."""
    log = FaultyLog(MemoryLog({OLD: 3}, keeps_schemas))
    log.fail("declare", HelenusError(Kind.REGISTRY_REFUSED, "incompatible"), times=None, topics=[OLD])
    return log


def staged(directory: Path, log: FaultyLog, **more: str) -> Stage:
    own = {"name": "n", "keyspace": "ks", "table": "t", "value.converter.schema.registry.url": "http://r"}
    properties = {**own, **{k.replace("_", "."): v for k, v in more.items()}}
    return Stage(ConnectorSettings.from_properties(properties, "test"), MemorySession([Host(1)]), log, directory)  # type: ignore[arg-type]


def test_a_connectors_tables_have_one_limit(tmp_path: Path) -> None:
    """Not one each: fifty tables would read fifty times as fast. Another connector has its own."""
    log = refusing()
    session = staged(tmp_path, log).session

    def budget(name: str, table: str, epoch: str) -> tuple[int, float]:
        properties = {"name": name, "keyspace": "ks", "table": table, "output.format": "json", "query.max.rate": "500"}
        (tmp_path / epoch).mkdir(exist_ok=True)
        stage = Stage(ConnectorSettings.from_properties(properties, "test"), session, log, tmp_path / epoch, tmp_path)
        try:
            return os.fstat(stage._resolver._budget._file).st_ino, stage._resolver._budget._max_rate
        finally:
            stage.close()

    first, other_table, moved, other = (
        budget(*which) for which in (("a", "t", "0"), ("a", "u", "0"), ("a", "t", "1"), ("b/ä", "t", "0"))
    )
    assert first == other_table == moved
    assert first[0] != other[0]


@pytest.mark.parametrize("form", ["key-value-avro", "key-value-json", "json"])
def test_a_table_that_the_topics_schemas_refuse_goes_on_in_another(tmp_path: Path, form: str) -> None:
    """In every form that has schemas on that Log, and once it has gone on, it stays there without a word."""
    log = refusing()
    stage = staged(tmp_path, log, output_format=form, schema_on_incompatible="new-topic")
    with capture_logs() as logs:
        for _ in range(2):
            topic, _ = stage.versions.make_shape_for(TABLE, stage.log)
            assert (topic, stage.versions._schemas_of(TABLE)) == (NEW, log.log.declared[NEW])
    assert log.topics() == {OLD: 3, NEW: 3}
    assert [entry["event"] for entry in logs] == ["data.new_topic"]
    stage.close()


def test_without_permission_to_change_topics_it_stops(tmp_path: Path) -> None:
    log = refusing()
    stage = staged(tmp_path, log, output_format="json")
    with pytest.raises(HelenusError) as error:
        stage.versions.make_shape_for(TABLE, stage.log)
    assert error.value.kind is Kind.REGISTRY_REFUSED
    assert log.topics() == {OLD: 3}
    stage.close()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> RegistryClient:
    client = RegistryClient()
    monkeypatch.setattr(registry, "SchemaRegistryClient", lambda _: client)
    return client


def test_an_unregistered_schema_is_no_reason_to_change_topics(tmp_path: Path, client: RegistryClient) -> None:
    """There would be no way back, when somebody has."""
    log = refusing(keeps_schemas=False)
    both = {"schema_on_incompatible": "new-topic", "value_converter_auto_register_schemas": "false"}
    stage = staged(tmp_path, log, **both)
    key, value = row_schemas(TABLE, stage.settings)
    client.versions |= {f"{OLD}-key": [key]}
    with pytest.raises(HelenusError, match=rf"helenus-connector schemas.*{OLD}-value") as error:
        stage.versions.make_shape_for(TABLE, stage.log)
    assert (error.value.kind, log.topics()) == (Kind.SCHEMA_MISSING, {OLD: 3})
    client.versions[f"{OLD}-value"] = [value]
    assert stage.versions.make_shape_for(TABLE, stage.log)[0] == OLD
    # A recreated table has to move; it waits for its schemas there.
    recreated = replace(TABLE, id=uuid.UUID("0badcafe-0000-1000-8000-000000000000"), columns=(*COLUMNS, CLUSTERING))
    with pytest.raises(HelenusError, match=f"{OLD}-0badcafe-key") as error:
        stage.versions.make_shape_for(recreated, stage.log)
    assert (error.value.kind, log.topics()) == (Kind.SCHEMA_MISSING, {OLD: 3})
    key, value = row_schemas(recreated, stage.settings)
    client.versions |= {f"{OLD}-0badcafe-key": [key], f"{OLD}-0badcafe-value": [value]}
    assert stage.versions.make_shape_for(recreated, stage.log)[0] == f"{OLD}-0badcafe"
    assert stage.versions.make_shape_for(TABLE, stage.log)[0] == OLD
    stage.close()


def test_a_registry_that_gives_schemas_back_as_java_prints_them(tmp_path: Path, client: RegistryClient) -> None:
    """Confluent's does: names within the same namespace are short. They are the same schemas."""
    table = replace(TABLE, columns=(*COLUMNS, replace(CLUSTERING, type=parse("decimal"))))
    recreated = replace(table, id=uuid.UUID("0badcafe-0000-1000-8000-000000000000"))
    stage = staged(tmp_path, refusing(keeps_schemas=False), value_converter_auto_register_schemas="false")
    sent, value = row_schemas(table, stage.settings)
    printed = json.loads(sent)
    made = printed["fields"][1]["type"][1]
    assert made.pop("namespace") == "ks"
    client.versions |= {f"{OLD}-key": [json.dumps(printed)], f"{OLD}-value": [value]}
    assert stage.versions.make_shape_for(recreated, stage.log)[0] == OLD
    stage.close()


def test_a_subject_with_a_schema_of_another_kind(tmp_path: Path, client: RegistryClient) -> None:
    """The registry says whether ours may follow."""
    client.versions |= {f"{OLD}-key": ['syntax = "proto3"; message Key { int32 k = 1; }']}
    stage = staged(tmp_path, refusing(keeps_schemas=False), value_converter_auto_register_schemas="false")
    with pytest.raises(HelenusError) as error:
        stage.versions.make_shape_for(TABLE, stage.log)
    assert error.value.kind is Kind.SCHEMA_MISSING
    stage.close()


def test_a_topic_that_is_gone_when_its_table_is_to_move(tmp_path: Path) -> None:
    log = refusing()
    log.log.counts.clear()
    stage = staged(tmp_path, log, schema_on_incompatible="new-topic")
    with pytest.raises(HelenusError) as error:
        stage.versions.make_shape_for(TABLE, stage.log)
    assert (error.value.kind, error.value.where) == (Kind.TOPIC_MISSING, OLD)
    stage.close()


def test_another_topic_that_was_deleted_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver makes the connector's own topic anew, and knows nothing of this one."""
    failures: list[HelenusError] = []

    def read(
        session: Any, settings: Any, known_version: object = None, request: object = None
    ) -> tuple[int, Table] | None:
        if failures:
            raise failures.pop()
        return None if known_version else (1, TABLE)

    monkeypatch.setattr(_table_version, "read_definition", read)
    log = refusing()
    stage = staged(tmp_path, log, output_format="json", schema_on_incompatible="new-topic")
    stage.run([], [], trust_images=True)
    del log.log.counts[NEW]
    log.fail("flush", HelenusError(Kind.TOPIC_MISSING, "deleted"))
    with pytest.raises(HelenusError, match="deleted"):
        stage.run([], [], trust_images=True)
    failures.append(HelenusError(Kind.CASSANDRA_READ, "away"))
    with pytest.raises(HelenusError, match="away"):
        stage.run([], [], trust_images=True)
    stage.run([], [], trust_images=True)
    assert log.topics() == {OLD: 3, NEW: 3}
    assert stage.versions.current.topic == NEW
    stage.close()
