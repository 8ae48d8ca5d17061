"""The stores that recipes fill, and the records that they are filled from, without servers but for OpenSearch."""

from __future__ import annotations

import json
import threading
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import batches
import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from docs import chdb_process, opensearch_node
from pyiceberg.catalog import load_catalog
from records import Schemas, read_columns, to_rows
from settings import Settings
from to_delta import Delta
from to_duckdb import DuckDb
from to_iceberg import Iceberg
from to_opensearch import Index
from to_parquet import Parquet

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.image import Image
from helenus_connector.shape.row.row import RowShape
from helenus_connector.testing.registry import MemoryRegistry
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.event.change import Bound

TOPIC = "data-ks.t"
OWN = ("_topic_partition", "_partition", "_offset", "_deleted")
Row = dict[str, Any]


@dataclass(frozen=True)
class Message:
    """A message as confluent-kafka gives it."""

    record: Any
    position: tuple[int, int]

    def key(self) -> bytes:
        return bytes(self.record.key)

    def value(self) -> bytes | None:
        return self.record.value  # type: ignore[no-any-return]

    def headers(self) -> list[tuple[str, bytes]]:
        return list(self.record.headers)

    def partition(self) -> int:
        return self.position[0]

    def offset(self) -> int:
        return self.position[1]


class Publisher:
    """Publishes records of one table, by the connector's own shape, into topic partitions in memory."""

    def __init__(self, partitions: int = 2) -> None:
        self.registry = MemoryRegistry()
        self.topic: list[list[Message]] = [[] for _ in range(partitions)]
        self._shape: RowShape
        self._codec: KeyCodec

    def become(self, columns: Sequence[Column]) -> None:
        """Publish by these columns from now on."""
        table = Table("ks", "t", uuid.UUID(int=1), tuple(columns))
        settings = {"name": "n", "keyspace": "ks", "table": "t", "value.converter.schema.registry.url": "http://r"}
        self._shape = RowShape(table, ConnectorSettings.from_properties(settings, "test"), self.registry)
        self._codec = KeyCodec(table)

    def row(self, partition: int, key: Sequence[bytes | None], values: Sequence[bytes | None] | None) -> Message:
        """Publish a row, or that it is gone."""
        image = None if values is None else Image(tuple(values), 5)
        return self._add(partition, self._shape.row(self._codec.encode(key), image, 5, values=tuple(key)))

    def marker(
        self, partition: int, key: Sequence[bytes | None], bounds: tuple[Bound | None, Bound | None] | None = None
    ) -> Message:
        """Publish that a partition, or a range of it, is deleted."""
        return self._add(partition, self._shape.marker(self._codec.encode(key), None, 5, None, bounds))

    def truncation(self, partition: int) -> Message:
        """Publish that all rows are gone which are in this partition of the topic."""
        return self._add(partition, self._shape.truncation(5))

    def _add(self, partition: int, record: Any) -> Message:
        message = Message(record, (partition, len(self.topic[partition])))
        self.topic[partition].append(message)
        return message

    def batch(self, messages: Sequence[Message]) -> batches.Batch:
        """Make a batch of messages, with the newest schemas that there are."""

        class Newest:
            @staticmethod
            def columns(subject: str) -> Any:
                return read_columns(self.registry.schema(self.registry.subjects[subject]) or "")

        schemas = Schemas(lambda number: self.registry.schema(number) or "")
        return batches.Batch.of_messages(TOPIC, Newest, schemas, list(messages))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Store:
    """A store in a directory, or of a server under its name: how a recipe opens it, and what it holds, read by
    something else than the recipe.
    """

    target: Any
    words: Callable[[Path], list[str]]
    read: Callable[[Path, Sequence[str]], pa.Table]
    properties: Callable[[Path], dict[str, str]] = lambda _: {}
    empties: str = ""
    """Which collections that are null are shown as empty ones: `all`, or `structures`, those of structures."""
    has_text: bool = True
    """Whether text comes back as text, or as bytes."""

    def settings(self, directory: Path) -> Settings:
        return Settings("b", "r", TOPIC, self.words(directory), True, self.properties(directory))

    @contextmanager
    def open(self, directory: Path) -> Iterator[Any]:
        with self.target(self.settings(directory)) as target:
            yield target

    def rows(self, directory: Path, key: Sequence[str]) -> list[Row]:
        """What the store holds now, without the recipe's own columns."""
        table = self.read(directory, key)
        return to_rows(table.drop_columns([name for name in OWN if name in table.column_names]))


NAME = 'a "t`able'  # DuckDB's and ClickHouse's, which are quoted


def _duckdb(directory: Path, _: Sequence[str]) -> pa.Table:
    with duckdb.connect(str(directory / "db")) as db:
        return db.sql('FROM "a ""t`able"').to_arrow_table()


def _parquet(directory: Path, key: Sequence[str]) -> pa.Table:
    """The query that to_parquet.py has in its docstring."""
    names = ", ".join(f'"{name}"' for name in key)
    with duckdb.connect() as db:
        return db.sql(
            f"SELECT * FROM (FROM read_parquet('{directory}/parquet/*.parquet', union_by_name = true)"
            f" QUALIFY row_number() OVER (PARTITION BY {names} ORDER BY _offset DESC) = 1) WHERE NOT _deleted"
        ).to_arrow_table()


def _iceberg_properties(directory: Path) -> dict[str, str]:
    (directory / "iceberg").mkdir(exist_ok=True)
    address = {"uri": f"sqlite:///{directory}/iceberg/catalog.db", "warehouse": f"file://{directory}/iceberg"}
    return {f"target.{name}": value for name, value in {"type": "sql", **address}.items()}


def _iceberg(directory: Path, _: Sequence[str]) -> pa.Table:
    options = {name.removeprefix("target."): value for name, value in _iceberg_properties(directory).items()}
    catalog = load_catalog("local", **options)
    try:
        return catalog.load_table("ks.t").scan().to_arrow()
    finally:
        catalog.close()


def _clickhouse(directory: Path, _: Sequence[str]) -> pa.Table:
    strings = "SETTINGS output_format_arrow_string_as_string = 0"
    return chdb_process.query(str(directory / "clickhouse"), f'SELECT * FROM "a ""t`able" FINAL {strings}')


def _delta(directory: Path, _: Sequence[str]) -> pa.Table:
    return DeltaTable(str(directory / "delta")).to_pyarrow_table()


STORES = {
    "duckdb": Store(DuckDb, lambda d: [str(d / "db"), NAME], _duckdb),
    "delta": Store(Delta, lambda d: [str(d / "delta")], _delta),
    "parquet": Store(Parquet, lambda d: [str(d / "parquet")], _parquet),
    "iceberg": Store(Iceberg, lambda d: ["local", "ks.t"], _iceberg, _iceberg_properties, "structures"),
    "clickhouse": Store(
        chdb_process.ClickHouseInChild,
        lambda d: [str(d / "clickhouse"), NAME],
        _clickhouse,
        empties="all",
        has_text=False,
    ),
    "opensearch": Store(
        Index,
        lambda d: [opensearch_node.SHARED.get().url, opensearch_node.SHARED.index_for(d)],
        lambda d, _: opensearch_node.rows_of(opensearch_node.SHARED.get(), opensearch_node.SHARED.index_for(d)),
    ),
}


def bound(values: Sequence[bytes], is_inclusive: bool) -> Bound:
    """A bound of a range."""
    return Bound(is_inclusive, tuple(values))


def left_out(message: Message) -> list[str]:
    """The columns that the connector left out of a record."""
    return list(json.loads(dict(message.headers()).get("left_out", b"[]")))


@contextmanager
def clickhouse_over_http(directory: Path, login: tuple[str, str]) -> Iterator[str]:
    """Serve chDB's engine to clickhouse-connect: what a server's HTTP interface does with the statements of a recipe.

    It asks for a login. Gives its address.
    """
    from chdb.session import Session

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self._body()
            parameters = dict(parse_qsl(urlsplit(self.path).query))
            query = parameters.get("query")
            settings = ", ".join(
                f"{name} = {value}" for name, value in parameters.items() if name.startswith("output_")
            )
            try:
                status, answer = 200, insert(query, body) if query else run(body.decode(), settings)
            except RuntimeError as error:
                status, answer = 500, str(error).encode()
            if self.headers["Authorization"] != "Basic " + b64encode(":".join(login).encode()).decode():
                status, answer = 401, b"Authentication failed"
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def _body(self) -> bytes:
            if self.headers["Transfer-Encoding"] != "chunked":
                return self.rfile.read(int(self.headers["Content-Length"] or 0))
            chunks = []
            while size := int(self.rfile.readline(), 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)

        def log_message(self, format: str, *args: object) -> None:
            pass

    def run(sql: str, settings: str) -> bytes:
        statement, _, form = sql.rpartition("FORMAT ")
        statement = (statement or sql) + (settings and f" SETTINGS {settings}")
        return bytes(session.query(statement, form.strip() if "FORMAT " in sql else "TabSeparated").bytes())

    def insert(sql: str, body: bytes) -> bytes:
        into, _, form = sql.rpartition(" FORMAT ")
        columns = into[into.index("(") + 1 : into.rindex(")")]
        file = directory / "body"
        file.write_bytes(body)
        return bytes(session.query(f"{into} SELECT {columns} FROM file('{file}', '{form.strip()}')").bytes())

    with Session(str(directory / "server")) as session:
        server = HTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/default"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
