"""Whether the node that answers is the agent's own: yes, no, or unknown."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog
from agent.fakes import write_of
from agent.test_agent import TABLE, Bench
from structlog.testing import capture_logs

from helenus_agent import agent_run, cli
from helenus_agent.config import AgentSettings
from helenus_agent.node import identity
from helenus_agent.node.cassandra import Node
from helenus_agent.node_directories import check_places, raw_directory
from helenus_agent.state import read
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings.properties import ConfigError

HERE, OTHER = "10.0.0.1", "10.0.0.2"
OURS = {"listen_address": HERE, "broadcast_address": "52.1.1.1", "rpc_address": HERE}


def node(settings: Mapping[str, str] | None = None, data_center: str = "dc1", **addresses: str) -> Node:
    return Node(uuid.UUID(int=1), "5.0", settings or {}, data_center, {**OURS, **addresses})


def check(directory: Path, discovered: Node, yaml: str | None = None, **more: str) -> list[str]:
    """The events that are logged."""
    properties = {"state.dir": "/s", "cdc.raw.dir": str(directory), "kafka.bootstrap.servers": "k:1", **more}
    if yaml is not None:
        (directory / "cassandra.yaml").write_text(yaml)
        properties["cassandra.config"] = str(directory / "cassandra.yaml")
    with capture_logs() as logs:
        identity.check(discovered, AgentSettings.from_properties(properties, "test"), directory)
    return [line["event"] for line in logs]


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [
        ({"listen_address": HERE}, True),
        ({"listen_address": OTHER}, False),
        ({"listen_address": OTHER, "broadcast_address": "52.1.1.1"}, True),
        ({"listen_address": OTHER, "broadcast_address": "52.1.1.2", "rpc_address": "0.0.0.0"}, False),
        ({"listen_address": "localhost", "rpc_address": "0.0.0.0"}, None),
        ({"listen_address": "127.0.0.1", "broadcast_address": None}, None),
        ({"rpc_address": "0.0.0.0", "broadcast_rpc_address": HERE}, True),
        ({"rpc_address": HERE, "broadcast_rpc_address": OTHER}, False),
        ({"listen_address": "cassandra-2.example"}, None),
        ({}, None),
    ],
)
def test_the_settings_of_a_node_in_its_yaml(yaml: dict[str, Any], expected: bool | None) -> None:
    assert identity.is_described(OURS, yaml) is expected


def test_another_node_is_refused(tmp_path: Path) -> None:
    """Its host id would stand in this node's events, and two replicas would count as one."""
    assert check(tmp_path, node(), f"cdc_enabled: true\nlisten_address: {HERE}\n") == []
    with pytest.raises(HelenusError, match=r"contact\.points.*listen_address is 10\.0\.0\.2, and 10\.0\.0\.1") as error:
        check(tmp_path, node(), f"cdc_enabled: true\nlisten_address: {OTHER}\n")
    assert error.value.kind is Kind.CONFIG


def test_without_a_yaml_the_machine_s_addresses_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_CONTAINERS", ())
    assert check(tmp_path, node()) == ["node.elsewhere"]
    assert check(tmp_path, node(rpc_address="127.0.0.1")) == []
    assert check(tmp_path, node(listen_address="::1")) == []
    monkeypatch.setattr(identity, "_CONTAINERS", (str(tmp_path),))
    assert check(tmp_path, node()) == []


def test_the_data_centre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_CONTAINERS", (str(tmp_path),))
    assert check(tmp_path, node(), **{"cassandra.local.dc": "dc1"}) == []
    with pytest.raises(HelenusError, match=r"cassandra\.local\.dc=dc2: the node is of dc1") as error:
        check(tmp_path, node(), **{"cassandra.local.dc": "dc2"})
    assert error.value.kind is Kind.CONFIG


def test_the_commit_log_s_own_directory_is_refused(tmp_path: Path) -> None:
    """The agent deletes segments that it has processed there: an error, not a warning."""
    (tmp_path / "commitlog").mkdir()
    link = tmp_path / "cdc_raw"
    link.symlink_to(tmp_path / "commitlog")
    for directory in (tmp_path / "commitlog", link):
        with pytest.raises(HelenusError, match="commitlog_directory") as error:
            check(directory, node({"commitlog_directory": str(tmp_path / "commitlog")}))
        assert error.value.kind is Kind.CONFIG
        yaml = tmp_path / "cassandra.yaml"
        yaml.write_text(f"cdc_enabled: true\ncommitlog_directory: {tmp_path / 'commitlog'}\n")
        properties = {"state.dir": "/s", "kafka.bootstrap.servers": "k:1", "cassandra.config": str(yaml)}
        with pytest.raises(HelenusError, match="commitlog_directory"):
            raw_directory(AgentSettings.from_properties({**properties, "cdc.raw.dir": str(directory)}, "test"))


@pytest.mark.parametrize("by_file", [True, False])
def test_the_agent_s_directories_are_none_of_the_node_s(tmp_path: Path, by_file: bool) -> None:
    """Whatever names the commit log's: its file, or the node itself. Directories beside them are none of theirs."""
    for name in ("cdc_raw", "commitlog"):
        (tmp_path / name).mkdir()
    log, yaml = tmp_path / "commitlog", tmp_path / "cassandra.yaml"
    (tmp_path / "link").symlink_to(log)
    yaml.write_text(f"cdc_enabled: true\ncdc_raw_directory: {tmp_path}/cdc_raw\ncommitlog_directory: {log}\n")
    properties = {"kafka.bootstrap.servers": "k:1", "segment.transfer": "archive", "cdc.raw.dir": f"{tmp_path}/cdc_raw"}
    properties |= {"cassandra.config": str(yaml)} if by_file else {}
    node = {} if by_file else {"commitlog_directory": str(log)}

    def wrong(state: str, archive: str) -> list[tuple[str, str]]:
        places = {"state.dir": str(tmp_path / state), "segment.archive.dir": str(tmp_path / archive)}
        try:
            check_places(AgentSettings.from_properties({**properties, **places}, "test"), tmp_path / "cdc_raw", node)
        except ConfigError as error:
            return [(problem.key, problem.reason.partition(" (")[0]) for problem in error.problems]
        return []

    in_raw, in_log = "it lies in cdc_raw", "it lies in the node's commitlog_directory"
    assert wrong("cdc_raw", "commitlog") == [("state.dir", in_raw), ("segment.archive.dir", in_log)]
    assert wrong("link/state", "cdc_raw/a/b") == [("state.dir", in_log), ("segment.archive.dir", in_raw)]
    assert wrong("cdc_raw_state", "archive") == []
    properties["segment.transfer"] = "delete"
    assert wrong("state", "cdc_raw") == []


def test_a_node_with_cdc_off_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start is refused, but what the node writes until it is on again is a gap."""
    bench = Bench(tmp_path)
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    bench.cassandra.settings = {"cdc_enabled": "true"}
    agent = bench.start()
    bench.run_agent()
    agent._queue.close()
    bench.state.close()
    monkeypatch.setattr(agent_run, "Cassandra", lambda settings: bench.cassandra)
    monkeypatch.setattr(bench.cassandra, "close", lambda: None, raising=False)
    monkeypatch.setattr(agent_run, "open_log", lambda settings: bench.log)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    properties = {
        "state.dir": str(tmp_path / "state"),
        "cdc.raw.dir": str(bench.raw.path),
        "kafka.bootstrap.servers": "k:1",
    }
    bench.cassandra.settings = {"cdc_enabled": "false"}
    try:
        with pytest.raises(HelenusError, match="set cdc_enabled: true in the node's") as error:
            cli.run(AgentSettings.from_properties(properties, "test"))
    finally:
        structlog.reset_defaults()
    assert error.value.kind is Kind.CDC_DISABLED
    saved = read(tmp_path / "state")
    assert saved is not None
    assert saved.cdc_off
