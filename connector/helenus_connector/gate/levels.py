"""The gate's levels: how many replicas have to report a change before it is admitted.

    gate=local_quorum, RF 3 in the local data centre: two of its three replicas.

The replication factor is the one of now, and only current replicas count: not a node that was removed or replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cassandra import ConsistencyLevel

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate.replicas import Replicas
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.names import counted

_ORDER = ("LOCAL_ONE", "LOCAL_QUORUM", "QUORUM", "EACH_QUORUM", "ALL")


def read_level(settings: ConnectorSettings) -> int:
    """Return the consistency level of a read that verifies a change at the gate's level, no lower than that of all
    reads.
    """
    names = settings.query_consistency, settings.gate.upper() if settings.gate != "one" else "LOCAL_ONE"
    return int(getattr(ConsistencyLevel, max(names, key=_ORDER.index)))


def is_met(
    level: str,
    factors: Mapping[str, int],
    local: str | None,
    replicas: Mapping[str, Collection[str]],
    nodes: Collection[str],
) -> bool:
    """Return whether reports of `nodes` reach a level, for a partition with these `replicas` by data centre. `factors`
    are those of `Replicas.factors`.
    """
    reported = {dc: sum(node in nodes for node in members) for dc, members in replicas.items()}
    everywhere, total = sum(reported.values()), sum(factors.values())
    if level == "one":
        return everywhere > 0
    if level == "local_quorum":
        return reported.get(local or "", 0) >= _quorum(factors.get(local or "", total))
    if level == "each_quorum" and "" not in factors:
        return all(reported.get(dc, 0) >= _quorum(factor) for dc, factor in factors.items())
    return everywhere >= (total if level == "all" else _quorum(total))


def are_all_replicas(factors: Mapping[str, int], nodes: Mapping[str, Collection[str]]) -> bool:
    """Return whether every node holds every partition, in all data centres: then no key's replicas are looked up."""
    if "" in factors:
        return sum(map(len, nodes.values())) <= factors[""]
    return all(len(members) <= factors.get(dc, 0) for dc, members in nodes.items())


def _quorum(factor: int) -> int:
    return factor // 2 + 1


def check_level(settings: ConnectorSettings, replicas: Replicas) -> None:
    """Raise HelenusError CONFIG if the keyspace can't give the gate's level."""
    level, local, factors = settings.gate, replicas.data_center or "", replicas.factors()
    if level == "one":
        return
    nodes = {dc: len(members) for dc, members in replicas.by_dc().items()}
    possible = {dc: min(factor, nodes.get(dc, 0) if dc else sum(nodes.values())) for dc, factor in factors.items()}
    if not replicas.is_by_dc and (level == "each_quorum" or (level == "local_quorum" and "" in factors)):
        reason = f"its replication knows no data centres; there are {', '.join(sorted(nodes))}"
        _refuse(settings, reason, "use NetworkTopologyStrategy, or gate=quorum")
    if level == "local_quorum" and local not in factors:
        reason = f"it has no replicas in {local}, the local data centre, only in {', '.join(sorted(factors))}"
        _refuse(settings, reason, "correct cassandra.local.dc, or the keyspace's replication")
    total = {"": sum(factors.values())}, {"": sum(possible.values())}
    required, available = {
        "local_quorum": ({local: factors.get(local, 0)}, possible),
        "each_quorum": (factors, possible),
    }.get(level, total)
    for dc, factor in required.items():
        needed = factor if level == "all" else _quorum(factor)
        if needed > available[dc]:
            reports = counted(needed, "replica") + (f" in {dc}" if dc else "")
            reason = f"it needs reports of {reports}, and {counted(available[dc], 'node')} can hold one"
            _refuse(settings, reason, "add nodes, lower the replication factor, or choose a lower level")


def _refuse(settings: ConnectorSettings, reason: str, advice: str) -> None:
    raise HelenusError(Kind.CONFIG, reason, f"gate={settings.gate}, keyspace {settings.keyspace}", advice)
