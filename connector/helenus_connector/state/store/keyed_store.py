"""The store of a topic partition that can list its keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from helenus_connector.interfaces.store import Store


class KeyedStore(Store, Protocol):
    """A store that can list its keys."""

    def all_keys(self) -> Iterator[bytes]:
        """Return all keys, in any order."""
        ...
