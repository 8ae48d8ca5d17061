"""Fills a Delta table from a data topic: python to_delta.py BROKERS REGISTRY TOPIC URI

URI is a directory, or s3://, abfss://, gs:// with deltalake's storage options as `target.NAME=VALUE` in --config. Each
batch is one commit, with the offsets as its application's transactions. Needs deltalake, and what batches.py needs.
"""

from __future__ import annotations

import pyarrow as pa
from batches import Change, first_values, partition_column, run
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake
from deltalake.exceptions import DeltaError
from records import FOUR_DIGIT_YEARS, has_grown, widen
from settings import Settings

DELETED = "_deleted"


class Delta:
    """A table at an address."""

    errors = (DeltaError, OSError)
    limits = FOUR_DIGIT_YEARS  # as Spark's types: deltalake can't open a table again that has others

    def __init__(self, settings: Settings) -> None:
        (self._uri,) = settings.target
        self._topic, self._options = settings.topic, settings.target_client
        is_there = DeltaTable.is_deltatable(self._uri, self._options)
        self._table = DeltaTable(self._uri, storage_options=self._options) if is_there else None

    def __enter__(self) -> Delta:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read_offsets(self, partitions: list[int]) -> dict[int, int]:
        if self._table is None:
            return {}
        stored = {partition: self._table.transaction_version(self._application(partition)) for partition in partitions}
        return {partition: offset for partition, offset in stored.items() if offset is not None}

    def read_schema(self) -> pa.Schema | None:
        return None if self._table is None else pa.schema(self._table.schema().to_arrow())

    def read_keys(self, key: pa.Schema, partitions: pa.Table | None, topic_partition: int) -> pa.Table:
        partition = partition_column(self.read_schema())
        condition = f"WHERE {partition} = {topic_partition:d}" if partitions is None else ""
        if partitions is not None and (values := first_values(partitions)):
            literals = ", ".join(map(literal, values[1].to_pylist()))
            condition = f"WHERE {quote(values[0])} IN ({literals})"
        return self._read(", ".join(map(quote, key.names)), condition).read_all()

    def store(self, change: Change) -> None:
        """Merge a change: one commit for its deletes and its rows."""
        if self._table is None:
            self._table = DeltaTable.create(self._uri, change.schema, mode="ignore", storage_options=self._options)
        self._grow(self._table, change.schema)
        rows = change.rows.append_column(DELETED, pa.array([False] * len(change.rows), pa.bool_()))
        gone = change.deleted.append_column(DELETED, pa.array([True] * len(change.deleted), pa.bool_()))
        source = pa.concat_tables([rows, widen(gone, rows.schema)])
        equal = " AND ".join(f"t.{quote(name)} = s.{quote(name)}" for name in change.key)
        columns = {quote(name): f"s.{quote(name)}" for name in change.schema.names}
        offsets = [Transaction(self._application(partition), offset) for partition, offset in change.offsets.items()]
        merge = self._table.merge(
            source,
            equal,
            source_alias="s",
            target_alias="t",
            commit_properties=CommitProperties(app_transactions=offsets),
        )
        merge = merge.when_matched_delete(f"s.{DELETED}")
        merge = merge.when_matched_update(columns, f"NOT s.{DELETED}")
        merge.when_not_matched_insert(columns, f"NOT s.{DELETED}").execute()

    def _grow(self, table: DeltaTable, schema: pa.Schema) -> None:
        """Give the table the columns and the fields of types that it lacks.

        Files in which a type within a map has fewer fields can't be read by the wider one: these are written anew.
        """
        stored = {field.name: field.type for field in pa.schema(table.schema().to_arrow())}
        if any(has_grown(stored[f.name], f.type, in_maps=True) for f in schema if f.name in stored):
            tables = (widen(pa.Table.from_batches([batch]), schema) for batch in self._read())
            grown = pa.RecordBatchReader.from_batches(
                schema, (batch for table in tables for batch in table.to_batches())
            )
            write_deltalake(table, grown, mode="overwrite", schema_mode="overwrite")
        elif any(f.name not in stored or has_grown(stored[f.name], f.type) for f in schema):
            write_deltalake(table, schema.empty_table(), mode="append", schema_mode="merge")

    def _read(self, columns: str = "*", condition: str = "") -> pa.RecordBatchReader:
        """Read rows; deltalake's own reader fails on dates in its statistics that Python has none for."""
        assert self._table is not None
        answer = QueryBuilder().register("t", self._table).execute(f"SELECT {columns} FROM t {condition}")
        return pa.RecordBatchReader.from_stream(answer)

    def _application(self, partition: int) -> str:
        return f"helenus-{self._topic}-{partition}"


def literal(value: int | str) -> str:
    """Write a value in SQL."""
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def quote(name: str) -> str:
    """Quote a column's name."""
    return '"' + name.replace('"', '""') + '"'


if __name__ == "__main__":
    run(__doc__, ["uri"], Delta)
