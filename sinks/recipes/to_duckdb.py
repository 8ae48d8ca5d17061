"""Fills a table of DuckDB from a data topic: python to_duckdb.py BROKERS REGISTRY TOPIC FILE TABLE

TABLE may have a schema before it. Each batch is one transaction, with the offsets in the table recipe_offsets. Needs
duckdb, and what batches.py needs.
"""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
from batches import Change, partition_column, run
from records import MICROSECONDS, Failure
from settings import Settings

OFFSETS = "recipe_offsets"


def quote(name: str) -> str:
    """Quote a name."""
    return '"' + name.replace('"', '""') + '"'


class DuckDb:
    """A table of a file."""

    errors = (duckdb.Error,)
    limits = MICROSECONDS

    def __init__(self, settings: Settings) -> None:
        file, name = settings.target
        self._name, self._topic = name, settings.topic
        self._table = ".".join(map(quote, name.split(".")))
        self._db = duckdb.connect(file)
        self._db.execute(
            f"CREATE TABLE IF NOT EXISTS {OFFSETS} (target VARCHAR, topic VARCHAR, partition INTEGER, next BIGINT,"
            " PRIMARY KEY (target, topic, partition))"
        )

    def __enter__(self) -> DuckDb:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def read_offsets(self, partitions: list[int]) -> dict[int, int]:
        mine = [self._name, self._topic]
        return dict(
            self._db.execute(f"SELECT partition, next FROM {OFFSETS} WHERE target=? AND topic=?", mine).fetchall()
        )

    def read_schema(self) -> pa.Schema | None:
        try:
            return self._read(f"FROM {self._table} LIMIT 0").schema
        except duckdb.CatalogException:
            return None

    def read_keys(self, key: pa.Schema, partitions: pa.Table | None, topic_partition: int) -> pa.Table:
        names = ", ".join(map(quote, key.names))
        if partitions is None:
            partition = partition_column(self.read_schema())
            return self._read(f"SELECT {names} FROM {self._table} WHERE {partition} = {topic_partition:d}")
        self._db.register("partitions", partitions)
        columns = ", ".join(map(quote, partitions.column_names))
        return self._read(f"SELECT {names} FROM {self._table} SEMI JOIN partitions USING ({columns})")

    def store(self, change: Change) -> None:
        _check_names(change.schema)
        for name, table in (("new_rows", change.rows), ("deleted", change.deleted)):
            self._db.register(name, table)
        self._db.execute("BEGIN")
        try:
            self._grow()
            columns = ", ".join(map(quote, change.key))
            equal = " AND ".join(f"t.{quote(name)} = k.{quote(name)}" for name in change.key)
            keys = f"(SELECT {columns} FROM deleted UNION ALL SELECT {columns} FROM new_rows)"
            self._db.execute(f"DELETE FROM {self._table} AS t USING {keys} AS k WHERE {equal}")
            self._db.execute(f"INSERT INTO {self._table} BY NAME SELECT * FROM new_rows")
            offsets = [(self._name, self._topic, *offset) for offset in change.offsets.items()]
            self._db.executemany(f"INSERT OR REPLACE INTO {OFFSETS} VALUES (?, ?, ?, ?)", offsets)
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def _grow(self) -> None:
        """Make the table, or give it the columns and the fields of types that it lacks."""
        self._db.execute(f"CREATE TABLE IF NOT EXISTS {self._table} AS SELECT * FROM new_rows LIMIT 0")
        stored = dict(row[:2] for row in self._db.execute(f"DESCRIBE {self._table}").fetchall())
        for name, needed, *_ in self._db.execute("DESCRIBE new_rows").fetchall():
            if name not in stored:
                self._db.execute(f"ALTER TABLE {self._table} ADD COLUMN {quote(name)} {needed}")
            elif stored[name] != needed:
                self._db.execute(f"ALTER TABLE {self._table} ALTER COLUMN {quote(name)} TYPE {needed}")

    def _read(self, sql: str) -> Any:
        return self._db.sql(sql).to_arrow_table()


def _check_names(fields: Any, where: str = "") -> None:
    """DuckDB takes `a` and `A` for one name, and would store one of them under another."""
    names = [field.name.lower() for field in fields]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise Failure(
            f"{where or 'the table'} has names that differ in case alone, {repeated}: leave one out (columns)"
        )
    for field in fields:
        kind = field.type
        while pa.types.is_list(kind) or pa.types.is_map(kind):
            kind = kind.value_type if pa.types.is_list(kind) else kind.item_type
        if pa.types.is_struct(kind):
            _check_names(kind, f"{where}.{field.name}" if where else field.name)


if __name__ == "__main__":
    run(__doc__, ["file", "table"], DuckDb)
