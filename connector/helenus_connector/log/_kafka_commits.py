"""Committing positions to consumer groups, so that dashboards show their lag."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

import structlog
from confluent_kafka import TopicPartition

from helenus_connector.log.events import Offsets
from helenus_schemas.errors import HelenusError
from helenus_sinks.kafka.groups import LOOSE, commit_to_group

_EVERY_S = 5.0
"""Between two commits of a group: as often as Kafka's own consumers commit by default (`auto.commit.interval.ms`)."""
_MOST_DOUBLINGS = 6
"""Of that pause, with each failure of a group in a row: five minutes in the end."""
_SHARE = 0.1
"""Of the time that commits may take: each has a client of its own, which a thousand groups would keep busy."""
_LONGEST_REST_S = 5.0
"""After a commit: one that waited for brokers that were away cost nothing."""
_COMMIT_ALL_S = 3600.0
"""Brokers forget the positions of a group that commits none for days."""


class GroupCommits:
    """Commits positions of any number of groups, in a thread of its own that begins with the first ones.

    Each commit is by a consumer that is closed after it. The admin client, which commits for all groups over one
    connection, ends the process where that connection is cut at the wrong moment (librdkafka's issue 4605, 2.16), and
    asks no more for a coordinator whose answer was lost (3847).
    """

    def __init__(self, config: Mapping[str, str]) -> None:
        self._config = config
        self._wanted: dict[str, Offsets] = {}
        self._committed: dict[str, Offsets] = {}
        self._due_at: dict[str, float] = {}  # monotonic s, of groups that have committed
        self._all_at = time.monotonic()
        self._failures: dict[str, tuple[int, str]] = {}  # in a row, of groups that failed last, and why
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def put(self, group: str, offsets: Offsets) -> None:
        """Have these positions committed soon, where they are not yet, as far as is known. Returns at once."""
        with self._changed:
            if time.monotonic() - self._all_at > _COMMIT_ALL_S:
                self._committed, self._all_at = {}, time.monotonic()
            committed = self._committed.get(group, {})
            moved = {topic: dict(ends) for topic, ends in offsets.items() if ends != committed.get(topic)}
            if not moved or self._is_closed:
                return
            self._wanted.setdefault(group, {}).update(moved)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="group-commits", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Commit no more. A commit that is under way ends by itself."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            began_at = time.monotonic()
            self._commit(*batch)
            time.sleep(min((time.monotonic() - began_at) * (1 / _SHARE - 1), _LONGEST_REST_S))

    def _next(self) -> tuple[str, Offsets] | None:
        """Wait for the group that is due first, and return it with what to commit; None when closed."""
        with self._changed:
            while not self._is_closed:
                group = min(self._wanted, key=lambda name: self._due_at.get(name, 0.0), default=None)
                wait_s = None if group is None else self._due_at.get(group, 0.0) - time.monotonic()
                if group is not None and wait_s is not None and wait_s <= 0:
                    return group, self._wanted.pop(group)
                self._changed.wait(wait_s)
            return None

    def _commit(self, group: str, offsets: Offsets) -> None:
        error: Exception | None = None
        try:
            commit_to_group(self._config, group, _positions(offsets))
        # Also errors that the client's library raises for a position that no topic can have.
        except (HelenusError, ValueError, OverflowError) as failure:
            error = failure
        failures, reason = self._failures.pop(group, (0, ""))
        if error is not None:
            self._failures[group] = failures + 1, str(error)
            if str(error) != reason:
                structlog.get_logger(__name__).warning("source.commit_failed", group=group, error=str(error))
        with self._changed:
            self._due_at[group] = time.monotonic() + _EVERY_S * 2 ** min(failures, _MOST_DOUBLINGS)
            if error is None:
                self._committed.setdefault(group, {}).update(offsets)
            else:  # those that came meanwhile are newer
                self._wanted[group] = {**offsets, **self._wanted.get(group, {})}


def _positions(offsets: Offsets) -> Sequence[TopicPartition]:
    return [TopicPartition(t, int(p), offset, LOOSE) for t, ends in offsets.items() for p, offset in ends.items()]
