"""Prepares the tables that are new to a process, several at a time: a table's first batch waits for a dozen answers of
Cassandra and of the registry, and a worker may meet hundreds of tables at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

_THREADS = 8
"""Tables that are prepared at a time. Registries take about four times as many schemas a second from eight clients as
from one, and no more from sixteen.
"""
Preparation = Callable[[], None]


def prepare_ahead(topics: Iterable[str], prepare: Callable[[str], Preparation | None]) -> Generator[str]:
    """Yield each topic once its table is prepared, in order, while threads prepare the next ones.

    `prepare` is called in the caller's thread, and returns what a thread is to do for a table, or None. An error of
    that is not raised: whoever works on the table meets it again.
    """
    prepared: deque[tuple[str, Future[None]]] = deque()
    # The pool ends with the generator, also where the caller leaves it early.
    with ThreadPoolExecutor(_THREADS, "new-table") as pool:
        for topic in topics:
            preparation = prepare(topic)
            if preparation is None:
                yield topic
                continue
            prepared.append((topic, pool.submit(preparation)))
            if len(prepared) == _THREADS:
                yield _first_prepared(prepared)
        while prepared:
            yield _first_prepared(prepared)


def _first_prepared(prepared: deque[tuple[str, Future[None]]]) -> str:
    topic, preparation = prepared.popleft()
    wait([preparation])
    return topic
