"""The interface of a store: the key-value state that an operator keeps for one topic partition between batches.

    store.put_many({b"k": b"row"})            visible to the next get_many, durable once Spark commits the batch
    store.get_many([b"k", b"x"]) == [b"row", None]

The keys and deletes of a topic partition meet in one store, in the order of their events, and one task at a time uses
it. If a batch is repeated, the store is as it was before the first attempt. So the output of an operator may depend
only on the store, on its input and on the batch's time; otherwise a repeated batch would give another result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol


class Store(Protocol):
    """A store of one topic partition, used by the thread of its task during a batch.

    Keys and values are bytes; the first byte of a value is the version of its format. Keys have no order.
    """

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of these keys, in their order; None for a key that is not in the store."""
        ...

    def put_many(self, values: Mapping[bytes, bytes]) -> None:
        """Set these values. If it raises, the batch fails: no value of a failed batch is kept."""
        ...

    def remove_many(self, keys: Iterable[bytes]) -> None:
        """Remove these keys. A key that is not in the store is ignored."""
        ...
