"""The faults of a plan, of all rooms."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from bench.chaos import center_faults, machine_faults, node_faults, own_faults, ring_faults, server_faults
from bench.chaos.cluster import ChaosCluster
from bench.chaos.fault_registry import AGENT, BEGINNINGS, KINDS, NEW_NODE, NODE, WORKER
from bench.chaos.machine_faults import obstacle
from bench.chaos.plan import FaultKind, PlannedFault
from bench.chaos.topology import Topology

MODULES = own_faults, machine_faults, server_faults, ring_faults, node_faults, center_faults
"""Where faults are: they have been made once these are imported."""
ANYWHERE = frozenset(
    "kill-agent restart-agent pause-agent torn-state flipped-state kill-worker restart-worker pause-worker kill-python"
    " repair flush compact cleanup".split()
)
"""The faults that a user's cluster may have: of this command's own processes, and of what an operator does."""


def begin(cluster: ChaosCluster, fault: PlannedFault) -> AbstractContextManager[None]:
    """Return a planned fault as a context: it begins when entered, and ends at the exit."""
    return BEGINNINGS[fault.name](cluster, fault.target, random.Random(fault.seed))


def kinds_for(names: Sequence[str], workers: Sequence[str], topology: Topology) -> list[FaultKind]:
    """Return the kinds of these names, of servers of our own; a worker's have these targets. If there are no names, all
    that fit the topology, and that this machine can have. Raises ValueError for a name that does not fit.
    """
    if obstacles := [f"{name} {obstacle(name)}" for name in names if obstacle(name)]:
        raise ValueError(f"not possible here: {', '.join(obstacles)}")
    fitting = [name for name, kind in KINDS.items() if _is_fitting(kind, topology)]
    if unfit := [name for name in names if name not in fitting]:
        raise ValueError(f"not possible with {topology}: {', '.join(unfit)}")
    return [
        _aim(KINDS[name], workers, topology.agents, topology.servers, topology.new_server) for name in names or fitting
    ]


def _is_fitting(kind: FaultKind, topology: Topology) -> bool:
    is_of_topology = kind.data_centers in (0, topology.data_centers) and kind.tokens in (0, topology.tokens)
    return is_of_topology and obstacle(kind.name) is None


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


def _aim(
    kind: FaultKind, workers: Sequence[str], agents: Sequence[str], nodes: Sequence[str], new_node: str = ""
) -> FaultKind:
    for placeholder, targets in ((WORKER, workers), (AGENT, agents), (NODE, nodes), (NEW_NODE, [new_node])):
        if kind.targets[0] == placeholder:
            return replace(kind, targets=targets)
    return kind
