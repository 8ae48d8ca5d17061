"""Python's search for reference cycles, in the worker processes that Spark keeps.

Spark has a worker search after every task. Loaded modules, sessions and schemas are most of what it would walk, and
they live as long as the process: without them it takes a thirtieth of the time, which was a quarter of a batch's.
"""

from __future__ import annotations

import gc
from collections.abc import Hashable

_SEARCH_AFTER = 100_000  # objects; Python's pace, 700, takes a quarter of a batch: it makes many, and hardly a cycle
_frozen: set[Hashable] = set()


def freeze(key: Hashable) -> None:
    """Exempt all live objects from the search, once per key: when a process has loaded what it goes on to use."""
    if key in _frozen:
        return
    _frozen.add(key)
    gc.set_threshold(_SEARCH_AFTER)
    gc.collect()
    gc.freeze()
