"""Which topic a table's records go to, where the schemas of the one that it had refuse it."""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryError
from structlog.testing import capture_logs

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.pipeline.stage import Stage
from helenus_connector.shape import registry
from helenus_connector.shape.row import schemas
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.log import Schemas

COLUMNS = (Column("k", parse("int"), "partition_key", 0), Column("v", parse("bigint")))
CLUSTERING = Column("c", parse("int"), "clustering", 0)
TABLE = Table("ks", "t", uuid.UUID("deadbeef-0000-1000-8000-000000000000"), COLUMNS, cdc=True)
OLD, NEW = "data-ks.t", "data-ks.t-deadbeef"


class Log:
    """One that keeps schemas, as Pulsar does, whose first topic has others."""

    keeps_schemas = True

    def __init__(self) -> None:
        self.partitions = {OLD: 3}
        self.declared: dict[str, Schemas] = {}

    def topics(self) -> dict[str, int]:
        return self.partitions

    def create(self, topic: str, partitions: int, config: Any) -> int:
        return self.partitions.setdefault(topic, partitions)

    def declare(self, topic: str, schemas: Schemas) -> None:
        if topic == OLD:
            raise HelenusError(Kind.REGISTRY_REFUSED, "incompatible")
        self.declared[topic] = schemas


def staged(directory: Path, log: Log, **more: str) -> Stage:
    own = {"name": "n", "keyspace": "ks", "table": "t", "value.converter.schema.registry.url": "http://r"}
    given = {**own, **{k.replace("_", "."): v for k, v in more.items()}}
    cluster = SimpleNamespace(metadata=SimpleNamespace(all_hosts=list, keyspaces={}))
    session: Any = SimpleNamespace(cluster=cluster)
    return Stage(ConnectorSettings.of(given, "test"), session, log, directory)  # type: ignore[arg-type]


def test_a_connectors_tables_have_one_limit(tmp_path: Path) -> None:
    """Not one each: fifty tables would read fifty times as fast. Another connector has its own."""
    log: Any = Log()
    session = staged(tmp_path, log).session

    def budget(name: str, table: str, epoch: str) -> tuple[int, float]:
        given = {"name": name, "keyspace": "ks", "table": table, "output.format": "json", "query.max.rate": "500"}
        (tmp_path / epoch).mkdir(exist_ok=True)
        stage = Stage(ConnectorSettings.of(given, "test"), session, log, tmp_path / epoch, tmp_path)
        try:
            return os.fstat(stage._resolver._budget._file).st_ino, stage._resolver._budget._most
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
    log = Log()
    stage = staged(tmp_path, log, output_format=form, schema_on_incompatible="new-topic")
    with capture_logs() as logs:
        for _ in range(2):
            topic, shape = stage._versions.shaped(TABLE, stage.log)
            assert (topic, shape.schemas) == (NEW, log.declared[NEW])
    assert log.partitions == {OLD: 3, NEW: 3}
    assert [entry["event"] for entry in logs] == ["data.new_topic"]
    stage.close()


def test_without_leave_it_stops(tmp_path: Path) -> None:
    log = Log()
    stage = staged(tmp_path, log, output_format="json")
    with pytest.raises(HelenusError) as error:
        stage._versions.shaped(TABLE, stage.log)
    assert error.value.kind is Kind.REGISTRY_REFUSED
    assert log.partitions == {OLD: 3}
    stage.close()


class Client:
    """A registry's, that has no schema but those in `there`, by subject."""

    there: dict[str, list[str]]

    def __init__(self, _: object) -> None: ...

    def close(self) -> None: ...

    def get_latest_version(self, subject: str) -> Any:
        if not self.there.get(subject):
            raise SchemaRegistryError(404, 40401, "no subject")
        return SimpleNamespace(schema=SimpleNamespace(schema_str=self.there[subject][-1]), schema_id=1)

    def lookup_schema(self, subject: str, schema: Any) -> Any:
        if schema.schema_str not in self.there.get(subject, []):
            raise SchemaRegistryError(404, 40403, "no schema")
        return SimpleNamespace(schema_id=1)


class Kafka(Log):
    keeps_schemas = False


def test_what_nobody_registered_yet_is_no_reason_to_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There would be no way back, when somebody has."""
    monkeypatch.setattr(registry, "SchemaRegistryClient", Client)
    log = Kafka()
    both = {"schema_on_incompatible": "new-topic", "value_converter_auto_register_schemas": "false"}
    stage = staged(tmp_path, log, **both)
    key, value = schemas(TABLE, stage.settings)
    Client.there = {f"{OLD}-key": [key]}
    with pytest.raises(HelenusError, match=rf"helenus-connector schemas.*{OLD}-value") as error:
        stage._versions.shaped(TABLE, stage.log)
    assert (error.value.kind, log.partitions) == (Kind.SCHEMA_MISSING, {OLD: 3})
    Client.there[f"{OLD}-value"] = [value]
    assert stage._versions.shaped(TABLE, stage.log)[0] == OLD
    # A table that was made anew has to move; it waits for its schemas there.
    anew = replace(TABLE, id=uuid.UUID("0badcafe-0000-1000-8000-000000000000"), columns=(*COLUMNS, CLUSTERING))
    with pytest.raises(HelenusError, match=f"{OLD}-0badcafe-key") as error:
        stage._versions.shaped(anew, stage.log)
    assert (error.value.kind, log.partitions) == (Kind.SCHEMA_MISSING, {OLD: 3})
    key, value = schemas(anew, stage.settings)
    Client.there |= {f"{OLD}-0badcafe-key": [key], f"{OLD}-0badcafe-value": [value]}
    assert stage._versions.shaped(anew, stage.log)[0] == f"{OLD}-0badcafe"
    assert stage._versions.shaped(TABLE, stage.log)[0] == OLD
    stage.close()


def test_a_registry_that_gives_schemas_back_as_java_prints_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Confluent's does: names within the same namespace are short. They are the same schemas."""
    monkeypatch.setattr(registry, "SchemaRegistryClient", Client)
    table = replace(TABLE, columns=(*COLUMNS, replace(CLUSTERING, type=parse("decimal"))))
    anew = replace(table, id=uuid.UUID("0badcafe-0000-1000-8000-000000000000"))
    stage = staged(tmp_path, Kafka(), value_converter_auto_register_schemas="false")
    sent, value = schemas(table, stage.settings)
    printed = json.loads(sent)
    made = printed["fields"][1]["type"][1]
    assert made.pop("namespace") == "ks"
    Client.there = {f"{OLD}-key": [json.dumps(printed)], f"{OLD}-value": [value]}
    assert stage._versions.shaped(anew, stage.log)[0] == OLD
    stage.close()


def test_a_subject_with_a_schema_of_another_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry says whether ours may follow."""
    monkeypatch.setattr(registry, "SchemaRegistryClient", Client)
    Client.there = {f"{OLD}-key": ['syntax = "proto3"; message Key { int32 k = 1; }']}
    stage = staged(tmp_path, Kafka(), value_converter_auto_register_schemas="false")
    with pytest.raises(HelenusError) as error:
        stage._versions.shaped(TABLE, stage.log)
    assert error.value.kind is Kind.SCHEMA_MISSING
    stage.close()


def test_a_topic_that_is_gone_when_its_table_is_to_move(tmp_path: Path) -> None:
    log = Log()
    log.partitions.clear()
    stage = staged(tmp_path, log, schema_on_incompatible="new-topic")
    with pytest.raises(HelenusError) as error:
        stage._versions.shaped(TABLE, stage.log)
    assert (error.value.kind, error.value.where) == (Kind.TOPIC_MISSING, OLD)
    stage.close()
