"""Fills a directory with Parquet files from a data topic: python to_parquet.py BROKERS REGISTRY TOPIC DIRECTORY

There is one for each batch, with its rows, and its deletes with `_deleted`. The table as it is now, in DuckDB's SQL:

    SELECT * FROM (FROM read_parquet('orders/*.parquet', union_by_name = true)
                   QUALIFY row_number() OVER (PARTITION BY customer, order_id ORDER BY _offset DESC) = 1)
    WHERE NOT _deleted

A file is there as a whole or not, with the offsets among its metadata. Needs what batches.py needs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from batches import PARTITION, Change, first_values, run
from records import MICROSECONDS, widen
from settings import Settings

DELETED, OFFSETS = "_deleted", b"recipe.offsets"


class Parquet:
    """Files of a directory, in the order of their numbers."""

    errors = (OSError, pa.ArrowException)
    limits = MICROSECONDS  # a file could hold more, but of such a file DuckDB reads nothing

    def __init__(self, settings: Settings) -> None:
        self._directory = Path(settings.target[0])
        self._directory.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Parquet:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read_offsets(self, partitions: list[int]) -> dict[int, int]:
        stored = self._newest_metadata().get(OFFSETS, b"{}")
        return {int(partition): offset for partition, offset in json.loads(stored).items()}

    def read_schema(self) -> pa.Schema | None:
        files = self._files()
        if not files:
            return None
        schema = pq.read_schema(files[-1]).remove_metadata()
        return pa.schema([field for field in schema if field.name != DELETED])

    def read_keys(self, key: pa.Schema, partitions: pa.Table | None, topic_partition: int) -> pa.Table:
        schema = pq.read_schema(self._files()[-1]).remove_metadata()
        condition = ds.field(PARTITION) == topic_partition if partitions is None else None
        if partitions is not None and (values := first_values(partitions)):
            condition = ds.field(values[0]).isin(values[1])
        return ds.dataset(self._files(), schema=schema).to_table(key.names, filter=condition)

    def store(self, change: Change) -> None:
        """Write a change to a file."""
        files = self._files()
        number = int(files[-1].stem) + 1 if files else 1
        schema = change.schema.append(pa.field(DELETED, pa.bool_()))
        rows = change.rows.append_column(DELETED, pa.array([False] * len(change.rows), pa.bool_()))
        gone = change.deleted.append_column(DELETED, pa.array([True] * len(change.deleted), pa.bool_()))
        table = pa.concat_tables([rows, widen(gone, schema)])
        offsets = {**self.read_offsets([]), **change.offsets}
        table = table.replace_schema_metadata({OFFSETS: json.dumps(offsets)})
        file = self._directory / f"{number:012}.parquet"
        staging = file.with_suffix(".new")
        pq.write_table(table, staging)
        with staging.open("rb") as written:
            os.fsync(written.fileno())
        staging.replace(file)

    def _files(self) -> list[Path]:
        return sorted(self._directory.glob("*.parquet"))

    def _newest_metadata(self) -> dict[bytes, bytes]:
        files = self._files()
        return (pq.read_schema(files[-1]).metadata or {}) if files else {}


if __name__ == "__main__":
    run(__doc__, ["directory"], Parquet)
