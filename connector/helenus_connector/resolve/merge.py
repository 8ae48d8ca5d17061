"""The resolver `merge`: what the operator with state says of a change, as the shapes take it. No row is read.

UPDATE t SET v = 2 WHERE k = 7 → Resolved, whose `before` is {v: 1} and whose `after` is {v: 2}

It runs as it is, and compiled by Cython with the types of `merge.pxd`: the results are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from helenus_connector.gate.event_content import decode_key
from helenus_connector.interfaces.image import Image, LiveRow
from helenus_connector.interfaces.merged_change import RowChange
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.event.change import Change, Origin, Scope
from helenus_schemas.event.own_format import match_own_format
from helenus_schemas.event.wire import decode, without_frames

COMPILED = not __file__.endswith(".py")
_ROW, _STATIC, _TABLE = Scope.ROW, Scope.STATIC, Scope.TABLE  # an enum's members are slow to look up
_UNTIMED = Image((), None)[2:4]
_new = tuple.__new__
_Image = Image
_SNAPSHOT = (Origin.SNAPSHOT, Origin.SNAPSHOT_FIRST, Origin.SNAPSHOT_LAST)


class StateResolver:
    """Makes `ResolvedKey` of what was merged, for one version of a table as it is `shown`."""

    def __init__(self, topic: str, table: Table, codec: KeyCodec) -> None:
        self._topic = topic
        self._codec = codec
        self._names = [column.name for column in table.values]

    def resolved(self, change: RowChange) -> ResolvedKey | None:
        """Resolve it; None if nothing of what is published changed. Raises Malformed for a key that is none of the
        table's.
        """
        partition, key, scope, op, before, after, write_time, expires, event, bounds = change
        values = decode_key(self._codec, key) if scope is not _TABLE else ()
        resolved_key = ResolvedKey(self._topic, partition, key, values, scope, bounds)
        resolved_key.event, resolved_key.is_confirmed = event, True
        request: Change | None = None
        if event is not None:
            resolved_key.events = 1
            request = _decode_request(event.value or b"")
            if _is_change(request):
                resolved_key.newest = write_time
        resolved_key.write_time, resolved_key.expires, resolved_key.op = write_time, expires, op
        resolved_key.before = self._image(before, write_time, expires)
        resolved_key.after = self._image(after, write_time, expires)
        if self._is_alike(before, after, resolved_key):
            return None
        if scope is not _ROW and scope is not _STATIC:
            resolved_key.read_rows = _no_rows
        elif op == "c" and request is not None and request.origin in _SNAPSHOT:
            resolved_key.op = "r"
        return resolved_key

    def _is_alike(
        self,
        before: Mapping[str, bytes | None] | None,
        after: Mapping[str, bytes | None] | None,
        resolved_key: ResolvedKey,
    ) -> bool:
        """Return whether only columns changed that are not published."""
        if before is None or after is None:
            return False
        image_before, image_after = resolved_key.before, resolved_key.after
        assert image_before is not None
        assert image_after is not None
        return image_before[0] == image_after[0] and before != after

    def _image(
        self, row: Mapping[str, bytes | None] | None, write_time: int | None, expires: int | None
    ) -> Image | None:
        if row is None:
            return None
        # By its own constructor a named tuple takes twice as long.
        return _new(_Image, (tuple([row.get(name) for name in self._names]), write_time, *_UNTIMED, expires))


def _decode_request(event: bytes) -> Change | None:
    """Return the Change of an event that no commit log has: a snapshot's, or a read's; None for a commit log's."""
    return None if match_own_format(event) is not None else decode(without_frames(None, event)[1])


def _is_change(request: Change | None) -> bool:
    """Return whether an event is of a commit log, or of the read that one asked for."""
    return (
        request is None
        or request.origin is Origin.LOG
        or (request.origin is Origin.STATE and request.write_time is not None)
    )


def _no_rows(_: ResolvedKey) -> Iterator[LiveRow]:
    """No rows follow a marker here: those of its scope come by themselves, deleted ones and others."""
    rows: Sequence[LiveRow] = ()
    return iter(rows)
