"""Which keys are read together, in which order, and for how long.

Truncations come first, then markers, then rows: no record shows an older read than one before.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from helenus_connector.cassandra_rows.row_reader import UnreadReason
from helenus_connector.interfaces.resolver import SchemaChanged
from helenus_connector.reread._key_read import KeyRead
from helenus_connector.reread._marker_reads import read_scope_again, read_scopes, read_truncation
from helenus_connector.reread._read_pass import PROOF_S, ReadPass, ResolvedGroups
from helenus_connector.reread._row_answers import read_rows
from helenus_connector.reread._row_reads import group_by_level
from helenus_connector.reread._unread_keys import UnreadKeys
from helenus_schemas.codec.key import Key
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Scope

_ROW, _TABLE = Scope.ROW, Scope.TABLE  # an enum's members are slow to look up
_VERIFY_S = 5.0
"""How long reads may take that verify changes at the gate's level: longer than those that confirm, since such a change
is not published until then; not for long, as replicas may be down."""


class ReadTurns(NamedTuple):
    """Which keys are read together: truncations one by one; `markers` by (turn, verifies changes, is stuck, consistency
    level); `rows` by (verifies changes, is stuck, consistency level).
    """

    truncations: list[KeyRead]
    markers: dict[tuple[int, bool, bool, int], list[KeyRead]]
    rows: dict[tuple[bool, bool, int], list[KeyRead]]


def order_reads(
    key_reads: Sequence[KeyRead], is_clustered: bool, partition_columns: int, unread_keys: UnreadKeys
) -> ReadTurns:
    """Divide reads by which are read together. `is_clustered` says that the table has clustering columns."""
    turns = ReadTurns([], {}, {})
    markers_by_partition: dict[Key, int] = defaultdict(int)
    rows_by_level: dict[int, list[KeyRead]] = {}
    others: Sequence[KeyRead] = key_reads
    if not unread_keys.has_stuck:
        rows_by_level, others = group_by_level(key_reads, is_clustered)
    for consistency, members in rows_by_level.items():
        turns.rows[False, False, consistency] = members
    for key_read in sorted(others, key=attrgetter("scope"), reverse=True):
        is_stuck, consistency = unread_keys.is_stuck(key_read), key_read.consistency
        verifies = key_read.verifying is not None  # read apart: given up soon if replicas are down
        if key_read.scope is _TABLE:
            turns.truncations.append(key_read)
        elif key_read.scope is _ROW or not is_clustered:
            turns.rows.setdefault((verifies, is_stuck, consistency), []).append(key_read)
        else:
            # Markers of one partition take turns, since their scopes may share rows.
            partition = key_read.values[:partition_columns]
            turn = markers_by_partition[partition]
            turns.markers.setdefault((turn, verifies, is_stuck, consistency), []).append(key_read)
            markers_by_partition[partition] += 1
    return turns


def read_turns(read_pass: ReadPass, turns: ReadTurns) -> ResolvedGroups:
    """Read keys in the order of their turns, and yield them as `ResolverBatch.resolve` does."""
    # 1. truncations
    for key_read in turns.truncations:
        yield from _read_or_wait(read_pass, [key_read], partial(read_truncation, read_pass, key_read))
    # 2. markers
    for (_, _, is_stuck, _), members in sorted(turns.markers.items(), key=lambda item: item[0][:3]):
        partly_published: list[tuple[KeyRead, HelenusError]] = []
        read = partial(read_scopes, read_pass, members, partly_published)
        yield from _read_or_wait(read_pass, members, read, is_stuck)
        for key_read, error in partly_published:
            yield from read_scope_again(read_pass, key_read, error)
    # 3. rows
    for (_, is_stuck, consistency), members in sorted(turns.rows.items(), key=lambda item: item[0][:2]):
        yield from _read_or_wait(read_pass, members, partial(read_rows, read_pass, members, consistency), is_stuck)


def _read_or_wait(
    read_pass: ReadPass, key_reads: Sequence[KeyRead], read: Callable[[], ResolvedGroups], is_stuck: bool = False
) -> ResolvedGroups:
    """Read keys with `read`. If all of them can wait for a later batch, a read error leaves them unread instead of
    failing this one; they have 2 s, and if that was not enough, no others that can wait are read at their level. Stuck
    keys are read one by one, and a read error leaves them unread too.
    """
    reader, consistency = read_pass.reader, key_reads[0].consistency
    # Keys without events of this batch are due keys, which go on waiting, or verify changes, which wait at the gate.
    can_wait = not any(key_read.events for key_read in key_reads)
    if can_wait and not is_stuck and consistency in read_pass.unavailable_levels:
        return
    verifies = key_reads[0].verifying is not None
    if is_stuck or verifies:
        reader.retry_deadline = time.monotonic() + (_VERIFY_S if verifies else PROOF_S)
    else:
        reader.retry_deadline = read_pass.proof_deadline if can_wait else math.inf
    reader.reads_singly = is_stuck
    try:
        yield from read()
    except HelenusError as error:
        if error.kind is not Kind.CASSANDRA_READ or not (can_wait or is_stuck):
            raise
        for key_read in key_reads:
            if key_read.read_at is None:
                read_pass.unread_keys.note(key_read, UnreadReason(error, True))
        if not is_stuck and time.monotonic() > read_pass.proof_deadline:
            read_pass.unavailable_levels.add(consistency)
    except SchemaChanged:
        # If the definition is current, it was not altered: something else refuses the read, such as a guardrail on the
        # consistency level. That is no reason to fail the batch for keys that can wait.
        if not can_wait or not reader.is_current:
            raise
        read_pass.unavailable_levels.add(consistency)
    finally:
        reader.reads_singly = False
