"""Fills a directory with Parquet files from a data topic: python to_parquet.py BROKERS REGISTRY TOPIC DIRECTORY

DIRECTORY may be s3://BUCKET/PREFIX, with the arguments of pyarrow's S3FileSystem as `target.NAME=VALUE` in --config.
There is one file for each batch, with its rows, and its deletes with `_deleted`. The table as it is now, in DuckDB's
SQL:

    SELECT * FROM (FROM read_parquet('orders/*.parquet', union_by_name = true)
                   QUALIFY row_number() OVER (PARTITION BY customer, order_id ORDER BY _offset DESC) = 1)
    WHERE NOT _deleted

A file is there as a whole or not, with the offsets among its metadata. One process fills a directory: a second one is
refused, in a bucket once it sees a file of the first. Needs what batches.py needs.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from batches import Change, first_values, partition_column, run
from pyarrow import fs
from records import MICROSECONDS, Failure, widen
from settings import Settings

DELETED, OFFSETS = "_deleted", b"recipe.offsets"
S3 = "s3://"
_SECOND = "another process fills {}: end it, or the two would overwrite each other's files"


class Parquet:
    """Files of a directory, or of a prefix in a bucket, in the order of their numbers."""

    errors = (OSError, pa.ArrowException)
    limits = MICROSECONDS  # a file could hold more, but of such a file DuckDB reads nothing

    def __init__(self, settings: Settings) -> None:
        (address,) = settings.target
        self._is_local = not address.startswith(S3)
        options: dict[str, Any] = dict(settings.target_client)
        try:
            self._files_of: Any = fs.LocalFileSystem() if self._is_local else fs.S3FileSystem(**options)
        except TypeError as error:
            raise Failure(f"target.* has what pyarrow's S3FileSystem does not take: {error}") from None
        self._directory = str(Path(address).absolute()) if self._is_local else address.removeprefix(S3).rstrip("/")
        self._lock = -1
        if self._is_local:
            self._files_of.create_dir(self._directory)
            self._lock = os.open(self._directory, os.O_RDONLY)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Failure(_SECOND.format(self._directory)) from None
        self._files = self._list_files()

    def __enter__(self) -> Parquet:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_local:
            os.close(self._lock)

    def read_offsets(self, partitions: list[int]) -> dict[int, int]:
        schema = self._newest_schema()
        stored = (schema.metadata or {}).get(OFFSETS, b"{}") if schema else b"{}"
        return {int(partition): offset for partition, offset in json.loads(stored).items()}

    def read_schema(self) -> pa.Schema | None:
        schema = self._newest_schema()
        return schema and pa.schema([field for field in schema.remove_metadata() if field.name != DELETED])

    def read_keys(self, key: pa.Schema, partitions: pa.Table | None, topic_partition: int) -> pa.Table:
        schema = self._newest_schema()
        condition = ds.field(partition_column(schema)) == topic_partition if partitions is None else None
        if partitions is not None and (values := first_values(partitions)):
            condition = ds.field(values[0]).isin(values[1])
        table = ds.dataset(self._files, schema=schema, filesystem=self._files_of)
        return table.to_table(key.names, filter=condition)

    def store(self, change: Change) -> None:
        """Write a change to a file."""
        if not self._is_local and self._list_files() != self._files:
            raise Failure(_SECOND.format(self._directory))
        number = int(Path(self._files[-1]).stem) + 1 if self._files else 1
        schema = change.schema.append(pa.field(DELETED, pa.bool_()))
        rows = change.rows.append_column(DELETED, pa.array([False] * len(change.rows), pa.bool_()))
        gone = change.deleted.append_column(DELETED, pa.array([True] * len(change.deleted), pa.bool_()))
        table = pa.concat_tables([rows, widen(gone, schema)])
        offsets = {**self.read_offsets([]), **change.offsets}
        content = io.BytesIO()
        pq.write_table(table.replace_schema_metadata({OFFSETS: json.dumps(offsets)}), content)
        file = f"{self._directory}/{number:012}.parquet"
        self._write(file, content.getbuffer())
        self._files.append(file)

    def _write(self, file: str, content: memoryview) -> None:
        """Write a file that is there as a whole or not: S3 shows an object when its upload is completed."""
        if not self._is_local:
            with self._files_of.open_output_stream(file) as stream:
                stream.write(content)
            return
        staging = Path(f"{file}.new")
        with staging.open("wb") as written:
            written.write(content)
            written.flush()
            os.fsync(written.fileno())
        staging.replace(file)

    def _list_files(self) -> list[str]:
        entries = self._files_of.get_file_info(fs.FileSelector(self._directory, allow_not_found=True))
        return sorted(entry.path for entry in entries if entry.path.endswith(".parquet"))

    def _newest_schema(self) -> pa.Schema | None:
        return pq.read_schema(self._files[-1], filesystem=self._files_of) if self._files else None


if __name__ == "__main__":
    run(__doc__, ["directory"], Parquet)
