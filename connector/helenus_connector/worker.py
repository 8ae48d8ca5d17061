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
from confluent_kafka import KafkaException

from helenus_connector import metrics
from helenus_connector.batches import Batches
from helenus_connector.config import ConnectorSettings, WorkerSettings
from helenus_connector.kafka_events import Planner
from helenus_connector.plan import Plan
from helenus_connector.registry import Registry
from helenus_connector.shape import schemas
from helenus_schemas.cassandra import connect
from helenus_schemas.errors import Action, HelenusError, Kind
from helenus_schemas.monitoring import serve
from helenus_schemas.table import Table, read_tables
from helenus_sinks.kafka import KafkaLog, broker_error

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


def check(worker: WorkerSettings, connectors: Sequence[ConnectorSettings], directory: Path) -> None:
    """Fail early: reach everything once, refuse what cannot work, and make the topics. Raises HelenusError."""
    planner = Planner(worker.consumer_config, "helenus-check")
    try:
        counts = planner.partitions([t for c in connectors for t in (c.events, c.data)])
    except KafkaException as failure:
        # The admin client tells why; the consumer only that time ran out.
        KafkaLog(worker.producer_config).create(connectors[0].events, 1, {})
        raise broker_error(failure.args[0], worker.bootstrap_servers) from None
    finally:
        planner.close()
    for connector in connectors:
        Registry(connector, directory / "schemas.json").check()
        table = _table(connector)
        schemas(table)
        if not table.cdc:
            raise HelenusError(Kind.CDC_DISABLED, "the table has no cdc = true", table.full_name)
        events = counts[connector.events]
        if not events:
            _log.warning("events.missing", topic=connector.events, advice="start the agent; it makes the topic")
            continue
        _make_topics(worker, connector, events)


def _make_topics(worker: WorkerSettings, connector: ConnectorSettings, events: int) -> None:
    """The data topic has as many partitions as the events topic: one in, one out."""
    log = KafkaLog(worker.producer_config)
    data = log.create(connector.data, events, {"cleanup.policy": "compact"})
    if data != events:
        raise HelenusError(
            Kind.PARTITIONS_CHANGED, f"{connector.events} has {events} partitions, {connector.data} has {data}"
        )
    if connector.errors_tolerance == "all":
        log.create(connector.dead_letters, 1, {})
    log.close()


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

            # Spark takes seconds to load: the checks go on meanwhile, and end it if they fail.
            with ThreadPoolExecutor(1) as pool:
                loading = pool.submit(session, self.worker, directory)
                check(self.worker, self.connectors, directory)
                spark = loading.result()
            try:
                self._supervise(spark, directory)
            finally:
                spark.stop()
        finally:
            if server is not None:
                server.shutdown()
            shutil.rmtree(directory, ignore_errors=True)

    def _supervise(self, spark: Any, directory: Path) -> None:
        from helenus_connector.source import EventsSource

        spark.dataSource.register(EventsSource)
        plan = Plan(self.worker, {c.events: c for c in self.connectors}, str(directory))
        plan.save()
        failures = 0
        while not self._stopping.is_set():
            self.batches = batches = Batches(plan)
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


def _cause(query: Any, batches: Batches) -> HelenusError:
    """Why a query ended: our own error from a batch, or what Spark says, which is worth another try."""
    if isinstance(batches.failure, HelenusError):
        return batches.failure
    told = str(query.exception() or "the query ended")
    for kind in Kind:
        if f"Kind.{kind.name}" in told:
            return HelenusError(kind, told.strip().splitlines()[-1])
    lines = [line for line in told.splitlines() if line.strip()]
    return HelenusError(Kind.BATCH_FAILED, lines[-1][:500] if lines else told)
