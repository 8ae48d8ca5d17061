"""`bench chaos`: options, and what faults a cluster may have."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.chaos.command import fault_kinds, parse_options, worker_names
from bench.chaos.fault_registry import AGENTS, KINDS, SERVERS
from bench.chaos.faults import kinds_for, kinds_for_given
from bench.chaos.given_cluster import agent_names, given_status
from bench.chaos.modes import MODES

from helenus_stack.errors import StackError


def test_names_that_there_are_not_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_options(["--faults", "kill-node,flush"]).faults == ["kill-node", "flush"]
    with pytest.raises(SystemExit):
        parse_options(["--connectors", "reread,other"])
    assert "there is no other" in capsys.readouterr().err


def test_two_workers_are_a_group_without_state() -> None:
    assert worker_names(1, list(MODES)) == ["worker1"]
    assert worker_names(2, list(MODES)) == ["worker1", "worker2", "worker-state"]
    assert worker_names(2, ["reread"]) == ["worker1", "worker2"]
    assert worker_names(2, ["state-keys"]) == ["worker-state"]


def test_faults_have_targets() -> None:
    kinds = {kind.name: kind for kind in kinds_for([], ["worker1", "worker2"])}
    assert kinds.keys() == KINDS.keys()
    assert kinds["kill-worker"].targets == ["worker1", "worker2"]
    assert kinds["kill-agent"].targets == AGENTS
    assert kinds["kill-node"].targets == SERVERS


def test_a_given_cluster_has_no_faults_of_its_servers(tmp_path: Path) -> None:
    file = tmp_path / "cluster.properties"
    file.write_text("cassandra.contact.points=a,b\nagent.files=x.properties\n")
    kinds = {kind.name: kind for kind in fault_kinds(parse_options(["--cluster", str(file)]), ["reread"])}
    assert "kill-node" not in kinds
    assert "repair" not in kinds, "there is no nodetool"
    assert kinds["kill-agent"].targets == ["agent1"]
    with file.open("a") as properties:
        properties.write("nodetool=ssh {host} nodetool\n")
    kinds = {kind.name: kind for kind in fault_kinds(parse_options(["--cluster", str(file)]), ["reread"])}
    assert kinds["repair"].targets == ["cassandra1", "cassandra2"]
    with pytest.raises(ValueError, match="kill-broker"):
        kinds_for_given(["kill-broker"], ["worker1"], [], [])


def test_what_a_file_of_a_cluster_lacks_is_named(tmp_path: Path) -> None:
    properties = {"cassandra.contact.points": "a, b", "cassandra.local.dc": "dc1", "bootstrap.servers": "k:9092"}
    with pytest.raises(StackError, match=r"schema\.registry\.url"):
        given_status(tmp_path, properties, tmp_path)
    status = given_status(tmp_path, {**properties, "schema.registry.url": "http://r"}, tmp_path)
    assert (status.contact_points, status.log) == (["a", "b"], "kafka")
    assert agent_names({"agent.files": "x, y"}) == ["agent1", "agent2"]
