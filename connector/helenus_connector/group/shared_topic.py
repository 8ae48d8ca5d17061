"""The topic of a group, compacted and of one partition: what its workers share, as JSON by key.

    lead     fence the former leader's producer → read all → note who leads now
    update   one transaction: all of a change is there, or nothing

A producer that was fenced, or failed, is made anew, and then reads who leads. If another worker does, it never writes
again; and where it has fenced that one's producer by this, the other one makes its own anew in the same way.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.group._leader import KEY, Leader
from helenus_connector.group._topic_writer import Fenced, Positions, Values
from helenus_connector.group._topic_writers import TakeEpoch, topic_writer
from helenus_schemas.errors import HelenusError, Kind

_LONGEST_S = 20.0
"""Of a change, or of the begin to lead: locks of others are held meanwhile. Then it fails, and may be tried again."""


class SharedTopic:
    """The topic of the worker's group. `former` is who led before this worker did, None if nobody; `is_replaced` says
    that another worker has led since.

    On Pulsar `take_epoch` is that of the membership.

    Any thread may call `update` and `values`. The methods raise HelenusError: NOT_OWNER if another worker leads, STATE
    for a record that is none of ours, and the brokers' errors: then nobody knows whether something was written, and the
    next `update` reads what was.
    """

    def __init__(self, worker: WorkerSettings, take_epoch: TakeEpoch | None = None) -> None:
        self._worker = worker
        self._writer = topic_writer(worker, worker.group_topic, f"group-{worker.group_name}", _parse, take_epoch)
        self._lock = threading.RLock()
        self._leader: Leader | None = None
        self.former: Leader | None = None
        self.is_replaced = False

    def create(self) -> None:
        """Create the topic if it is not there. Raises HelenusError CONFIG for one of several partitions."""
        self._writer.create(self._worker.config_storage_replication_factor, "config.storage.topic")

    def lead(
        self,
        term: str,
        first_values: Callable[[], Values],
        prepare: Callable[[Leader | None], None] = lambda _: None,
    ) -> Leader:
        """Begin to lead in this `term`. If nobody led before, the topic gets the `first_values`. Before it is noted,
        the worker has to `prepare` for it, by who led before. Returns the note of it.
        """
        with self._lock:
            self._writer.start(time.monotonic() + _LONGEST_S)
            self.former = self._noted()
            number = _first_number() if self.former is None else self.former.number + 1
            leader = Leader(self._worker.worker_id, self._worker.advertised_url, number, term)
            first = first_values() if self.former is None else {}
            prepare(self.former)
            self._writer.commit({**first, KEY: leader.to_value()}, time.monotonic() + _LONGEST_S)
            self._leader = leader
            return leader

    def values(self) -> dict[str, Any]:
        """Return all values that the topic has, as far as this worker knows: it alone writes while it leads."""
        with self._lock:
            return dict(self._writer.values)

    def update(self, change: Callable[[Values], Values], positions: Positions | None = None) -> None:
        """Write what `change` returns for the values that are there: values by key, None where there is to be none. In
        the same transaction commit `positions` of consumer groups.
        """
        deadline = time.monotonic() + _LONGEST_S
        with self._lock:
            while True:
                if self.is_replaced:
                    raise self._not_leader(None)
                try:
                    if not self._writer.is_started:
                        self._start_again(deadline)
                    changes = change(self._writer.values)
                    if changes or positions:
                        self._writer.commit(changes, deadline, positions)
                    return
                except Fenced:
                    # A worker that led before may have fenced this one: the topic says who leads.
                    if time.monotonic() > deadline:
                        raise

    def close(self) -> None:
        """Write no more."""
        self._writer.close()

    def _start_again(self, deadline: float) -> None:
        """Have the writer start, unless another worker leads."""
        self._writer.start(deadline)
        leader = self._noted()
        if leader is None or self._leader is None or leader.term != self._leader.term:
            self._writer.stop()
            self.is_replaced = True
            raise self._not_leader(leader)

    def _noted(self) -> Leader | None:
        return Leader.from_value(self._writer.values.get(KEY))

    def _not_leader(self, leader: Leader | None) -> HelenusError:
        other = "another worker" if leader is None else f"the worker {leader.worker_id}"
        problem = f"{other} leads the group {self._worker.group_id} by now"
        return HelenusError(Kind.NOT_OWNER, problem, self._writer.where, "ask that one")


def _first_number() -> int:
    """Return the number of the first leader: the time, s since the epoch. Records, and directories of states, have the
    numbers of the leaders that wrote them. A topic that was deleted, or has another name, must not begin below those.
    """
    return max(1, int(time.time()))


def _parse(value: bytes, where: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        problem = "a record of the group's topic is no JSON: another program writes it, or has its name"
        advice = "give config.storage.topic another name; or delete the topic, and with it the connectors"
        raise HelenusError(Kind.STATE, problem, where, advice) from None
