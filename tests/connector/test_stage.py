"""Which topic a table's records go to, where the schemas of the one that it had refuse it."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from helenus_connector.config import ConnectorSettings
from helenus_connector.stage import Stage
from helenus_schemas.cql import parse
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.table import Column, Table
from helenus_sinks.log import Schemas

COLUMNS = (Column("k", parse("int"), "partition_key", 0), Column("v", parse("bigint")))
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


@pytest.mark.parametrize("form", ["key-value-avro", "key-value-json", "json"])
def test_a_table_that_the_topics_schemas_refuse_goes_on_in_another(tmp_path: Path, form: str) -> None:
    """In every form that has schemas on that Log, and once it has gone on, it stays there without a word."""
    log = Log()
    stage = staged(tmp_path, log, output_format=form, schema_on_incompatible="new-topic")
    with capture_logs() as logs:
        for _ in range(2):
            topic, shape = stage._shaped(TABLE)
            assert (topic, shape.schemas) == (NEW, log.declared[NEW])
    assert log.partitions == {OLD: 3, NEW: 3}
    assert [entry["event"] for entry in logs] == ["data.new_topic"]
    stage.close()


def test_without_leave_it_stops(tmp_path: Path) -> None:
    log = Log()
    stage = staged(tmp_path, log, output_format="json")
    with pytest.raises(HelenusError) as error:
        stage._shaped(TABLE)
    assert error.value.kind is Kind.REGISTRY_REFUSED
    assert log.partitions == {OLD: 3}
    stage.close()
