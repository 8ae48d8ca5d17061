"""Whose reports count: those of the nodes that a read of the key may meet."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra import ConsistencyLevel, UnresolvableContactPoints
from cassandra.cluster import EXEC_PROFILE_DEFAULT
from cassandra.connection import DefaultEndPoint
from cassandra.metadata import Murmur3Token, NetworkTopologyStrategy, ReplicationStrategy, SimpleStrategy
from cassandra.policies import HostDistance, SimpleConvictionPolicy
from cassandra.pool import Host
from connector.gated import Gated
from connector.staged import NODE, Staged

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate.replicas import Replicas
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.image import Image
from helenus_connector.testing.cassandra import Host as Node
from helenus_connector.testing.cassandra import MemorySession
from helenus_connector.unconfirmed.unconfirmed_key import UnconfirmedKey
from helenus_connector.unconfirmed.unproven_changes import UnprovenChange, pack_changes
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Change
from helenus_schemas.event.wire import encode
from helenus_schemas.service import cassandra

PAIR = Table(
    "ks", "t", uuid.uuid1(), tuple(Column(name, parse("int"), "partition_key", i) for i, name in enumerate("kl"))
)
KEY = (b"\0\0\0\1", b"\0\0\0\2")
HASHED = b"\0\4\0\0\0\1\0\0\4\0\0\0\2\0"
"""Each column's length in two bytes, its value and a zero."""


def hosts(*dcs: str) -> list[Any]:
    return [Node(uuid.UUID(int=i), dc) for i, dc in enumerate(dcs, 1)]


def replicas(nodes: list[Any], factors: dict[str, int], **more: str) -> Replicas:
    return with_strategy(nodes, NetworkTopologyStrategy({dc: str(n) for dc, n in factors.items()}), **more)


def with_strategy(nodes: list[Any], strategy: object, **more: str) -> Replicas:
    """Of nodes in the order of the ring; the key's replicas are the first of them."""
    for number, node in enumerate(nodes):
        node.tokens = [Murmur3Token.hash_fn(HASHED) + number]
    return Replicas(MemorySession(nodes, {"ks": strategy}), settings(**more))


def settings(**more: str) -> ConnectorSettings:
    properties = {"name": "n", "keyspace": "ks", "table": "t", "output.format": "key-value-json"}
    return ConnectorSettings.from_properties(
        {**properties, **{k.replace("_", "."): v for k, v in more.items()}}, "test"
    )


def is_proven(who: Replicas, reporters: Sequence[Any], directory: Path) -> bool:
    """Whether a read at LOCAL_QUORUM proves a change event that these nodes reported."""
    gate, codec = Gated(settings(), who, directory), KeyCodec(PAIR)
    values = [encode(Change("a" * 32, str(node.host_id), write_time=5)) for node in reporters]
    events = [Event("t", 0, i, 0, codec.encode(KEY), value) for i, value in enumerate(values)]
    (key_read,) = gate.admit(events, [], codec).key_reads.values()
    key_read.read_at, key_read.after = time.time(), Image((), 5)
    return not gate.unproven(key_read)


def test_a_node_that_holds_the_key_no_more_does_not_count(tmp_path: Path) -> None:
    """It logged the write before it handed the key on: the read meets others."""
    nodes = hosts("dc", "dc", "dc", "dc")
    who = replicas(nodes, {"dc": 3})
    assert not is_proven(who, [nodes[0], nodes[3]], tmp_path)
    assert is_proven(who, [nodes[0], nodes[1]], tmp_path)


def test_where_all_nodes_hold_all_keys_none_is_hashed(tmp_path: Path) -> None:
    nodes = hosts("dc", "dc", "dc")
    who = replicas(nodes, {"dc": 3})
    assert not is_proven(who, nodes[:1], tmp_path)
    assert is_proven(who, nodes[:2], tmp_path)


def test_nodes_of_another_data_centre_do_not_count(tmp_path: Path) -> None:
    nodes = hosts("here", "here", "here", "there", "there", "there")
    who = replicas(nodes, {"here": 3, "there": 3}, cassandra_local_dc="here")
    assert who.factor() == 3
    assert not is_proven(who, [nodes[0], nodes[3]], tmp_path)


@pytest.mark.parametrize("local", [1, 2, 3])
def test_a_report_from_another_data_centre_alone_proves_nothing(tmp_path: Path, local: int) -> None:
    """The write is on its way to this one: what is read here does not show it, however many replicas are asked."""
    nodes = hosts(*["here"] * local, *["there"] * local)
    who = replicas(nodes, {"here": local, "there": local}, cassandra_local_dc="here")
    assert not is_proven(who, nodes[-1:], tmp_path)
    gate = Gated(settings(), who, tmp_path)
    waits = UnconfirmedKey(
        "t", 0, KeyCodec(PAIR).encode(KEY), 0, pack_changes({b"other".ljust(16): UnprovenChange(5, 0.0)}), handed=60
    )
    (key_read,) = gate.admit([], [waits], KeyCodec(PAIR)).key_reads.values()
    assert key_read.consistency == ConsistencyLevel.ALL
    key_read.read_at, key_read.after = time.time(), None
    assert not gate.unproven(key_read), "a read of all replicas meets the one that reported it"


def test_level_quorum_counts_all_data_centres() -> None:
    """Its replicas may be any four of the six."""
    nodes = hosts("here", "here", "here", "there", "there", "there")
    factors = {"here": 3, "there": 3}
    who = replicas(nodes, factors, cassandra_local_dc="here", query_consistency="QUORUM")
    assert (who.factor(), len(who.nodes(HASHED)), who.is_partial()) == (6, 6, False)


def test_two_data_centres_want_a_name() -> None:
    with pytest.raises(HelenusError, match=r"cassandra\.local\.dc: say which to read of here, there") as error:
        replicas(hosts("here", "there"), {"here": 1, "there": 1})
    assert error.value.kind is Kind.CONFIG


def test_a_data_centre_that_joins_later_wants_a_name_too() -> None:
    nodes = hosts("here", "here")
    who = replicas(nodes, {"here": 2})
    who.check()
    nodes += hosts("there")
    with pytest.raises(HelenusError, match=r"cassandra\.local\.dc: say which to read of here, there") as error:
        who.check()
    assert error.value.kind is Kind.CONFIG
    replicas(nodes, {"here": 2}, cassandra_local_dc="here").check()


def test_a_data_centre_that_joins_later_ends_the_next_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its replicas have no rows until they are rebuilt: their answers would be deletes."""
    staged = Staged(PAIR, tmp_path, monkeypatch)
    key = staged.codec.encode(KEY)
    change = Change("1" * 32, NODE, write_time=5)
    assert staged.run(change, key).published == 1
    staged.session.hosts += hosts("there")
    with pytest.raises(HelenusError, match=r"cassandra\.local\.dc: say which"):
        staged.run(change._replace(digest="2" * 32), key)
    assert len(staged.appended) == 1


@pytest.mark.parametrize("named", ["here", None])
def test_no_row_is_read_from_a_data_centre_that_joins_later(named: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name, the contact point's is the one."""
    made: dict[str, Any] = {}

    def cluster(*contact_points: object, **more: Any) -> Any:
        made.update(more)
        raise UnresolvableContactPoints("a fake", None)

    monkeypatch.setattr(cassandra, "Cluster", cluster)
    with pytest.raises(HelenusError):
        cassandra.connect(settings(**({"cassandra_local_dc": named} if named else {})))
    policy = made["execution_profiles"][EXEC_PROFILE_DEFAULT].load_balancing_policy._child_policy
    first, second, late = (Host(DefaultEndPoint(f"10.0.0.{i}"), SimpleConvictionPolicy) for i in (1, 2, 3))
    policy.populate(SimpleNamespace(endpoints_resolved=[first.endpoint]), [first])
    for host, dc in ((first, "here"), (second, "here"), (late, "there")):  # as the control connection learns of them
        policy.on_down(host)
        host.set_location_info(dc, "rack")
        policy.on_up(host)
    assert {host.address for _ in range(5) for host in policy.make_query_plan()} == {"10.0.0.1", "10.0.0.2"}
    assert policy.distance(late) == HostDistance.IGNORED


@pytest.mark.parametrize(
    ("strategy", "factor"),
    [
        (SimpleStrategy({"replication_factor": "2"}), 2),
        (SimpleStrategy({"replication_factor": "3/1"}), 3),
        (NetworkTopologyStrategy({"east": "3/1"}), 3),
        (ReplicationStrategy.create("org.apache.cassandra.locator.EverywhereStrategy", {}), 4),
        (None, 4),
    ],
)
def test_an_unknown_replication_strategy_proves_nothing(strategy: object, factor: int) -> None:
    """Transient replicas answer reads too, and of all nodes a read may ask any."""
    assert with_strategy(hosts(*["east"] * 4), strategy).factor() == factor
