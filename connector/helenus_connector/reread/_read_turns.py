"""What is read together, in which order, and for how long.

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
from helenus_connector.reread._attempt import PROOF_S, ReadAttempt, ResolvedGroups
from helenus_connector.reread._key_read import KeyRead
from helenus_connector.reread._marker_reads import read_scopes, read_statics, read_truncation
from helenus_connector.reread._row_answers import read_rows
from helenus_connector.reread._row_reads import group_by_level
from helenus_connector.reread._unread_keys import UnreadKeys
from helenus_schemas.codec.key import Key
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Scope

_ROW, _TABLE = Scope.ROW, Scope.TABLE  # an enum's members are slow to look up
_VERIFY_S = 5.0
"""How long reads may take that ask whether a change is at the gate's level: longer than those that confirm, since the
change is not published until then; not for long, as replicas may be away."""


class ReadTurns(NamedTuple):
    """What is read together: truncations one by one; markers by their turn, whether they verify changes or are stuck,
    and their level; rows by all of these but the turn.
    """

    tables: list[KeyRead]
    scopes: dict[tuple[int, bool, bool, int], list[KeyRead]]
    rows: dict[tuple[bool, bool, int], list[KeyRead]]


def order_reads(
    key_reads: Sequence[KeyRead], is_clustered: bool, partition_columns: int, unread: UnreadKeys
) -> ReadTurns:
    """Divide reads by what is read together, of a table whose rows are clustered in partitions or not."""
    turns = ReadTurns([], {}, {})
    scope_counts: dict[Key, int] = defaultdict(int)
    ordinary: dict[int, list[KeyRead]] = {}
    others: Sequence[KeyRead] = key_reads
    if not unread.has_stuck:
        ordinary, others = group_by_level(key_reads, is_clustered)
    for consistency, members in ordinary.items():
        turns.rows[False, False, consistency] = members
    for key_read in sorted(others, key=attrgetter("scope"), reverse=True):
        is_stuck, consistency = unread.is_stuck(key_read), key_read.consistency
        verifies = key_read.verifying is not None  # apart, as these are given up soon when replicas are away
        if key_read.scope is _TABLE:
            turns.tables.append(key_read)
        elif key_read.scope is _ROW or not is_clustered:
            turns.rows.setdefault((verifies, is_stuck, consistency), []).append(key_read)
        else:
            # What lies within the same partition is read one after the other: rows of it may be in both.
            partition = key_read.values[:partition_columns]
            turn = scope_counts[partition]
            turns.scopes.setdefault((turn, verifies, is_stuck, consistency), []).append(key_read)
            scope_counts[partition] += 1
    return turns


def read_turns(attempt: ReadAttempt, turns: ReadTurns) -> ResolvedGroups:
    """Read keys in the order of their turns, and yield them as `ResolverBatch.resolve` does."""
    # 1. truncations
    for key_read in turns.tables:
        yield from _read_or_wait(attempt, [key_read], partial(read_truncation, attempt, key_read))
    # 2. markers
    for (_, _, is_stuck, _), members in sorted(turns.scopes.items(), key=lambda item: item[0][:3]):
        cut: list[tuple[KeyRead, HelenusError]] = []
        yield from _read_or_wait(attempt, members, partial(read_scopes, attempt, members, cut), is_stuck)
        for key_read, error in cut:
            yield from read_statics(attempt, key_read, error)
    # 3. rows
    for (_, is_stuck, consistency), members in sorted(turns.rows.items(), key=lambda item: item[0][:2]):
        yield from _read_or_wait(attempt, members, partial(read_rows, attempt, members, consistency), is_stuck)


def _read_or_wait(
    attempt: ReadAttempt, key_reads: Sequence[KeyRead], read: Callable[[], ResolvedGroups], is_stuck: bool = False
) -> ResolvedGroups:
    """Read keys. Those that are read to be confirmed alone give up after 2 s instead of failing the batch, and none
    more is read at their level when that took long. Those that are stuck are read one by one, and wait too.
    """
    reader, consistency = attempt.reader, key_reads[0].consistency
    only_confirms = not any(key_read.events for key_read in key_reads)
    if only_confirms and not is_stuck and consistency in attempt.unreached:
        return
    verifies = key_reads[0].verifying is not None
    if is_stuck or verifies:
        reader.until = time.monotonic() + (_VERIFY_S if verifies else PROOF_S)
    else:
        reader.until = attempt.proof_deadline if only_confirms else math.inf
    reader.is_single = is_stuck
    try:
        yield from read()
    except HelenusError as error:
        if error.kind is not Kind.CASSANDRA_READ or not (only_confirms or is_stuck):
            raise
        for key_read in key_reads:
            if key_read.read_at is None:
                attempt.unread.note(key_read, UnreadReason(error, True))
        if not is_stuck and time.monotonic() > attempt.proof_deadline:
            attempt.unreached.add(consistency)
    except SchemaChanged:
        # Or a guardrail refuses the level, say: that is no reason to stop.
        if not only_confirms or not reader.is_current:
            raise
        attempt.unreached.add(consistency)
    finally:
        reader.is_single = False
