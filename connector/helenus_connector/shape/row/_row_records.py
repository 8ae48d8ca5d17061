"""Make the ordinary records of rows in Avro, many at once: those of a row that was read, or is deleted, whose values
all have some bytes. `row.RowShape` makes all others, and the same records of these.

It runs as it is, and compiled by Cython with the types of `_row_records.pxd`: the results are the same.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import Record

COMPILED = not __file__.endswith(".py")
_compiled = COMPILED
NO_LOG = bytes(3)
"""First bytes of an event without digest, node and columns, such as a snapshot's."""
GONE, READ = b"d", b"r"
"""Operations: a row that is deleted, and one that a snapshot read."""
OF_SNAPSHOT = 2
"""Number of headers that say that a snapshot read a row."""
BAD_BYTES = (ValueError, IndexError, struct.error)
_NO_LOG = NO_LOG
_OF_SNAPSHOT = OF_SNAPSHOT
_SCRATCH = bytearray(20)
_new = tuple.__new__
_Record = Record
Header = tuple[str, bytes]


class RowRecords:
    """Makes the records of one version of a table. A key is that of the event, after the `key_frame`; `encode` makes
    the value of the columns' CQL bytes. A record has the `table_headers`, which all have, and those named in
    `headers`; `origin` returns the headers of an event that comes from no commit log.
    """

    def __init__(
        self,
        key_frame: bytes,
        encode: Callable[[Sequence[bytes | None]], bytes],
        table_headers: Sequence[Header],
        headers: Sequence[str],
        origin: Callable[[bytes], Sequence[Header]],
    ) -> None:
        self._key_frame = key_frame
        self._encode = encode
        self._table_headers = list(table_headers)
        self._origin = origin
        self._write_time, self._expires = "writetime" in headers, "expires" in headers
        self._shows_origin, self._op = "origin" in headers, "op" in headers

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
        return _new(_Record, (self._key_frame + resolved.key, value, self._headers(resolved, op)))

    def _headers(self, resolved: ResolvedKey, op: bytes | None) -> list[Header]:
        """Return the headers of a row's record; `op` is None unless the row is deleted."""
        headers = self._table_headers[:]
        write_time = resolved.write_time
        if write_time is not None and self._write_time:
            headers.append(("writetime", decimal_digits(write_time)))
        event = resolved.event
        if event is not None:
            data = event.value
            if data is not None and data.startswith(_NO_LOG):
                origin = self._origin(data)
                if self._shows_origin:
                    headers.extend(origin)
                if op is None and len(origin) == _OF_SNAPSHOT:
                    op = READ
        if op is not None and self._op:
            headers.append(("op", op))
        expires = resolved.expires
        if expires is not None and self._expires:
            headers.append(("expires", decimal_digits(expires)))
        return headers


def decimal_digits(value: int) -> bytes:
    """Return a number as decimal digits."""
    if _compiled and 0 <= value < 1 << 62:
        raw = _SCRATCH
        remaining = value
        index = 20
        while True:
            index -= 1
            raw[index] = 48 + remaining % 10
            remaining //= 10
            if not remaining:
                return raw[index:20]  # type: ignore[return-value] # in C it is a pointer, and a slice of it is bytes
    return b"%d" % value
