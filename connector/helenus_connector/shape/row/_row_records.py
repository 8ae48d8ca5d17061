"""Make the ordinary records of rows in Avro, many at once: those of a row that was read, or is deleted, whose values
all have some bytes. `row.RowShape` makes all others, and the same records of these.

It runs as it is, and compiled by Cython with the types of `_row_records.pxd`: the results are the same.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import Record
from helenus_connector.shape.row._row_headers import RowHeaders

COMPILED = not __file__.endswith(".py")
GONE = b"d"
"""Operation: the row is deleted."""
BAD_BYTES = (ValueError, IndexError, struct.error)
_new = tuple.__new__
_Record = Record


class RowRecords:
    """Makes the records of one version of a table. A key is that of the event, after the `key_frame`; `encode` makes
    the value of the columns' CQL bytes.
    """

    def __init__(
        self, key_frame: bytes, encode: Callable[[Sequence[bytes | None]], bytes], headers: RowHeaders
    ) -> None:
        self._key_frame = key_frame
        self._encode = encode
        self._headers = headers

    def records(self, resolved: Sequence[ResolvedKey]) -> list[Record | None]:
        """Return the record of each key; None for those that `RowShape.records` is to make."""
        return [self.row_record(key) for key in resolved]

    def row_record(self, resolved: ResolvedKey) -> Record | None:
        """Return the record of a row; None if it is not an ordinary one."""
        image, values = resolved.after, resolved.values
        if resolved.read_rows is not None or resolved.failure is not None or resolved.cells is not None:
            return None
        value: bytes | None = None
        op: bytes | None = GONE
        known_op = resolved.op
        if known_op is not None:
            op = known_op.encode()
        if image is not None:
            columns = image.values
            if b"" in columns:
                return None
            try:
                value = self._encode(columns)
            except BAD_BYTES:
                return None
            if known_op is None:
                op = None
        if b"" in values:
            return None
        return _new(_Record, (self._key_frame + resolved.key, value, self._headers.row_headers(resolved, op)))
