"""When keys are to be read again: by topic, and the earliest first."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import NamedTuple

from helenus_connector.unconfirmed.unconfirmed_key import UnconfirmedKey


class DueTime(NamedTuple):
    """When the next key of a topic is due, s since the epoch."""

    due_at: float
    topic: str


class DueQueue:
    """The times at which keys are to be read again, by topic.

    A key that is added again has the later time alone, and one that no longer waits has none: what the queue still has
    of them is passed over, as `is_waiting` says. Many keys share a time, and few topics have any.
    """

    def __init__(self, is_waiting: Callable[[UnconfirmedKey], bool]) -> None:
        self._is_waiting = is_waiting
        self._keys: dict[str, dict[float, list[UnconfirmedKey]]] = {}

    def add(self, unconfirmed: UnconfirmedKey, due_at: float) -> None:
        """Have a key wait until then."""
        unconfirmed.due_at = due_at
        self._keys.setdefault(unconfirmed.topic, {}).setdefault(due_at, []).append(unconfirmed)

    def first_due(self, topics: Set[str]) -> DueTime | None:
        """Return when the next key of these topics is due."""
        due_times = []
        for topic in self._keys.keys() & topics:
            due_at = self._first_of(topic)
            if due_at is not None:
                due_times.append(DueTime(due_at, topic))
        return min(due_times, default=None)

    def take(self, due_time: DueTime, limit: int) -> list[UnconfirmedKey]:
        """Take at most `limit` keys of a topic that are due at this time, which `first_due` returned."""
        taken_keys: list[UnconfirmedKey] = []
        members = self._keys[due_time.topic][due_time.due_at]
        while members and len(taken_keys) < limit:
            unconfirmed = members.pop()
            if self._waits(unconfirmed, due_time.due_at):
                taken_keys.append(unconfirmed)
        return taken_keys

    def drop(self, topic: str) -> None:
        """Forget a topic's times."""
        self._keys.pop(topic, None)

    def _first_of(self, topic: str) -> float | None:
        keys_by_time = self._keys.get(topic, {})
        while keys_by_time:
            due_at = min(keys_by_time)
            members = keys_by_time[due_at]
            while members:
                if self._waits(members[-1], due_at):
                    return due_at
                members.pop()
            del keys_by_time[due_at]
        self.drop(topic)
        return None

    def _waits(self, unconfirmed: UnconfirmedKey, due_at: float) -> bool:
        """Return whether a key waits until this time, and not until another."""
        return unconfirmed.due_at == due_at and self._is_waiting(unconfirmed)
