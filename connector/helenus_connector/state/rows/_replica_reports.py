"""Which row and mutation an event names, before its change is decoded: copies, as most events are, are known by that.

event of `UPDATE … WHERE k = 7` → ReplicaReport(name=b"r" + key, mutation=<12 bytes of its digest>, change=None)
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

_ROW, _STATIC, _PARTITION = Scope.ROW, Scope.STATIC, Scope.PARTITION
_ROW_INT, _STATIC_INT = b"\0", b"\2"
"""The scopes ROW and STATIC in the bytes of an event, as `Match.scope` returns them: Avro ints."""


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

    def for_event(self, event: Event) -> ReplicaReport | GapEvent:
        """Return the report of an event, unless it reports a gap. Raises Malformed, and Outgrown for a key of another
        table of this name.
        """
        match = match_own_format(event.value) if event.value and event.key is not None else None
        if match is not None and event.key is not None:
            key, scope = self._codec.current_key(event.key), match.scope
            prefix = STATIC_PREFIX if scope == _STATIC_INT else ROW_PREFIX if scope == _ROW_INT else PARTITION_PREFIX
            name = prefix + key
            if not self._has_partitions:
                name = ROW_PREFIX + key
            return ReplicaReport(event, name, key, unhexlify(match.digest)[:MUTATION_BYTES], None, match.node, match)
        change, key = decode_event(event, self._codec)
        if change.scope is Scope.GAP:
            return GapEvent(event)
        prefix = {_ROW: ROW_PREFIX, _STATIC: STATIC_PREFIX}.get(change.scope, PARTITION_PREFIX)
        if not self._has_partitions and change.scope is _PARTITION:
            prefix = ROW_PREFIX
        digest = change.digest if change.node and change.digest and len(change.digest) == 32 else None
        return ReplicaReport(event, prefix + key, key, None if digest is None else _mutation_digest(digest), change)


def _mutation_digest(digest: str) -> bytes | None:
    """Return the first bytes of a digest, as `CellRow.recent_mutations` has them; None if it is none."""
    try:
        return unhexlify(digest)[:MUTATION_BYTES]
    except ValueError:
        return None
