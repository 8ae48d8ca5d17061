"""Segments read twice, to the same records: by the agent's decoder, and by Cassandra's own CommitLogReader."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import resources
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from uuid import UUID

from helenus_agent.commitlog.segment import Segment
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.types import quote, walk
from helenus_schemas.event import change, wire
from helenus_schemas.event.cells import Cell, Deletion, Liveness, decode_cells
from helenus_schemas.event.change import Bound, Scope
from helenus_stack.cassandra import MODULES, VERSIONS
from helenus_stack.jars import fetch, read_lock
from helenus_stack.java import java_home
from helenus_stack.progress import Silent
from helenus_stack.resolve import resolve
from helenus_stack.server import classpath

LOGBACK = resources.files("helenus_stack") / "logback.xml"
SOURCE = Path(__file__).with_name("Oracle.java")
NODE = "ad310466-96a7-4cb2-acf4-59535a960812"
# They hold packages of Java's own, which confuses the compiler.
_UNFIT = ("high-scale-lib-", "sjk-cli-")


class Said(NamedTuple):
    """The cells of a Change, without what they are of."""

    liveness: Liveness | None
    deletion: Deletion | None
    deletions: tuple[tuple[str, Deletion], ...]
    cells: tuple[Cell, ...]


class Record(NamedTuple):
    """A Change with its table's id and its keys as CQL bytes; `clustering` is None where the Change names no row."""

    segment: int
    position: int
    part: int
    parts: int
    digest: str
    table: UUID
    partition: bytes
    scope: Scope
    clustering: tuple[bytes | None, ...] | None
    start: Bound | None
    end: Bound | None
    write_time: int | None
    expires_at: int | None
    content: Said


class Oracle:
    """Oracle.java for a version of Cassandra, compiled into `directory` by the Eclipse compiler that comes with
    Cassandra: so a JRE will do.
    """

    def __init__(self, directory: Path, version: str) -> None:
        self._directory = directory
        self._java = str(java_home(17, Silent()) / "bin/java")
        self._jars = fetch(read_lock(VERSIONS[version].lock), Silent(), resolve)
        jars = [jar for jar in self._jars if not jar.name.startswith(_UNFIT)]
        compiler = next(jar for jar in jars if jar.name.startswith("ecj-"))
        options = ["-17", "-nowarn", "-proc:none", "-d", str(directory), *classpath_option(jars)]
        main = "org.eclipse.jdt.internal.compiler.batch.Main"
        self._run(
            [*classpath_option([compiler]), main, *options, str(SOURCE), str(SOURCE.parent / version / "Version.java")]
        )

    def read(
        self, yaml: Path, schema: Sequence[str], segments: Sequence[Path], tables: Collection[UUID]
    ) -> list[Record]:
        """What is in the segments of the node with this cassandra.yaml, of these tables, which the `schema` defines."""
        statements = self._directory / "schema.cql"
        statements.write_text("\0".join(schema))
        # 6.0 takes the schema that it finds in the node's data for its own.
        no_data = {**json.loads(yaml.read_text()), "data_file_directories": [str(self._directory / "data")]}
        no_data.pop("start_rpc", None)  # of 3.11 alone
        config = self._directory / "cassandra.yaml"
        config.write_text(json.dumps(no_data))
        options = [*MODULES, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Dcassandra.config={config.as_uri()}"]
        options += [
            f"-Dcassandra.storagedir={self._directory}",
            "-Dhelenus.log=OFF",
            f"-Dlogback.configurationFile={LOGBACK}",
        ]
        out = self._run([*options, "Oracle", str(statements), *map(str, segments)])
        records = [record for record in map(_record, map(json.loads, out.splitlines())) if record.table in tables]
        numbered = []
        for _, records_of_mutation in groupby(records, lambda record: (record.segment, record.position)):
            mutation = list(records_of_mutation)
            numbered += [record._replace(part=i, parts=len(mutation)) for i, record in enumerate(mutation)]
        return numbered

    def _run(self, arguments: Sequence[str]) -> str:
        environment = classpath([self._directory, *self._jars])
        process = subprocess.run([self._java, *arguments], env=environment, capture_output=True, text=True)
        assert process.returncode == 0, process.stdout[-5000:] + process.stderr[-5000:]
        return process.stdout


def classpath_option(jars: Sequence[Path]) -> list[str]:
    return ["-cp", ":".join(map(str, jars))]


def _record(line: Sequence[Any]) -> Record:
    segment, position, digest, table, partition, scope, clustering, start, end, write_time, expires_at, cells = line
    return Record(
        segment,
        position,
        0,
        1,
        digest,
        UUID(table),
        bytes.fromhex(partition),
        Scope[scope],
        None if clustering is None else _values(clustering),
        None if start is None else Bound(start[0], _values(start[1])),
        None if end is None else Bound(end[0], _values(end[1])),
        write_time,
        expires_at,
        _content(*cells),
    )


def _content(liveness: Any, deletion: Any, deletions: Any, cells: Any) -> Said:
    return Said(
        liveness and Liveness(*liveness),
        deletion and Deletion(*deletion),
        tuple((bytes.fromhex(column).decode(), Deletion(*times)) for column, times in deletions),
        tuple(_cell(*cell) for cell in cells),
    )


def _cell(column: str, path: str | None, value: str | None, time: int, ttl: int | None, local: int | None) -> Cell:
    name, element = bytes.fromhex(column).decode(), None if path is None else bytes.fromhex(path)
    if value is None:
        return Cell(name, time, None, element, deleted_at=local)
    return Cell(name, time, bytes.fromhex(value), element, ttl, local)


def _values(texts: Sequence[str | None]) -> tuple[Any, ...]:
    return tuple(None if text is None else bytes.fromhex(text) for text in texts)


def schema_of(session: Any, keyspace: str) -> list[str]:
    """Statements that make a keyspace's types and tables what they are, ids and dropped columns included.

    Columns count as dropped long ago: what was written to them shows.
    """
    statements = []
    for row in session.execute(f"DESCRIBE KEYSPACE {keyspace} WITH INTERNALS"):
        if row.type in ("keyspace", "type", "table"):
            for statement in row.create_statement.split(";\n"):
                before, drop, _ = statement.partition(" USING TIMESTAMP ")
                statements.append(f"{before} USING TIMESTAMP {-(1 << 63)}" if drop else statement.rstrip().rstrip(";"))
    return [statement for statement in statements if statement]


def write_schema(tables: Iterable[Table], keyspace: str) -> list[str]:
    """As `schema_of`, of a node that describes nothing: before 4.0."""
    ours = [table for table in tables if table.keyspace == keyspace]
    columns = [column for table in ours for column in (*table.columns, *table.dropped.values())]
    statements = [
        f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
    ]
    for udt in dict.fromkeys(replace(t, frozen=False) for t in walk(c.type for c in columns) if t.name == "udt"):
        fields = ", ".join(f"{quote(name)} {kind}" for name, kind in zip(udt.fields, udt.args, strict=True))
        statements.append(f"CREATE TYPE {keyspace}.{quote(udt.label)} ({fields})")
    for table in ours:
        name = f"{keyspace}.{quote(table.name)}"
        defined = ", ".join(f"{quote(c.name)} {c.type}{' static' * (c.kind == 'static')}" for c in table.columns)
        partition, clustering = (
            ", ".join(quote(c.name) for c in key) for key in (table.partition_key, table.clustering)
        )
        order = ", ".join(f"{quote(c.name)} {'DESC' if c.reversed else 'ASC'}" for c in table.clustering)
        key = f"({partition}){f', {clustering}' if clustering else ''}"
        ordered = f" AND CLUSTERING ORDER BY ({order})" if order else ""
        statements.append(f"CREATE TABLE {name} ({defined}, PRIMARY KEY ({key})) WITH ID = {table.id}{ordered}")
        for column in table.dropped.values():
            if column.name not in {c.name for c in table.columns}:
                static = " static" * (column.kind == "static")
                statements.append(f"ALTER TABLE {name} ADD {quote(column.name)} {column.type}{static}")
                statements.append(f"ALTER TABLE {name} DROP {quote(column.name)} USING TIMESTAMP {-(1 << 63)}")
    return statements


def is_of_5_0(tables: Mapping[UUID, Table]) -> bool:
    """Whether these are all tables of a node of 5.0."""
    return any((table.keyspace, table.name) == ("system_schema", "column_masks") for table in tables.values())


def followed(tables: Mapping[UUID, Table]) -> dict[UUID, KeyCodec]:
    """The tables whose Changes are compared: those with CDC, and for more of a mixture two of the node's own keyspaces.

    Without those whose key has no Avro form; of a node before 5.0 without its own keyspaces, which the reader, that of
    5.0, has with other columns.
    """
    codecs = {}
    own = ("system", "system_schema") if is_of_5_0(tables) else ()
    for table in tables.values():
        if table.cdc or table.keyspace in own:
            with suppress(ValueError):
                codecs[table.id] = KeyCodec(table)
    return codecs


def decoded(
    decoder: ModuleType,
    tables: Mapping[UUID, Table],
    views: Collection[UUID],
    segments: Sequence[Path],
    piece_size: int,
) -> Iterator[Record]:
    """The agent's Changes in the segments, of the `followed` tables, read `piece_size` bytes at a time.

    Events with cells; without them they are the same.
    """
    codecs = followed(tables)
    order = list(codecs)
    index = {table: order.index(table) if table in codecs else -1 for table in tables}
    plans = {i.bytes: decoder.plan_table(t, index[i], cells=index[i] >= 0) for i, t in tables.items()}
    light = {i.bytes: decoder.plan_table(t, index[i]) for i, t in tables.items()}
    for table_plans in (plans, light):
        table_plans |= {view.bytes: decoder.TablePlan() for view in views}
    for path in segments:
        segment = Segment(path)
        segment.look()
        while segment.unread:
            size = piece_size
            while True:
                padded = segment.padded
                data, offset, final = segment.read(size)
                batch = decoder.decode(
                    data, offset, final, plans, NODE, segment.id, segment.version, 10**6, padded=padded
                )
                assert (batch.problems, batch.broken) == ([], False), path
                if batch.next or batch.unknown or final:
                    break
                size *= 2  # an entry is longer than that
            if batch.unknown:  # a table that was dropped
                assert batch.unknown.column is None, batch.unknown
                plans[batch.unknown.table] = light[batch.unknown.table] = decoder.TablePlan(is_known=False)
            else:
                assert batch.next, path
            segment.advance(offset + batch.next)
            without = decoder.decode(
                data[: batch.next], offset, False, light, NODE, segment.id, segment.version, 10**6, padded=padded
            ).changes
            for (table_index, partition, key, value), change_without in zip(batch.changes, without, strict=True):
                assert change_without == (table_index, partition, key, wire.without_cells(value))
                yield record_of(order[table_index], codecs[order[table_index]], partition, key, wire.decode(value))
        segment.close()


def record_of(table: UUID, codec: KeyCodec, partition: bytes, key: bytes, decoded_change: change.Change) -> Record:
    """An event with cells as Cassandra's reader gives its change."""
    assert (decoded_change.node, decoded_change.digest) != (None, None)
    cells = decode_cells(decoded_change.cells or b"", decoded_change.scope)
    assert cells.table == table.bytes
    columns = codec.decode(key)
    of_partition, clustering = columns[: codec.partition_columns], columns[codec.partition_columns :]
    if len(of_partition) == 1:
        assert partition == of_partition[0]
    else:
        assert partition == b"".join(len(c or b"").to_bytes(2, "big") + (c or b"") + b"\0" for c in of_partition)
    return Record(
        decoded_change.segment,
        decoded_change.position,
        decoded_change.part,
        decoded_change.parts,
        decoded_change.digest or "",
        table,
        partition,
        decoded_change.scope,
        clustering if decoded_change.scope == Scope.ROW else None,
        decoded_change.start,
        decoded_change.end,
        decoded_change.write_time,
        decoded_change.expires_at,
        Said(cells.liveness, cells.deletion, tuple(cells.deletions.items()), cells.cells),
    )
