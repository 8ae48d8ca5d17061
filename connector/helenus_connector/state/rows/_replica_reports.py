"""Which row and mutation an event names, before its change is decoded: copies, as most events are, are known by that.

event of `UPDATE … WHERE k = 7` → ReplicaReport(name=b"r" + key, mutation=<12 bytes of its digest>, change=None)

It runs as it is, and compiled by Cython with the types of `_replica_reports.pxd`: the results are the same.
"""

from __future__ import annotations

from binascii import unhexlify
from typing import NamedTuple

from helenus_connector.gate.event_content import decode_event
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.merged_change import GapEvent
from helenus_connector.state.rows._row import MUTATION_BYTES
from helenus_connector.state.rows._row_store import PARTITION_PREFIX, ROW_PREFIX, STATIC_PREFIX
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.event.change import Change, Scope
from helenus_schemas.event.own_format import Match, match_own_format

COMPILED = not __file__.endswith(".py")
_ROW, _STATIC, _PARTITION = Scope.ROW, Scope.STATIC, Scope.PARTITION
_ROW_INT, _STATIC_INT = b"\0", b"\2"
"""The scopes ROW and STATIC in the bytes of an event, as `Match.scope` returns them: Avro ints."""
_ROW_PREFIX, _MUTATION_BYTES = ROW_PREFIX, MUTATION_BYTES
_new = tuple.__new__


class ReplicaReport(NamedTuple):
    """An event that names one key: the row's name in the store, the first bytes of its mutation's digest, and its
    change, which is not decoded yet if the mutation may be a copy. `node` is the one that reports it, as bytes, if it
    is one of our agents', and `match` what was found of it then.
    """

    event: Event
    name: bytes
    key: bytes
    mutation: bytes | None
    change: Change | None
    node: bytes | None = None
    match: Match | None = None


class ReplicaReports:
    """Makes reports of events, for one version of a table. A table may have no partitions: then each is a row."""

    def __init__(self, codec: KeyCodec, has_partitions: bool) -> None:
        self._codec, self._has_partitions = codec, has_partitions
        self._keeps_keys = not codec.may_grow

    def for_event(self, event: Event) -> ReplicaReport | GapEvent:
        """Return the report of an event, unless it reports a gap. Raises Malformed, and Outgrown for a key of another
        table of this name.
        """
        event_key, value = event[4], event[5]
        match = match_own_format(value) if value and event_key is not None else None
        if match is not None and event_key is not None:
            key, scope = event_key if self._keeps_keys else self._codec.current_key(event_key), match.scope
            prefix = STATIC_PREFIX if scope == _STATIC_INT else _ROW_PREFIX if scope == _ROW_INT else PARTITION_PREFIX
            digest = match.digest
            name, mutation = prefix + key, unhexlify(digest)[:_MUTATION_BYTES]
            if not self._has_partitions:
                name = _ROW_PREFIX + key
                if prefix == PARTITION_PREFIX:
                    mutation = _partition_mutation(digest)
            return _new(ReplicaReport, (event, name, key, mutation, None, match.node, match))
        change, key = decode_event(event, self._codec)
        if change.scope is Scope.GAP:
            return GapEvent(event)
        prefix = {_ROW: ROW_PREFIX, _STATIC: STATIC_PREFIX}.get(change.scope, PARTITION_PREFIX)
        if not self._has_partitions and change.scope is _PARTITION:
            prefix = ROW_PREFIX
        is_row_partition = prefix == ROW_PREFIX and change.scope is _PARTITION
        return ReplicaReport(event, prefix + key, key, _mutation_digest(change, is_row_partition), change)


def _mutation_digest(change: Change, is_row_partition: bool) -> bytes | None:
    """Return the bytes of a digest that `CellRow.recent_mutations` has; None if it is none of an agent's."""
    if not change.node or not change.digest or len(change.digest) != 32:
        return None
    try:
        digest = unhexlify(change.digest)
    except ValueError:
        return None
    return _partition_mutation(change.digest.encode()) if is_row_partition else digest[:MUTATION_BYTES]


def _partition_mutation(digest: bytes) -> bytes:
    """Return the bytes that name the delete of a partition that is one row. A mutation may delete the row and write it:
    these two events are no copies of each other, though both have its digest.
    """
    return unhexlify(digest)[-MUTATION_BYTES:]
