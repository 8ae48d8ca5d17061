"""A verification finds the differences that are there, names them and repairs them; elsewhere it finds none."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import spark_start
from integration.pipeline import Lasting, Pipeline, script, write_properties
from integration.workload import Workload, create
from patience import eventually

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.query.spark_session import start_session as start_spark
from helenus_connector.shape.schemas import topic_schemas
from helenus_connector.verify._engine import verify
from helenus_connector.verify.options import VerifyOptions
from helenus_connector.verify.report import GHOST, MISPLACED, MISSING, STALE, VerifyReport
from helenus_schemas.codec.avro_long import long_bytes
from helenus_schemas.cql.table import read_tables
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings.properties import read_properties
from helenus_sinks.log import Log
from helenus_stack.java import spark_java_home
from helenus_stack.progress import Silent
from helenus_stack.settings import LogName

pytestmark = pytest.mark.integration

JSON = "org.apache.kafka.connect.json.JsonConverter"
RUNS = int(os.environ.get("HELENUS_RUNS", "100"))
FORMS: dict[str, dict[str, object]] = {
    "avro": {},
    "kv": {"output.format": "key-value-json"},
    "js": {"output.format": "json"},
    "compat": {"key.compat": "datastax", "decimal.handling.mode": "string"},
    "debezium": {"output.format": "debezium"},
    "debezium_json": {"output.format": "debezium", "value.converter": JSON},
}


@pytest.fixture(scope="module")
def ks(log: LogName) -> str:
    return f"verify_{log}"


@pytest.fixture(scope="module")
def pipeline(
    log: LogName, ks: str, session: Any, lasting: Lasting, request: pytest.FixtureRequest
) -> Iterator[Pipeline]:
    selected_names = {
        getattr(item, "callspec", None) and item.callspec.params.get("name") for item in request.session.items
    }
    forms = {name: forms_of(log, name) for name in FORMS if name in selected_names or name == "avro"}
    for name in forms:
        create(session, ks, name) if name == "avro" else session.execute(_like(ks, name))
    session.execute(f"CREATE TABLE {ks}.plain (k int PRIMARY KEY, v text, n int) WITH cdc = true")
    session.execute(f"CREATE TABLE {ks}.queue (k int, c int, v text, PRIMARY KEY (k, c)) WITH cdc = true")
    tables = {f"{ks}.{name}": more for name, more in {**forms, "plain": {}, "queue": {}}.items()}
    with lasting(log).connected(tables) as pipeline:
        for table, more in tables.items():
            properties = {**pipeline.connector_properties(table), **more}
            write_properties(pipeline.directory / f"{table}.properties", properties)
        yield pipeline


def forms_of(log: LogName, name: str) -> dict[str, object]:
    """Kafka's JSON carries its schema, as that is the default; on Pulsar the topic has it."""
    more = FORMS[name]
    return {**more, "value.converter.schemas.enable": "false"} if log == "pulsar" and JSON in more.values() else more


def _like(ks: str, name: str) -> str:
    from integration.workload import SCHEMA

    return SCHEMA[1].format(ks=ks, table=name)


@pytest.fixture(scope="module")
def spark(pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    os.environ["JAVA_HOME"] = str(spark_java_home(Silent()))
    more = {key.removeprefix("spark."): value for key, value in spark_start.settings().items()}
    worker = worker_of(pipeline).model_copy(update={"spark": {"master": "local[2,4]", **more}})
    spark = start_spark(worker, tmp_path_factory.mktemp("spark"))
    yield spark
    spark.stop()


def worker_of(pipeline: Pipeline) -> WorkerSettings:
    return WorkerSettings.load(pipeline.directory / "worker.properties")


def verified(spark: Any, pipeline: Pipeline, table: str, patience: float = 20.0, **options: Any) -> VerifyReport:
    return verify(spark, worker_of(pipeline), settings_of(pipeline, table), VerifyOptions(patience=patience, **options))


@contextmanager
def appending(pipeline: Pipeline, session: Any, table: str) -> Iterator[Log]:
    """Appends records as the connector does."""
    definition = next(t for t in read_tables(session, table.split(".")[0]).values() if t.full_name == table)
    with pipeline.log() as log:
        log.declare(f"data-{table}", topic_schemas(definition, settings_of(pipeline, table)))
        yield log


def settings_of(pipeline: Pipeline, table: str) -> ConnectorSettings:
    return worker_of(pipeline).model.read_settings(read_properties(pipeline.directory / f"{table}.properties"), table)


def keys_by_kind(report: VerifyReport) -> dict[str, list[str]]:
    return {kind: sorted(difference.keys) for kind, difference in report.found.items() if difference.count}


@pytest.mark.parametrize("name", ["avro", *(pytest.param(name, marks=pytest.mark.long) for name in list(FORMS)[1:])])
def test_nothing_differs_after_random_statements(
    pipeline: Pipeline, spark: Any, session: Any, ks: str, name: str
) -> None:
    """Rows, static columns, deletes of partitions and ranges, in every form of a record."""
    table = f"{ks}.{name}"
    Workload(session, table, seed=len(name)).run(400)
    if "debezium" in FORMS[name].values():  # whose rows are in envelopes
        eventually(lambda: len(list(pipeline.reader.messages(f"data-{table}"))) > 100, "records come")
        report = verified(spark, pipeline, table, patience=60)
    else:
        pipeline.converges(table)
        report = verified(spark, pipeline, table, patience=0)
    assert keys_by_kind(report) == {}
    assert report.exit_status == 0
    assert report.rows == len(list(session.execute(f"SELECT p FROM {table}")))
    assert report.records > 100


def test_each_kind_of_difference_is_found_and_repaired(pipeline: Pipeline, spark: Any, session: Any, ks: str) -> None:
    table, topic = f"{ks}.plain", f"data-{ks}.plain"
    for k in range(200):
        session.execute(f"INSERT INTO {table} (k, v, n) VALUES ({k}, 'v{k}', {k})")
    pipeline.converges(table)
    assert keys_by_kind(verified(spark, pipeline, table, patience=0)) == {}
    assert pipeline.agent.stop() == 0
    try:
        messages = {m.key(): m for m in pipeline.reader.messages(topic)}
        by_key = {pipeline.reader.record(m).key["k"]: m for m in messages.values()}
        with appending(pipeline, session, table) as log:
            log.append(topic, by_key[1].partition(), by_key[1].key(), None)  # deleted from the topic
            log.append(topic, by_key[2].partition(), by_key[2].key(), by_key[3].value())  # changed in it
            planted = by_key[4].key()[: pipeline.reader.frame] + long_bytes(999)
            log.append(topic, 0, planted, by_key[4].value())  # added to it
            expired = [("writetime", b"1"), ("expires", b"2")]  # a heartbeat, whose renewals were lost
            log.append(topic, by_key[8].partition(), by_key[8].key(), by_key[3].value(), expired)
        session.execute(f"DELETE FROM {table} WHERE k = 5")
        session.execute(f"UPDATE {table} SET n = 7000 WHERE k = 6")
        session.execute(f"INSERT INTO {table} (k, v) VALUES (777, 'new')")
        report = verified(spark, pipeline, table, patience=1)
        assert keys_by_kind(report) == {
            MISSING: ['{"k":1}', '{"k":777}'],
            STALE: ['{"k":2}', '{"k":6}', '{"k":8}'],
            GHOST: ['{"k":5}', '{"k":999}'],
        }
        assert report.exit_status == 3
        assert report.differences == 7
        repaired = verified(spark, pipeline, table, patience=1, repair=True)
        assert repaired.repaired == 7
        events = len(list(pipeline.reader.messages(f"events-{ks}.plain")))
        eventually(
            lambda: pipeline.connector.total("helenus_connector_events_read_total", table="plain") >= events, "read"
        )
        after = verified(spark, pipeline, table)
        # A record in another partition than the key's own is not for the connector to take away.
        assert keys_by_kind(after) in ({}, {MISPLACED: ['{"k":999}']})
        with appending(pipeline, session, table) as log:
            log.append(topic, 0, planted, None)
        assert keys_by_kind(verified(spark, pipeline, table)) == {}
    finally:
        pipeline.agent.start().ready()
    pipeline.converges(table)
    assert keys_by_kind(verified(spark, pipeline, table, patience=0)) == {}


def command(pipeline: Pipeline, table: str, *options: str) -> tuple[int, str, str]:
    name, url = table.replace(".", "-"), f"http://127.0.0.1:{pipeline.connector.port}"
    process = subprocess.run(
        [script("helenus-connector"), "verify", name, "--url", url, *options],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    return process.returncode, process.stdout, process.stderr


@pytest.mark.long  # two minutes of writes
@pytest.mark.parametrize("runs", [1, pytest.param(RUNS, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_the_command_finds_none_while_writes_go_on(pipeline: Pipeline, session: Any, ks: str, runs: int) -> None:
    table = f"{ks}.avro"
    with Workload(session, table, seed=11, rate=200):
        for run in range(runs):
            status, out, error_output = command(pipeline, table, "--json", "--patience", "20")
            assert status == 0, (run, out, error_output)
            assert json.loads(out)["report"]["equal"]
    pipeline.converges(table)
    status, out, _ = command(pipeline, table, "--patience", "0", "--sample", "0.5")
    assert status == 0
    assert "topic and table are equal" in out


def test_the_command_repairs_a_queue(pipeline: Pipeline, session: Any, ks: str) -> None:
    """Deletes of ranges, and rows of a partition that an old marker is over. The result is in metrics."""
    table, topic = f"{ks}.queue", f"data-{ks}.queue"
    for c in range(50):
        session.execute(f"INSERT INTO {table} (k, c, v) VALUES (1, {c}, 'v')")
    session.execute(f"DELETE FROM {table} WHERE k = 1 AND c < 20")
    pipeline.converges(table)
    status, out, _ = command(pipeline, table, "--patience", "5")
    assert status == 0, out
    messages = {pipeline.reader.record(m).key["c"]: m for m in pipeline.reader.messages(topic)}
    with appending(pipeline, session, table) as log:
        there, gone = messages[30], messages[5]
        log.append(topic, gone.partition(), gone.key(), there.value())  # after the marker that is over it
        log.append(topic, there.partition(), there.key(), None)
    status, out, error_output = command(pipeline, table, "--patience", "1", "--repair")
    assert status == 3, error_output
    assert 'missing: 1: {"k":1,"c":30}' in out
    assert 'ghost: 1: {"k":1,"c":5}' in out
    assert "2 events appended" in out
    labels = {"connector": table.replace(".", "-"), "table": "queue"}
    assert pipeline.connector.total("helenus_connector_verify_differences", kind="missing", **labels) == 1
    assert pipeline.connector.total("helenus_connector_verify_rows", **labels) == 30
    status, out, _ = command(pipeline, table)
    assert (status, pipeline.connector.total("helenus_connector_verify_differences", **labels)) == (0, 0), out


def test_errors_of_the_command(pipeline: Pipeline, ks: str) -> None:
    status, _, error_output = command(pipeline, f"{ks}.plain", "--table", "none")
    assert (status, "the connector has no table none" in error_output) == (2, True)
    status, _, error_output = command(pipeline, f"{ks}.other")
    assert (status, "not found" in error_output) == (2, True)
    status, _, error_output = command(pipeline, f"{ks}.plain", "--token-range", "5")
    assert (status, "AFTER:UNTIL" in error_output) == (2, True)


def test_a_topic_of_another_table_is_one_clear_error(pipeline: Pipeline, spark: Any, session: Any, ks: str) -> None:
    Workload(session, f"{ks}.avro", seed=5).run(20)
    pipeline.converges(f"{ks}.avro")
    worker = worker_of(pipeline)
    properties = {**read_properties(pipeline.directory / f"{ks}.plain.properties"), "data.topic": f"data-{ks}.avro"}
    with pytest.raises(HelenusError, match="it is the topic of another table") as error:
        verify(spark, worker, worker.model.read_settings(properties, "n"), VerifyOptions(patience=0))
    assert error.value.kind is Kind.CONFIG
    properties["data.topic"] = "none"
    with pytest.raises(HelenusError, match="there is no data topic"):
        verify(spark, worker, worker.model.read_settings(properties, "n"), VerifyOptions(patience=0))


@pytest.mark.parametrize("log", ["kafka"], indirect=True)  # the same code
def test_records_in_json_of_another_table_with_the_same_columns(
    pipeline: Pipeline, spark: Any, session: Any, ks: str
) -> None:
    topic, worker = f"data-{ks}.twin", worker_of(pipeline)
    session.execute(f"CREATE TABLE {ks}.twin (k int PRIMARY KEY, v text, n int)")
    session.execute(f"INSERT INTO {ks}.twin (k, v) VALUES (1, 'twin')")
    plain = next(t for t in read_tables(session, ks).values() if t.name == "plain")
    with pipeline.log() as log:
        log.create(topic, 1, {})
        log.append(topic, 0, b'{"k":1}', b'{"v":"a","n":1}', [("schema_id", plain.schema_id.encode())])
    more = {"name": "twin", "table": "twin", "output.format": "key-value-json", "data.topic": topic}
    properties = {**read_properties(pipeline.directory / f"{ks}.plain.properties"), **more}
    with pytest.raises(HelenusError, match=rf"its records are of {ks}\.plain, and none is of {ks}\.twin"):
        verify(spark, worker, worker.model.read_settings(properties, "n"), VerifyOptions(patience=0))
