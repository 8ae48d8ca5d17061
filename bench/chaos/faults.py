"""The faults of a plan, of all rooms."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from bench.chaos import own_faults, ring_faults, server_faults
from bench.chaos.cluster import ChaosCluster
from bench.chaos.fault_registry import AGENTS, BEGINNINGS, KINDS, SERVERS, WORKER
from bench.chaos.plan import FaultKind, PlannedFault

MODULES = own_faults, ring_faults, server_faults
"""Where faults are: they have been made once these are imported."""
ANYWHERE = frozenset(
    "kill-agent restart-agent pause-agent torn-state flipped-state kill-worker restart-worker pause-worker kill-python"
    " repair flush compact cleanup".split()
)
"""The faults that a user's cluster may have: of this command's own processes, and of what an operator does."""


def begin(cluster: ChaosCluster, fault: PlannedFault) -> AbstractContextManager[None]:
    """Return a planned fault as a context: it begins when entered, and ends at the exit."""
    return BEGINNINGS[fault.name](cluster, fault.target, random.Random(fault.seed))


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
    for placeholder, targets in ((WORKER, workers), (AGENTS[0], agents), (SERVERS[0], nodes)):
        if kind.targets[0] == placeholder:
            return replace(kind, targets=targets)
    return kind
