"""Whose reports count: those of the nodes that a read of the key may meet."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra import ConsistencyLevel
from cassandra.metadata import NetworkTopologyStrategy, ReplicationStrategy, SimpleStrategy

from helenus_connector.config import ConnectorSettings
from helenus_connector.gate import Event, Gate
from helenus_connector.proof import Awaited, packed
from helenus_connector.replicas import Replicas
from helenus_connector.reread import Image
from helenus_connector.settle import Pending
from helenus_schemas.change import Change, encode
from helenus_schemas.cql import parse
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.key import KeyCodec
from helenus_schemas.table import Column, Table

PAIR = Table(
    "ks", "t", uuid.uuid1(), tuple(Column(name, parse("int"), "partition_key", i) for i, name in enumerate("kl"))
)
KEY = (b"\0\0\0\1", b"\0\0\0\2")
HASHED = b"\0\4\0\0\0\1\0\0\4\0\0\0\2\0"
"""Each column's length in two bytes, its value and a zero."""


def hosts(*dcs: str) -> list[Any]:
    return [SimpleNamespace(host_id=uuid.UUID(int=i), datacenter=dc, is_up=True) for i, dc in enumerate(dcs, 1)]


def replicas(nodes: Sequence[Any], held: dict[bytes, Sequence[Any]], factors: dict[str, int], **more: str) -> Replicas:
    return with_strategy(nodes, held, NetworkTopologyStrategy({dc: str(n) for dc, n in factors.items()}), **more)


def with_strategy(nodes: Sequence[Any], held: dict[bytes, Sequence[Any]], strategy: object, **more: str) -> Replicas:
    metadata = SimpleNamespace(
        all_hosts=lambda: nodes,
        get_replicas=lambda keyspace, key: held[key],
        keyspaces={"ks": SimpleNamespace(replication_strategy=strategy)},
    )
    return Replicas(SimpleNamespace(cluster=SimpleNamespace(metadata=metadata)), settings(**more))


def settings(**more: str) -> ConnectorSettings:
    given = {"name": "n", "keyspace": "ks", "table": "t", "output.format": "key-value-json"}
    return ConnectorSettings.of({**given, **{k.replace("_", "."): v for k, v in more.items()}}, "test")


def is_proven(who: Replicas, told_by: Sequence[Any], directory: Path) -> bool:
    """Whether a read at LOCAL_QUORUM proves a Change that these nodes told of."""
    gate, codec = Gate(settings(), who, directory), KeyCodec(PAIR)
    told = [encode(Change("a" * 32, str(node.host_id), write_time=5)) for node in told_by]
    events = [Event("t", 0, i, 0, codec.encode(KEY), value) for i, value in enumerate(told)]
    (work,) = gate.admit(events, [], codec).works.values()
    work.read_at, work.image = time.time(), Image((), 5)
    return not gate.unproven(work)


def test_a_node_that_holds_the_key_no_more_does_not_count(tmp_path: Path) -> None:
    """It logged the write before it handed the key on: the read meets others."""
    nodes = hosts("dc", "dc", "dc", "dc")
    who = replicas(nodes, {HASHED: nodes[:3]}, {"dc": 3})
    assert not is_proven(who, [nodes[0], nodes[3]], tmp_path)
    assert is_proven(who, [nodes[0], nodes[1]], tmp_path)


def test_where_all_nodes_hold_all_keys_none_is_hashed(tmp_path: Path) -> None:
    nodes = hosts("dc", "dc", "dc")
    who = replicas(nodes, {}, {"dc": 3})
    assert not is_proven(who, nodes[:1], tmp_path)
    assert is_proven(who, nodes[:2], tmp_path)


def test_nodes_of_another_data_centre_do_not_count(tmp_path: Path) -> None:
    nodes = hosts("here", "here", "here", "there", "there", "there")
    who = replicas(nodes, {HASHED: nodes}, {"here": 3, "there": 3}, cassandra_local_dc="here")
    assert who.factor() == 3
    assert not is_proven(who, [nodes[0], nodes[3]], tmp_path)


@pytest.mark.parametrize("local", [1, 2, 3])
def test_a_report_from_another_data_centre_alone_proves_nothing(tmp_path: Path, local: int) -> None:
    """The write is on its way to this one: what is read here does not show it, however many replicas are asked."""
    nodes = hosts(*["here"] * local, *["there"] * local)
    who = replicas(nodes, {HASHED: nodes}, {"here": local, "there": local}, cassandra_local_dc="here")
    assert not is_proven(who, nodes[-1:], tmp_path)
    gate = Gate(settings(), who, tmp_path)
    waits = Pending("t", 0, KeyCodec(PAIR).encode(KEY), 0, packed({b"other".ljust(16): Awaited(5, 0.0)}))
    (work,) = gate.admit([], [waits], KeyCodec(PAIR)).works.values()
    assert work.consistency == ConsistencyLevel.ALL
    work.read_at, work.image = time.time(), None
    assert not gate.unproven(work), "a read of all replicas meets the one that told of it"


def test_level_quorum_counts_all_data_centres() -> None:
    """Its replicas may be any four of the six."""
    nodes = hosts("here", "here", "here", "there", "there", "there")
    factors = {"here": 3, "there": 3}
    who = replicas(nodes, {HASHED: nodes}, factors, cassandra_local_dc="here", query_consistency="QUORUM")
    assert (who.factor(), len(who.nodes(HASHED)), who.some()) == (6, 6, False)


def test_two_data_centres_want_a_name() -> None:
    with pytest.raises(HelenusError, match=r"cassandra\.local\.dc: say which to read of here, there") as error:
        replicas(hosts("here", "there"), {}, {"here": 1, "there": 1})
    assert error.value.kind is Kind.CONFIG


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
def test_what_is_not_known_of_a_strategy_proves_nothing(strategy: object, factor: int) -> None:
    """Transient replicas answer reads too, and of all nodes a read may ask any."""
    assert with_strategy(hosts(*["east"] * 4), {}, strategy).factor() == factor
