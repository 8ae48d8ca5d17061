"""Make the headers of a row's record: those that all records of its table have, its write time, origin, operation and
expiry, as far as the connector's `headers` name them.

    a DELETE → [("schema_id", ...), ("writetime", b"1700000000000000"), ("op", b"d")]

It runs as it is, and compiled by Cython with the types of `_row_headers.pxd`: the results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from helenus_connector.interfaces.resolved_key import ResolvedKey

COMPILED = not __file__.endswith(".py")
_compiled = COMPILED
NO_LOG = bytes(3)
"""First bytes of an event without digest, node and columns, such as a snapshot's."""
READ = b"r"
"""Operation: a snapshot read the row."""
OF_SNAPSHOT = 2
"""Number of headers that say that a snapshot read a row."""
_NO_LOG = NO_LOG
_OF_SNAPSHOT = OF_SNAPSHOT
_SCRATCH = bytearray(20)
Header = tuple[str, bytes]


class RowHeaders:
    """Makes the headers of one version of a table: the `table_headers`, which all have, and those named in `headers`;
    `origin` returns the headers of an event that comes from no commit log.
    """

    def __init__(
        self, table_headers: Sequence[Header], headers: Sequence[str], origin: Callable[[bytes], Sequence[Header]]
    ) -> None:
        self._table_headers = list(table_headers)
        self._origin = origin
        self._write_time, self._expires = "writetime" in headers, "expires" in headers
        self._shows_origin, self._op = "origin" in headers, "op" in headers

    def row_headers(self, resolved: ResolvedKey, op: bytes | None) -> list[Header]:
        """Return the headers of a record of this key; `op` is None of a row that was read and is there."""
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
