"""The replicas of a ring are Cassandra's, and the ring is the one that nodes have now."""

from __future__ import annotations

import gc
import random
import uuid
from typing import Any

import pytest
from bench.large_cluster import LargeCluster, Size
from cassandra import InvalidRequest, OperationTimedOut
from cassandra.metadata import Murmur3Token, NetworkTopologyStrategy, ReplicationStrategy, SimpleStrategy
from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from helenus_connector.gate import _ring_reader as ring_reader
from helenus_connector.gate._ring import Ring, RingNode
from helenus_connector.gate._ring_reader import INTERVAL_S, SETTLED_S, RingReader, reader_for
from helenus_connector.testing.cassandra import Host, MemorySession
from helenus_schemas.errors import HelenusError, Kind

MURMUR = "org.apache.cassandra.dht.Murmur3Partitioner"
TOKENS = st.integers(-(2**63), 2**63 - 1)


@st.composite
def rings(draw: st.DrawFn) -> dict[RingNode, list[str]]:
    """Up to twelve nodes in up to three data centres and three racks of each, with one to four tokens each."""
    count = draw(st.integers(1, 12))
    tokens = iter(draw(st.lists(TOKENS, min_size=4 * count, max_size=4 * count, unique=True)))
    racks = st.sampled_from("abc")
    data_centers = st.sampled_from("abc"[: draw(st.integers(1, 3))])
    nodes = [RingNode(str(uuid.UUID(int=n)), draw(data_centers), draw(racks)) for n in range(count)]
    return {node: [str(next(tokens)) for _ in range(draw(st.integers(1, 4)))] for node in nodes}


def replicas_by_rule(owners: list[RingNode], factors: dict[str, int]) -> list[RingNode]:
    """Return the replicas of the first token of a ring, in order. `owners` has the owner of each token from there on.

    The rule is that of NetworkTopologyStrategy.DatacenterEndpoints in Cassandra 4.0 to 5.0, put without a walk: the
    first node of each rack, and as many other nodes as the factor has more than there are racks
    (`acceptableRackRepeats`), each data centre up to its factor (`rfLeft`). A node counts once, however many tokens it
    has (`replicas.endpoints().contains(ep)`).
    """
    nodes = list(dict.fromkeys(owners))
    chosen: set[RingNode] = set()
    for dc, factor in factors.items():
        members = [node for node in nodes if node.data_center == dc]
        racks = {node.rack: node for node in reversed(members)}  # each with its first node
        others = [node for node in members if node is not racks[node.rack]]
        allowed = {*racks.values(), *others[: max(0, factor - len(racks))]}
        chosen.update([node for node in members if node in allowed][:factor])
    return [node for node in nodes if node in chosen]


def make_node(name: str, rack: str) -> RingNode:
    return RingNode(name, "a", rack)


@given(rings(), st.dictionaries(st.sampled_from("abcd"), st.integers(0, 5), min_size=1), st.integers(1, 5), st.binary())
@example(
    {
        make_node("1", "a"): ["1"],
        make_node("2", "a"): ["2", "3"],
        make_node("3", "b"): ["4"],
        make_node("4", "a"): ["5"],
    },
    {"a": 4},
    1,
    b"",
)  # the driver has 1, 3, 2, 2
@example({make_node("1", "a"): ["1"], make_node("2", "a"): ["2"], make_node("3", "b"): ["3"]}, {"a": 2}, 1, b"")
def test_replicas_are_those_of_cassandra(
    tokens: dict[RingNode, list[str]], factors: dict[str, int], factor: int, key: bytes
) -> None:
    """The driver has Cassandra's rule too, and computes it otherwise: the replicas of all tokens at once.

    But it is no measure for every ring: where a node has several tokens, make_token_replica_map of driver 3.30 notes it
    in `skipped_hosts` once for each token that it skips. When each rack has a replica, the node is listed twice, and
    the replica that Cassandra takes instead is lacking. Cassandra never repeats a node.
    """
    ring = Ring(MURMUR, tokens)
    hosts = {node: Host(node.host_id, node.data_center, rack=node.rack) for node in tokens}
    owners = {Murmur3Token.from_string(token): node for node, owned in tokens.items() for token in owned}
    every = sorted(owners)
    index = next((i for i, token in enumerate(every) if token.value >= Murmur3Token.hash_fn(key)), 0)
    turn = [owners[token] for token in every[index:] + every[:index]]
    by_dc = NetworkTopologyStrategy({dc: str(n) for dc, n in factors.items()})
    simple = SimpleStrategy({"replication_factor": str(factor)})
    assert list(ring.replicas(by_dc, key)) == replicas_by_rule(turn, factors)
    assert list(ring.replicas(simple, key)) == list(dict.fromkeys(turn))[:factor]
    for strategy in (by_dc, simple):
        ours = {node.host_id for node in ring.replicas(strategy, key)}
        replica_map = strategy.make_token_replica_map({token: hosts[owners[token]] for token in every}, every)
        theirs = [host.host_id for host in replica_map[every[index]]]
        assert ours >= set(theirs)
        if strategy is simple or len(theirs) == len(set(theirs)):
            assert ours == set(theirs)


def test_a_large_cluster_has_the_replicas_of_the_driver() -> None:
    """256 nodes of 16 tokens in two data centres of three racks: as `bench.nodes` measures."""
    cluster = LargeCluster(Size(256, 16, 2))
    ring, metadata = Ring(MURMUR, cluster.tokens), cluster.session().cluster.metadata
    numbers = random.Random(7)
    for _ in range(2_000):
        key = numbers.randbytes(8)
        ours, theirs = ring.replicas(cluster.strategy, key), metadata.get_replicas("bench", key)
        assert {node.host_id for node in ours} >= {str(host.host_id) for host in theirs}
        # Some the driver has twice: test_replicas_are_those_of_cassandra says why.
        if len(set(map(id, theirs))) == len(theirs):
            assert len(ours) == 6
        assert {len({n.rack for n in ours if n.data_center == dc}) for dc in ("dc0", "dc1")} == {3}


def test_keyspaces_with_the_same_factors_share_their_replicas() -> None:
    """There may be a thousand of them, and the driver makes a new strategy whenever it reads a keyspace again."""
    ring = Ring(MURMUR, {RingNode(str(n), "dc", "rack"): [str(n)] for n in range(4)})
    first = ring.replicas(NetworkTopologyStrategy({"dc": "3"}), b"key")
    assert ring.replicas(NetworkTopologyStrategy({"dc": "3"}), b"key") is first
    assert len(ring.replicas(NetworkTopologyStrategy({"dc": "2"}), b"key")) == 2
    assert len(ring.replicas(SimpleStrategy({"replication_factor": "1"}), b"key")) == 1
    assert ring.replicas(NetworkTopologyStrategy({"dc": "3"}), b"key") is first


def test_a_lookup_walks_no_further_than_its_replicas() -> None:
    """Each key of a large ring is looked up for the first time once: with a copy of the ring's 65,536 owners it took
    ten times as long.
    """
    seen: list[int] = []

    class Owners(list[RingNode]):
        def __getitem__(self, position: Any) -> Any:
            assert isinstance(position, int), "not a part of them"
            seen.append(position)
            return super().__getitem__(position)

    ring = Ring(MURMUR, {RingNode(str(n), "dc", "rack"): [str(n)] for n in range(100)})
    ring._owners = Owners(ring._owners)
    assert len(ring.replicas(NetworkTopologyStrategy({"dc": "3"}), b"key")) == 3
    assert len(seen) <= 4


def test_transient_replicas_are_replicas() -> None:
    nodes = {RingNode(str(n), "dc", "rack"): [str(n)] for n in range(4)}
    ring = Ring(MURMUR, nodes)
    assert len(ring.replicas(NetworkTopologyStrategy({"dc": "3/1"}), b"")) == 3
    assert len(ring.replicas(SimpleStrategy({"replication_factor": "3/1"}), b"")) == 3
    everywhere = ReplicationStrategy.create("org.apache.cassandra.locator.EverywhereStrategy", {})
    assert len(ring.replicas(everywhere, b"")) == 4


def test_an_altered_keyspace_has_other_replicas_at_once() -> None:
    ring = Ring(MURMUR, {RingNode(str(n), "dc", "rack"): [str(n)] for n in range(4)})
    for factor in (1, 3, 2):
        assert len(ring.replicas(SimpleStrategy({"replication_factor": str(factor)}), b"")) == factor


@pytest.mark.parametrize("name", ["RandomPartitioner", "ByteOrderedPartitioner"])
def test_rings_of_other_partitioners(name: str) -> None:
    tokens = {"RandomPartitioner": ("0", str(2**127 - 1)), "ByteOrderedPartitioner": ("00", "ff")}[name]
    ring = Ring(name, {RingNode(str(n), "dc", "rack"): [token] for n, token in enumerate(tokens)})
    assert [node.host_id for node in ring.replicas(SimpleStrategy({"replication_factor": "1"}), b"a")] == ["1"]


def test_an_unknown_partitioner_is_refused() -> None:
    with pytest.raises(ValueError, match=r"com\.shop.OurPartitioner is not known"):
        Ring("com.shop.OurPartitioner", {})


class Cluster(MemorySession):
    """Three nodes, whose tokens may be changed without the driver noticing; `error` is raised when it is read."""

    def __init__(self) -> None:
        super().__init__([Host(n, tokens=[n]) for n in (1, 2, 3)], {"ks": 1})
        self.now = 0.0
        self.reads, self.rebuilds = 0, 0
        self.error: Exception | None = None
        self.views: list[list[Any]] = []
        self.cluster.refresh_nodes = self._rebuild
        self.reader = RingReader(self, lambda: self.now)

    def _rebuild(self, force_token_rebuild: bool = False) -> None:
        assert force_token_rebuild, "else the driver does nothing, where nodes are the same"
        self.rebuilds += 1

    def ring(self) -> list[Any]:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.views[self.reads % len(self.views)] if self.views else self.hosts

    def follow(self, seconds: float = 0.0) -> list[list[str]]:
        """The owners by token of the rings of the last minute, after so many seconds."""
        self.now += seconds
        self.reader.follow()
        return [[node.host_id for node in ring._owners] for ring in self.reader.recent(SETTLED_S)]


def test_a_move_that_the_driver_does_not_notice_is_read() -> None:
    cluster = Cluster()
    assert cluster.follow() == [["1", "2", "3"]]
    cluster.hosts[0].tokens = [9]
    assert cluster.follow(INTERVAL_S - 0.1) == [["1", "2", "3"]]
    assert cluster.follow(0.1) == [["2", "3", "1"], ["1", "2", "3"]], "the one of before counts as possible"
    assert cluster.rebuilds == 2, "of the driver's map, too: reads go to the replicas of now"
    for _ in range(int(SETTLED_S / INTERVAL_S)):
        cluster.follow(INTERVAL_S)
    assert cluster.follow(INTERVAL_S) == [["2", "3", "1"]]
    assert cluster.rebuilds == 3, "once more, when the node that the driver asks has heard of it"


def test_a_node_that_comes_or_goes_is_read_at_once() -> None:
    cluster = Cluster()
    cluster.follow()
    assert cluster.reads == 1
    cluster.follow()
    assert cluster.reads == 1
    cluster.hosts.append(Host(4, tokens=[4]))
    assert cluster.follow() == [["1", "2", "3", "4"], ["1", "2", "3"]]
    del cluster.hosts[0]
    assert cluster.follow()[0] == ["2", "3", "4"]


def test_a_node_that_joins_is_none_until_it_has_tokens() -> None:
    cluster = Cluster()
    cluster.hosts.append(Host(None, tokens=[4]))
    assert cluster.follow() == [["1", "2", "3"]]


def test_a_large_ring_is_read_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    read = cluster.ring

    def slow() -> list[Any]:
        cluster.now += 0.3
        return read()

    monkeypatch.setattr(cluster, "ring", slow)
    cluster.follow()
    cluster.follow(29.0)
    assert cluster.reads == 1
    cluster.follow(2.0)
    assert cluster.reads == 2


def test_the_last_ring_stays_valid_for_a_minute_of_failed_reads() -> None:
    cluster = Cluster()
    cluster.follow()
    cluster.error = OperationTimedOut()
    assert cluster.follow(30.0) == [["1", "2", "3"]]
    with pytest.raises(HelenusError, match=r"cannot read the ring from system\.local") as error:
        cluster.follow(31.0)
    assert error.value.kind is Kind.CASSANDRA_READ
    cluster.error = None
    assert cluster.follow(INTERVAL_S) == [["1", "2", "3"]]


def test_the_first_reading_must_not_fail() -> None:
    cluster = Cluster()
    cluster.error = OperationTimedOut()
    with pytest.raises(HelenusError, match="cannot read the ring"):
        cluster.follow()
    with pytest.raises(HelenusError, match="a node has no tokens yet"):
        RingReader(MemorySession([])).follow()


def test_nodes_that_disagree_for_long_are_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_reader, "_log", ring_reader.structlog.get_logger())
    cluster = Cluster()
    moved = [Host(1, tokens=[9]), *cluster.hosts[1:]]
    cluster.views = [cluster.hosts, moved]
    with capture_logs() as logs:
        for _ in range(30):
            possible_rings = cluster.follow(INTERVAL_S)
    assert sorted(possible_rings) == [["1", "2", "3"], ["2", "3", "1"]], "both are possible"
    assert [entry["event"] for entry in logs] == ["ring.disagreement"]
    assert "nodetool ring" in logs[0]["advice"]


def test_a_ring_of_cassandra_3_11() -> None:
    cluster = Cluster()
    execute = cluster.execute

    def without_v2(statement: Any, timeout: float = 0.0, host: Any = None) -> Any:
        if "peers_v2" in statement.query_string:
            raise InvalidRequest("unconfigured table peers_v2")
        return execute(statement, timeout, host)

    cluster.execute = without_v2  # type: ignore[method-assign]
    assert cluster.follow() == [["1", "2", "3"]]


def test_tables_of_a_session_share_a_ring_reader_that_ends_with_it() -> None:
    session = MemorySession([Host(1)])
    reader = reader_for(session)
    assert reader_for(session) is reader
    reader.follow()
    assert reader in ring_reader._readers.values()
    del session
    gc.collect()  # the fake is a cycle
    assert reader not in ring_reader._readers.values(), "others' sessions may have gone with it"
