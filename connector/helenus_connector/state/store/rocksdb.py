"""Sessions of Spark that keep their queries' state in RocksDB, and the size of that state."""

from __future__ import annotations

from typing import Any

_ROCKSDB_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Otherwise each write is a read first, for a row count that is not used.
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.stateStore.compression.codec": "zstd",
}


def new_session(spark: Any, stores: int) -> Any:
    """Return a session whose queries keep their state in so many stores, in RocksDB."""
    session = spark.newSession()
    for key, value in _ROCKSDB_SETTINGS.items():
        session.conf.set(key, value)
    session.conf.set("spark.sql.shuffle.partitions", str(stores))
    return session


def measure_state(query: Any) -> int:
    """Return the bytes of a query's state, in files and in memory, as of its last batch; 0 if it is not known."""
    progress = None if query is None else query.lastProgress
    size = 0
    for state in progress["stateOperators"] if progress else ():
        size += state["memoryUsedBytes"] + state["customMetrics"].get("rocksdbSstFileSize", 0)
    return size
