"""The interface of a store: what an operator with state keeps of one place between batches.

    store.put_many({b"k": b"row"})            seen by the next get_many, kept once Spark commits the batch
    store.get_many([b"k", b"x"]) == [b"row", None]

A place is one partition of a topic: its keys and its deletes meet there in their order, and one task at a time has its
store. If the batch is done again, the store is as it was before the batch's first time: so what an operator gives may
depend on the store, on its input and on the batch's time alone, or a repeated batch would give something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol


class Store(Protocol):
    """Keys and values are bytes; the first byte of a value is the version of its form. An order of keys is not kept."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of these keys, in their order; None for one that is not there."""
        ...

    def put_many(self, values: Mapping[bytes, bytes]) -> None:
        """Set these, all of them or, if it raises, the batch ends."""
        ...

    def remove_many(self, keys: Iterable[bytes]) -> None:
        """Remove these; one that is not there is no error."""
        ...
