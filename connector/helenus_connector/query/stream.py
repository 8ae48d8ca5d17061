"""The stream of a query's events, as Spark has it; and one of no topics, after which the next one starts faster."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import structlog

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.plan import QueryPlan
from helenus_connector.query._planning_thread import FORMAT, PlanningThread
from helenus_connector.query.handover import start_query
from helenus_connector.query.internals import has_internals
from helenus_connector.query.source import EventsSource

_log = structlog.get_logger(__name__)
_CODEGEN = "sql.codegen.wholeStage"
_NAME = "warm-up"
_LONGEST_S = 60.0


def new_session(worker: WorkerSettings, spark: Any) -> Any:
    """Return a session of Spark's for a query."""
    session = spark.newSession()
    if _CODEGEN not in worker.spark:
        # Or code is written for batches, which have no rows.
        session.conf.set(f"spark.{_CODEGEN}", "false")
    return session


def read_stream(session: Any, plan: Path, planning: PlanningThread | None) -> Any:
    """Return the stream of a saved plan, as a DataFrame: `planning` has its batches, or without one the source in
    Python.
    """
    if planning is not None:
        return session.readStream.format(FORMAT).option("planning", planning.name).load()
    session.dataSource.register(EventsSource)
    return session.readStream.format("helenus-events").option("plan", str(plan)).load()


def local_url(path: Path) -> str:
    """Return a path of this machine as Spark takes it: what has no scheme is on the cluster's default file system,
    where Hadoop's configuration has one, as with YARN.
    """
    return f"file://{path.absolute()}"


def warm_up(worker: WorkerSettings, spark: Any, directory: Path) -> None:
    """Run a query of no topics for one batch: the JVM has loaded its classes then, and the system the files of Python's
    modules. Most of the start of the first query of a process is that. `directory` is the run's own. The JVM gives back
    the memory that this took.
    """
    warm_up_directory = directory / _NAME
    warm_up_directory.mkdir(exist_ok=True)
    # Nothing of it is kept.
    plan = QueryPlan(worker.model_copy(update={"checkpoint_dir": warm_up_directory}), {}, str(warm_up_directory), _NAME)
    plan.save()
    plan.due_file.write_text("0")
    planning = PlanningThread.for_session(spark.sparkContext, plan.file)
    batch_done = threading.Event()
    query: Any = None
    try:
        rows = read_stream(new_session(worker, spark), plan.file, planning)
        writer = rows.writeStream.queryName(f"helenus-{_NAME}")
        writer = writer.option("checkpointLocation", local_url(plan.checkpoint))
        query = start_query(spark.sparkContext, writer, lambda _: batch_done.set())
        if not batch_done.wait(_LONGEST_S):
            _log.debug("standby.not_warm", reason=str(query.exception() or f"no batch within {_LONGEST_S:.0f} s"))
    finally:
        if query is not None:
            query.stop()
        if planning is not None:
            planning.close()
    if has_internals(spark.sparkContext):
        spark.sparkContext._jvm.java.lang.System.gc()
