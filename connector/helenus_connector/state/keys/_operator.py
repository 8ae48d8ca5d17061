"""The operator of `state=keys` on Spark: the index of each topic partition, and the reads it requests."""

from __future__ import annotations

import marshal
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from helenus_connector.gate.event_content import decode_key
from helenus_connector.query.garbage import freeze
from helenus_connector.state.keys._key_index import FIRST_RETRY_OF_ONCE_S, FIRST_RETRY_S, KeyIndex, RangeTest
from helenus_connector.state.keys._plan import KeysPlan
from helenus_connector.state.keys._record_reader import unpack_reports
from helenus_connector.state.store.pages import Pages
from helenus_connector.state.store.spark_store import SparkStore
from helenus_connector.state.store.versions import refuse_unknown_versions
from helenus_connector.verify.scopes import Clustering
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.values import Malformed
from helenus_schemas.service.failpoints import reach

OUTPUT = "place string, asked binary, due double, counts binary, ends long"
"""`asked`: requested keys, for `requested_keys`; `due` in s since the epoch, or null; `counts` a marshalled dict; up to
`ends` the place was read.
"""


_OUTPUT_NAMES = [column.split()[0] for column in OUTPUT.split(", ")]


class KeysOperator(StatefulProcessor):
    """Takes rows of `_source.COLUMNS`, grouped by place; gives one row of `OUTPUT` for each place."""

    def __init__(self, plan: KeysPlan) -> None:
        self._plan = plan
        self._store: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._store = SparkStore.open(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: ARG002, N802, N803
        (topic_partition,) = key
        return refuse_unknown_versions(self._take(topic_partition, rows))

    def _take(self, topic_partition: str, rows: Iterator[Any]) -> Iterator[Any]:
        import pandas as pd

        packs: list[bytes] = []
        tick, end, is_behind = 0.0, -1, False
        for frame in rows:
            tick, end = max(tick, float(frame["tick"].max())), max(end, int(frame["ends"].max()))
            is_behind |= bool(frame["is_behind"].any())
            packs += [bytes(pack) for pack in frame["said"].to_numpy() if pack is not None]
        table = self._table(topic_partition)
        store = Pages(self._store)
        retry_s = FIRST_RETRY_S if self._plan.owner is None else FIRST_RETRY_OF_ONCE_S
        index = KeyIndex(store, tick, range_test(table), first_retry_s=retry_s)
        index.take(unpack_reports(packs), is_behind)
        store.flush()
        reach("state.after-merge")
        has_partitions = bool(table.clustering)
        request_bytes = marshal.dumps(
            [(name, has_partitions and name == group) for name, group in index.requested_keys.items()]
        )
        count_bytes = marshal.dumps(asdict(index.counts))
        fields = topic_partition, request_bytes, index.next_due(), count_bytes, end
        yield pd.DataFrame({name: [value] for name, value in zip(_OUTPUT_NAMES, fields, strict=True)})

    def close(self) -> None:
        freeze("keys")

    def _table(self, topic_partition: str) -> Table:
        topic = topic_partition.rpartition("/")[0]
        return self._plan.tables[topic].table


def requested_keys(data: bytes) -> list[tuple[bytes, bool]]:
    """Return the keys whose reads a place requests; of each whether it is of a partition's static columns."""
    keys: list[tuple[bytes, bool]] = marshal.loads(data)
    return keys


def unpack_counts(data: bytes) -> Mapping[str, int]:
    """Return the fields of `IndexCounts`."""
    counts: dict[str, int] = marshal.loads(data)
    return counts


def range_test(table: Table) -> RangeTest:
    """Return a test of whether keys of a table lie within the bounds that a marker's headers have."""
    codec, clustering = KeyCodec(table), Clustering(table.clustering)
    limits: dict[bytes, Any] = {}

    def covers(name: bytes, bounds: bytes) -> bool:
        if bounds not in limits:
            limits.clear()
            try:
                limits[bounds] = clustering.limits(bounds)
            except Malformed:  # a read too many does no harm
                limits[bounds] = None
        if limits[bounds] is None:
            return True
        start, end = limits[bounds]
        values = decode_key(codec, name)[codec.partition_columns :]
        return values[0] is not None and bool(start < clustering.position(values) < end)

    return covers
