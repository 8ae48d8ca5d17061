"""A worker: one Spark session, one streaming query for its connectors, restarted when it fails for a passing reason."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import structlog
import tenacity

from helenus_connector import metrics
from helenus_connector.batches import Batches
from helenus_connector.config import ConnectorSettings, WorkerSettings
from helenus_connector.plan import Plan
from helenus_connector.registry import Registry
from helenus_connector.shape import schemas
from helenus_schemas.cassandra import connect
from helenus_schemas.errors import Action, HelenusError, Kind, told_in
from helenus_schemas.monitoring import serve
from helenus_schemas.table import Table, read_tables
from helenus_sinks.kafka import KafkaLog

_log = structlog.get_logger()
_MAX_BACKOFF_S = 30.0


def run_directory() -> Path:
    """A directory of this run, in memory where the host has such a place: caches, schema ids and the plan lie there."""
    base = Path("/dev/shm")
    root = base if os.access(base, os.W_OK) else Path(tempfile.gettempdir())
    for left in root.glob("helenus-*-*"):
        _, owner, _ = left.name.split("-", 2)
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and left.owner() == Path.home().owner():
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"helenus-{os.getpid()}-", dir=root))


class Topics:
    """Makes the topics of connectors, each as soon as the agent has made its events topic."""

    def __init__(self, worker: WorkerSettings, connectors: Sequence[ConnectorSettings]) -> None:
        self._worker = worker
        self._missing = list(connectors)

    def make(self) -> None:
        """Make what can be made now. The data topic has as many partitions as the events topic: one in, one out.

        Raises HelenusError PARTITIONS_CHANGED if it exists with another number, and the broker's errors.
        """
        if not self._missing:
            return
        log = KafkaLog(self._worker.producer_config)
        counts = log.topics()
        for connector in [c for c in self._missing if c.events in counts]:
            events = counts[connector.events]
            data = log.create(connector.data, events, {"cleanup.policy": "compact"})
            if data != events:
                what = f"{connector.events} has {events} partitions, {connector.data} has {data}"
                raise HelenusError(Kind.PARTITIONS_CHANGED, what, connector.name)
            if connector.has_dead_letters:
                log.create(connector.dead_letters, 1, {})
            self._missing.remove(connector)

    def missing(self) -> list[str]:
        """Events topics that do not exist yet."""
        return [c.events for c in self._missing]


def check(connectors: Sequence[ConnectorSettings], directory: Path, topics: Topics) -> None:
    """Fail early: reach everything once, and refuse what cannot work. Raises HelenusError."""
    topics.make()
    for connector in connectors:
        Registry(connector, directory / "schemas.json").check()
        table = _table(connector)
        schemas(table.only(connector.columns), connector)
        if not table.cdc:
            raise HelenusError(Kind.CDC_DISABLED, "the table has no cdc = true", table.full_name)


def _table(connector: ConnectorSettings) -> Table:
    session = connect(connector)
    try:
        name = f"{connector.keyspace}.{connector.table}"
        table = next((t for t in read_tables(session, connector.keyspace).values() if t.full_name == name), None)
    finally:
        session.cluster.shutdown()
    if table is None:
        raise HelenusError(Kind.TABLE_MISSING, "there is no such table", name)
    return table


class Worker:
    """Runs connectors until `stop` is called or an error stops them."""

    def __init__(self, worker: WorkerSettings, connectors: Sequence[ConnectorSettings]) -> None:
        self.worker = worker
        self.connectors = connectors
        self.batches: Batches | None = None
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ask the worker to end; `run` returns within seconds. A batch that is under way is done again at the start."""
        self._stopping.set()
        if self.batches is not None:
            self.batches.stop()

    def ready(self) -> str | None:
        """Why the worker is not ready, or None."""
        if self.batches is None or not self.batches.done:
            return "starting: no batch done yet"
        return self.batches.trouble

    def run(self) -> None:
        """Run until `stop`. Raises HelenusError when an error stops the connectors."""
        directory = run_directory()
        server = None
        try:
            server = serve(*self.worker.listener, self.ready)
            from helenus_connector.spark import session

            topics = Topics(self.worker, self.connectors)
            complete = self._complete(directory, topics)
            # Spark takes seconds to load, which is well spent while servers start.
            with ThreadPoolExecutor(1) as pool:
                loading = pool.submit(session, self.worker, directory)
                try:
                    if not complete:
                        self._wait(directory, topics)
                except BaseException:
                    loading.result().stop()
                    raise
                spark = loading.result()
            for topic in topics.missing():
                _log.warning("events.missing", topic=topic, advice="start the agent; it makes the topic")
            try:
                self._supervise(spark, directory, topics)
            finally:
                spark.stop()
        finally:
            if server is not None:
                server.shutdown()
            shutil.rmtree(directory, ignore_errors=True)

    def _complete(self, directory: Path, topics: Topics) -> bool:
        """Whether all is there; False if something is not, and there is time to wait for it."""
        try:
            check(self.connectors, directory, topics)
        except HelenusError as error:
            if _may_come(error) and self.worker.startup_timeout_ms:
                return False
            raise
        return True

    def _wait(self, directory: Path, topics: Topics) -> None:
        """Wait for what is not there yet as long as `startup.timeout.ms` allows."""
        for attempt in tenacity.Retrying(
            retry=tenacity.retry_if_exception(_may_come),
            stop=tenacity.stop_any(
                tenacity.stop_after_delay(self.worker.startup_timeout_ms / 1000),
                tenacity.stop_when_event_set(self._stopping),
            ),
            wait=tenacity.wait_fixed(1),
            sleep=tenacity.sleep_using_event(self._stopping),
            before_sleep=_tell_wait,
            reraise=True,
        ):
            with attempt:
                check(self.connectors, directory, topics)

    def _supervise(self, spark: Any, directory: Path, topics: Topics) -> None:
        from helenus_connector.source import EventsSource

        spark.dataSource.register(EventsSource)
        plan = Plan(self.worker, {c.events: c for c in self.connectors}, str(directory))
        plan.save()
        failures = 0
        while not self._stopping.is_set():
            self.batches = batches = Batches(plan, topics.make)
            query = self._start(spark, plan, batches)
            _log.info("query.started", connectors=[c.name for c in self.connectors])
            self._await(query)
            if self._stopping.is_set():
                query.stop()
                return
            error = _cause(query, batches)
            if error.action is not Action.RETRY:
                raise error
            metrics.ERRORS.labels(error.kind.value).inc()
            failures = 1 if batches.done else failures + 1
            wait = min(2.0 ** (failures - 1), _MAX_BACKOFF_S)
            batches.trouble = str(error)
            _log.warning("query.failed", error=str(error), restart_in_s=wait)
            self._stopping.wait(wait)

    def _start(self, spark: Any, plan: Plan, batches: Batches) -> Any:
        frame = spark.readStream.format("helenus-events").option("plan", str(plan.file)).load()
        return (
            frame.writeStream.queryName("helenus")
            .option("checkpointLocation", str(self.worker.checkpoint_dir.absolute()))
            .trigger(processingTime=f"{self.worker.batch_interval_ms} milliseconds")
            .foreachBatch(batches.process)
            .start()
        )

    def _await(self, query: Any) -> None:
        while query.isActive and not self._stopping.is_set():
            time.sleep(0.1)


def _may_come(error: BaseException) -> bool:
    """Servers that start beside the worker, and a table that is made after it."""
    return isinstance(error, HelenusError) and (error.action is Action.RETRY or error.kind is Kind.TABLE_MISSING)


def _tell_wait(state: tenacity.RetryCallState) -> None:
    _log.info("worker.waiting", reason=str(state.outcome and state.outcome.exception()))


def _cause(query: Any, batches: Batches) -> HelenusError:
    """Why a query ended: our own error from a batch, or what Spark says, which is worth another try."""
    if isinstance(batches.failure, HelenusError):
        return batches.failure
    told = str(query.exception() or batches.failure or "the query ended")
    lines = [line for line in told.splitlines() if line.strip()]
    return told_in(told) or HelenusError(Kind.BATCH_FAILED, lines[-1][:500])
