"""Records of rows in Avro, many at once, where nothing about them is out of the ordinary: a row that was read, or is
gone, whose values all have some bytes. `row.RowShape` makes all others, and the same of these.

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
"""What an event without digest, node and columns begins with: a snapshot's, say."""
GONE, READ = b"d", b"r"
"""Kinds of operations: of a row that is gone, and of one that a snapshot read."""
OF_SNAPSHOT = 2
"""So many headers say that a snapshot read a row."""
BAD_BYTES = (ValueError, IndexError, struct.error)
_NO_LOG = NO_LOG
_OF_SNAPSHOT = OF_SNAPSHOT
_SCRATCH = bytearray(20)
_new = tuple.__new__
_Record = Record
Header = tuple[str, bytes]


class RowRecords:
    """Makes the records of one version of a table. A key is that of the event, after the `key_frame`; `encode` makes
    the value of the columns' CQL bytes. Headers: the `schema_id`, if it is one, and of the others those whose names
    are given; `origin` says which an event has that is of no log.
    """

    def __init__(
        self,
        key_frame: bytes,
        encode: Callable[[Sequence[bytes | None]], bytes],
        schema_id: Header | None,
        headers: Sequence[str],
        origin: Callable[[bytes], Sequence[Header]],
    ) -> None:
        self._key_frame = key_frame
        self._encode = encode
        self._schema_id = schema_id
        self._origin = origin
        self._write_time, self._expires = "writetime" in headers, "expires" in headers
        self._shows_origin, self._op = "origin" in headers, "op" in headers

    def records(self, resolved: Sequence[ResolvedKey]) -> list[Record | None]:
        """The record of each; None of what is not for this."""
        return [self.record(one) for one in resolved]

    def record(self, one: ResolvedKey) -> Record | None:
        """The record of a row, if it is for this."""
        image, values = one.after, one.values
        if one.read_rows is not None or one.failure is not None or one.op is not None or one.cells is not None:
            return None
        value: bytes | None = None
        op: bytes | None = GONE
        if image is not None:
            columns = image.values
            if b"" in columns:
                return None
            try:
                value = self._encode(columns)
            except BAD_BYTES:
                return None
            op = None
        if b"" in values:
            return None
        headers: list[Header] = []
        if self._schema_id is not None:
            headers.append(self._schema_id)
        write_time = one.write_time
        if write_time is not None and self._write_time:
            headers.append(("writetime", digits(write_time)))
        event = one.event
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
        expires = one.expires
        if expires is not None and self._expires:
            headers.append(("expires", digits(expires)))
        return _new(_Record, (self._key_frame + one.key, value, headers))


def digits(value: int) -> bytes:
    """A number as decimal digits."""
    if _compiled and 0 <= value < 1 << 62:
        raw = _SCRATCH
        rest = value
        at = 20
        while True:
            at -= 1
            raw[at] = 48 + rest % 10
            rest //= 10
            if not rest:
                return raw[at:20]  # type: ignore[return-value] # in C it is a pointer, and a slice of it is bytes
    return b"%d" % value
