"""Python's search for reference cycles, in processes that run for long.

Spark makes a worker search after every task. Most of what it walks are loaded modules, sessions and schemas, which
live as long as the process. Without them it takes a thirtieth of the time, which was a quarter of a batch's.
"""

from __future__ import annotations

import gc
from collections.abc import Hashable

_SEARCH_AFTER = 400_000
"""Objects that are made and not freed. A task has 300,000 for 25,000 events, hardly a cycle among them, and each search
walks all that are new: with 100,000 that takes a tenth of the task, with Python's own 700 a quarter.
"""
DRIVER_SEARCH_AFTER = 100_000
"""For the driver, which PySpark's calls leave cycles with each batch, few objects at a time. With the number above its
memory grew for 40 minutes before the first search, by 45 MB.
"""
_frozen: set[Hashable] = set()


def freeze(key: Hashable, search_after: int = _SEARCH_AFTER) -> None:
    """Exempt all live objects from the search, once per key: after a process has loaded what it keeps using. From then
    on it searches after so many objects.
    """
    if key in _frozen:
        return
    _frozen.add(key)
    gc.set_threshold(search_after)
    gc.collect()
    gc.freeze()
