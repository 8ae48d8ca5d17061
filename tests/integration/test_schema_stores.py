"""Records without a registry: schemas in a topic alone, and in a store of one's own."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from integration.file_store import FileStore
from integration.pipeline import Pipeline
from patience import eventually

from helenus_stack.records import messages, schemas_by_guid
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

KEYSPACE = "stores"
NO_REGISTRY = {"value.converter.schema.registry.url": None}


@pytest.fixture(scope="module")
def pipeline(status: Status, session: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    pipeline = Pipeline(status.only("kafka"), tmp_path_factory.mktemp("stores"))
    session.execute(
        f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
    )
    for table in ("topic", "file"):
        session.execute(f"CREATE TABLE {KEYSPACE}.{table} (k int, c int, v text, PRIMARY KEY (k, c)) WITH cdc = true")
    try:
        pipeline.agent.start().ready()
        worker = pipeline.connect()
        with Path(worker.arguments[1]).open("a") as file:
            file.write("plugin.packages=integration.file_store\n")
        worker.start(PYTHONPATH=str(Path(__file__).parents[1])).ready()
        yield pipeline
    finally:
        pipeline.stop()


def values(status: Status, table: str, text_of: Any) -> list[Any]:
    """The values of a topic, read by their schemas."""
    rows = []
    for message in messages(status.bootstrap_servers, f"data-{KEYSPACE}.{table}"):
        if (data := message.value()) is not None:
            is_guid = data[0] == 1
            name: Any = uuid.UUID(bytes=data[1:17]) if is_guid else int.from_bytes(data[1:5], "big")
            schema = json.loads(text_of(name))
            rows.append(fastavro.schemaless_reader(io.BytesIO(data[17 if is_guid else 5 :]), schema, None))
    return rows


def has_value(status: Status, table: str, text_of: Any, **columns: object) -> bool:
    return any(columns.items() <= row.items() for row in values(status, table, text_of))


def test_schemas_in_a_topic_alone(pipeline: Pipeline, status: Status, session: Any) -> None:
    """With an ALTER, `state=keys`, which reads keys back, and without a registry anywhere."""
    table = f"{KEYSPACE}.topic"

    def text_of(name: uuid.UUID) -> str:
        return schemas_by_guid(status.bootstrap_servers)[name]

    more = {**NO_REGISTRY, "schema.store": "topic", "state": "keys"}
    with pipeline.connected({table: more}):
        session.execute(f"INSERT INTO {table} (k, c, v) VALUES (1, 1, 'one')")
        session.execute(f"INSERT INTO {table} (k, c, v) VALUES (1, 2, 'two')")
        eventually(lambda: has_value(status, "topic", text_of, v="two"), "a record")
        session.execute(f"ALTER TABLE {table} ADD later text")
        session.execute(f"INSERT INTO {table} (k, c, later) VALUES (2, 1, 'x')")
        eventually(lambda: has_value(status, "topic", text_of, later="x"), "a record of the altered table")
        session.execute(f"DELETE FROM {table} WHERE k = 1")

        def deleted() -> int:
            records = messages(status.bootstrap_servers, f"data-{table}")
            return len({message.key() for message in records if message.value() is None})

        eventually(lambda: deleted() >= 3, "the marker, and a delete of each row, whose keys were read back")
        pipeline.converges(table)


def test_a_store_of_ones_own(pipeline: Pipeline, status: Status, session: Any, tmp_path: Path) -> None:
    """Its ids are in front of the records; what it refuses stops the table, and names why."""
    table, path = f"{KEYSPACE}.file", tmp_path / "schemas.json"
    store = FileStore({"path": str(path)})

    def text_of(name: int) -> str:
        return str(store.schema(name))

    more = {**NO_REGISTRY, "schema.store": "integration.file_store:FileStore", "schema.store.config.path": str(path)}
    with pipeline.connected({table: more}):
        session.execute(f"INSERT INTO {table} (k, c, v) VALUES (1, 1, 'one')")
        eventually(lambda: has_value(status, "file", text_of, v="one"), lambda: pipeline.connector.tail())
        session.execute(f"ALTER TABLE {table} ADD later text")
        session.execute(f"INSERT INTO {table} (k, c, later) VALUES (1, 1, 'x')")
        eventually(lambda: has_value(status, "file", text_of, v="one", later="x"), "a record of the altered table")
        subjects = [subject for subject, _ in json.loads(path.read_text())]
        assert sorted(subjects) == [f"data-{table}-key", f"data-{table}-value", f"data-{table}-value"]
        session.execute(f"ALTER TABLE {table} ADD forbidden text")
        session.execute(f"INSERT INTO {table} (k, c, forbidden) VALUES (1, 2, 'y')")
        eventually(lambda: "a column is forbidden" in pipeline.connector.health()[1], "the worker says why")
        session.execute(f"ALTER TABLE {table} DROP forbidden")
        pipeline.call_rest("POST", f"{KEYSPACE}-file/restart?includeTasks=true")
        session.execute(f"INSERT INTO {table} (k, c, v) VALUES (1, 3, 'three')")
        eventually(lambda: has_value(status, "file", text_of, v="three"), lambda: pipeline.connector.tail())
