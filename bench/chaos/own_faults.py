"""Faults of agents and workers: of their processes, their files and their connections to the broker."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.chaos.cluster import ChaosCluster
from bench.chaos.fault_registry import AGENT, WORKER, of_agent, of_connection, of_worker
from bench.chaos.stack_cluster import StackCluster
from bench.relay import Relay
from helenus_agent.positions import Positions

_REFUSAL_S = 60.0
"""In that time an agent says that its state is damaged, and ends; it starts within two seconds on an idle machine."""


@of_agent("kill-agent", targets=[AGENT], seconds=(0, 10))
def kill_agent(cluster: ChaosCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.service(target).kill()
    yield
    cluster.service(target).start()


@of_agent("restart-agent", targets=[AGENT], seconds=(0, 5))
def restart_agent(cluster: ChaosCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.service(target).stop()
    yield
    cluster.service(target).start()


@of_agent("pause-agent", targets=[AGENT], seconds=(2, 40))
def pause_agent(cluster: ChaosCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.service(target).signal_family(signal.SIGSTOP)
    yield
    cluster.service(target).signal_family(signal.SIGCONT)


@of_worker("kill-worker", targets=[WORKER], seconds=(0, 5), recovery_s=20)
def kill_worker(cluster: ChaosCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.service(target).kill()
    yield
    cluster.service(target).start()


@of_worker("restart-worker", targets=[WORKER], recovery_s=20)
def restart_worker(cluster: ChaosCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.service(target).stop()
    yield
    cluster.service(target).start()


@of_worker("pause-worker", targets=[WORKER], seconds=(2, 30), recovery_s=10)
def pause_worker(cluster: ChaosCluster, target: str, _: random.Random) -> Iterator[None]:
    """All its processes, as of a virtual machine that is moved."""
    cluster.service(target).signal_family(signal.SIGSTOP)
    yield
    cluster.service(target).signal_family(signal.SIGCONT)


@of_worker("kill-python", targets=[WORKER], recovery_s=5)
def kill_python(cluster: ChaosCluster, target: str, chance: random.Random) -> Iterator[None]:
    """Some of Spark's Python workers, or all, and now and then what they are forked from."""
    members = cluster.service(target).python_workers()
    cluster.kill_pids(chance.sample(members, chance.randint(min(1, len(members)), len(members))))
    yield


def relay_of(cluster: StackCluster, target: str) -> Relay:
    return cluster.worker_relay if target == "worker-kafka" else cluster.agent_relay


@of_connection("cut-kafka", targets=["worker-kafka", "agent-kafka"], recovery_s=2)
def cut_kafka(cluster: StackCluster, target: str, chance: random.Random) -> Iterator[None]:
    for _ in range(chance.randint(1, 4)):
        relay_of(cluster, target).cut()
        time.sleep(chance.uniform(0, 0.5))
    yield


@of_connection("lose-answers", targets=["worker-kafka", "agent-kafka"], seconds=(0.2, 8), recovery_s=2)
def lose_answers(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    """Kafka does what it is asked, and who asked does not know."""
    with relay_of(cluster, target).losing_answers():
        yield


@of_connection("slow-kafka", targets=["worker-kafka", "agent-kafka"], seconds=(2, 20), recovery_s=2)
def slow_kafka(cluster: StackCluster, target: str, chance: random.Random) -> Iterator[None]:
    with relay_of(cluster, target).slow(chance.uniform(0.05, 1.0)):
        yield


def damage_state(cluster: ChaosCluster, target: str, damage: Callable[[bytes], bytes]) -> None:
    """Damage an agent's positions while it is killed. It must not start, and say so; then the file is deleted, as
    docs/failures.md tells the operator.
    """
    with cluster.state_lock:
        _damage_state(cluster, target, damage)


def _damage_state(cluster: ChaosCluster, target: str, damage: Callable[[bytes], bytes]) -> None:
    agent = cluster.service(target)
    agent.kill()
    file: Path = cluster.state_directory(target) / "positions.json"
    if not file.exists():
        return
    before, whole = agent.log.stat().st_size, file.read_bytes()
    file.write_bytes(damaged := damage(whole))
    agent.start()
    deadline = time.monotonic() + _REFUSAL_S
    while agent.process.pid is not None and not agent.is_ready() and time.monotonic() < deadline:
        time.sleep(0.2)
    lines = agent.log.read_bytes()[before:].decode(errors="replace")
    if agent.is_ready() and not _mean_the_same(whole, damaged):
        cluster.complaints.append(f"{target} started with a damaged positions.json")
    elif agent.process.pid is None and "positions.json" not in lines:
        cluster.complaints.append(f"{target} does not name its damaged positions.json:\n{lines[-800:]}")
    agent.stop()
    file.unlink()


def _mean_the_same(whole: bytes, damaged: bytes) -> bool:
    """Return whether damage left the positions as they were: it was of the checksum's name."""
    try:
        return Positions.from_json(json.loads(whole)) == Positions.from_json(json.loads(damaged))
    except (ValueError, LookupError, TypeError, AttributeError):
        return False


@of_agent("torn-state", targets=[AGENT], recovery_s=10)
def torn_state(cluster: ChaosCluster, target: str, chance: random.Random) -> Iterator[None]:
    damage_state(cluster, target, lambda data: data[: chance.randrange(len(data))])
    yield
    cluster.service(target).start()


@of_agent("flipped-state", targets=[AGENT], recovery_s=10)
def flipped_state(cluster: ChaosCluster, target: str, chance: random.Random) -> Iterator[None]:
    def flip(data: bytes) -> bytes:
        bit = chance.randrange(len(data) * 8)
        return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]

    damage_state(cluster, target, flip)
    yield
    cluster.service(target).start()
