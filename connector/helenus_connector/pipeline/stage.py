"""What is done with one batch of one table's events. Knows no Spark.

    1 gate     which change events go on                      4 append   records to the data topic's producer
    2 resolve  what their keys' rows are now                  5 flush    wait for the broker's acknowledgement
    3 shape    what the records look like                     6 mark     what is published and confirmed, at the gate
                                                              7 hand back  what waits, to the driver

The order is what keeps everything: nothing is marked before the flush is acknowledged, and whatever raises before that
leaves the same events to be done again. A batch that is a transaction is committed, with what waits, between 5 and 6.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from helenus_connector.cassandra_rows import budget
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate.cache import Caches
from helenus_connector.gate.gate import ChangeGate
from helenus_connector.gate.replicas import Replicas
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.gate import NOTHING_WAITS, Gate, GateWaits, Intake
from helenus_connector.interfaces.resolver import Resolver, ResolverBatch, SchemaChanged
from helenus_connector.pipeline._past_events import note_past
from helenus_connector.pipeline._publisher import Publisher
from helenus_connector.pipeline._record_appender import RecordAppender
from helenus_connector.pipeline._table_version import TableVersion, TableVersions
from helenus_connector.pipeline._transaction import Transaction
from helenus_connector.pipeline._undeliverable import Undeliverable
from helenus_connector.pipeline._untraced import UNTRACED, StageTrace
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.reread.resolver import RereadResolver
from helenus_connector.resolve.none import WrittenResolver
from helenus_connector.shape.encoding.registry import RecordSchemas, Registry
from helenus_connector.unconfirmed.unconfirmed_key import MOST_WAITING, UnconfirmedKey
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.failpoints import reach
from helenus_sinks.log import Log

FLUSH_TIMEOUT_S = 60.0
_ATTEMPTS = 3


class Stage:
    """The work on one table's events in one process. Keeps its sessions and statements between batches.

    Its caches lie in `directory`, those that all tables of its connector share in `shared`. `schemas` are those of its
    records, by default in a `Registry`.
    """

    def __init__(
        self,
        settings: ConnectorSettings,
        session: Any,
        log: Log,
        directory: Path,
        shared: Path | None = None,
        schemas: RecordSchemas | None = None,
    ) -> None:
        self.settings, self.session, self.log = settings, session, log
        self._name = f"{settings.keyspace}.{settings.table}"
        self._registry = None if log.keeps_schemas else schemas or Registry(settings, directory / "schemas")
        self._replicas = Replicas(session, settings)
        caches = Caches(directory, settings.cache_max_capacity, settings.cache_expire_after_ms / 1000)
        self._gate: Gate = ChangeGate(self._replicas, caches, settings)
        self.versions = TableVersions(settings, session, self._registry)
        self._resolver: Resolver = RereadResolver(
            settings,
            session,
            self._gate,
            self._replicas,
            caches,
            budget.budget_for(shared or directory, settings),
            lambda: self.log.topics()[self._version.topic],
        )
        if settings.resolver == "none":
            self._resolver = WrittenResolver(self._gate, self._resolver, settings.published)
        self._undeliverable = Undeliverable(settings)
        self._appender = RecordAppender(settings, self.versions, self._undeliverable)
        self._publisher = Publisher(self.versions, self._appender, self._undeliverable)

    def run(
        self,
        events: Iterable[Event],
        due_keys: Sequence[UnconfirmedKey],
        trust_images: bool,
        may_wait: int = MOST_WAITING,
        gate_waits: GateWaits = NOTHING_WAITS,
        version_request: Any = None,
        transaction: Transaction | None = None,
        trace: StageTrace = UNTRACED,
    ) -> BatchOutcome:
        """Do one batch. `due_keys` are unconfirmed keys of the same partitions, to be read again. `trust_images` says
        that no earlier attempt at this batch can have published something newer than a due key's image. At most
        `may_wait` keys with events are left to wait because they can't be read. `gate_waits` is what waits at the gate,
        and `version_request` as in `read_definition`. With a `transaction`, the Log is that of its records.

        Raises HelenusError; then nothing is marked, and the batch is to be repeated or the connector stopped.
        """
        self._replicas.check()
        self.versions.follow(self.log, version_request, self._appender.has_begun)
        version = self._version
        # 1. gate: the resolver takes what goes on.
        gate_batch = self._gate.begin_batch(version.codec, version.created_at, gate_waits)
        intake, admitted = gate_batch.intake, gate_batch.admit(events)
        batch = self._resolver.begin_batch(version.table, version.codec, admitted, due_keys, version.created_at)
        trace.end_step("gate")
        if intake.poison:
            self._renew(batch)  # or is it of a table that the node that was asked does not know yet?
        # 2 to 5. Once more, from the first key, if the table, or what its topic takes, is not what it was.
        attempts, outcome = 0, None
        while outcome is None:  # the last attempt raises
            attempts += 1
            is_last = attempts == _ATTEMPTS
            # Of a former attempt some records may be durable, unless it was a transaction.
            is_trusted = trust_images and (attempts == 1 or transaction is not None)
            outcome = self._attempt(batch, intake, is_trusted, may_wait, is_last, transaction, trace)
            if outcome is None and transaction is not None:
                transaction.abort()
        trace.end_step("flush")
        reach("connector.after-flush")
        resolved = batch.confirm()
        outcome.add(resolved)
        outcome.dropped += gate_batch.settle_verified(resolved.verified_changes, resolved.unseen_changes)
        if transaction is not None:
            transaction.commit(outcome, FLUSH_TIMEOUT_S)
        self._appender.end_batch()
        # 6. mark: from here on, copies of what was published are dropped.
        gate_batch.save()
        reach("connector.after-mark")
        return outcome  # 7. hand back

    def note_past(
        self, events: Sequence[Event], waiting: Collection[bytes], at_gate: Collection[bytes], version_request: Any
    ) -> None:
        """Note past events, as `_past_events` says, before those that follow. Raises as `run`."""
        self._replicas.check()
        self.versions.follow(self.log, version_request)
        note_past(self._gate, self._resolver, self._version, events, waiting, at_gate)

    def close(self) -> None:
        """Close all but the session and the Log, which others use too."""
        self._gate.close()
        self._resolver.close()
        self._appender.close()
        if self._registry is not None:
            self._registry.close()

    @property
    def _version(self) -> TableVersion:
        return self.versions.current

    def _renew(self, batch: ResolverBatch) -> None:
        self.versions.renew(self.log)
        batch.use_table(self._version.table, self._version.codec)

    def _attempt(
        self,
        batch: ResolverBatch,
        intake: Intake,
        trust_images: bool,
        may_wait: int,
        is_last: bool,
        transaction: Transaction | None,
        trace: StageTrace,
    ) -> BatchOutcome | None:
        """Do steps 2 to 5. Returns None if they are to be repeated; if it `is_last` that is an error."""
        outcome = BatchOutcome.from_intake(intake)
        self._appender.begin_batch()
        self.versions.declare(self.log)
        publisher, has_read_rows = self._publisher.traced(trace), False
        try:
            # 2. resolve
            for group in batch.resolve(trust_images, may_wait):
                has_read_rows = has_read_rows or any(resolved_key.is_read for resolved_key in group[:1])
                publisher.publish(self.log, batch, group, outcome)  # 3. shape, 4. append
                if transaction is None:
                    self.log.keep_short(FLUSH_TIMEOUT_S)
            outcome.dead_lettered += self._undeliverable.bury_events(self.log, intake.poison)
            trace.end_step("publish")
            if not (has_read_rows and self.versions.is_altered()):
                (self.log if transaction is None else transaction).flush(FLUSH_TIMEOUT_S)  # 5. flush
                return outcome
            if is_last:
                problem = "the table is altered over and over, or nodes do not agree on it"
                raise HelenusError(Kind.BATCH_FAILED, problem, self._name)
            self._renew(batch)
        except SchemaChanged as error:
            if is_last:
                problem = f"Cassandra refuses to read rows: {error}"
                raise HelenusError(Kind.CASSANDRA_READ, problem, self._name) from None
            self._renew(batch)
        except HelenusError as error:
            # The topic takes less than the producer knew: now the producer knows, and says which record it is.
            if is_last or error.kind is not Kind.RECORD_TOO_LARGE:
                raise
            self.log.close()
        return None
