"""The agent's state in two places: the state directory, which every commit writes, and behind it the table.

A thread of its own writes the copy: nothing of the agent waits for it but the removal of a segment from cdc_raw, which
a row that still names the segment as unread would take for a loss. While Cassandra does not take the copy, the agent
goes on with its file, and says so.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Collection
from pathlib import Path

import structlog

from helenus_agent import metrics
from helenus_agent.config import AgentSettings
from helenus_agent.node import saved_tables
from helenus_agent.node.cassandra import Node
from helenus_agent.positions import Positions
from helenus_agent.state import StateDirectory
from helenus_agent.state_store._lost_nodes import LostNodes
from helenus_agent.state_store._snapshot import Disk, StateSnapshot
from helenus_agent.state_store._state_table import RingView, StateTable
from helenus_agent.state_store._take_over import LocalNode, Ownership, RowNeeded, read_file, take_over
from helenus_schemas.errors import HelenusError, Kind

_URGENT_S = 1.0  # s between two writes of what is urgent
_CHECK_S = 30.0  # s without a write after which the row's owner is asked for
_CLOSE_S = 3.0  # s for the last write
_NO_LOG = "followed paused truncated gaps refused cdc_off deletes dropped cluster transactional host_id".split()
"""What of the positions reading the log again does not bring back."""
_log = structlog.get_logger(__name__)


class StateStore:
    """The copy of one run of an agent. The agent's thread calls all but what the own thread does."""

    def __init__(
        self,
        settings: AgentSettings,
        state: StateDirectory,
        node: Node,
        raw: Path,
        segment_ids: Collection[int],
    ) -> None:
        self._table = StateTable(settings, node.host_id)
        self._state = state
        self._cassandra_node = node
        self._raw = raw
        self._segment_ids = segment_ids
        self._interval_s = settings.state_store_interval_ms / 1000
        self._owner = uuid.uuid4()
        self._disk = Disk(0, 0)
        self._lost_nodes: LostNodes | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._is_closing = self._is_file_outdated = False
        self._ownership: Ownership | None = None
        self._epoch = 0
        self._offered: StateSnapshot | None = None
        self._written_at = 0.0
        self._failure = ""
        self._stop_error: HelenusError | None = None
        self._tables = "", (0, 0)
        self._unlogged = self._offered_unlogged = ""
        self._is_urgent = self._is_due = False
        self._finished: dict[int, int] = {}
        self._thread = threading.Thread(target=self._write_all, name="state", daemon=True)

    # The start.

    def start(self) -> None:
        """Take the state over. Without an answer a file that is there goes on alone, until there is one, unless the row
        was seen to be newer. Raises HelenusError, and may be called again then.
        """
        saved, damage = None, None
        try:
            node = self._read_node()
            saved, damage = read_file(self._state, node)
            if saved is not None and saved.host_id != node.host_id and self._lost_nodes is not None:
                self._lost_nodes.former_id = saved.host_id
            self._ownership = take_over(self._table, self._state, node, self._owner, saved, damage)
            self._epoch = self._ownership.epoch
        except HelenusError as error:
            if saved is None:
                with contextlib.suppress(HelenusError):
                    saved, damage = read_file(self._state, self._node_without_ring())
            # A row that is replaced by an outdated file would forget gaps that are in it alone.
            self._is_file_outdated = self._is_file_outdated or isinstance(error, RowNeeded)
            if saved is None or self._is_file_outdated or error.kind in (Kind.STATE, Kind.NOT_OWNER):
                raise
            if not saved.epoch and error.kind in (Kind.CONFIG, Kind.CASSANDRA_AUTH):
                raise  # it never was copied: somebody is setting this up, and should see why it does not work
            self._epoch = saved.epoch + 1
            self._note_failure(error)
        self._written_at = time.monotonic()
        self._thread.start()

    def _read_node(self) -> LocalNode:
        ring = self._table.ring()
        self._disk = Disk.of_node(ring.born, self._raw)
        self._lost_nodes = LostNodes(self._table, ring.tokens)
        return self._node_without_ring(ring)

    def _node_without_ring(self, ring: RingView | None = None) -> LocalNode:
        node, tokens = self._cassandra_node, ring.tokens if ring else frozenset[str]()
        return LocalNode(str(node.host_id), node.cluster, tokens, self._disk, self._segment_ids)

    # What the agent's thread calls.

    def stamp(self, positions: Positions, has_events: bool) -> None:
        """Give positions that are about to be saved their owner, and a version of their own if they are to be copied.
        Without events, and with nothing that no log shows, they are not: the agent's own writes are in the log, too.
        Raises as `check`.
        """
        self.check()
        self._unlogged = json.dumps([getattr(positions, name) for name in _NO_LOG] + positions.done[-1:], default=vars)
        self._is_urgent = self._unlogged != self._offered_unlogged
        self._is_due = self._is_urgent or has_events
        positions.owner, positions.epoch = str(self._owner), self._epoch
        positions.version += self._is_due

    def offer(self, positions: Positions) -> None:
        """Have positions that are saved in the file copied, if `stamp` gave them a version."""
        if not self._is_due:
            return
        self._offered_unlogged = self._unlogged
        stamp = saved_tables.file_stamp(self._state.directory)
        if stamp != self._tables[1]:
            self._tables = saved_tables.read_text(self._state.directory), stamp
        snapshot = StateSnapshot.of_positions(positions, self._disk, self._tables[0], self._is_urgent)
        with self._lock:
            if self._offered is not None and self._offered.is_urgent and self._is_unwritten(self._offered):
                snapshot = StateSnapshot(snapshot.version, snapshot.positions, snapshot.tables, True)
            self._offered = snapshot
        self._wake.set()

    def check(self) -> None:
        """Raise HelenusError(NOT_OWNER) if another agent has taken over the state."""
        if self._stop_error is not None:
            raise self._stop_error

    def note_finished(self, segment_ids: Collection[int], version: int) -> None:
        """Remember from which version on these segments are known as read."""
        self._finished = {number: self._finished.get(number, version) for number in segment_ids}

    def is_removal_due(self, segment_id: int) -> bool:
        """Return whether a segment may be removed, or the row is not known to know it as read because no save was."""
        return segment_id not in self._finished or self.may_remove(segment_id)

    def may_remove(self, segment_id: int) -> bool:
        """Return whether the row knows that a segment is read, or nobody can tell it."""
        version = self._finished.get(segment_id)
        if self._failure:
            return version is not None
        return version is not None and self._ownership is not None and self._ownership.written.version >= version

    def close(self) -> None:
        """Write the last state, and disconnect."""
        self._is_closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)
        self._table.close()

    # The thread.

    def _write_all(self) -> None:
        while True:
            self._wake.clear()
            snapshot, wait_s = self._next_write()
            if wait_s > 0 and not self._is_closing:
                self._wake.wait(wait_s)
                continue
            is_last = self._is_closing
            if snapshot is None and is_last:
                return
            self._run_step(snapshot)
            if self._stop_error is not None or is_last:
                return

    def _next_write(self) -> tuple[StateSnapshot | None, float]:
        """Return what to write next, None if nothing is new, and in how many s to write it, or look at the row."""
        with self._lock:
            snapshot = self._offered
        since_s = time.monotonic() - self._written_at
        if snapshot is None or not self._is_unwritten(snapshot):
            return None, _CHECK_S - since_s
        is_urgent = snapshot.is_urgent and not self._failure
        return snapshot, (min(_URGENT_S, self._interval_s) if is_urgent else self._interval_s) - since_s

    def _is_unwritten(self, snapshot: StateSnapshot) -> bool:
        return self._ownership is None or self._ownership.written.version < snapshot.version

    def _run_step(self, snapshot: StateSnapshot | None) -> None:
        try:
            if self._ownership is None:
                self._ownership = self._take_over_late(snapshot)
            elif snapshot is not None:
                self._save(self._ownership, snapshot)
            else:
                self._check_row(self._ownership)
            if self._ownership is not None:
                self._note_success()
            if self._lost_nodes is not None and not self._is_closing:
                with contextlib.suppress(HelenusError):  # it looks again later
                    self._lost_nodes.look()
        except HelenusError as error:
            if error.kind is Kind.NOT_OWNER:
                self._stop_error = error
            else:
                self._note_failure(error)
        except Exception as error:  # it has to go on
            self._note_failure(error)
        self._written_at = time.monotonic()

    def _take_over_late(self, snapshot: StateSnapshot | None) -> Ownership | None:
        """Own the row as at a start, now that Cassandra answers. One that another agent has written meanwhile is newer
        than what this one goes by. Raises HelenusError(NOT_OWNER) for that.
        """
        node = self._read_node()
        if snapshot is None:
            return None
        positions, _ = snapshot.read()
        row = self._table.read()
        if row is not None and row.owner != str(self._owner) and row.epoch >= positions.epoch:
            raise self._not_owner_error()
        epoch = max(row.epoch if row else 0, positions.epoch)
        if row is None:
            is_owner = self._table.insert(self._owner, epoch, snapshot, node.tokens)
        else:
            is_owner = self._table.take_over(self._owner, row.epoch, epoch, snapshot, node.tokens)
        return Ownership(epoch, snapshot) if is_owner else None

    def _save(self, ownership: Ownership, snapshot: StateSnapshot) -> None:
        with_tables = snapshot.tables != ownership.written.tables
        if not self._table.save(self._owner, snapshot, with_tables):
            self._write_again(ownership, snapshot)
        metrics.STATE_STORE_WRITES.inc()
        self._ownership = Ownership(ownership.epoch, snapshot)

    def _check_row(self, ownership: Ownership) -> None:
        if self._table.read_owner() != str(self._owner):
            self._write_again(ownership, ownership.written)

    def _write_again(self, ownership: Ownership, snapshot: StateSnapshot) -> None:
        """Write a row that is gone anew. Raises HelenusError(NOT_OWNER) if there is one, of another owner. One of this
        owner's is an earlier one, of a write whose answer was lost.
        """
        row = self._table.read()
        if row is not None and row.owner != str(self._owner):
            raise self._not_owner_error()
        if row is None:
            _log.error("state.row_lost", where=self._table.where, then="the file goes on, and the row is written again")
            tokens = self._table.ring().tokens
            is_written = self._table.insert(self._owner, ownership.epoch, snapshot, tokens)
        else:
            is_written = self._table.save(self._owner, snapshot, with_tables=True)
        if not is_written:
            raise self._not_owner_error()

    def _not_owner_error(self) -> HelenusError:
        message = "another agent has taken over the state of this node"
        advice = (
            "two agents are started for one node, and the last one goes on: leave this one stopped, or stop that one"
        )
        return HelenusError(Kind.NOT_OWNER, message, self._table.where, advice)

    def _note_success(self) -> None:
        if self._failure:
            _log.info("state.copied", where=self._table.where)
        self._failure = ""
        metrics.STATE_STORE_FAILING.set(0)

    def _note_failure(self, error: Exception) -> None:
        reason = str(error) if isinstance(error, HelenusError) else f"{type(error).__name__}: {error}"
        if not self._failure:
            then = "the agent goes on with the file in state.dir, and writes the copy once it can"
            _log.warning("state.not_copied", error=reason, then=then)
        self._failure = reason
        metrics.STATE_STORE_FAILING.set(1)
