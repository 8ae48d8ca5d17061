"""The rings that a cluster's nodes report, read from `system.local` and `system.peers_v2`.

    nodetool move on node 2 → within five seconds a reading differs, and is the ring from then on

The driver's token map does not show a move of a node that is up: it rebuilds the map when nodes come and go. So the
ring is read here, from one node after the other. Nodes learn of a change at different times, and may disagree for long
in a cluster that is not well: a ring that was read lately is remembered beside the latest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, proxy

import structlog
from cassandra import DriverException, InvalidRequest
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.query import SimpleStatement

from helenus_connector.gate._ring import Ring, RingNode
from helenus_schemas.errors import HelenusError, Kind

_log = structlog.get_logger(__name__)
INTERVAL_S = 5.0
"""How often the ring is read while batches run. Two reads of local tables: some hundred rows at most."""
_COST_FACTOR = 100
"""A large ring is read more rarely: after this many times what its reading took, so 1 % of the time at most."""
SETTLED_S = 60.0
"""For how long a ring that was read counts as possible after another was read: nodes hear of a change by gossip within
seconds, and Cassandra itself waits 30 s (`ring_delay`) until all have.
"""
_STALE_S = 60.0
"""After this long without a reading there is no telling who holds what."""
_TIMEOUT_S = 2.0
_MAX_RINGS = 16
"""That are remembered. Each change of the ring makes one; a join or a move takes minutes."""
_LOCAL = SimpleStatement(
    "SELECT host_id, data_center, rack, partitioner, tokens FROM system.local WHERE key = 'local'", is_idempotent=True
)
_PEERS = SimpleStatement("SELECT host_id, data_center, rack, tokens FROM system.peers_v2", is_idempotent=True)
_PEERS_BEFORE_4 = SimpleStatement("SELECT host_id, data_center, rack, tokens FROM system.peers", is_idempotent=True)
_ADVICE = "check that a node of cassandra.local.dc answers"
_DISAGREEMENT = "compare `nodetool ring` of the nodes; restart one that still has the old ring"


@dataclass(slots=True)
class _Reading:
    """A ring, and when it was read for the last time, s by the reader's clock."""

    ring: Ring
    read_at: float


class RingReader:
    """Reads the ring of one session's cluster. For one thread. `clock` is one that nobody sets, in s."""

    def __init__(self, session: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._clock = clock
        self._readings: list[_Reading] = []  # the latest first
        self._due_at = self._alternates_since = float("-inf")
        self._driver_nodes: list[tuple[object, str | None]] = []
        self._rebuild_at: float | None = None
        self._has_peers_v2 = True
        self._is_warned = False

    @property
    def latest(self) -> Ring:
        """The ring as it was read last. Raises HelenusError CASSANDRA_READ if none was read."""
        if not self._readings:
            self.follow()
        return self._readings[0].ring

    def recent(self, seconds: float) -> list[Ring]:
        """Return the latest ring, then the others that nodes had so many seconds ago or later."""
        if len(self._readings) < 2:
            return [self.latest]
        oldest = self._readings[0].read_at - seconds
        return [reading.ring for reading in self._readings if reading.read_at >= oldest]

    def follow(self) -> None:
        """Read the ring if it is time, or if the driver has seen nodes come or go.

        Raises HelenusError CASSANDRA_READ if it could not be read for a minute.
        """
        now = self._clock()
        hosts = self._session.cluster.metadata.all_hosts()
        # Each table does so in each batch.
        driver_nodes = [(host.host_id, host.datacenter) for host in hosts]
        if now < self._due_at and driver_nodes == self._driver_nodes:
            return
        self._driver_nodes = driver_nodes
        try:
            ring = self._read()
        except (DriverException, NoHostAvailable, ConnectionException, ValueError) as error:
            self._due_at = self._clock() + INTERVAL_S
            if not self._readings or now - self._readings[0].read_at > _STALE_S:
                reason = f"cannot read the ring from system.local and system.peers_v2: {error}"
                raise HelenusError(Kind.CASSANDRA_READ, reason, _name(self._session), _ADVICE) from None
            return
        read_at = self._clock()
        self._due_at = read_at + max(INTERVAL_S, _COST_FACTOR * (read_at - now))
        self._note_ring(ring, read_at)

    def _note_ring(self, ring: Ring, read_at: float) -> None:
        current = next((reading for reading in self._readings if reading.ring == ring), None)
        if current is None:
            current = _Reading(ring, read_at)
        elif current is not self._readings[0]:
            self._note_disagreement(read_at)
        current.read_at = read_at
        if not self._readings or current is not self._readings[0]:
            self._readings = [current, *(reading for reading in self._readings if reading is not current)][:_MAX_RINGS]
            self._rebuild_token_map()
            # Once more, when the node that the driver asks has heard of it too.
            self._rebuild_at = read_at + SETTLED_S
        elif self._rebuild_at is not None and read_at >= self._rebuild_at:
            self._rebuild_at = None
            self._is_warned = False
            self._rebuild_token_map()

    def _note_disagreement(self, now: float) -> None:
        """Nodes have different rings. That is so for seconds after each change; if it stays so, someone must know."""
        if now - self._alternates_since > 10 * SETTLED_S:
            self._alternates_since = now
        elif now - self._alternates_since > SETTLED_S and not self._is_warned:
            self._is_warned = True
            does = "a change counts as reported by enough replicas if one of these rings says so"
            _log.warning("ring.disagreement", cluster=_name(self._session), does=does, advice=_DISAGREEMENT)

    def _rebuild_token_map(self) -> None:
        """Have the driver send reads to the replicas of now."""
        with suppress(DriverException, NoHostAvailable, ConnectionException):
            self._session.cluster.refresh_nodes(force_token_rebuild=True)

    def _read(self) -> Ring:
        """Read the ring as one node has it, another one each time. Raises as the driver, and ValueError."""
        answer = self._session.execute(_LOCAL, timeout=_TIMEOUT_S)
        node, local = answer.response_future.coordinator_host, answer.one()
        if local is None or not local.tokens:
            raise ValueError("a node has no tokens yet")
        return Ring(local.partitioner, _tokens([local, *self._peers(node)]))

    def _peers(self, node: Any) -> Iterable[Any]:
        if self._has_peers_v2:
            try:
                return self._session.execute(_PEERS, timeout=_TIMEOUT_S, host=node)  # type: ignore[no-any-return]
            except InvalidRequest:  # Cassandra 3.11
                self._has_peers_v2 = False
        return self._session.execute(_PEERS_BEFORE_4, timeout=_TIMEOUT_S, host=node)  # type: ignore[no-any-return]


def _tokens(rows: Iterable[Any]) -> dict[RingNode, Iterable[str]]:
    """The tokens of nodes. One that is joining may be listed without tokens: it holds nothing that is read yet."""
    return {
        RingNode(str(row.host_id), row.data_center, row.rack or ""): row.tokens
        for row in rows
        if row.tokens and row.host_id and row.data_center
    }


def _name(session: Any) -> str:
    return f"cluster {getattr(session.cluster.metadata, 'cluster_name', None) or 'without a name'}"


_readers: WeakKeyDictionary[Any, RingReader] = WeakKeyDictionary()


def reader_for(session: Any) -> RingReader:
    """Return the reader of a session: one for all tables that are read by it."""
    reader = _readers.get(session)
    if reader is None:
        reader = _readers[session] = RingReader(proxy(session))  # else it would keep a session that is closed
    return reader
