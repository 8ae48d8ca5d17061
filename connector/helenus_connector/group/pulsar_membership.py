"""The membership of a worker in a group on Pulsar: it looks in the topic of signs of life, and writes them if it leads.

    announce   a sign with the next epoch, so that others wait
    claim      have brokers refuse lower epochs, in this topic and in the group's
    look       nobody has a higher one → it leads, and writes a sign every moment

`_election` decides when. Whoever hangs, or is cut off, and then goes on, is refused with its next sign, as with all
that it writes.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import threading
import time
from collections.abc import Callable, Iterable

import structlog

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.backoff import ReasonLog
from helenus_connector.group._election import Election, Sign, SignOfLife
from helenus_connector.group._leader import Leader
from helenus_connector.log.choice import claim_epochs, data_log, data_planner, keep_topic, read_signals
from helenus_connector.log.events import Message, OffsetRange, Planner
from helenus_schemas.errors import Action, HelenusError, Kind
from helenus_sinks.log import Log
from helenus_sinks.pulsar.epochs import TakenOver, TermEpochs

_log = structlog.get_logger(__name__)
_CONFIG = {"retention.ms": "60000"}
"""Signs of before are nothing worth."""
_PARTITION = 0
_HIGHEST_EPOCH = 1 << 62
"""Far above any time: brokers keep an epoch in 63 bits."""
_LOOKS = 2
"""In the time between two signs."""
_LEAVE_S = 5.0
_LAST_S = 2.0


class PulsarMembership:
    """The membership of a worker in its group, from `join` until `leave`: as `GroupMembership` on Kafka. `changed` is
    called, in another thread, when it may have begun or ceased to lead; a member tries to lead while it `is_ready`.
    """

    def __init__(self, worker: WorkerSettings, changed: Callable[[], None], is_ready: Callable[[], bool]) -> None:
        self._worker = worker
        self._changed = changed
        self._is_ready = is_ready
        self._topic = f"{worker.group_topic}-leader"
        self._where = f"{worker.pulsar_service_url}, topic {self._topic}"
        self._member = f"{worker.worker_id} {random.SystemRandom().getrandbits(64):016x}"
        self._election = Election(self._member, worker.session_timeout_ms / 1000, random.SystemRandom().random)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="group", daemon=True)
        self._wait_reasons = ReasonLog()
        self._planner: Planner | None = None
        self._signs: Log | None = None
        self._is_created = False
        self._position: int | None = None
        self._epoch = self._claimed_epoch = 0
        self._owned: set[str] = set()
        self._noted: Leader | None = None
        self._led: Leader | None = None
        self._is_replaced = False
        self.epochs: TermEpochs | None = None
        """Those of the term of this leader."""
        self.error: HelenusError | None = None
        """Why the worker can't be a member."""

    def join(self) -> None:
        """Join the group. Its topic is there by now."""
        self._thread.start()

    def leave(self) -> None:
        """Leave the group: another member gets to lead at once. Returns within seconds."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(_LEAVE_S)

    @property
    def may_begin(self) -> bool:
        """Return whether this worker is to begin to lead now."""
        return self._election.leads and self._led is None and not self._is_replaced

    def note_begun(self, leader: Leader) -> None:
        """Note that this worker leads."""
        self._led = self._noted = leader  # first: `_note_refused` asks for them in the opposite order
        if not self._election.leads:
            self._is_replaced = True
        _log.info("group.leader", group=self._worker.group_id, leader=leader.worker_id, number=leader.number)

    @property
    def leads(self) -> bool:
        """Return whether this worker leads, as far as it knows."""
        return self._led is not None and not self._is_replaced

    def leader(self) -> Leader | None:
        """Return who leads, as far as it is known."""
        return self._noted

    def take_epoch(self, topic: str) -> tuple[int, bool]:
        """Return an epoch of this leader's term for a topic, and whether the topic has it already. Raises HelenusError
        NOT_OWNER.
        """
        if self.epochs is None or self._is_replaced or not self._election.leads:
            problem = f"another worker leads the group {self._worker.group_id} by now"
            raise HelenusError(Kind.NOT_OWNER, problem, self._where, "ask that one")
        if topic in self._owned:
            self._owned.discard(topic)
            return self._claimed_epoch, True
        return self.epochs.take(), False

    def _run(self) -> None:
        pause_s = 0.0
        while not self._ending.wait(pause_s) and not self._is_replaced:
            begun = time.monotonic()
            try:
                self._turn()
            except HelenusError as error:
                self._note_error(error)
            except Exception as failure:  # as of a log that can't be written: it has to go on
                self._note_wait(f"{type(failure).__name__}: {failure}")
            step_s = self._election.step_s / (1 if self._election.leads else _LOOKS)
            pause_s = max(0.0, begun + step_s - time.monotonic())
        with contextlib.suppress(Exception):
            if self._election.leads and not self._is_replaced:
                self._send(Sign.LEFT, _LAST_S)
        self._close()

    def _turn(self) -> None:
        if self._election.leads:
            self._send(Sign.CANDIDATE if self._led is None else Sign.LEADER, self._worker.session_timeout_ms / 1000)
            return
        self._look()
        if self._election.may_claim and self._is_ready():
            self._claim()

    def _look(self) -> None:
        """Read the signs that came since the last look. Raises HelenusError."""
        try:
            signs = list(self._read())
        except HelenusError:
            self._election.note_failed_look(time.monotonic())
            if self._planner is not None:
                self._planner.close()  # its connection may be to a broker that has the topic no more
                self._planner = None
            raise
        self._election.note_look(time.monotonic(), signs, is_new=self._position == 0)

    def _read(self) -> Iterable[SignOfLife]:
        if not self._is_created:
            with contextlib.closing(data_log(self._worker)) as log:
                if log.create(self._topic, 1, _CONFIG) != 1:
                    problem = "the topic of the group's leader has several partitions"
                    raise HelenusError(Kind.CONFIG, problem, self._where, "delete it")
            self._is_created = True
        if self._planner is None:
            self._planner = data_planner(self._worker)
            self._planner.partitions([self._topic])
        ends = self._planner.latest({self._topic: 1}).get(self._topic)
        if ends is None:
            self._is_created, self._position = False, None
            raise HelenusError(Kind.BROKER_UNREACHABLE, "the end of the topic is not known", self._where)
        end = max(0, ends[str(_PARTITION)])
        if self._position is None:  # the last sign may be of a leader that left
            self._position = max(0, end - 1)
        if end <= self._position:
            self._position = end  # of a topic that was made anew
            return
        errors: list[HelenusError] = []
        ranges = [OffsetRange(self._topic, _PARTITION, self._position, end)]
        for chunk in read_signals(self._worker, ranges, lambda _, error: errors.append(error)):
            for message in chunk:
                if (sign := self._note_message(message)) is not None:
                    yield sign
        if errors:
            raise errors[0]
        self._position = end

    def _note_message(self, message: Message) -> SignOfLife | None:
        """Return the sign of life in a message, None if it is none; a leader's says who leads."""
        with contextlib.suppress(ValueError, RecursionError):
            match json.loads(message.value() or b"null"):
                case {"sign": str(sign), "member": str(member), "epoch": int(epoch), "sent_s": float(sent_s), **more}:
                    if not 0 <= epoch <= _HIGHEST_EPOCH or not math.isfinite(sent_s):
                        return None
                    leader = Leader.from_value(more.get("leader"))
                    if leader is not None and leader != self._noted:
                        self._noted = leader
                        number = leader.number
                        _log.info("group.leader", group=self._worker.group_id, leader=leader.worker_id, number=number)
                        self._changed()
                    return SignOfLife(Sign(sign), member, epoch, sent_s)
        return None

    def _claim(self) -> None:
        """Try to lead. Raises HelenusError where brokers don't answer."""
        self._epoch = self._election.begin_claim(time.time_ns() // 1_000_000)
        epochs = TermEpochs(self._epoch)
        topics = [self._topic, self._worker.group_topic]
        try:
            # 1. announce
            self._keep_signs(epochs.take())
            self._send(Sign.CANDIDATE, self._worker.session_timeout_ms / 1000)
            # 2. claim
            epoch = epochs.take()
            for error in claim_epochs(self._worker, dict.fromkeys(topics, epoch), (), self._ending.is_set).values():
                raise error
            self._keep_signs(epoch)
            # 3. look
            self._look()
        except HelenusError as error:
            if error.kind is Kind.NOT_OWNER:
                self._note_refused(error)
                return
            self._election.note_unclaimed()
            raise
        if self._election.note_claimed():
            self.epochs, self._claimed_epoch, self._owned = epochs, epoch, {self._worker.group_topic}
            self._changed()

    def _send(self, sign: Sign, timeout_s: float) -> None:
        """Write a sign. Raises HelenusError."""
        leader = None if self._led is None else self._led.to_value()
        content = {"sign": sign.value, "member": self._member, "epoch": self._epoch, "sent_s": time.monotonic()}
        assert self._signs is not None
        try:
            self._signs.append(self._topic, _PARTITION, None, json.dumps({**content, "leader": leader}).encode())
            self._signs.flush(timeout_s)
        except HelenusError as error:
            if error.kind is Kind.NOT_OWNER and self._election.leads:
                self._note_refused(error)
                return
            raise

    def _note_refused(self, error: HelenusError) -> None:
        """Note that brokers have another one's epoch: who began to lead, leads no more."""
        self._election.note_refused(time.monotonic(), error.epoch if isinstance(error, TakenOver) else 0)
        if self._led is not None:
            self._is_replaced = True
        self._changed()

    def _keep_signs(self, epoch: int) -> None:
        if self._signs is None:
            self._signs = data_log(self._worker)
        keep_topic(self._signs, self._topic, epoch)

    def _note_error(self, error: HelenusError) -> None:
        if error.action is Action.RETRY or self._led is not None:
            self._note_wait(str(error))
        else:
            self.error = error
            self._changed()

    def _note_wait(self, reason: str) -> None:
        with contextlib.suppress(Exception):
            if self._wait_reasons.is_due("group", reason):
                _log.warning("group.waiting", group=self._worker.group_id, reason=reason)

    def _close(self) -> None:
        for opened in (self._planner, self._signs):
            if opened is not None:
                with contextlib.suppress(HelenusError):
                    opened.close()
