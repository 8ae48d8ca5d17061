"""A file of several keyspaces: the worker has a connector for each that has tables with `cdc`. No servers."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra import ConsistencyLevel, InvalidRequest
from cassandra.query import SimpleStatement
from structlog.testing import capture_logs

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control._obstacles import find_obstacle
from helenus_connector.control.keyspaces import each
from helenus_connector.control.tables import TableDefinitions
from helenus_connector.worker import Worker
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings.properties import ConfigError

ALL = {
    "name": "db",
    "keyspace": ".*",
    "table": ".*",
    "output.format": "json",
    "data.topic": "p.${keyspace}.${table}",
    "table.refresh.interval.ms": "0",
}
AWAY = HelenusError(Kind.CASSANDRA_UNREACHABLE, "cannot connect to Cassandra", "127.0.0.1 port 9042")
REFUSED = HelenusError(Kind.CASSANDRA_AUTH, "Cassandra refused the login", "127.0.0.1 port 9042")


class Schema(TableDefinitions):
    """The tables of a Cassandra: (keyspace, table) -> whether it has `cdc`."""

    def __init__(self, **tables: bool) -> None:
        super().__init__()
        self.tables = {tuple(name.split("__")): cdc for name, cdc in tables.items()}
        self.error: HelenusError | None = None

    def _session(self, settings: ConnectorSettings) -> Any:
        if self.error is not None:
            raise self.error
        rows = [SimpleNamespace(keyspace_name=ks, table_name=t, cdc=cdc) for (ks, t), cdc in self.tables.items()]
        return SimpleNamespace(execute=lambda statement: SimpleNamespace(all=lambda: rows))

    def scan(self, settings: ConnectorSettings, directory: Path) -> dict[str, HelenusError | None]:
        ours = (table for (keyspace, table), cdc in self.tables.items() if cdc and keyspace == settings.keyspace)
        return dict.fromkeys(table for table in ours if settings.matches(table))


def started(directory: Path, schema: Schema, **more: str) -> Worker:
    """A worker of one file, up to its first look."""
    properties = {**ALL, **{key.replace("_", "."): value for key, value in more.items()}}
    settings = WorkerSettings.from_properties({"bootstrap.servers": "h:1", "checkpoint.dir": str(directory)}, "worker")
    worker = Worker(settings, {"db": properties})
    worker._table_scans.tables = schema
    worker._load()
    worker._table_scans.scan(directory)
    return worker


def tables(worker: Worker) -> Mapping[str, list[str]]:
    return {name: sorted(c.tasks) for name, c in worker.connectors.all().items()}


def test_a_connector_for_each_keyspace_that_has_tables(tmp_path: Path) -> None:
    schema = Schema(shop__orders=True, shop__items=True, shop__notes=False, bank__moves=True, system__local=False)
    worker = started(tmp_path, schema)
    assert tables(worker) == {"db-bank": ["moves"], "db-shop": ["items", "orders"]}
    of_table = worker.connectors.get("db-shop").tasks["orders"].settings
    assert (of_table.events, of_table.data) == ("events-shop.orders", "p.shop.orders")


@pytest.mark.parametrize(
    ("keyspace", "table", "connector_names"),
    [
        ("sh.*", ".*", {"db-shop"}),
        ("shop|bank", "orders", {"db-shop"}),
        (".*", "moves,o.*", {"db-bank", "db-shop"}),
        ("none.*", ".*", set()),
    ],
)
def test_which_keyspaces_match(keyspace: str, table: str, connector_names: set[str], tmp_path: Path) -> None:
    worker = started(tmp_path, Schema(shop__orders=True, bank__moves=True), keyspace=keyspace, table=table)
    assert set(worker.connectors.names()) == connector_names


def test_a_keyspace_that_comes_later_joins(tmp_path: Path) -> None:
    schema = Schema(shop__orders=False)
    with capture_logs() as logs:
        worker = started(tmp_path, schema)
        worker._table_scans.scan(tmp_path)
    assert [entry["event"] for entry in logs] == ["tables.none"]
    schema.tables["shop", "orders"] = schema.tables["bank", "moves"] = True
    worker._table_scans.scan(tmp_path)
    assert set(worker.connectors.names()) == {"db-shop", "db-bank"}


def test_what_an_operator_wanted_outlasts_a_restart(tmp_path: Path) -> None:
    """Also while Cassandra is away at the start."""
    schema = Schema(shop__orders=True, bank__moves=True, more__t=True)
    first = started(tmp_path, schema)
    first.connectors.set_wanted("db-shop", "STOPPED")
    first.connectors.delete("db-more")
    schema.error = AWAY
    second = started(tmp_path, schema)
    assert {name: c.wanted for name, c in second.connectors.all().items()} == {
        "db-shop": "STOPPED",
        "db-bank": "RUNNING",
    }
    schema.error = None
    second._keyspaces._files[0].next_scan_at = 0
    second._table_scans.scan(tmp_path)
    assert "db-more" not in second.connectors.names()


def test_a_cassandra_that_is_away_is_waited_for(tmp_path: Path) -> None:
    schema = Schema(shop__orders=True)
    schema.error = AWAY
    worker = started(tmp_path, schema)
    assert "cannot connect to Cassandra" in str(worker.ready())
    worker._end_if_all_failed()
    schema.error = None
    worker._keyspaces._files[0].next_scan_at = 0
    worker._table_scans.scan(tmp_path)
    assert worker.connectors.names() == ["db-shop"]
    assert "cannot connect" not in str(worker.ready())


def test_a_cassandra_that_refuses_ends_the_worker(tmp_path: Path) -> None:
    schema = Schema(shop__orders=True)
    schema.error = REFUSED
    worker = started(tmp_path, schema)
    with pytest.raises(HelenusError, match="refused the login"):
        worker._end_if_all_failed()


def test_a_pattern_is_for_a_worker_s_file_alone(tmp_path: Path) -> None:
    worker = started(tmp_path, Schema())
    with pytest.raises(ConfigError, match=r"name one keyspace"):
        worker.connectors.put("other", {**ALL, "name": "other"})
    with pytest.raises(ConfigError, match=r"put \$\{keyspace\} where"):
        ConnectorSettings.from_properties({**ALL, "data.topic": "p.${table}"}, "n")
    with pytest.raises(ConfigError, match="not a regular expression"):
        ConnectorSettings.from_properties({**ALL, "keyspace": "("}, "n")


def test_commands_have_each_of_them() -> None:
    settings = ConnectorSettings.from_properties(ALL, "n")
    connector_settings = each(settings, Schema(shop__orders=True, bank__moves=True))
    assert [(of_keyspace.name, of_keyspace.keyspace) for of_keyspace in connector_settings] == [
        ("db-bank", "bank"),
        ("db-shop", "shop"),
    ]
    single_settings = settings.model_copy(update={"keyspace": "shop"})
    assert each(single_settings, Schema()) == [single_settings]


@pytest.mark.parametrize(
    ("state", "releases", "refused"),
    [
        ("rows", ["5.0.9", "6.0-alpha2"], ""),
        ("rows", ["5.0.9", "4.1.10"], "4.1.10"),
        ("rows", ["4.0.19"], "4.0.19"),
        ("rows", ["3.11.19"], "3.11.19"),
        ("keys", ["4.0.19"], ""),
        ("rows", [None], ""),
    ],
)
def test_write_times_that_a_node_does_not_show(state: str, releases: list[str | None], refused: str) -> None:
    """Also of one node that is not upgraded yet: any may answer."""
    columns = {"k": "int", "l": "list<int>", "m": "map<text, int>", "f": "frozen<list<int>>", "v": "text"}
    parsed = [Column(name, parse(kind), "regular") for name, kind in columns.items()]
    parsed[0] = replace(parsed[0], kind="partition_key", position=0)
    table = Table("ks", "t", uuid.uuid1(), tuple(parsed), cdc=True)
    hosts = [SimpleNamespace(release_version=release) for release in releases]
    metadata = SimpleNamespace(all_hosts=lambda: hosts)
    session: Any = SimpleNamespace(cluster=SimpleNamespace(metadata=metadata), execute=lambda statement: None)
    properties = {"keyspace": "ks", "table": "t", "output.format": "json", "state": state, "query.group": "g"}
    settings = ConnectorSettings.from_properties({"name": "c", **properties}, "c")
    error = find_obstacle(settings, table, session)
    assert (error is not None) == bool(refused)
    if error is not None:
        assert f"Cassandra {refused} does not show of unfrozen collections and UDTs: l, m" in error.what
    frozen = replace(table, columns=tuple(column for column in parsed if not column.type.multicell))
    assert find_obstacle(settings, frozen, session) is None


@pytest.mark.parametrize(
    ("release", "level", "refused"),
    [("6.0-alpha2", "QUORUM", False), ("6.0-alpha2", "LOCAL_QUORUM", True), ("5.0.9", "LOCAL_QUORUM", False)],
)
def test_levels_that_accord_does_not_take(release: str, level: str, refused: bool) -> None:
    """They are named at the start, and not by each read; nodes before 6.0 are not asked."""

    def execute(statement: SimpleStatement) -> None:
        name = ConsistencyLevel.value_to_name[statement.consistency_level]
        assert release != "5.0.9"
        if name.startswith("LOCAL"):
            raise InvalidRequest(f"ConsistencyLevel {name} is unsupported with Accord for read, supported are [ONE]")

    column = Column("k", parse("int"), "partition_key", 0)
    table = Table("ks", "t", uuid.uuid1(), (column, Column("v", parse("int"), "regular")), cdc=True)
    metadata = SimpleNamespace(all_hosts=lambda: [SimpleNamespace(release_version=release)])
    session: Any = SimpleNamespace(cluster=SimpleNamespace(metadata=metadata), execute=execute)
    levels = {"query.consistency": level, "snapshot.consistency": "QUORUM"}
    properties = {"keyspace": "ks", "table": "t", "output.format": "json", **levels}
    error = find_obstacle(ConnectorSettings.from_properties({"name": "c", **properties}, "c"), table, session)
    assert (error is not None) == refused
    if error is not None:
        assert f"cannot be read at {level}" in error.what
        assert "QUORUM" in error.advice
