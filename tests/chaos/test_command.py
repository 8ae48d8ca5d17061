"""`bench chaos`: options, and what faults a cluster may have."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.chaos.command import fault_kinds, parse_options, worker_names
from bench.chaos.fault_registry import KINDS
from bench.chaos.faults import kinds_for, kinds_for_given
from bench.chaos.given_cluster import agent_names, given_status
from bench.chaos.modes import MODES, modes_for
from bench.chaos.topology import Topology, draw_topology

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
    kinds = {kind.name: kind for kind in kinds_for([], ["worker1", "worker2"], Topology())}
    assert KINDS.keys() - kinds.keys() == {"away-center", "rebuild-center"}
    assert kinds["kill-worker"].targets == ["worker1", "worker2"]
    assert kinds["kill-agent"].targets == ["agent1", "agent2", "agent3"]
    assert kinds["kill-node"].targets == ["cassandra1", "cassandra2", "cassandra3"]
    assert kinds["join-node"].targets == ["cassandra4"]


def test_faults_and_modes_fit_the_topology() -> None:
    two = Topology(data_centers=2, has_local_agents=True)
    kinds = {kind.name: kind for kind in kinds_for([], ["worker1"], two)}
    assert KINDS.keys() - kinds.keys() == {"two-replicas", "other-strategy"}
    assert kinds["kill-agent"].targets == ["agent1", "agent3"], "those of the data centre that is read"
    assert kinds["kill-node"].targets == ["cassandra1", "cassandra2", "cassandra3", "cassandra4"]
    assert kinds["remove-node"].targets == ["cassandra5"]
    assert "move-node" not in {kind.name for kind in kinds_for([], ["worker1"], Topology(tokens=16))}
    with pytest.raises(ValueError, match=r"data centres: 1.*away-center"):
        kinds_for(["away-center", "flush"], ["worker1"], Topology())
    assert "gate-each" in modes_for(Topology(data_centers=2))
    assert "gate-each" not in modes_for(two)
    assert "gate-each" not in modes_for(Topology())


def test_options_that_do_not_fit_each_other_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, reason in (
        (["--agents", "local"], "needs --data-centers 2"),
        (["--connectors", "gate-each"], "gate-each needs two data centres"),
        (["--cluster", "x", "--racks", "2"], "--cluster says"),
    ):
        with pytest.raises(SystemExit):
            parse_options(arguments)
        assert reason in capsys.readouterr().err


def test_a_topology_names_its_nodes() -> None:
    two = Topology(data_centers=2)
    assert (two.numbers_in("datacenter1"), two.numbers_in("datacenter2")) == ([1, 3], [2, 4])
    assert two.replication() == "{'class': 'NetworkTopologyStrategy', 'datacenter1': 2, 'datacenter2': 2}"
    assert two.replication(data_centers=1) == "{'class': 'NetworkTopologyStrategy', 'datacenter1': 2}"
    assert list(two.repaired_nodes) == [1]
    assert list(Topology(racks=2).repaired_nodes) == [1, 2], "three of four nodes hold a partition"
    assert {draw_topology(seed, 1, 1, 1, False).logs_repairs for seed in range(20)} == {True, False}
    assert {draw_topology(seed, 2, 1, 1, True).logs_repairs for seed in range(20)} == {True}


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
