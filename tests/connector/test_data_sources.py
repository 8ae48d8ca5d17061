"""Connectors of data sources: what rows of a table may have a worker do, and what they may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helenus_connector import _data_sources
from helenus_connector._data_sources import DataSources, SourceRow
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.connectors import Connectors
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings.properties import ConfigError

TEMPLATE = {"output.format": "json", "cassandra.contact.points": "c1", "headers": "schema_id"}
ADDRESS = "kafka://k1:9092"


def worker_settings(directory: Path, template: dict[str, str] | None = None, **more: str) -> WorkerSettings:
    path = directory / "template.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in (TEMPLATE if template is None else template).items()))
    keys = {key.replace("_", "."): value for key, value in more.items()}
    properties = {
        "bootstrap.servers": "PLAINTEXT://k1:9092,k2",
        "checkpoint.dir": str(directory / "checkpoint"),
        "data.source.template": str(path),
        **keys,
    }
    return WorkerSettings.from_properties(properties, "worker")


def made(directory: Path, **files: dict[str, str]) -> tuple[DataSources, Connectors]:
    worker = worker_settings(directory)
    connectors = Connectors(worker, lambda topics: {})
    worker.checkpoint_dir.mkdir(exist_ok=True)
    sources = DataSources(worker, connectors, files)
    connectors.load(files, sources.saved_sources(connectors.document.read()))
    return sources, connectors


def row(table: str = "t", sink: str | None = "lake", address: str | None = ADDRESS, keyspace: str = "ks") -> SourceRow:
    return SourceRow(keyspace, table, sink, address)


def failure(sources: DataSources, name: str = "cdc-ks.t") -> str:
    return str(sources.failed_connectors()[name].error)


def test_a_row_makes_a_connector_and_a_dropped_one_removes_it(tmp_path: Path) -> None:
    sources, connectors = made(tmp_path)
    sources.apply([row(), row("u")])
    assert connectors.names() == ["cdc-ks.t", "cdc-ks.u"]
    config = connectors.config("cdc-ks.t")
    expected = {**TEMPLATE, "keyspace": "ks", "table": "t", "name": "cdc-ks.t"}
    assert config == {"connector.class": config["connector.class"], **expected}
    # A table that is lost, or read without a row, removes none.
    sources.apply([])
    assert connectors.names() == ["cdc-ks.t", "cdc-ks.u"]
    sources.apply([row(sink=None), row("never", sink=None)])
    assert connectors.names() == ["cdc-ks.u"]
    sources.apply([row(sink=None)])
    sources.apply([row()])
    assert connectors.names() == ["cdc-ks.t", "cdc-ks.u"]


def test_the_template_counts_more_than_the_sink(tmp_path: Path) -> None:
    sources, connectors = made(tmp_path)
    address = f"{ADDRESS}?output.format=avro&decimal.handling.mode=string&linger.ms=5&value.converter.schema.registry.url=http://evil"
    sources.apply([row(address=address)])
    config = connectors.config("cdc-ks.t")
    assert (config["output.format"], config["decimal.handling.mode"]) == ("json", "string")
    assert not {"linger.ms", "value.converter.schema.registry.url"} & config.keys()
    # Another sink after a DROP that the worker did not see in between.
    sources.apply([row(address=ADDRESS)])
    assert "decimal.handling.mode" not in connectors.config("cdc-ks.t")


WRONG = [
    (row(address=None), "there is no data sink lake"),
    (row(address="kafka://k3"), "this worker's bootstrap.servers are others"),
    (row(address="kafka://k1:9093"), "this worker's bootstrap.servers are others"),
    (row(address="file:///etc/shadow"), "begins with kafka://"),
    (row(address="kafka://k1?resolver=mine"), "resolver"),
    (row(address="kafka://k1?sasl.password=hunter22"), "a secret is not stored in clear"),
    (row(keyspace="system_auth", table="roles"), "Cassandra's own"),
    (row(keyspace="helenus", table="configs"), "the agents'"),
]


@pytest.mark.parametrize(("wrong", "reason"), WRONG)
def test_a_wrong_row_is_shown_as_a_connector_that_failed(tmp_path: Path, wrong: SourceRow, reason: str) -> None:
    sources, connectors = made(tmp_path)
    connectors.files = sources.failed_connectors
    sources.apply([wrong, row("u")])
    assert connectors.names() == ["cdc-ks.u"]
    assert reason in failure(sources, wrong.connector)
    assert "hunter22" not in failure(sources, wrong.connector)
    assert connectors.status(wrong.connector).state == "FAILED"
    sources.apply([row("u")])
    assert sources.failed_connectors() == {}


def test_a_name_that_is_none_makes_nothing(tmp_path: Path) -> None:
    sources, connectors = made(tmp_path)
    sources.apply([row("a,b"), row(".*"), row("t", keyspace="../x"), row("", keyspace=""), row("x" * 49)])
    assert connectors.names() == []
    assert sources.failed_connectors() == {}


def test_another_connector_of_the_name_or_the_table_stays(tmp_path: Path) -> None:
    sources, connectors = made(tmp_path)
    connectors.put("cdc-ks.t", {**TEMPLATE, "keyspace": "other", "table": "t"})
    connectors.put("mine", {**TEMPLATE, "keyspace": "ks", "table": "u"})
    sources.apply([row(), row("u")])
    assert connectors.names() == ["cdc-ks.t", "mine"]
    assert connectors.config("cdc-ks.t")["keyspace"] == "other"
    assert "mine" in failure(sources, "cdc-ks.u")
    sources.apply([row(sink=None)])
    assert connectors.names() == ["cdc-ks.t", "mine"]


def test_what_rest_changed_stays_over_a_restart(tmp_path: Path) -> None:
    sources, connectors = made(tmp_path)
    sources.apply([row(address=f"{ADDRESS}?decimal.handling.mode=string"), row("u"), row("v")])
    connectors.put("cdc-ks.t", {**connectors.config("cdc-ks.t"), "max.batch.size": "7"}, "PAUSED")
    connectors.delete("cdc-ks.u")
    sources, connectors = made(tmp_path)
    assert connectors.names() == ["cdc-ks.t", "cdc-ks.v"]  # before Cassandra has answered
    sources.apply([row(address=f"{ADDRESS}?decimal.handling.mode=string"), row("u"), row("v")])
    assert connectors.names() == ["cdc-ks.t", "cdc-ks.v"]
    assert connectors.config("cdc-ks.t")["max.batch.size"] == "7"
    assert connectors.status("cdc-ks.t").state == "PAUSED"
    # Dropped and created again, it is there again.
    sources.apply([row("u", sink=None)])
    sources.apply([row("u")])
    assert "cdc-ks.u" in connectors.names()


def test_a_worker_without_a_template_has_none(tmp_path: Path) -> None:
    sources, connectors = made(tmp_path)
    sources.apply([row()])
    settings_read = worker_settings(tmp_path)
    without = settings_read.model_copy(update={"data_source_template": None})
    connectors = Connectors(without, lambda topics: {})
    sources = DataSources(without, connectors, {})
    connectors.load({}, sources.saved_sources(connectors.document.read()))
    sources.turn()
    assert connectors.names() == []


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ({**TEMPLATE, "table": "t"}, "table: leave it out"),
        ({**TEMPLATE, "output.format": "xml"}, "output.format"),
        ({**TEMPLATE, "hedaers": "x"}, "hedaers"),
    ],
)
def test_a_template_is_checked_at_the_start(tmp_path: Path, template: dict[str, str], reason: str) -> None:
    worker = worker_settings(tmp_path, template)
    with pytest.raises(ConfigError, match=reason):
        DataSources(worker, Connectors(worker, lambda topics: {}), {})


def test_a_worker_on_pulsar_takes_no_template(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.source\.template"):
        worker_settings(tmp_path, data_log="pulsar", pulsar_service_url="pulsar://h:6650")


def test_what_can_not_be_read_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources, connectors = made(tmp_path)
    sources.apply([row()])
    error = HelenusError(Kind.CASSANDRA_UNREACHABLE, "away", "c1")
    answers: list[Any] = [error, [row(), row("u")]]

    def read(_: DataSources) -> list[SourceRow]:
        answer = answers.pop(0)
        if isinstance(answer, HelenusError):
            raise answer
        return list(answer)

    monkeypatch.setattr(DataSources, "_read_rows", read)
    monkeypatch.setattr(_data_sources, "_POLL_S", 0.0)
    monkeypatch.setattr(_data_sources, "run_in_thread", run_here)
    sources.turn()
    sources.turn()
    assert connectors.names() == ["cdc-ks.t"]
    answers.append([])
    sources.turn()
    assert connectors.names() == ["cdc-ks.t", "cdc-ks.u"]


def run_here(function: Any) -> Any:
    from concurrent.futures import Future

    future: Future[Any] = Future()
    try:
        future.set_result(function())
    except Exception as error:
        future.set_exception(error)
    return future


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.builds(
            SourceRow,
            st.sampled_from(["ks", "system", "", "a.b"]) | st.text(max_size=5),
            st.sampled_from(["t", "u", "t,u", ".*"]) | st.text(max_size=5),
            st.none() | st.text(max_size=3),
            st.none()
            | st.sampled_from([ADDRESS, f"{ADDRESS}?decimal.handling.mode=string"])
            | st.text(max_size=20).map(ADDRESS.__add__),
        ),
        max_size=5,
    )
)
def test_no_row_ends_the_worker(tmp_path: Path, rows: list[SourceRow]) -> None:
    sources, connectors = made(tmp_path)
    sources.apply(rows)
    for name in connectors.names():
        config = connectors.config(name)
        assert name == f"cdc-{config['keyspace']}.{config['table']}"
        assert config["output.format"] == "json"
