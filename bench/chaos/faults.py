"""Faults by name. Each is a function whose first part begins it, and whose part after `yield` ends it.

What a fault of the product's own promises finds to be wrong it adds to the cluster's `complaints`.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.chaos.cluster import ChaosCluster
from bench.chaos.plan import FaultKind, PlannedFault
from bench.chaos.stack_cluster import NODES, StackCluster
from bench.relay import Relay

Fault = Callable[[Any, str, random.Random], Iterator[None]]
SERVERS = [f"cassandra{number + 1}" for number in range(NODES)]
AGENTS = [f"agent{number + 1}" for number in range(NODES)]
KINDS: dict[str, FaultKind] = {}
ANYWHERE = frozenset(
    "kill-agent restart-agent pause-agent torn-state flipped-state kill-worker restart-worker pause-worker kill-python"
    " repair flush compact".split()
)
"""The faults that a user's cluster may have: of this command's own processes, and of what an operator does."""
_FAULTS: dict[str, Callable[[Any, str, random.Random], AbstractContextManager[None]]] = {}
_REFUSAL_S = 60.0
"""In that time an agent says that its state is damaged, and ends; it starts within two seconds on an idle machine."""


def begin(cluster: ChaosCluster, fault: PlannedFault) -> AbstractContextManager[None]:
    """Return a planned fault as a context: it begins when entered, and ends at the exit."""
    return _FAULTS[fault.name](cluster, fault.target, random.Random(fault.seed))


def kinds_for(names: Sequence[str], workers: Sequence[str]) -> list[FaultKind]:
    """Return the kinds of these names, all if there are none, of servers of our own; a worker's have these targets."""
    return [_aim(KINDS[name], workers, AGENTS, SERVERS) for name in names or KINDS]


def kinds_for_given(
    names: Sequence[str], workers: Sequence[str], agents: Sequence[str], nodes: Sequence[str]
) -> list[FaultKind]:
    """Return the same for a user's cluster, where only this command's agents and workers are stopped; `nodes` are those
    that nodetool reaches. Raises ValueError for a name that is not possible there.
    """
    kinds = [_aim(KINDS[name], workers, agents, nodes) for name in names or sorted(ANYWHERE)]
    impossible = [kind.name for kind in kinds if kind.name not in ANYWHERE or not kind.targets]
    if names and impossible:
        raise ValueError(f"not possible on a given cluster, or without its agents or nodetool: {', '.join(impossible)}")
    return [kind for kind in kinds if kind.targets]


def _aim(kind: FaultKind, workers: Sequence[str], agents: Sequence[str], nodes: Sequence[str]) -> FaultKind:
    for placeholder, targets in (("worker", workers), (AGENTS[0], agents), (SERVERS[0], nodes)):
        if kind.targets[0] == placeholder:
            return replace(kind, targets=targets)
    return kind


def fault(
    name: str,
    targets: Sequence[str],
    is_of_servers: bool,
    seconds: tuple[float, float] = (0.0, 0.0),
    recovery_s: float = 5.0,
    loses_hints: bool = False,
) -> Callable[[Fault], Fault]:
    """Name a fault, and say what `FaultKind` does."""

    def register(function: Fault) -> Fault:
        KINDS[name] = FaultKind(name, targets, is_of_servers, seconds, recovery_s, loses_hints)
        _FAULTS[name] = contextmanager(function)
        return function

    return register


of_server = partial(fault, is_of_servers=True)
of_ours = partial(fault, is_of_servers=False)


@of_server("kill-node", targets=SERVERS, seconds=(0, 15), recovery_s=30, loses_hints=True)
def kill_node(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    """Its hints for others that are in memory are lost with it."""
    cluster.kill_server(target)
    yield
    cluster.stack.start(target)


@of_server("restart-node", targets=SERVERS, recovery_s=30)
def restart_node(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.stack.stop(target)
    yield
    cluster.stack.start(target)


@of_server("drain-node", targets=SERVERS, seconds=(0, 5), recovery_s=30, loses_hints=True)
def drain_node(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.nodetool("drain", nodes=[number_of(target)])
    yield
    cluster.kill_server(target)
    cluster.stack.start(target)


@of_server("pause-node", targets=SERVERS, seconds=(2, 40))
def pause_node(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.stack.pause(target)
    yield
    cluster.stack.resume(target)


@of_server("lose-hints", targets=SERVERS, seconds=(3, 12), recovery_s=10, loses_hints=True)
def lose_hints(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    """What a node that hangs misses is gone, but for reads and repairs."""
    cluster.nodetool("disablehandoff")
    cluster.stack.pause(target)
    yield
    cluster.stack.resume(target)
    cluster.nodetool("truncatehints")
    cluster.nodetool("enablehandoff")


@of_server("cut-cassandra", targets=SERVERS, seconds=(0, 10))
def cut_cassandra(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    """All CQL connections to a node end, and new ones are refused for a while."""
    cluster.nodetool("disablebinary", nodes=[number_of(target)])
    yield
    cluster.nodetool("enablebinary", nodes=[number_of(target)])


@of_server("kill-broker", targets=["kafka"], seconds=(0, 10), recovery_s=10)
def kill_broker(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.kill_server(target)
    yield
    cluster.stack.start(target)


@of_server("restart-broker", targets=["kafka"], seconds=(0, 5), recovery_s=10)
def restart_broker(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.stack.stop(target)
    yield
    cluster.stack.start(target)


@of_server("pause-broker", targets=["kafka"], seconds=(1, 20))
def pause_broker(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.stack.pause(target)
    yield
    cluster.stack.resume(target)


@of_server("registry-away", targets=["registry"], seconds=(2, 20))
def registry_away(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.kill_server(target)
    yield
    cluster.stack.start(target)


@of_server("repair", targets=SERVERS, recovery_s=5)
def repair(cluster: ChaosCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.nodetool("repair", "-full", "chaos", nodes=[number_of(target)])
    yield


@of_server("flush", targets=SERVERS, recovery_s=2)
def flush(cluster: ChaosCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.nodetool("flush", nodes=[number_of(target)])
    yield


@of_server("compact", targets=SERVERS, recovery_s=2)
def compact(cluster: ChaosCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.nodetool("compact", "chaos", nodes=[number_of(target)])
    yield


@of_ours("kill-agent", targets=AGENTS, seconds=(0, 10))
def kill_agent(cluster: ChaosCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.service(target).kill()
    yield
    cluster.service(target).start()


@of_ours("restart-agent", targets=AGENTS, seconds=(0, 5))
def restart_agent(cluster: ChaosCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.service(target).stop()
    yield
    cluster.service(target).start()


@of_ours("pause-agent", targets=AGENTS, seconds=(2, 40))
def pause_agent(cluster: ChaosCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.service(target).signal_family(signal.SIGSTOP)
    yield
    cluster.service(target).signal_family(signal.SIGCONT)


@of_ours("kill-worker", targets=["worker"], seconds=(0, 5), recovery_s=20)
def kill_worker(cluster: ChaosCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.service(target).kill()
    yield
    cluster.service(target).start()


@of_ours("restart-worker", targets=["worker"], recovery_s=20)
def restart_worker(cluster: ChaosCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.service(target).stop()
    yield
    cluster.service(target).start()


@of_ours("pause-worker", targets=["worker"], seconds=(2, 30), recovery_s=10)
def pause_worker(cluster: ChaosCluster, target: str, _: random.Random) -> Iterator[None]:
    """All its processes, as of a virtual machine that is moved."""
    cluster.service(target).signal_family(signal.SIGSTOP)
    yield
    cluster.service(target).signal_family(signal.SIGCONT)


@of_ours("kill-python", targets=["worker"], recovery_s=5)
def kill_python(cluster: ChaosCluster, target: str, chance: random.Random) -> Iterator[None]:
    """Some of Spark's Python workers, or all, and now and then what they are forked from."""
    members = cluster.service(target).python_workers()
    cluster.kill_pids(chance.sample(members, chance.randint(min(1, len(members)), len(members))))
    yield


def relay_of(cluster: StackCluster, target: str) -> Relay:
    return cluster.worker_relay if target == "worker-kafka" else cluster.agent_relay


@of_ours("cut-kafka", targets=["worker-kafka", "agent-kafka"])
def cut_kafka(cluster: StackCluster, target: str, chance: random.Random) -> Iterator[None]:
    for _ in range(chance.randint(1, 4)):
        relay_of(cluster, target).cut()
        time.sleep(chance.uniform(0, 0.5))
    yield


@of_ours("lose-answers", targets=["worker-kafka", "agent-kafka"], seconds=(0.2, 8))
def lose_answers(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    """Kafka does what it is asked, and who asked does not know."""
    with relay_of(cluster, target).losing_answers():
        yield


@of_ours("slow-kafka", targets=["worker-kafka", "agent-kafka"], seconds=(2, 20))
def slow_kafka(cluster: StackCluster, target: str, chance: random.Random) -> Iterator[None]:
    with relay_of(cluster, target).slow(chance.uniform(0.05, 1.0)):
        yield


def damage_state(cluster: ChaosCluster, target: str, damage: Callable[[bytes], bytes]) -> None:
    """Damage an agent's positions while it is killed. It must not start, and say so; then the file is deleted, as
    docs/failures.md tells the operator.
    """
    agent = cluster.service(target)
    agent.kill()
    file: Path = cluster.state_directory(target) / "positions.json"
    if not file.exists():
        return
    before = agent.log.stat().st_size
    file.write_bytes(damage(file.read_bytes()))
    agent.start()
    deadline = time.monotonic() + _REFUSAL_S
    while agent.process.pid is not None and not agent.is_ready() and time.monotonic() < deadline:
        time.sleep(0.2)
    lines = agent.log.read_bytes()[before:].decode(errors="replace")
    if agent.is_ready():
        cluster.complaints.append(f"{target} started with a damaged positions.json")
    elif agent.process.pid is None and "positions.json" not in lines:
        cluster.complaints.append(f"{target} does not name its damaged positions.json:\n{lines[-800:]}")
    agent.stop()
    file.unlink()


@of_ours("torn-state", targets=AGENTS, recovery_s=10)
def torn_state(cluster: ChaosCluster, target: str, chance: random.Random) -> Iterator[None]:
    damage_state(cluster, target, lambda data: data[: chance.randrange(len(data))])
    yield
    cluster.service(target).start()


@of_ours("flipped-state", targets=AGENTS, recovery_s=10)
def flipped_state(cluster: ChaosCluster, target: str, chance: random.Random) -> Iterator[None]:
    def flip(data: bytes) -> bytes:
        bit = chance.randrange(len(data) * 8)
        return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]

    damage_state(cluster, target, flip)
    yield
    cluster.service(target).start()


def number_of(node: str) -> int:
    """Return a node's number, from 1."""
    return SERVERS.index(node) + 1
