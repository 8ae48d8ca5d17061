"""The resolver `merge`: what the operator with state says of a change, as the shapes take it. No row is read.

    UPDATE t SET v = 2 WHERE k = 7 → Resolved, whose `before` is {v: 1} and whose `after` is {v: 2}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from helenus_connector.gate.event import values_of
from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.resolver import LiveRow, Resolved
from helenus_connector.state.merged import Merged
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.event.change import Scope

_ROW, _STATIC = Scope.ROW, Scope.STATIC  # an enum's members are slow to look up


class FromState:
    """Makes `Resolved` of what was merged, for one version of a table as it is `shown`."""

    def __init__(self, topic: str, table: Table, codec: KeyCodec) -> None:
        self._topic = topic
        self._codec = codec
        self._names = [column.name for column in table.values]
        self._nothing = (None,) * len(self._names)

    def resolved(self, merged: Merged) -> Resolved | None:
        """None if nothing of what is published changed. Raises Malformed for a key that is none of the table's."""
        is_one = merged.scope is _ROW or merged.scope is _STATIC
        values = values_of(self._codec, merged.key) if merged.key else ()
        found = Resolved(self._topic, merged.partition, merged.key, values, merged.scope, merged.bounds)
        found.event, found.events, found.is_confirmed = merged.event, int(merged.event is not None), True
        found.newest = merged.write_time if merged.event is not None else None
        found.write_time, found.expires, found.op = merged.write_time, merged.expires, merged.op
        found.before, found.after = self._image(merged.before, merged), self._image(merged.after, merged)
        if not is_one:
            found.read_rows = _no_rows
            found.after = found.after or Image(self._nothing, merged.write_time)
        elif merged.scope is _STATIC:
            # Static columns are a record of their own, whether any of them has a value or not.
            found.after = found.after or Image(self._nothing, merged.write_time)
        if merged.op == "u" and found.before is not None and found.before.values == found.after_values:
            return None
        return found

    def _image(self, row: Mapping[str, bytes | None] | None, merged: Merged) -> Image | None:
        if row is None:
            return None
        return Image(tuple(map(row.get, self._names)), merged.write_time, expires=merged.expires)


def _no_rows(_: Resolved) -> Iterator[LiveRow]:
    """No rows follow a marker: those that it deletes come by themselves, and the others did not change."""
    rows: Sequence[LiveRow] = ()
    return iter(rows)
