"""A worker's part in its group: it stands by, warm, until it is its turn to lead; then it has what the group
shares.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import structlog
from confluent_kafka import TopicPartition

from helenus_connector._threads import run_in_thread
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.backoff import ReasonLog
from helenus_connector.control.connectors import Connectors
from helenus_connector.control.documents import ConnectorFile, Document
from helenus_connector.control.positions import BrokerPositions
from helenus_connector.control.status import Connector, ConnectorStatus
from helenus_connector.group.documents import ConnectorRecords, SnapshotRecords, connector_values, snapshot_values
from helenus_connector.group.membership import GroupMembership
from helenus_connector.group.pulsar_membership import PulsarMembership
from helenus_connector.group.shared_topic import SharedTopic
from helenus_connector.group.state_directories import StateDirectories, check_state_directory
from helenus_connector.group.status_topic import StatusTopic
from helenus_connector.group.term import begin_term
from helenus_connector.journal.committed import CommittedPositions
from helenus_connector.journal.pulsar_journals import PulsarJournals, PulsarPositions
from helenus_connector.snapshot.snapshot_store import SnapshotFile
from helenus_schemas.errors import Action, HelenusError, Kind

_log = structlog.get_logger(__name__)
_TURN_S = 1.0
_RENEW_S = 12 * 3600.0
"""Kafka forgets positions after a week (`offsets.retention.minutes`)."""
_NO_SNAPSHOTS: dict[str, Any] = {"tables": [], "signals": []}


class _Copied:
    """A document, of which another one gets each content too."""

    def __init__(self, document: Document, copy: Document) -> None:
        self._document, self._copy = document, copy

    def read(self) -> Any:
        return self._document.read()

    def save(self, content: Any) -> None:
        self._document.save(content)
        self._copy.save(content)


class GroupMember:
    """A member of `group.id`. `changed` is set, by other threads, when there may be something to do."""

    def __init__(self, worker: WorkerSettings, changed: threading.Event) -> None:
        self._worker = worker
        self._changed = changed
        self._starting: str | None = None
        self._membership: GroupMembership | PulsarMembership
        self._take_epoch: Callable[[str], tuple[int, bool]] | None = None
        if worker.log == "pulsar":
            self._membership = PulsarMembership(worker, changed.set, lambda: self._starting is None)
            self._take_epoch = self._membership.take_epoch
        else:
            self._membership = GroupMembership(worker, changed.set)
        self._topic = SharedTopic(worker, self._take_epoch)
        self.journals: PulsarJournals | None = None
        """On Pulsar, of this leader."""
        self.state_directories: StateDirectories | None = None
        """Of this leader."""
        self._warming_up: Future[None] | None = None
        self._wait_reasons = ReasonLog()
        directory = worker.checkpoint_dir.absolute()
        # The files are for a worker that leaves the group.
        self.connectors: Document = _Copied(ConnectorRecords(self._topic), ConnectorFile(directory))
        self.snapshots: Document = _Copied(SnapshotRecords(self._topic), SnapshotFile(directory))
        self._status: StatusTopic | None = None
        self._generation = 0
        self._term_name = uuid.uuid4().hex
        self.term = ""
        """The term of this leader: the group and a number, which no earlier leader had."""
        self._renewed_at = time.monotonic()
        self._has_left = False

    def lead(
        self,
        starting: Callable[[], str | None],
        stopping: Callable[[], bool],
        may_wait: Callable[[], bool],
        warm_up: Callable[[], Future[None]],
    ) -> bool:
        """Join the group, and return when this worker leads it: True, or False if it is `stopping` before. It begins
        when nothing is `starting`; `may_wait` says whether the brokers still have time to come. `warm_up` is called
        once if it has to stand by, which it does well once that is done. Raises HelenusError.
        """
        self._starting = "starting: the group is not joined yet"
        check_state_directory(self._worker)
        self._await_topic(stopping, may_wait)
        self._membership.join()
        while not stopping():
            self._starting = starting()
            if self._membership.error is not None:
                raise self._membership.error
            if self._starting is None and self._membership.may_begin and self._begin():
                return True
            if self._starting is None and self._warming_up is None and self._membership.leader() is not None:
                _log.info("worker.standby", reason=self.reason())
                self._warming_up = warm_up()
            self._changed.wait(_TURN_S)
            self._changed.clear()
        return False

    @property
    def leads(self) -> bool:
        """Return whether this worker leads, as far as it knows."""
        return self._membership.leads and not self._topic.is_replaced

    def leader_url(self) -> str | None:
        """Return where the worker that leads answers, None if it is not known."""
        leader = self._membership.leader()
        return None if leader is None else leader.url

    def reason(self) -> str:
        """Return why this worker runs no connectors: "starting: …" or "standby: …"."""
        starting = self._starting
        if starting is None and self._warming_up is not None and not self._warming_up.done():
            starting = "starting: a first query, so that the next one starts faster"
        leader, group = self._membership.leader(), self._worker.group_id
        if leader is None:
            return starting or f"starting: no worker leads the group {group} yet"
        return starting or f"standby: {leader.worker_id} leads the group {group}"

    def positions(self) -> BrokerPositions:
        """Return the positions of connectors, while this worker leads."""
        if self.journals is not None:
            return PulsarPositions(self.journals)
        return CommittedPositions(self._worker, self.commit)

    def commit(self, group: str, positions: Sequence[TopicPartition]) -> None:
        """Commit positions of a consumer group, while this worker leads. Raises HelenusError: NOT_OWNER."""
        self._topic.update(lambda _: {}, {group: positions})

    def show_status(self, connectors: Connectors) -> None:
        """Begin to write the status of the connectors, which are all loaded, for tools."""

        def statuses() -> dict[str, ConnectorStatus]:
            with connectors.lock:
                return {name: connector.status() for name, connector in connectors.all_with_files().items()}

        self._status = StatusTopic(self._worker, self._generation, statuses, lambda: self.leads, self._take_epoch)
        self._status.start()
        if (journals := self.journals) is not None:
            names = [connector.settings.name for connector in connectors.all().values()]
            run_in_thread(lambda: journals.prepare(names)).add_done_callback(self._note_prepared)

    def _note_prepared(self, prepared: Future[None]) -> None:
        """Note why the journals could not be read early: who needs them reads them later, and says so."""
        error = prepared.exception()
        if isinstance(error, HelenusError):
            self._log_wait(error)

    def renew_positions(self, connectors: Connectors) -> None:
        """Now and then, commit once more the positions of connectors that do not run: no batch does."""
        if time.monotonic() - self._renewed_at < _RENEW_S:
            return
        self._renewed_at = time.monotonic()
        positions = self.positions()
        for connector in connectors.all().values():
            with connectors.lock:
                idle_topics = _idle_topics(connectors, connector)
            if not idle_topics:
                continue
            try:
                counts = {topic: len(offsets) for topic, offsets in connectors.earliest(sorted(idle_topics)).items()}
                # Whoever moved or resumed one between the read and the commit would be taken back.
                with connectors.lock:
                    idle_topics = _idle_topics(connectors, connector)
                    positions.renew(
                        connector.settings, {topic: count for topic, count in counts.items() if topic in idle_topics}
                    )
            except HelenusError as error:
                if error.kind is Kind.NOT_OWNER:
                    raise
                self._log_wait(error)

    def leave(self) -> None:
        """Leave the group: another member leads at once. Say so if one does already."""
        if not self._has_left:
            self._has_left = True
            if self.term and not self.leads:
                advice = "the brokers had no sign of life of this worker for session.timeout.ms; it stands by now"
                _log.warning("worker.replaced", reason=self.reason(), advice=advice)
            if self._status is not None:
                self._status.close()
            self._membership.leave()
            self._topic.close()
            if self.journals is not None:
                self.journals.close()

    def _await_topic(self, stopping: Callable[[], bool], may_wait: Callable[[], bool]) -> None:
        while not stopping():
            try:
                return self._topic.create()
            except HelenusError as error:
                if error.action is not Action.RETRY or not may_wait():
                    raise
                self._log_wait(error)
            time.sleep(_TURN_S)

    def _begin(self) -> bool:
        """Begin to lead. Returns False if another worker does, or the brokers do not answer: then it is tried again."""
        directory = self._worker.checkpoint_dir.absolute()

        def read_files() -> dict[str, Any]:
            connectors, snapshots = ConnectorFile(directory).read(), SnapshotFile(directory).read()
            return {**connector_values(connectors), **snapshot_values(snapshots or _NO_SNAPSHOTS)}

        term = self._term_name
        try:
            leader = self._topic.lead(term, read_files, lambda former: begin_term(directory, former, term))
        except HelenusError as error:
            if error.action is not Action.RETRY and error.kind is not Kind.NOT_OWNER:
                raise
            self._log_wait(error)
            return False
        former = self._topic.former
        if isinstance(self._membership, PulsarMembership) and self._membership.epochs is not None:
            self.journals = PulsarJournals(self._worker, self._membership.epochs)
        self.state_directories = StateDirectories(self._worker, self._topic, leader)
        self._membership.note_begun(leader)
        self._generation = leader.number
        self.term = f"{self._worker.group_name}#{leader.number}"
        who = None if former is None else former.worker_id
        _log.info("worker.leads", group=self._worker.group_id, number=leader.number, former=who)
        return True

    def _log_wait(self, error: HelenusError) -> None:
        if self._wait_reasons.is_due("group", str(error)):
            _log.warning("group.waiting", group=self._worker.group_id, reason=str(error))


def _idle_topics(connectors: Connectors, connector: Connector) -> set[str]:
    """Return the events topics of which nothing is published now, nor is to be; the caller has the lock."""
    in_batch = connectors.topics_in_batch(connector)
    tasks = [task for task in connector.tasks.values() if connector.wanted != "RUNNING" or task.error]
    return {task.events for task in tasks if task.data not in in_batch}
