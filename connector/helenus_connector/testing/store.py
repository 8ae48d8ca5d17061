"""A store of a state in memory, in the place of Spark's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence


class DictStore:
    """A `KeyedStore` whose `values` a test may look into."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys, None for one that is not there."""
        return [self.values.get(key) for key in keys]

    def put_many(self, values: Mapping[bytes, bytes]) -> None:
        """Write values."""
        self.values.update(values)

    def remove_many(self, keys: Iterable[bytes]) -> None:
        """Remove keys, those that are there."""
        for key in keys:
            self.values.pop(key, None)

    def all_keys(self) -> Iterator[bytes]:
        """Yield all keys, in order."""
        yield from sorted(self.values)
