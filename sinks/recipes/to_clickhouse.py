"""Fills a table of ClickHouse from a data topic: python to_clickhouse.py BROKERS REGISTRY TOPIC URL TABLE

URL is http(s)://host:port/database, with target.username and target.password in --config, or a directory, for chDB. The
table is a ReplacingMergeTree by `_offset`, so a batch that comes again changes nothing: read it with FINAL.

    SELECT * FROM orders FINAL

Needs clickhouse-connect, or chdb, and what batches.py needs.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.ipc as ipc
from batches import OFFSET, Change, partition_column, run
from records import Limits, has_grown, widen
from settings import Settings

try:
    from clickhouse_connect.driver.exceptions import ClickHouseError
except ImportError:  # with chDB alone
    ClickHouseError = RuntimeError

DELETED = "_deleted"


class Engine(Protocol):
    """What is asked of ClickHouse."""

    def command(self, sql: str) -> None:
        """Run a statement that gives nothing."""

    def read(self, sql: str) -> pa.Table:
        """Run a query. Strings come as bytes: they may be either."""

    def insert(self, table: str, rows: pa.Table) -> None:
        """Insert rows, by the names of their columns; `table` is quoted."""

    def close(self) -> None: ...


class Server:
    """A server, by its HTTP interface."""

    def __init__(self, url: str, options: dict[str, str]) -> None:
        import clickhouse_connect

        self._client = clickhouse_connect.get_client(dsn=url, **options)

    def command(self, sql: str) -> None:
        self._client.command(sql)

    def read(self, sql: str) -> pa.Table:
        return self._client.query_arrow(sql, use_strings=False)

    def insert(self, table: str, rows: pa.Table) -> None:
        self._client.insert_arrow(table, rows)

    def close(self) -> None:
        self._client.close()


class Embedded:
    """chDB: the engine in this process, with its tables in a directory."""

    def __init__(self, directory: str) -> None:
        from chdb.session import Session

        self._session = Session(directory)

    def command(self, sql: str) -> None:
        self._session.query(sql)

    def read(self, sql: str) -> pa.Table:
        stream = self._session.query(sql + " SETTINGS output_format_arrow_string_as_string = 0", "ArrowStream").bytes()
        return ipc.open_stream(stream).read_all()

    def insert(self, table: str, rows: pa.Table) -> None:
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory, "rows.arrow")
            with ipc.new_file(str(file), rows.schema) as writer:
                writer.write(rows)
            columns = ", ".join(map(quote, rows.column_names))
            self._session.query(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM file('{file}', 'Arrow')")

    def close(self) -> None:
        self._session.close()


def quote(name: str) -> str:
    """Quote a name."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def column_type(kind: pa.DataType, nullable: bool = True) -> str:
    """Give ClickHouse's type for an Arrow type. Null in a list or a map can't be: there it is empty."""
    if pa.types.is_list(kind):
        return f"Array({column_type(kind.value_type, nullable=False)})"
    if pa.types.is_map(kind):
        return f"Map(String, {column_type(kind.item_type, nullable=False)})"
    if pa.types.is_struct(kind):
        name = f"Tuple({', '.join(f'{quote(field.name)} {column_type(field.type)}' for field in kind)})"
    else:
        name = _TYPES[kind]
    return f"Nullable({name})" if nullable else name


def without_strings(kind: pa.DataType) -> pa.DataType:
    """Give a type with null for String, which is text's type and that of bytes."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, without_strings(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(without_strings(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), without_strings(kind.item_type))
    return pa.null() if pa.types.is_binary(kind) else kind


class ClickHouse:
    """A table of a server, or of chDB."""

    errors = (ClickHouseError, RuntimeError)  # chDB's is a RuntimeError
    limits: Limits = {pa.date32(): (-719_528, 2_932_896)}  # the years 0 to 9999

    def __init__(self, settings: Settings) -> None:
        url, name = settings.target
        is_server = url.startswith(("http://", "https://"))
        self._engine: Engine = Server(url, settings.target_client) if is_server else Embedded(url)
        self._table = ".".join(map(quote, name.split(".")))
        self._engine.command("SET allow_experimental_nullable_tuple_type = 1")  # it is on by default since 26.9

    def __enter__(self) -> ClickHouse:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close()

    def read_offsets(self, partitions: list[int]) -> dict[int, int]:
        """The offsets are those of the rows. The last record comes again: its insert may have been cut off."""
        schema = self.read_schema()
        if schema is None:
            return {}
        name = partition_column(schema)
        columns = f"{name} AS partition, max({OFFSET}) AS last"
        rows = self._engine.read(f"SELECT {columns} FROM {self._table} GROUP BY {name}").to_pylist()
        return {row["partition"]: row["last"] for row in rows}

    def read_schema(self) -> pa.Schema | None:
        if not self._engine.read(f"EXISTS TABLE {self._table}").column(0)[0].as_py():
            return None
        schema = self._engine.read(f"SELECT * FROM {self._table} LIMIT 0").schema
        return pa.schema([(field.name, without_strings(field.type)) for field in schema if field.name != DELETED])

    def read_keys(self, key: pa.Schema, partitions: pa.Table | None, topic_partition: int) -> pa.Table:
        rows = f"SELECT {', '.join(map(quote, key.names))} FROM {self._table} FINAL"
        if partitions is None:
            partition = partition_column(self.read_schema())
            return self._engine.read(f"{rows} WHERE {partition} = {topic_partition:d}").cast(key)
        columns = [f"{quote(field.name)} {column_type(field.type, nullable=False)}" for field in partitions.schema]
        names = ", ".join(map(quote, partitions.column_names))
        self._engine.command(f"CREATE TEMPORARY TABLE recipe_partitions ({', '.join(columns)})")
        try:
            self._engine.insert("recipe_partitions", partitions)
            stored_partitions = f"SELECT {names} FROM recipe_partitions"
            return self._engine.read(f"{rows} WHERE ({names}) IN ({stored_partitions})").cast(key)
        finally:
            self._engine.command("DROP TABLE recipe_partitions")

    def store(self, change: Change) -> None:
        """Insert rows and deletes in one statement, in the order of their offsets: the newest of a key counts."""
        self._grow(change)
        schema = change.schema.append(pa.field(DELETED, pa.uint8()))
        rows = change.rows.append_column(DELETED, pa.array([0] * len(change.rows), pa.uint8()))
        gone = change.deleted.append_column(DELETED, pa.array([1] * len(change.deleted), pa.uint8()))
        table = pa.concat_tables([rows.cast(schema), widen(gone, schema)])
        self._engine.insert(self._table, table.sort_by(OFFSET))

    def _grow(self, change: Change) -> None:
        """Make the table, or give it the columns and the fields of types that it lacks."""
        stored = {field.name: field.type for field in self.read_schema() or ()}
        types = {field.name: column_type(field.type, field.name not in change.key) for field in change.schema}
        if not stored:
            types |= {partition_column(change.schema): "Int32", OFFSET: "Int64", DELETED: "UInt8"}
            columns = ", ".join(f"{quote(name)} {kind}" for name, kind in types.items())
            engine = f"ReplacingMergeTree({OFFSET}, {DELETED}) ORDER BY ({', '.join(map(quote, change.key))})"
            settings = "allow_nullable_key = 1"  # fields of a type in the key may be null
            self._engine.command(f"CREATE TABLE {self._table} ({columns}) ENGINE = {engine} SETTINGS {settings}")
            return
        for field in change.schema:
            column = f"{quote(field.name)} {types[field.name]}"
            if field.name not in stored:
                self._engine.command(f"ALTER TABLE {self._table} ADD COLUMN {column}")
            elif has_grown(stored[field.name], field.type):
                self._engine.command(f"ALTER TABLE {self._table} MODIFY COLUMN {column}")


_TYPES = {
    pa.bool_(): "Bool",
    pa.int32(): "Int32",
    pa.int64(): "Int64",
    pa.float32(): "Float32",
    pa.float64(): "Float64",
    pa.binary(): "String",
    pa.string(): "String",
    pa.date32(): "Date32",
    pa.timestamp("ms", "UTC"): "DateTime64(3, 'UTC')",
}


if __name__ == "__main__":
    run(__doc__, ["url", "table"], ClickHouse)
