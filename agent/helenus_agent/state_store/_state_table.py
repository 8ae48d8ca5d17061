"""The table `agent_states`: a row for each node, which the agent that owns it replaces by compare-and-set."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cassandra import ConsistencyLevel

from helenus_agent.config import AgentSettings
from helenus_agent.control_keyspace import ControlKeyspace
from helenus_agent.state_store._snapshot import FORMAT, StateSnapshot, deflate, inflate
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.failpoints import reach

_TABLE = "agent_states"
_COLUMNS = (
    "host_id uuid PRIMARY KEY, owner uuid, epoch bigint, version bigint, format int, positions blob, tables blob, "
    "tokens frozen<set<text>>, is_closed boolean"
)
_DAMAGED = (
    "delete the row of this host_id in agent_states: the agent then reads again everything that is still in cdc_raw, "
    "and events arrive twice"
)


@dataclass(frozen=True)
class StateRow:
    """A row: its owner and that one's epoch, the version of the state, and when it was written, µs since the
    epoch by the clock of the node that took it. `state` is None where `damage` says why it can't be read.
    """

    owner: str
    epoch: int
    version: int
    saved_at: int
    state: StateSnapshot | None
    damage: str = ""


@dataclass(frozen=True)
class StateHead:
    """A row without its state, and whether it is closed: its node is gone."""

    host_id: uuid.UUID
    owner: uuid.UUID
    saved_at: int
    tokens: frozenset[str]
    is_closed: bool


@dataclass(frozen=True)
class RingView:
    """The node's ring: the host ids of all nodes, and the own tokens. `born`: when the node got its host id, µs since
    the epoch, None if that is not known.
    """

    host_ids: frozenset[uuid.UUID]
    tokens: frozenset[str]
    born: int | None


class StateTable(ControlKeyspace):
    """Reads and writes the row of one node. Raises HelenusError."""

    def __init__(self, settings: AgentSettings, host_id: uuid.UUID) -> None:
        super().__init__(settings, {_TABLE: _COLUMNS}, "state.store=cassandra")
        self.host_id = host_id
        self.where = f"{self._keyspace}.{_TABLE}, host_id {host_id}"
        self._name = f"{self._keyspace}.{_TABLE}"

    def read(self) -> StateRow | None:
        """Return the row, None if there is none. A write of which nobody knows whether it counts is decided by that."""
        query = (
            f"SELECT owner, epoch, version, format, positions, tables, WRITETIME(positions) AS saved_at "
            f"FROM {self._name} WHERE host_id = %s"
        )
        rows = self._execute(query, (self.host_id,), ConsistencyLevel.LOCAL_SERIAL)
        if not rows or rows[0].epoch is None:
            return None
        row, state, damage = rows[0], None, ""
        try:
            if row.format != FORMAT:
                raise ValueError(f"format {row.format}, this agent knows {FORMAT}")
            state = StateSnapshot(row.version, inflate(row.positions), inflate(row.tables))
            state.read()
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            state, damage = None, f"{type(error).__name__}: {error}"
        return StateRow(str(row.owner or ""), row.epoch, row.version or 0, row.saved_at or 0, state, damage)

    def read_owner(self) -> str:
        """Return who owns the row, empty if there is none."""
        rows = self._execute(f"SELECT owner FROM {self._name} WHERE host_id = %s", (self.host_id,))
        return str(rows[0].owner or "") if rows else ""

    def insert(self, owner: uuid.UUID, epoch: int, state: StateSnapshot, tokens: frozenset[str]) -> bool:
        """Make the row. Return False if there is one."""
        statement = (
            f"INSERT INTO {self._name} (host_id, owner, epoch, version, format, positions, tables, tokens, is_closed) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, false) IF NOT EXISTS"
        )
        blobs = FORMAT, deflate(state.positions), deflate(state.tables)
        return self._apply(statement, (self.host_id, owner, epoch, state.version, *blobs, tokens))

    def take_over(
        self, owner: uuid.UUID, previous_epoch: int, epoch: int, state: StateSnapshot, tokens: frozenset[str]
    ) -> bool:
        """Replace the row and its owner. Return False if it has not the previous epoch any more."""
        statement = (
            f"UPDATE {self._name} SET owner = %s, epoch = %s, version = %s, format = %s, positions = %s, tables = %s, "
            "tokens = %s, is_closed = false WHERE host_id = %s IF epoch = %s"
        )
        blobs = FORMAT, deflate(state.positions), deflate(state.tables)
        return self._apply(statement, (owner, epoch, state.version, *blobs, tokens, self.host_id, previous_epoch))

    def save(self, owner: uuid.UUID, state: StateSnapshot, with_tables: bool) -> bool:
        """Replace the state, its tables too if they are other ones. Return False if the row has another owner, or is
        gone.
        """
        tables = ", tables = %s" if with_tables else ""
        blobs = [deflate(state.positions), *([deflate(state.tables)] if with_tables else [])]
        statement = f"UPDATE {self._name} SET version = %s, positions = %s{tables} WHERE host_id = %s IF owner = %s"
        return self._apply(statement, (state.version, *blobs, self.host_id, owner))

    def heads(self) -> list[StateHead]:
        """Return the rows of all nodes, without their states."""
        query = f"SELECT host_id, owner, WRITETIME(positions) AS saved_at, tokens, is_closed FROM {self._name}"
        return [
            StateHead(row.host_id, row.owner, row.saved_at or 0, frozenset(row.tokens or ()), bool(row.is_closed))
            for row in self._execute(query)
            if row.owner is not None
        ]

    def close_row(self, head: StateHead) -> bool:
        """Note that a row's node is gone. Return False if somebody else has, or the row has another owner."""
        statement = f"UPDATE {self._name} SET is_closed = true WHERE host_id = %s IF is_closed = false AND owner = %s"
        return self._apply(statement, (head.host_id, head.owner))

    def ring(self) -> RingView:
        """Return the ring as the node sees it."""
        local = self._execute(
            "SELECT host_id, tokens, WRITETIME(host_id) AS born FROM system.local WHERE key = 'local'",
            level=ConsistencyLevel.ONE,
        )[0]
        peers = self._execute("SELECT host_id FROM system.peers", level=ConsistencyLevel.ONE)
        host_ids = frozenset(row.host_id for row in (local, *peers) if row.host_id is not None)
        return RingView(host_ids, frozenset(local.tokens or ()), local.born)

    def unreadable_error(self, row: StateRow) -> HelenusError:
        """Return the error for a row whose state can't be read, and that is needed."""
        return HelenusError(
            Kind.STATE, f"the agent's state in Cassandra is damaged ({row.damage})", self.where, _DAMAGED
        )

    def _apply(self, statement: str, values: Sequence[Any]) -> bool:
        """Return whether a conditional statement was applied."""
        reach("state-store.before-write")
        is_applied = bool(self._execute(statement, values)[0][0])
        reach("state-store.after-write")
        return is_applied
