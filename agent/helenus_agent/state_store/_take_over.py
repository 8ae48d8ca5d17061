"""Takes a node's state over at a start: of the file and the row the one that is further, under a new owner.

Both hold positions that the broker has acknowledged, so neither can skip what was not sent. The older one costs
duplicates, and may lack a gap that nobody has reported yet. Which is newer no clock decides: rows and files have the
epoch of their owner, which counts up with each, and the version, which counts up with each save.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timezone

import structlog

from helenus_agent import metrics
from helenus_agent.node import saved_tables
from helenus_agent.positions import Positions
from helenus_agent.segments import gaps
from helenus_agent.state import DamagedPositions, StateDirectory, read
from helenus_agent.state_store._snapshot import Disk, StateSnapshot
from helenus_agent.state_store._state_table import StateRow, StateTable
from helenus_schemas.errors import HelenusError, Kind

_TRIES = 5  # of two agents that start at the same time each may meet the other's row
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class LocalNode:
    """Of whose log the state is: its cluster, tokens and disk, and the ids of the segments that lie in cdc_raw."""

    host_id: str
    cluster: str
    tokens: frozenset[str]
    disk: Disk
    segment_ids: Collection[int]


@dataclass(frozen=True)
class Ownership:
    """The epoch that this agent has, and the snapshot that the row holds."""

    epoch: int
    written: StateSnapshot


class RowNeeded(HelenusError):
    """The row is newer than the file and could not be taken over, or nobody knows whether it was."""


def read_file(state: StateDirectory, node: LocalNode) -> tuple[Positions | None, DamagedPositions | None]:
    """Return the positions in the file, None if there is none, or if it is damaged, with the error for that. Raises
    HelenusError for those of another node.
    """
    try:
        saved = read(state.directory)
    except DamagedPositions as error:
        return None, error
    return (None if saved is None else state.load(node.host_id, node.cluster, node.segment_ids)), None


def take_over(
    table: StateTable,
    state: StateDirectory,
    node: LocalNode,
    owner: uuid.UUID,
    saved: Positions | None,
    damage: DamagedPositions | None,
) -> Ownership:
    """Own the row, and have the state directory hold the newer state of both. Raises HelenusError, RowNeeded
    where the file alone would be outdated.
    """
    for _ in range(_TRIES):
        row = table.read()
        if row is None and damage is not None:
            raise damage
        content = None if row is None else _newer_content(table, row, saved)
        is_from_row = row is not None and content is not None
        if row is not None and content is not None:
            positions, tables = _restore(row, content, node, saved, damage, state)
        else:
            if row is None and saved is not None and saved.epoch and saved.host_id == node.host_id:
                _log.error("state.row_lost", where=table.where, then="the file goes on, and the row is written again")
            positions, tables = saved or Positions(node.host_id), _tables(state, row)
        epoch = max(row.epoch if row else 0, positions.epoch) + 1
        positions = replace(positions, owner=str(owner), epoch=epoch, version=positions.version + 1)
        snapshot = StateSnapshot.of_positions(positions, node.disk, tables)
        try:
            if row is None:
                is_owner = table.insert(owner, epoch, snapshot, node.tokens)
            else:
                is_owner = table.take_over(owner, row.epoch, epoch, snapshot, node.tokens)
            is_owner = is_owner or table.read_owner() == str(owner)
        except HelenusError as error:
            if is_from_row:
                raise RowNeeded(error.kind, error.what, error.where, error.advice) from None
            raise
        if is_owner:
            _write_files(state, positions, tables, damage if is_from_row else None)
            return Ownership(epoch, snapshot)
    raise HelenusError(
        Kind.NOT_OWNER,
        "other agents take over this node's state again and again",
        table.where,
        "one agent for each node: stop the others",
    )


def _newer_content(table: StateTable, row: StateRow, saved: Positions | None) -> StateSnapshot | None:
    """Return the state in a row that is newer than the file, None where the file goes on. Raises HelenusError if
    neither can be read.
    """
    if row.state is None:
        if saved is None:
            raise table.unreadable_error(row)
        _log.error("state.row_damaged", error=row.damage, then="the file goes on, and the row is replaced by it")
        return None
    return row.state if _is_newer(row, saved) else None


def _tables(state: StateDirectory, row: StateRow | None) -> str:
    """Return the tables of the file; of the row if the file is damaged or missing. Raises HelenusError."""
    saved_text = row.state.tables if row is not None and row.state is not None else ""
    try:
        saved_tables.load(state.directory)
    except HelenusError as error:
        if not saved_text:
            raise
        _log.error("state.tables_restored", error=error.what, then="the tables are those of agent_states")
        return saved_text
    text = saved_tables.read_text(state.directory)
    if not text and saved_text:
        _log.warning("state.tables_restored", error="there is no file", then="the tables are those of agent_states")
    return text or saved_text


def _is_newer(row: StateRow, saved: Positions | None) -> bool:
    """Return whether the row goes further than the file. Of one owner the file is written first."""
    if saved is None:
        return True
    if row.owner == saved.owner:
        return row.version > saved.version
    return row.epoch >= saved.epoch


def _restore(
    row: StateRow,
    content: StateSnapshot,
    node: LocalNode,
    saved: Positions | None,
    damage: DamagedPositions | None,
    state: StateDirectory,
) -> tuple[Positions, str]:
    """Return positions and tables of the row, and say that they come from there."""
    positions, disk = content.read()
    if saved is not None:  # nobody may have reported them yet, and a gap that is reported twice does no harm
        positions.gaps += [gap for gap in saved.gaps if gap not in positions.gaps]
    reason = "it is damaged" if damage else "there is none" if saved is None else "another agent went on since"
    _log.warning(
        "state.restored",
        file=str(state.directory),
        why=reason,
        saved_at=format_time(row.saved_at),
        epoch=row.epoch,
        version=row.version,
        then="what was sent after that is sent again",
    )
    if disk != node.disk and not positions.knows_segment(node.segment_ids):
        _note_lost_disk(positions, row.saved_at)
    return positions, content.tables


def _note_lost_disk(positions: Positions, saved_at: int) -> None:
    """Report that the node has another disk, with none of the segments that were to be read: what was not sent of them
    is a gap. Where a segment was read up to means nothing on the new one.
    """
    metrics.POSSIBLE_LOSS.inc()
    gaps.report_lost_disk(positions, format_time(saved_at))
    positions.segments, positions.reached, positions.listed = {}, (0, 0), 0


def _write_files(state: StateDirectory, positions: Positions, tables: str, damage: DamagedPositions | None) -> None:
    """Write tables first: a directory without positions is restored once more."""
    if damage is not None:
        _log.error("state.file_damaged", error=damage.what, kept_as=str(state.set_aside()))
    if tables and not _is_file(state, tables):
        saved_tables.write_text(state.directory, tables)
    state.save(positions)


def _is_file(state: StateDirectory, tables: str) -> bool:
    try:
        return saved_tables.read_text(state.directory) == tables
    except HelenusError:
        return False


def format_time(micros: int) -> str:
    """Return a time, µs since the epoch, as `--since` takes it; "never" for one that is no time."""
    try:
        return datetime.fromtimestamp(micros / 1e6, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "never"
