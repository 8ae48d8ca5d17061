"""The process that Spark's Python workers are forked from, `spark.python.daemon.module`: with our modules loaded.

Otherwise each worker loads them for itself, which takes 1.5 s of CPU time, and memory that they can share. The workers
also log why a task fails. Spark does it again, up to four times, and tells nobody: a fault that goes by with the second
attempt would only make batches slow.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps

import pyspark.util
import structlog

try:
    from pyspark.daemon import manager
except ImportError:  # another version's may have no such function: then as Spark would start it without us

    def manager() -> None:
        """Run PySpark's own process to fork from."""
        runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


from helenus_schemas.errors import reason
from helenus_schemas.service import logs

_log = structlog.get_logger(__name__)


def logged(send: Callable[..., None]) -> Callable[..., None]:
    """PySpark's function that sends a task's error to Spark, so that it logs the error too."""

    @wraps(send)
    def log_and_send(error: BaseException, *more: object) -> None:
        # Spark closes the connection of a task that is not needed any more.
        if not isinstance(error, (ConnectionError, EOFError)):
            _log.warning("spark.task_failed", error=reason(error), advice="Spark does it again")
        send(error, *more)

    return log_and_send


if __name__ == "__main__":
    os.umask(0o077)  # on an executor's host it is not the worker's
    # Spark starts one for each kind of worker. The others are forked once, and need little of ours.
    if sys.argv[1:] == ["pyspark.worker"]:
        logs.configure()  # until a task follows its worker's
        if hasattr(pyspark.util, "handle_worker_exception"):
            pyspark.util.handle_worker_exception = logged(pyspark.util.handle_worker_exception)
        with suppress(ImportError):  # what is missing on an executor's host is for the task to say
            # The rooms' public modules: their tasks come with them. And Arrow, of operators with state and verify.
            import pyarrow  # noqa: F401

            import helenus_connector.query.events_query
            import helenus_connector.snapshot.snapshots  # noqa: F401
        gc.collect()
        gc.freeze()  # so that a search in a worker does not copy what it shares
    manager()
