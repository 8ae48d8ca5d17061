"""Python's search for reference cycles, in processes that run for long.

Spark makes a worker search after every task. Most of what it walks are loaded modules, sessions and schemas, which
live as long as the process. Without them it takes a thirtieth of the time, which was a quarter of a batch's.
"""

from __future__ import annotations

import gc
from collections.abc import Hashable

_SEARCH_AFTER = (
    100_000  # objects; Python's default, 700, takes a quarter of a batch: it makes many objects, and hardly a cycle
)
_frozen: set[Hashable] = set()


def freeze(key: Hashable) -> None:
    """Exempt all live objects from the search, once per key: after a process has loaded what it keeps using."""
    if key in _frozen:
        return
    _frozen.add(key)
    gc.set_threshold(_SEARCH_AFTER)
    gc.collect()
    gc.freeze()
