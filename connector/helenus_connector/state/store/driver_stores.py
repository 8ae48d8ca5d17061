"""Spark's state stores in a batch that no job does: the driver has them, and who merges the batch asks for what they
hold.

    who merges: `AskedStore` → a question, as bytes → the driver: `DriverStores` → `StateStores.java`

A question is a byte that says what is asked, the group, i32, and byte strings, each after its size, i32: keys, or keys
and values in turns. The answer has the values of keys in the same way, with a size of -1 where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from struct import Struct
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from helenus_connector.query.internals import own_classes
from helenus_connector.state.store.spark_store import STATE

_GET, _PUT, _REMOVE = range(3)
_HEAD = Struct(">Bi")
_SIZE = Struct(">i")


class DriverStores:
    """The stores of one run of a query that groups by the column `grouping`, and has one map. Used by the thread that
    has its batches, for a batch that Spark has planned: `begin`, any number of questions, then `commit` or `abort`. All
    but the latter raise Py4JError, as on a full disk.
    """

    def __init__(self, java: Any) -> None:
        self._java = java

    @classmethod
    def of_query(cls, context: Any, query: Any, grouping: str) -> DriverStores | None:
        """Return those of a query that has planned a batch; None where its batches are to be jobs: by the public API,
        and with stores whose versions Spark's commits name.
        """
        classes = own_classes(context)
        if classes is None:
            return None
        java = classes.StateStores(query._jsq, STATE, grouping)
        return cls(java) if java.areKnown() else None

    def begin(self) -> None:
        """Open the stores as they were before the batch."""
        self._java.open()

    def answer(self, question: bytes) -> bytes:
        """Answer a question."""
        return bytes(self._java.answer(bytearray(question)))

    def commit(self) -> int:
        """Commit what was put and removed, in all stores: they are as of after the batch then. Return how many bytes
        they have, in files and in memory.
        """
        return int(self._java.commit())

    def abort(self) -> None:
        """Leave the stores as they were, those that are not committed."""
        with suppress(Py4JError):  # as when Java has ended
            self._java.abort()


class AskedStore:
    """The store of one group, in who merges: `ask` returns the answer to a question."""

    def __init__(self, ask: Callable[[bytes], bytes], group: int) -> None:
        self._ask = ask
        self._group = group

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of these keys, as `Store` does."""
        answer = self._ask_for(_GET, keys)
        values: list[bytes | None] = []
        offset = 0
        for _ in keys:
            (size,) = _SIZE.unpack_from(answer, offset)
            offset += _SIZE.size
            values.append(None if size < 0 else answer[offset : offset + size])
            offset += max(size, 0)
        return values

    def put_many(self, values: Mapping[bytes, bytes]) -> None:
        """Put these values, as `Store` does."""
        self._ask_for(_PUT, (item for pair in values.items() for item in pair))

    def remove_many(self, keys: Iterable[bytes]) -> None:
        """Remove these keys, as `Store` does."""
        self._ask_for(_REMOVE, keys)

    def _ask_for(self, kind: int, items: Iterable[bytes]) -> bytes:
        question = bytearray(_HEAD.pack(kind, self._group))
        for item in items:
            question += _SIZE.pack(len(item))
            question += item
        return self._ask(bytes(question))
