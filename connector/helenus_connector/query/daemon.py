"""The process that Spark's Python workers are forked from, `spark.python.daemon.module`: with our modules loaded.

Otherwise each worker loads them for itself, which takes 1.5 s of CPU time, and memory that they can share.
"""

from __future__ import annotations

import gc
import sys
from contextlib import suppress

from pyspark.daemon import manager

if __name__ == "__main__":
    # Spark starts one for each kind of worker. The others are forked once, and need little of ours.
    if sys.argv[1:] == ["pyspark.worker"]:
        with suppress(ImportError):  # what is missing on an executor's host is for the task to say
            import helenus_connector.query._task
            import helenus_connector.snapshot._scan  # noqa: F401
        gc.collect()
        gc.freeze()  # so that a search in a worker does not copy what it shares
    manager()
