"""Faults of machines: full disks of agents and workers, clocks that step, bytes that go bad on a disk."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.chaos.cluster import ChaosCluster
from bench.chaos.fault_registry import AGENT, NODE, WORKER, number_of, of_agent, of_broker, of_node, of_worker
from bench.chaos.machine import can_mount, compiler, full_disk, set_clock
from bench.chaos.stack_cluster import StackCluster
from helenus_stack.errors import StackError

DISK_FAULTS = frozenset({"fill-agent-disk", "fill-worker-disk"})
CLOCK_FAULTS = frozenset({"step-agent-clock", "step-worker-clock", "step-node-clock", "step-broker-clock"})
MOST_STEP_S = 120
"""Longer than what any rule takes for a difference of clocks, shorter than what keeps a change from expiring."""


def obstacle(name: str) -> str | None:
    """Return why this machine can't have a fault; None if it can."""
    if name in DISK_FAULTS and not can_mount():
        return "takes the right to mount a file system"
    if name in CLOCK_FAULTS and compiler() is None:
        return "takes a C compiler"
    return None


@of_agent("fill-agent-disk", targets=[AGENT], seconds=(2, 20), recovery_s=10)
def fill_agent_disk(cluster: ChaosCluster, target: str, _: random.Random) -> Iterator[None]:
    """That of its state. It says so, in words."""
    log = cluster.service(target).log
    before = log.stat().st_size
    with full_disk(cluster.state_directory(target)):
        yield
    if b"Traceback" in log.read_bytes()[before:]:
        cluster.complaints.append(f"{target} shows a traceback for a full disk")


@of_worker("fill-worker-disk", targets=[WORKER], seconds=(2, 20), recovery_s=20)
def fill_worker_disk(cluster: ChaosCluster, target: str, _: random.Random) -> Iterator[None]:
    """That of its checkpoint.dir."""
    with full_disk(cluster.checkpoint_directory(target)):
        yield


@contextmanager
def stepped_clock(cluster: ChaosCluster, target: str, chance: random.Random) -> Iterator[None]:
    """Have a clock be ahead or behind meanwhile."""
    set_clock(cluster.clock(target), chance.choice((-1, 1)) * chance.randint(1, MOST_STEP_S))
    try:
        yield
    finally:
        set_clock(cluster.clock(target), 0)


@of_agent("step-agent-clock", targets=[AGENT], seconds=(5, 40))
def step_agent_clock(cluster: ChaosCluster, target: str, chance: random.Random) -> Iterator[None]:
    with stepped_clock(cluster, target, chance):
        yield


@of_worker("step-worker-clock", targets=[WORKER], seconds=(5, 40))
def step_worker_clock(cluster: ChaosCluster, target: str, chance: random.Random) -> Iterator[None]:
    with stepped_clock(cluster, target, chance):
        yield


@of_node("step-node-clock", targets=[NODE], seconds=(5, 40), recovery_s=10, loses_hints=True, keeps_schema=True)
def step_node_clock(cluster: ChaosCluster, target: str, chance: random.Random) -> Iterator[None]:
    """Nodes drop what another one sent too long ago, by its clock; a TTL ends when its coordinator's clock says so. No
    table is altered by it: the rows of `system_schema` have the coordinator's time, and the last one wins, be it of an
    older definition (before Cassandra 6, whose schema is a log).
    """
    with stepped_clock(cluster, target, chance):
        yield


@of_broker("step-broker-clock", targets=["kafka"], seconds=(5, 40), recovery_s=10)
def step_broker_clock(cluster: ChaosCluster, target: str, chance: random.Random) -> Iterator[None]:
    """Sessions and transactions of its clients end early, or late."""
    with stepped_clock(cluster, target, chance):
        yield


@of_agent("flip-segment", targets=[AGENT], seconds=(5, 20), recovery_s=10, loses_hints=True)
def flip_segment(cluster: StackCluster, target: str, chance: random.Random) -> Iterator[None]:
    """An agent is away until its node's segments are full, and a bit of one goes bad. What it can't read of it, other
    replicas have logged too, or a repair brings.
    """
    node = f"cassandra{target.removeprefix('agent')}"
    cluster.service(target).stop()
    yield
    with suppress(StackError):  # the node may be away, too
        cluster.nodetool("flush", nodes=[number_of(node)])
    folder = cluster.stack.directory / node / "cdc_raw"
    # A segment that Cassandra still needs is the same file as its own: it would not start again.
    if segments := sorted(path for path in folder.glob("CommitLog-*.log") if path.stat().st_nlink == 1):
        flipped = chance.choice(segments)
        cluster.flipped_segments.add((target, flipped.name))
        _flip_bit(flipped, chance)
    cluster.service(target).start()


def _flip_bit(path: Path, chance: random.Random) -> None:
    with path.open("r+b") as file:
        position = chance.randrange(path.stat().st_size)
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1 << chance.randrange(8)]))
