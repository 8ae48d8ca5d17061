"""Tables that share a data topic: their keys stay apart, each has its own schemas, and `verify` compares each."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource
from confluent_kafka.schema_registry import SchemaRegistryClient
from integration.pipeline import Lasting, Pipeline, script
from patience import eventually

pytestmark = pytest.mark.integration

CONNECT_JSON = "org.apache.kafka.connect.json.JsonConverter"
TOPICS = {"avro": "all-of-avro", "json": "all-of-json"}
CREATION = {
    "topic.creation.default.replication.factor": "1",
    "topic.creation.groups": "all",
    "topic.creation.all.include": "all-of-.*",
    "topic.creation.all.segment.bytes": "1048576",
}
COLUMNS = {"persons": "name text", "cars": "seats int, owner text"}


@pytest.fixture(scope="module")
def pipeline(session: Any, lasting: Lasting) -> Iterator[Pipeline]:
    """Two connectors of two tables each, in Avro and in JSON with its schema."""
    connectors: dict[str, dict[str, object]] = {}
    for form, topic in TOPICS.items():
        session.execute(
            f"CREATE KEYSPACE shared_{form} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        )
        for table, columns in COLUMNS.items():
            session.execute(f"CREATE TABLE shared_{form}.{table} (id int PRIMARY KEY, {columns}) WITH cdc = true")
        connectors[f"shared_{form}.all"] = {**CREATION, "table": "persons, cars", "data.topic": topic}
    connectors["shared_json.all"] |= dict.fromkeys(("key.converter", "value.converter"), CONNECT_JSON)
    with lasting("kafka").connected(connectors) as made:
        yield made


@pytest.mark.parametrize("form", TOPICS)
def test_rows_with_one_key_are_records_of_their_tables(pipeline: Pipeline, session: Any, form: str) -> None:
    persons, cars = f"shared_{form}.persons", f"shared_{form}.cars"
    for k in range(50):
        session.execute(f"INSERT INTO {persons} (id, name) VALUES ({k}, 'n{k}')")
        session.execute(f"INSERT INTO {cars} (id, seats) VALUES ({k}, {k})")
    session.execute(f"DELETE FROM {cars} WHERE id = 7")
    session.execute(f"ALTER TABLE {cars} ADD color text")
    session.execute(f"INSERT INTO {cars} (id, color) VALUES (8, 'red')")
    rows: dict[tuple[str, int], Any] = {}

    def all_are_there() -> bool:
        rows.clear()
        rows.update(latest_rows(pipeline, form))
        return len(rows) == 100 and rows[cars, 7] is None and rows[cars, 8].get("color") == "red"

    eventually(all_are_there, lambda: f"{len(rows)} rows of two tables\n{pipeline.connector.tail()}")
    assert {rows[persons, k]["name"] for k in range(50)} == {f"n{k}" for k in range(50)}
    assert rows[cars, 9]["seats"] == 9


def latest_rows(pipeline: Pipeline, form: str) -> Iterator[tuple[tuple[str, int], Any]]:
    """What a compacted topic would keep: the last value of each key's bytes, with the table that it says."""
    latest = {message.key(): message for message in pipeline.reader.messages(TOPICS[form])}
    for message in latest.values():
        table = dict(message.headers())["table"].decode()
        if form == "avro":
            record = pipeline.reader.record(message)
            yield (table, record.key["id"]), record.value
        else:
            key, value = json.loads(message.key()), json.loads(message.value() or "null")
            assert key["schema"]["name"].startswith(table)
            yield (table, key["payload"]["id"]), value and value["payload"]


def test_each_table_has_its_own_subjects(pipeline: Pipeline) -> None:
    registry = SchemaRegistryClient({"url": str(pipeline.status.registry_url)})
    subjects = set(registry.get_subjects())
    registry.close()
    expected = {f"all-of-avro-shared_avro.{table}-{part}" for table in COLUMNS for part in ("key", "value")}
    assert expected <= subjects
    assert "all-of-avro-value" not in subjects


def test_topic_is_created_as_its_group_says(pipeline: Pipeline) -> None:
    admin = AdminClient({"bootstrap.servers": pipeline.status.bootstrap_servers})
    resource = ConfigResource(ConfigResource.Type.TOPIC, "all-of-avro")
    described = admin.describe_configs([resource])[resource].result()
    assert described["segment.bytes"].value == "1048576"
    assert described["cleanup.policy"].value == "compact"


@pytest.mark.parametrize("form", TOPICS)
def test_verify_compares_each_table(pipeline: Pipeline, session: Any, form: str) -> None:
    url = f"http://127.0.0.1:{pipeline.connector.port}"
    command = [script("helenus-connector"), "verify", f"shared_{form}-all", "--url", url]
    result = subprocess.run([*command, "--table", "persons"], capture_output=True, text=True, timeout=300)
    assert (result.returncode, "50 rows" in result.stdout) == (0, True), result.stdout + result.stderr
    result = subprocess.run([*command, "--table", "cars"], capture_output=True, text=True, timeout=300)
    assert (result.returncode, "49 rows" in result.stdout) == (0, True), result.stdout + result.stderr


def test_truncation_of_a_table_is_of_that_table(pipeline: Pipeline, session: Any) -> None:
    session.execute("TRUNCATE shared_avro.persons")

    def tables_truncated() -> list[bytes]:
        messages = pipeline.reader.messages(TOPICS["avro"])
        return [headers["table"] for m in messages if (headers := dict(m.headers() or ())).get("scope") == b"table"]

    eventually(lambda: bool(tables_truncated()), lambda: f"it has a marker\n{pipeline.connector.tail()}")
    assert set(tables_truncated()) == {b"shared_avro.persons"}
