"""Nothing goes on below its level before its time, and nothing is lost, whatever is late, repeated, killed or moved.

Replicas report changes in any order, some for the second time, some never, some long after every limit. Real gates and
the driver's real set of what waits take them, on several hosts whose caches come and go; each of them is killed between
any two steps.
"""

from __future__ import annotations

import heapq
import itertools
import math
import pickle
import random
import struct
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from cassandra.metadata import Murmur3Token, NetworkTopologyStrategy

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate import levels
from helenus_connector.gate._ring_reader import INTERVAL_S, RingReader
from helenus_connector.gate.cache import Caches
from helenus_connector.gate.gate import ChangeGate
from helenus_connector.gate.replicas import Replicas, routing_key
from helenus_connector.gate.waiting import WaitingChanges, WaitingLimits
from helenus_connector.interfaces.admitted_change import AdmittedChange
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.gate import GateState
from helenus_connector.testing.cassandra import Host, MemorySession
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.event.change import Change
from helenus_schemas.event.wire import decode, encode

TABLE = Table("ks", "t", uuid.UUID(int=1), (Column("k", parse("int"), "partition_key", 0), Column("v", parse("int"))))
CODEC = KeyCodec(TABLE)
TOPIC = "events-ks.t"
PARTITIONS = 3
TIMEOUT, REPLAY = 100.0, 30.0
GOSSIP = 15.0
"""Until all nodes have heard of a change of the ring, s."""
LATE = GOSSIP + INTERVAL_S
"""For so long a process may have the ring of before."""
_RING = 1 << 64


class Died(Exception):
    """A process that was killed."""


@dataclass
class Truth:
    """A write: which nodes it reached by now, and what became of it."""

    key: bytes
    digest: str
    has: set[str] = field(default_factory=set)
    reported: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    written_at: float = 0.0
    first_read: float | None = None
    published_at: float | None = None
    published: list[str] = field(default_factory=list)
    dropped: int = 0


class Nodes(MemorySession):
    """The cluster as one of its nodes has it when it is asked: some have not heard of the last changes yet."""

    def __init__(self, world: World) -> None:
        super().__init__(world.hosts, {"ks": world.strategy()})
        self.world = world

    def ring(self) -> list[Any]:
        return self.world.random.choice(self.world.rings_since(GOSSIP))


class World:
    """Nodes in two data centres, an events topic, and a clock."""

    def __init__(self, seed: int, nodes: int, **settings: str) -> None:
        self.random = random.Random(seed)
        self.is_healthy = False
        self.now = 1_000_000.0
        self.hosts: Any = [Host(uuid.UUID(int=n + 1), "one" if n % 2 else "two") for n in range(nodes)]
        properties = {"name": "n", "keyspace": "ks", "table": "t", "output.format": "json", "cassandra.local.dc": "one"}
        more = {"gate.timeout.ms": f"{TIMEOUT * 1000:.0f}", "cache.max.capacity": "4096"}
        self.settings = ConnectorSettings.from_properties({**properties, **more, **settings}, "test")
        for host in self.hosts:
            host.tokens = [self.token()]
        self.factors = {"one": min(3, nodes // 2), "two": min(3, nodes - nodes // 2)}
        self._session = Nodes(self)
        self.rings = [(self.now, self.ring())]
        self.replicas = self.read_replicas()
        self.partitions: list[list[tuple[float, bytes, bytes]]] = [[] for _ in range(PARTITIONS)]
        self.writes: dict[tuple[bytes, str], Truth] = {}
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count(1)

    def token(self) -> int:
        return self.random.randrange(-_RING // 2, _RING // 2)

    def ring(self) -> list[Host]:
        """The nodes as they are now, each with a copy of its tokens."""
        return [replace(host, tokens=list(host.tokens)) for host in self.hosts]

    def read_replicas(self) -> Replicas:
        """As one process has them: its ring is some seconds old, and as one of the nodes has it."""
        return Replicas(self._session, self.settings, RingReader(self._session, lambda: self.now))

    def replicas_of(self, key: bytes, ring: list[Any] | None = None) -> list[Any]:
        """The next nodes of each data centre on the ring, from the key's token on."""
        start = Murmur3Token.hash_fn(key)
        hosts_per_dc: Counter[str] = Counter()
        replicas = []
        for host in sorted(ring or self.hosts, key=lambda host: (host.tokens[0] - start) % _RING):
            hosts_per_dc[host.datacenter] += 1
            if hosts_per_dc[host.datacenter] <= self.factors[host.datacenter]:
                replicas.append(host)
        return replicas

    def strategy(self) -> NetworkTopologyStrategy:
        return NetworkTopologyStrategy({dc: str(factor) for dc, factor in self.factors.items()})

    def stream(self, before: list[Host]) -> None:
        """Who gives up a part of the ring has streamed what it held of it to who has it from now on."""
        for truth in self.writes.values():
            key = routing_key(CODEC.decode(truth.key))
            old, new = ({str(h.host_id) for h in self.replicas_of(key, ring)} for ring in (before, self.hosts))
            if old - new and old - new <= truth.has:
                truth.has |= new - old

    def turn(self, turns: Sequence[str] = ("replace", "add", "remove", "alter", "move")) -> str:
        """One node is replaced by another, added, or moved, or leaves; or a data centre has more or fewer replicas."""
        n, dc = self.random.randrange(len(self.hosts)), self.random.choice(("one", "two"))
        new = Host(uuid.UUID(int=1000 + next(self._numbers)), dc, tokens=[self.token()])
        there = Counter(host.datacenter for host in self.hosts)
        kind = self.random.choice(turns)
        if kind == "replace":
            self.hosts[n] = Host(new.host_id, self.hosts[n].datacenter, tokens=self.hosts[n].tokens)
        elif kind == "add":
            before = self.ring()
            self.hosts.append(new)
            self.stream(before)
        elif kind == "move":
            before = self.ring()
            self.hosts[n].tokens = [self.token()]
            self.stream(before)
        elif kind == "remove" and there[self.hosts[n].datacenter] > self.factors[self.hosts[n].datacenter]:
            del self.hosts[n]
        else:
            kind = "alter"
            self.factors[dc] = self.random.randrange(1, min(4, there[dc] + 1))
            self._session.cluster.metadata.keyspaces["ks"].replication_strategy = self.strategy()
        self.rings.append((self.now, self.ring()))
        return kind

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._later, (self.now + seconds, next(self._numbers), action))

    def pass_by(self, seconds: float) -> None:
        until = self.now + seconds
        while self._later and self._later[0][0] <= until:
            self.now, _, action = heapq.heappop(self._later)
            action()
        self.now = until

    @property
    def is_quiet(self) -> bool:
        return not self._later

    def write(self) -> None:
        key = CODEC.encode((struct.pack(">i", self.random.randrange(40)),))
        digest = f"{next(self._numbers):032x}"
        truth = self.writes[key, digest] = Truth(key, digest, written_at=self.now)
        for host in self.replicas_of(routing_key(CODEC.decode(key))):
            chance = self.random.random()
            if chance < 0.15 and not self.is_healthy:
                continue  # it never gets there
            delays = (0, 0.1, 3) if self.is_healthy else (0, 0.1, 3, 40, 1.5 * TIMEOUT, 4 * TIMEOUT)
            delay = self.random.choice(delays) * self.random.random()
            self.after(delay, lambda node=str(host.host_id): self.report(truth, node))  # type: ignore[misc]
            if chance < 0.3:  # a client's second try, or a hint of what was in a socket's buffer
                self.after(delay + self.random.random(), lambda node=str(host.host_id): self.report(truth, node))  # type: ignore[misc]

    def report(self, truth: Truth, node: str) -> None:
        truth.has.add(node)
        partition = truth.key[-1] % PARTITIONS
        change = Change(truth.digest, node, segment=1, position=next(self._numbers), write_time=int(self.now * 1e6))
        truth.reported[len(self.partitions[partition])].add(node)
        self.partitions[partition].append((self.now, truth.key, encode(change)))

    def is_met(self, key: bytes, nodes: set[str], ring: list[Any] | None = None) -> bool:
        replicas_by_dc: dict[str, set[str]] = {}
        for host in self.replicas_of(routing_key(CODEC.decode(key)), ring):
            replicas_by_dc.setdefault(host.datacenter, set()).add(str(host.host_id))
        return levels.is_met(self.settings.gate, self.factors, "one", replicas_by_dc, nodes)

    def was_met(self, key: bytes, nodes: set[str]) -> bool:
        """Whether it is by the ring of now, or was by one for which a change may have waited. Who left since counts as
        long as it may not be known.
        """
        recent_members = [{str(h.host_id) for h in ring} for ring in self.rings_since(LATE)]
        members = {str(h.host_id) for h in self.hosts}.union(*recent_members)
        return any(self.is_met(key, nodes & members, ring) for ring in self.rings_since(TIMEOUT + LATE))

    def rings_since(self, seconds: float) -> list[list[Host]]:
        """The rings that were in these last seconds, oldest first."""
        ended = [changed_at for changed_at, _ in self.rings[1:]] + [self.now]
        return [ring for (_, ring), end in zip(self.rings, ended, strict=True) if end >= self.now - seconds]

    def has_expired(self, truth: Truth) -> bool:
        return truth.first_read is not None and self.now - truth.first_read >= TIMEOUT - 0.001


class Connector:
    """A driver, and hosts with caches. `kills` says how often something dies on the way."""

    def __init__(self, world: World, directory: Path, hosts: int, kills: float) -> None:
        self.world, self.directory, self.hosts, self.kills = world, directory, hosts, kills
        self.offsets = [0] * PARTITIONS
        self.done_until = [0] * PARTITIONS
        self.totals: Counter[str] = Counter()
        self.runs = 0
        self.ended: float | None = None
        self.start()

    def start(self) -> None:
        """A new driver: it has the offsets that Spark committed, and the file; all caches are new."""
        self.runs += 1
        self.waiting = WaitingChanges(self.directory / "gate.waiting", lambda: self.world.now)
        assert self.waiting.load()
        self.gates: list[ChangeGate] = []
        for n in range(self.hosts):
            cache_dir = self.directory / f"{self.runs}-{n}"
            cache_dir.mkdir()
            self.gates.append(ChangeGate(self.world.read_replicas(), Caches(cache_dir, 4096, 1e9), self.world.settings))
        if self.ended is not None:
            for partition, events in enumerate(self.world.partitions):
                while self.offsets[partition] and events[self.offsets[partition] - 1][0] >= self.ended - REPLAY:
                    self.offsets[partition] -= 1

    def dies(self) -> None:
        if self.world.random.random() < self.kills:
            raise Died

    def batch(self, size: int) -> None:
        """One micro-batch: what dies in a task is done again, what dies in the driver is started again."""
        chance = self.world.random
        ends = [
            min(len(events), offset + chance.randrange(size + 1))
            for offset, events in zip(self.offsets, self.world.partitions, strict=True)
        ]
        try:
            while not self._attempt(ends):
                self.world.pass_by(chance.choice((0.1, 5)))
        except Died:
            self.world.pass_by(chance.choice((0.1, 20, 500)))
            self.start()

    def _attempt(self, ends: list[int]) -> bool:
        world = self.world
        self.waiting.use({TOPIC: WaitingLimits.from_settings(world.settings)})
        waits = self.waiting.hand_out(1000)[TOPIC]
        handed = pickle.dumps(waits)
        tasks: list[tuple[GateState, float | None, float | None, list[int]]] = []
        parts = list(range(PARTITIONS))
        world.random.shuffle(parts)
        cut = world.random.choice((1, PARTITIONS))
        for share in (parts[:cut], parts[cut:]):
            if not share:
                continue
            events = [
                Event(TOPIC, p, offset, int(world.partitions[p][offset][0] * 1000), *world.partitions[p][offset][1:])
                for p in share
                for offset in range(self.offsets[p], ends[p])
            ]
            all_waits = pickle.loads(handed)
            mine = all_waits._replace(overdue=[w for w in all_waits.overdue if w.event.partition in share])
            try:
                gate_state = pickle.loads(pickle.dumps(self._task(events, mine)))
            except Died:
                return False
            times = {e.partition: e.timestamp / 1000 for e in events}
            tasks.append(
                (
                    gate_state,
                    min((e.timestamp / 1000 for e in events), default=None),
                    min(times.values(), default=None),
                    share,
                )
            )
        read = [until for gate_state, _, until, _ in tasks if until is not None and not gate_state.stopped]
        self.waiting.tick(TOPIC, world.now, min(read, default=None))
        for gate_state, read_from, _, _ in tasks:
            self.waiting.apply(TOPIC, gate_state, read_from, world.now)
            self.totals["stopped"] += len(gate_state.stopped)
            for name in ("completed", "verified", "released", "dropped"):
                self.totals[name] += getattr(gate_state, name)
        self.dies()
        self.waiting.save(world.now)
        # A start that steps back has these reports in the file, also if the batch after it ends before them.
        self.done_until = list(map(max, self.done_until, ends))
        self.dies()
        self.ended = world.now
        for gate_state, _, _, share in tasks:
            for p in share:
                self.offsets[p] = gate_state.stopped.get(p, ends[p])
        return True

    def _task(self, events: list[Event], waits: Any) -> GateState:
        world, gate = self.world, self.world.random.choice(self.gates)
        for event in events:
            # What was read once counts for good, whoever died then.
            truth = self._truth(event)
            truth.first_read = truth.first_read or world.now
        gate._replicas.check()  # as a stage does
        gate_batch = gate.begin_batch(CODEC, 0.0, waits)
        admitted, intake = list(gate_batch.admit(events)), gate_batch.intake
        verified: list[AdmittedChange] = []
        unseen: list[AdmittedChange] = []
        ends = {
            p: max([self.done_until[p], self.offsets[p], *(e.offset + 1 for e in events if e.partition == p)])
            for p in range(PARTITIONS)
        }
        self.dies()
        out: list[tuple[Truth, str]] = []
        for admitted_change in admitted:
            truth = self._truth(admitted_change.event)
            if admitted_change.verifying is not None:
                assert admitted_change.verifying.is_early or world.has_expired(truth), "verified before its time"
                if world.random.random() < 0.2:
                    continue  # it can't be read
                # A read at the level meets one of the nodes that have it, or it does not.
                is_shown = world.is_met(truth.key, truth.has) or (bool(truth.has) and world.random.random() < 0.5)
                (verified if is_shown else unseen).append(admitted_change)
                if is_shown:
                    out.append((truth, "verified"))
            elif admitted_change.is_released:
                assert world.has_expired(truth), "released before its time"
                out.append((truth, "released"))
            else:
                self._assert_at_its_level(truth, ends[admitted_change.event.partition])
                out.append((truth, "level"))
        for truth, how in out:
            truth.published.append(how)  # flushed
            truth.published_at = truth.published_at or world.now
        self.dies()
        is_confirmed = {admitted_change.id: world.random.random() < 0.7 for admitted_change in admitted}
        for admitted_change in [h for h in admitted if h.verifying is None] + verified:
            gate.mark(
                TOPIC, admitted_change.event.partition, [admitted_change.id or b""], is_confirmed[admitted_change.id]
            )
        gate_batch.save()
        gate_state = intake.at_gate
        late = {(w.event.partition, w.id): w for w in waits.overdue}
        dropped = gate_batch.settle_verified(verified, unseen) + intake.dropped
        if gate_state.dropped:
            gone = [late[name] for name in gate_state.gone if name in late]
            for waiting in gone:
                truth = self._truth(waiting.event)
                if not truth.published:
                    truth.dropped += 1
                    assert world.has_expired(truth), "dropped before its time"
        self.totals["read"] += intake.read
        self.totals["confirmed"] += intake.confirmed
        self.totals["events"] += sum(h.copies for h in admitted if h.verifying is None) + sum(
            h.copies for h in verified
        )
        self.totals["events dropped"] += dropped
        self.dies()
        return gate_state

    def _assert_at_its_level(self, truth: Truth, end: int) -> None:
        nodes = {node for offset, reporters in truth.reported.items() if offset < end for node in reporters}
        went_on = any(how in ("verified", "released", "level") for how in truth.published)
        assert went_on or self.world.was_met(truth.key, nodes), f"below its level, of {sorted(nodes)}"

    def _truth(self, event: Event) -> Truth:
        change = decode(event.value or b"")
        return self.world.writes[event.key or b"", change.digest or ""]


def run(
    world: World,
    connector: Connector,
    writes: int = 150,
    turns: float = 0.0,
    kinds: Sequence[str] = ("replace", "add", "remove", "alter", "move"),
) -> Counter[str]:
    """Write, and read until nothing waits. `turns` is how often the cluster changes, in one of these ways.

    Returns how it did.
    """
    chance = world.random
    turned: Counter[str] = Counter()
    for _ in range(writes):
        world.write()
        # A healthy cluster changes no faster than its nodes hear of it.
        is_rash = world.is_healthy and world.now - world.rings[-1][0] < LATE
        if turns and chance.random() < turns and not is_rash:
            turned[world.turn(kinds)] += 1
        if chance.random() < 0.5:
            world.pass_by(chance.choice((0.01, 0.5, 5)))
            connector.batch(chance.choice((0, 3, 30, 300)))
        if connector.kills and chance.random() < 0.02:
            world.pass_by(chance.choice((1, 60, 1000)))
            connector.start()
    for _ in range(2000):
        world.pass_by(chance.choice((1, 10)))
        connector.batch(1000)
        is_read = all(offset == len(events) for offset, events in zip(connector.offsets, world.partitions, strict=True))
        if world.is_quiet and is_read and not connector.waiting.counts(TOPIC)[0]:
            return turned
    raise AssertionError(f"changes wait for ever: {connector.waiting.counts(TOPIC)}")


def settled(world: World) -> None:
    """Nothing is lost: what enough replicas have is out, and what is not out was dropped."""
    for truth in world.writes.values():
        if not truth.reported:
            continue
        if world.settings.gate_expired == "release":
            assert truth.published, truth
        assert truth.published or truth.dropped, f"lost: {truth}"


# What expires otherwise is the same in a quiet cluster, above and below.
EXPIRED = ["verify", *(pytest.param(other, marks=pytest.mark.long) for other in ("release", "drop"))]
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 10))]


LEVELS = ("local_quorum", "quorum", "each_quorum", "all")
CLUSTERS = [
    *((6, level) for level in LEVELS),
    (140, "local_quorum"),
    *(pytest.param(nodes, level, marks=pytest.mark.long) for nodes in (9, 140) for level in LEVELS),
]


@pytest.mark.parametrize(("nodes", "level"), CLUSTERS)
@pytest.mark.parametrize("expired", ["verify", "release", "drop"])
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_early_and_nothing_is_lost(tmp_path: Path, seed: int, nodes: int, level: str, expired: str) -> None:
    world = World(seed, nodes, gate=level, **{"gate.expired": expired})
    connector = Connector(world, tmp_path, hosts=3, kills=0.05)
    run(world, connector)
    settled(world)


@pytest.mark.parametrize(("nodes", "level"), [(8, level) for level in LEVELS] + [(80, "each_quorum")])
@pytest.mark.parametrize("expired", EXPIRED)
@pytest.mark.parametrize("seed", SEEDS)
def test_while_the_cluster_changes(tmp_path: Path, seed: int, nodes: int, level: str, expired: str) -> None:
    """Nodes are replaced, added and removed, and replication factors altered, while changes wait: what goes on is at
    its level by the ring of that moment.
    """
    world = World(seed, nodes, gate=level, **{"gate.expired": expired})
    connector = Connector(world, tmp_path, hosts=3, kills=0.03)
    turned = run(world, connector, turns=0.2)
    settled(world)
    assert set(turned) == {"replace", "add", "remove", "alter", "move"}
    assert any(how == "level" for truth in world.writes.values() for how in truth.published)


@pytest.mark.parametrize(("nodes", "level"), [*((n, "local_quorum") for n in (4, 5, 8, 30)), (12, "all")])
@pytest.mark.parametrize("seed", SEEDS)
def test_moved_and_joining_nodes_delay_and_drop_nothing(tmp_path: Path, seed: int, nodes: int, level: str) -> None:
    """All replicas report within seconds, and the ring changes all the time: no change waits for its timeout. Each
    process has heard of the last changes or not.
    """
    world = World(seed, nodes, gate=level, **{"gate.expired": "drop"})
    world.is_healthy = True
    connector = Connector(world, tmp_path, hosts=3, kills=0.0)
    run(world, connector, writes=400, turns=0.1, kinds=("move", "move", "move", "add"))
    # A late copy that another host takes for a change of its own may expire: it went on before.
    assert not any(truth.dropped for truth in world.writes.values())
    assert {truth.published[0] for truth in world.writes.values()} == {"level"}
    delays = [(truth.published_at or math.inf) - truth.written_at for truth in world.writes.values()]
    # A stale ring, then the next of the counts that come ever more rarely; and how far apart batches are.
    assert max(delays) < 2 * LATE + 20.0 < TIMEOUT


@pytest.mark.parametrize("seed", SEEDS)
def test_restarts_while_nodes_move_drop_nothing(tmp_path: Path, seed: int) -> None:
    """A process that starts knows no ring of before: what it would drop for that is verified, and a read shows it."""
    world = World(seed, 8, gate="local_quorum", **{"gate.expired": "drop"})
    world.is_healthy = True
    connector = Connector(world, tmp_path, hosts=3, kills=0.05)
    run(world, connector, writes=400, turns=0.1, kinds=("move",))
    assert all(truth.published and not truth.dropped for truth in world.writes.values())


@pytest.mark.parametrize("expired", EXPIRED)
@pytest.mark.parametrize("seed", SEEDS)
def test_without_troubles_nothing_is_published_twice(tmp_path: Path, seed: int, expired: str) -> None:
    """One host, nothing dies: each change that reached its level goes on once, with all its events accounted for."""
    world = World(seed, 6, gate="local_quorum", **{"gate.expired": expired})
    connector = Connector(world, tmp_path, hosts=1, kills=0.0)
    run(world, connector)
    settled(world)
    once = Counter(len([how for how in truth.published if how == "level"]) for truth in world.writes.values())
    assert once[0] < once[1]
    totals = connector.totals
    assert totals["read"] == totals["events"] + totals["confirmed"] + totals["events dropped"]


@pytest.mark.parametrize("expired", ["verify", "release", "drop"])
@pytest.mark.parametrize("seed", SEEDS)
def test_with_room_for_few_nothing_is_lost(tmp_path: Path, seed: int, expired: str) -> None:
    """The table is read no further while too many wait; what waits is never more than there is room for."""
    world = World(seed, 6, gate="all", **{"gate.expired": expired, "gate.max.waiting.bytes": "65536"})
    connector = Connector(world, tmp_path, hosts=2, kills=0.02)
    run(world, connector, 500)
    settled(world)
    assert expired == "verify" or connector.totals["stopped"] > 0
