"""Connector modes: their settings, what their tables may be written with, and what is promised of their records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.chaos.topology import Topology

KEYSPACE = "chaos"
_JSON = {
    f"{side}.converter{setting}": value
    for side in ("key", "value")
    for setting, value in (("", "org.apache.kafka.connect.json.JsonConverter"), (".schemas.enable", "false"))
}
_ENVELOPES = {"resolver": "none", "output.format": "debezium", **_JSON}
_DIGEST = "schema_id,writetime,expires,origin,op,digest"
_ONCE = {"exactly.once.support": "required", "query.group": "once", "headers": _DIGEST}


@dataclass(frozen=True)
class Mode:
    """A mode of a connector, which has a table of its own."""

    name: str
    properties: Mapping[str, str] = field(default_factory=dict)
    has_cells: bool = False
    """The agents send its events with cells."""
    is_change: bool = False
    """Its records are changes, to be merged by write time, in any order; else they are rows, in order."""
    is_once: bool = False
    """A `read_committed` reader gets no record twice."""
    repeats_batches: bool = False
    """A batch that is done again after a kill has its records published as they were."""
    has_state: bool = False
    """A sink that ignores delete markers and TTLs has the table's rows. Its worker is of no group."""
    kinds: frozenset[str] | None = None
    """The kinds of statements that its table is written with; None: all."""
    data_centers: int = 1
    """It is for so many or more, with agents in all."""

    @property
    def table(self) -> str:
        return self.name.replace("-", "_")

    @property
    def topic_table(self) -> str:
        return f"{KEYSPACE}.{self.table}"

    @property
    def connector(self) -> str:
        return f"{KEYSPACE}-{self.table}"


_CONFIRMED = frozenset({"insert", "update", "columns", "row", "batch", "lwt", "add", "drop", "static"})
"""A read proves these: no change is believed for its age, so that a late copy of it is none."""
_MERGED = frozenset(
    "insert update columns row partition range static static_columns batch lwt logged collection add drop".split()
)
"""Not TRUNCATE: a change whose late report comes after it can't be told from one that was written after it."""
MODES = {
    mode.name: mode
    for mode in (
        Mode("reread"),
        Mode("none", {**_ENVELOPES, "headers": _DIGEST}, has_cells=True, is_change=True, kinds=_MERGED),
        Mode("state-keys", {"state": "keys", "query.group": "keys"}, has_state=True),
        Mode(
            "state-rows",
            {"state": "rows", "query.group": "rows", "snapshot.mode": "initial"},
            has_cells=True,
            repeats_batches=True,
            has_state=True,
        ),
        Mode("gate", {"gate": "local_quorum", "gate.timeout.ms": "60000"}),
        Mode("gate-each", {"gate": "each_quorum", "gate.timeout.ms": "60000"}, data_centers=2),
        Mode("once", {**_ONCE, "settle.min.age.ms": "60000"}, is_once=True, kinds=_CONFIRMED),
        Mode("once-none", {**_ENVELOPES, **_ONCE}, has_cells=True, is_change=True, is_once=True, kinds=_MERGED),
    )
}
DEFAULTS = {"settle.min.age.ms": "5000", "snapshot.mode": "never"}
"""`settle.min.age.ms` is far above any write here. What no read can prove is believed after ten times as long."""


def modes_for(topology: Topology) -> list[str]:
    """Return the names of the modes that a cluster may have."""
    data_centers = 1 if topology.has_local_agents else topology.data_centers
    return [mode.name for mode in MODES.values() if mode.data_centers <= data_centers]
