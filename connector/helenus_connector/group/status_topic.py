"""The status of connectors and tasks, as records of a topic, in the form of Kafka Connect's workers: for their tools.

    status-connector-NAME    {"state": …, "trace": …, "worker_id": …, "generation": …}
    status-task-NAME-N       the same

Nobody of the group reads it to know a status: each leader derives all anew, and removes what is of no connector.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.backoff import ReasonLog, pause
from helenus_connector.control.status import ConnectorStatus
from helenus_connector.group._topic_writer import Fenced
from helenus_connector.group._topic_writers import TakeEpoch, topic_writer

_log = structlog.get_logger(__name__)
_CONNECTOR, _TASK = "status-connector-", "status-task-"
_TURN_S = 1.0
_WRITE_S = 10.0
_LONGEST_PAUSE_S = 30.0
_LAST_S = 2.0
"""For the status of a worker that ends: another one waits for its place."""
_UNREADABLE = object()
"""The value of a record that is no JSON: it differs from all that is written."""


class StatusTopic:
    """Writes, in a thread of its own, what has changed of the `statuses` by connector, from `start` until `close`:
    once a second at most, and only while this worker `leads`. Brokers that are away are waited for. On Pulsar
    `take_epoch` is that of the membership.
    """

    def __init__(
        self,
        worker: WorkerSettings,
        generation: int,
        statuses: Callable[[], Mapping[str, ConnectorStatus]],
        leads: Callable[[], bool],
        take_epoch: TakeEpoch | None = None,
    ) -> None:
        self._worker = worker
        self._generation = generation
        self._statuses = statuses
        self._leads = leads
        self._writer = topic_writer(worker, worker.status_topic, f"status-{worker.group_name}", _parse, take_epoch)
        self._is_created = False
        self._wait_reasons = ReasonLog()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def close(self) -> None:
        """Write that this worker runs no more, and end. Returns within two seconds."""
        self._ending.set()
        self._thread.join(_LAST_S)
        self._writer.close()

    def _run(self) -> None:
        failures, wait_s = 0, 0.0
        while not self._ending.wait(wait_s):
            try:
                if self._leads():
                    self._write(self._values(), _WRITE_S)
                failures, wait_s = 0, _TURN_S
            except Fenced:  # by another leader, or by a former one that has noticed it late
                wait_s = _TURN_S
            except Exception as failure:  # whatever it is: connectors run on
                failures += 1
                wait_s = pause(failures, _TURN_S, _LONGEST_PAUSE_S)
                self._note_wait(str(failure) or type(failure).__name__)
        if failures == 0 and self._leads():
            try:
                self._write(_unassigned(self._values()), _LAST_S)
            except Exception as failure:
                self._note_wait(str(failure) or type(failure).__name__)

    def _values(self) -> dict[str, Any]:
        return status_values(self._statuses(), self._worker.worker_id, self._generation)

    def _write(self, values: Mapping[str, Any], longest_s: float) -> None:
        """Have the topic the `values`, and no other status. Raises HelenusError."""
        deadline = time.monotonic() + longest_s
        if not self._is_created:
            self._writer.create(self._worker.status_storage_replication_factor, "status.storage.topic")
            self._is_created = True
        if not self._writer.is_started:
            self._writer.start(deadline)
        present = self._writer.values
        changed = {key: value for key, value in values.items() if key not in present or present[key] != value}
        obsolete = [key for key in present if key.startswith((_CONNECTOR, _TASK)) and key not in values]
        if changed or obsolete:
            self._writer.commit({**changed, **dict.fromkeys(obsolete)}, deadline)

    def _note_wait(self, reason: str) -> None:
        if self._wait_reasons.is_due("status", reason):
            _log.warning("group.waiting", group=self._worker.group_id, reason=reason)


def status_values(statuses: Mapping[str, ConnectorStatus], worker_id: str, generation: int) -> dict[str, Any]:
    """Return statuses by connector as values of the topic, with the texts that REST shows."""

    def value(state: str, trace: str | None) -> dict[str, Any]:
        return {"state": state, "trace": trace, "worker_id": worker_id, "generation": generation}

    values: dict[str, Any] = {}
    for name, status in statuses.items():
        values[_CONNECTOR + name] = value(status.state, status.trace)
        for task in status.tasks:
            values[f"{_TASK}{name}-{task.id}"] = value(task.state, task.trace)
    return values


def _unassigned(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status of what ran with a worker that ends, as Kafka Connect's has it."""
    return {
        key: {**value, "state": "UNASSIGNED", "trace": None} if value["state"] == "RUNNING" else value
        for key, value in values.items()
    }


def _parse(value: bytes, _where: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return _UNREADABLE
