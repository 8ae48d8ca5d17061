"""Make the records of many changes by a `DirectRecords`, each with the headers of its row.

It runs as it is, and compiled by Cython with the types of `_direct_rows.pxd`: the results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import Record
from helenus_schemas.cql.values import Malformed
from helenus_schemas.event.change import Scope

if TYPE_CHECKING:
    from helenus_connector.shape.envelope.direct_records import DirectRecords

COMPILED = not __file__.endswith(".py")
_ROW, _STATIC = Scope.ROW, Scope.STATIC  # an enum's members are slow to look up
_new = tuple.__new__
_Record = Record
Header = tuple[str, bytes]


class DirectRows:
    """Makes the records of one version of a table. `encode_key` makes a record's key of an event's where `direct`
    leaves it out, and `row_headers` its headers, which `more_headers` follow.
    """

    def __init__(
        self,
        direct: DirectRecords,
        encode_key: Callable[[bytes], bytes],
        row_headers: Callable[[ResolvedKey, bytes | None], list[Header]],
        more_headers: Sequence[Header],
    ) -> None:
        self._direct = direct
        self._encode_change = direct.encode_change
        self._encode_key = encode_key
        self._row_headers = row_headers
        self._more_headers = list(more_headers)

    def records(self, resolved: Sequence[ResolvedKey], now: int) -> list[Record | None]:
        """Return the record of each change, `now` in ms; None for those that the shape's own functions are to make."""
        records: list[Record | None] = []
        for key in resolved:
            try:
                records.append(self.record(key, now))
            except Malformed:  # the functions say so
                records.append(None)
        return records

    def record(self, resolved: ResolvedKey, now: int) -> Record | None:
        """Return the record of a change, or None, as `records`. Raises Malformed."""
        event, cells, write_time, scope = resolved.event, resolved.cells, resolved.write_time, resolved.scope
        if cells is None or event is None or write_time is None or resolved.failure is not None:
            return None
        if scope is not _ROW and scope is not _STATIC:
            return None
        encoded = self._encode_change(event.value or b"", cells, resolved.values, write_time, now, scope is _STATIC)
        if encoded is None:
            if (written := resolved.written) is not None:
                self._direct.learn_columns(cells, written.columns)
            return None
        key, data, is_row = encoded
        headers = self._row_headers(resolved, b"c" if is_row else b"u")
        if self._more_headers:
            headers.extend(self._more_headers)
        # By its own constructor a named tuple takes three times as long.
        return _new(_Record, (key or self._encode_key(resolved.key), data, headers))
