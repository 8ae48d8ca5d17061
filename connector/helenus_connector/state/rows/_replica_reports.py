"""What an event is of, before its change is decoded: copies, which most events are, are known by that.

event of `UPDATE … WHERE k = 7` → Report(name=b"r" + key, mutation=<12 bytes of its digest>, change=None)
"""

from __future__ import annotations

from binascii import unhexlify
from typing import NamedTuple

from helenus_connector.gate.event_content import decode_event
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.merged_change import GAP, MergedChange
from helenus_connector.state.rows._row import SEEN
from helenus_connector.state.rows._row_store import OF_PARTITION, OF_ROW, OF_STATIC
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.event.change import Change, Scope
from helenus_schemas.event.own_format import match_own_format

_ROW, _STATIC, _PARTITION = Scope.ROW, Scope.STATIC, Scope.PARTITION


class ReplicaReport(NamedTuple):
    """An event that names one key: the row's name in the store, what names its mutation, and its change, not decoded
    yet if the mutation may be known. `node` is the one that reports it, as bytes, if it is one of our agents'.
    """

    event: Event
    name: bytes
    key: bytes
    mutation: bytes | None
    change: Change | None
    node: bytes | None = None


class ReplicaReports:
    """Makes reports of the events of one version of a table, which may have no partitions: each is a row."""

    def __init__(self, codec: KeyCodec, has_partitions: bool) -> None:
        self._codec, self._has_partitions = codec, has_partitions

    def of(self, event: Event) -> ReplicaReport | MergedChange:
        """What an event is of. Raises Malformed, and Outgrown for a key of another table of this name."""
        match = match_own_format(event.value) if event.value and event.key is not None else None
        if match is not None and event.key is not None:
            key, scope = self._codec.current(event.key), match.scope
            name = (OF_STATIC if scope == b"\2" else OF_ROW if scope == b"\0" else OF_PARTITION) + key
            if not self._has_partitions:
                name = OF_ROW + key
            return ReplicaReport(event, name, key, unhexlify(match.digest)[:SEEN], None, match.node)
        change, key = decode_event(event, self._codec)
        if change.scope is Scope.GAP:
            return not_mergeable(event, GAP)
        kind = {_ROW: OF_ROW, _STATIC: OF_STATIC}.get(change.scope, OF_PARTITION)
        if not self._has_partitions and change.scope is _PARTITION:
            kind = OF_ROW
        digest = change.digest if change.node and change.digest and len(change.digest) == 32 else None
        return ReplicaReport(event, kind + key, key, None if digest is None else _mutation(digest), change)


def not_mergeable(event: Event, op: str, failure: str | None = None) -> MergedChange:
    """That nothing can be merged of an event: `op` says why."""
    return MergedChange(event.partition, event.key or b"", _ROW, None, op, None, None, None, None, event, failure)


def _mutation(digest: str) -> bytes | None:
    try:
        return unhexlify(digest)[:SEEN]
    except ValueError:
        return None
