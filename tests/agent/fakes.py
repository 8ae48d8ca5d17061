"""A broker that can refuse, a Cassandra with the tables it is given, and a cdc_raw directory to write into."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path

from agent.writer import Cell, Row, Update, entry, file_name, header, mutation, sync_marker

from helenus_agent.agent import Agent
from helenus_agent.config import AgentSettings
from helenus_agent.node.cassandra import Node, Schema
from helenus_agent.node.tables import Stamp
from helenus_agent.node.truncations import Truncation
from helenus_agent.segments.segment_queue import list_segment_ids
from helenus_agent.segments.transfer import delete
from helenus_agent.state import StateDirectory
from helenus_connector.testing.log import MemoryLog
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.types import CqlType
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.log import Headers, TopicError

HOST = "ad310466-96a7-4cb2-acf4-59535a960812"


class FakeLog(MemoryLog):
    """`refuse_*`: how many calls to come fail.

    Of topics in `closed` nothing is taken: they can't be made, and if they are there, a flush of their records fails.
    """

    def __init__(self) -> None:
        super().__init__()
        self.refuse_create = 0
        self.refuse_append = 0
        self.refuse_flush = 0
        self.closed: set[str] = set()

    def start(self) -> None: ...

    def create(self, topic: str, partitions: int, config: Mapping[str, str]) -> int:
        if self.refuse_create:
            self.refuse_create -= 1
            raise HelenusError(Kind.BROKER_UNREACHABLE, "away", "fake")
        if topic in self.closed - self.counts.keys():
            raise TopicError(Kind.BROKER_REFUSED, "not to be made", f"fake, {topic}", topic)
        return super().create(topic, partitions, config)

    def append(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        assert topic in self.counts
        if self.refuse_append:
            self.refuse_append -= 1
            raise HelenusError(Kind.APPEND_FAILED, "full", "fake")
        super().append(topic, partition, key, value, headers)

    def flush(self, timeout: float) -> None:
        refused = [topic for topic, *_ in self.waiting if topic in self.closed]
        if self.refuse_flush and self.waiting:
            self.refuse_flush -= 1
            self.flushes += 1
            self.drop()
            raise HelenusError(Kind.APPEND_FAILED, "not acknowledged", "fake")
        if refused:
            self.flushes += 1
            self.drop()
            raise TopicError(Kind.BROKER_REFUSED, "not to be written", f"fake, {refused[0]}", refused[0])
        super().flush(timeout)


class FakeCassandra:
    """Knows the tables in `tables`. `away`: how many calls to come fail."""

    def __init__(self, *tables: Table) -> None:
        self.tables = {t.id: t for t in tables}
        self.views: tuple[uuid.UUID, ...] = ()
        self.away = 0
        self.asked = 0
        self.is_changed = self.is_asked_rarely = False
        self.not_durable: tuple[str, ...] = ()
        self.truncations: dict[uuid.UUID, Truncation] = {}
        self.settings: dict[str, str] = {}
        self.host_id = HOST
        self.stamps: dict[uuid.UUID, Stamp] = {}
        self.transactional: dict[uuid.UUID, str] = {}
        self.udts_by_keyspace: dict[str, dict[str, CqlType]] = {}

    def set(self, *tables: Table) -> None:
        self.tables = {t.id: t for t in tables}

    def schema(self) -> Schema:
        self.asked += 1
        if self.away:
            self.away -= 1
            raise HelenusError(Kind.CASSANDRA_UNREACHABLE, "away", "fake")
        self.is_changed = False
        truncations, stamps = dict(self.truncations), dict(self.stamps)
        return Schema(
            dict(self.tables), self.views, self.not_durable, truncations, stamps, transactional=dict(self.transactional)
        )

    def node(self) -> Node:
        return Node(uuid.UUID(self.host_id), "5.0", self.settings, cluster="c")

    def changed(self, rarely: bool = False) -> bool:
        self.is_asked_rarely = rarely
        return self.is_changed

    def is_as_learned(self) -> bool:
        return not self.is_changed

    def udts(self, keyspace: str) -> dict[str, CqlType]:
        return self.udts_by_keyspace.get(keyspace, {})

    def close(self) -> None: ...


class Raw:
    """A cdc_raw directory; segments are written as Cassandra does: the content first, then the marker before it.

    Since version 7 those are links to the files in `log`, the node's own directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path.with_name(f"{path.name}.commitlog")
        path.mkdir()
        self.log.mkdir()
        self.ends: dict[int, int] = {}

    def segment(self, segment: int, size: int = 100_000, version: int = 7) -> Path:
        path = self.path / file_name(segment, version)
        path.write_bytes(header(segment, version).ljust(size, b"\0"))
        if version > 6:
            (self.log / path.name).unlink(missing_ok=True)
            (self.log / path.name).hardlink_to(path)
        self.ends[segment] = len(header(segment))
        return path

    def find(self, segment: int) -> Path:
        return next(self.path.glob(f"CommitLog-?-{segment}.log"))

    def unmarked(self, segment: int, *payloads: bytes) -> None:
        """These mutations in a section that has no marker yet."""
        with open(self.find(segment), "r+b") as file:
            file.seek(self.ends[segment] + 8)
            file.write(b"".join(entry(p) for p in payloads))

    def write(self, segment: int, *payloads: bytes, raw: bytes = b"") -> None:
        """A section of these mutations, and of `raw` bytes after them."""
        content = b"".join(entry(p) for p in payloads) + raw
        start = self.ends[segment]
        end = start + 8 + len(content)
        with open(self.find(segment), "r+b") as file:
            file.seek(start + 8)
            file.write(content)
            file.seek(start)
            file.write(sync_marker(segment, start, end))
        self.ends[segment] = end

    def index(self, segment: int, complete: bool = False) -> None:
        path = self.path / file_name(segment).replace(".log", "_cdc.idx")
        path.write_text(f"{self.ends[segment]}" + ("\nCOMPLETED" if complete else ""))

    @property
    def names(self) -> list[str]:
        return sorted(p.name for p in self.path.iterdir())


def write_of(table: Table, key: int, time: int = 1_700_000_000_000_000) -> bytes:
    """A mutation: an insert into a table with an int key `pk` and an int column `v`."""
    return mutation(Update(table, key.to_bytes(4, "big"), [Row((), {"v": Cell(b"1234")}, time=time)]))


def agent_on(
    tmp_path: Path, raw: Raw, cassandra: FakeCassandra, log: FakeLog, state: StateDirectory, **properties: str
) -> Agent:
    settings = AgentSettings.from_properties(
        {
            "state.dir": str(tmp_path / "state"),
            "cdc.raw.dir": str(raw.path),
            "kafka.bootstrap.servers": "nowhere:1",
            **{key.replace("_", "."): value for key, value in properties.items()},
        },
        "test",
    )
    positions = state.load(str(cassandra.node().host_id), "c", list_segment_ids(raw.path))
    return Agent(settings, raw.path, cassandra, log, state, positions, delete)  # type: ignore[arg-type]
