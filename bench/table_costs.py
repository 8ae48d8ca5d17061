"""What a thousand tables cost a planner and an agent, without servers: for `bench.nodes`."""

from __future__ import annotations

import json
import tempfile
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from pyspark.sql.streaming.datasource import ReadMaxRows

from helenus_agent.config import AgentSettings
from helenus_agent.delivery.outbox import Outbox
from helenus_agent.followed_tables import FollowedTables
from helenus_agent.positions import Positions, SegmentMark
from helenus_agent.state import StateDirectory
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.plan import QueryPlan
from helenus_connector.log.events import OffsetRange, Offsets
from helenus_connector.query import _batch_planner
from helenus_connector.query._batch_planner import BatchPlanner
from helenus_connector.testing.log import MemoryLog
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse

PARTITIONS = 4
ROUNDS = 50
FEW = 20
"""Tables with events in a batch."""


class Ends:
    """A broker that knows where topics end."""

    def __init__(self, topics: Iterable[str]) -> None:
        self.ends = {topic: {str(p): 0 for p in range(PARTITIONS)} for topic in topics}
        self._leaders = {topic: dict.fromkeys(ends, 1) for topic, ends in self.ends.items()}

    def append(self, topics: Iterable[str]) -> None:
        """One more event in a partition of each topic."""
        for topic in topics:
            self.ends[topic] = {**self.ends[topic], "0": self.ends[topic]["0"] + 1}

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        return dict.fromkeys(topics, PARTITIONS)

    def latest(self, partitions: Mapping[str, int]) -> Offsets:
        return {topic: self.ends[topic] for topic in partitions}

    def earliest(self, partitions: Mapping[str, int]) -> Offsets:
        return {topic: dict.fromkeys(self.ends[topic], 0) for topic in partitions}

    def since(self, partitions: Mapping[str, int], timestamp_ms: int) -> Offsets:
        return {topic: dict.fromkeys(self.ends[topic], -1) for topic in partitions}

    def ids(self, topics: Sequence[str]) -> dict[str, str]:
        return {topic: topic for topic in topics}

    def leaders(self) -> dict[str, dict[str, int]]:
        return self._leaders

    def size(self, offset_range: OffsetRange) -> int:
        return offset_range.end - offset_range.start

    def advance(self, offset_range: OffsetRange, events: int) -> int:
        return min(offset_range.end, offset_range.start + events)

    def gone(self, group: str, starts: Offsets) -> list[tuple[str, str]]:
        return []

    def cut(self, *_: object) -> dict[str, int]:
        return {}

    def wait(self, pace: float, longest: float) -> None:
        pass

    def commit(self, group: str, offsets: Offsets) -> None:
        pass

    def keep(self, groups: Mapping[str, Collection[str]]) -> None:
        pass

    def close(self) -> None:
        pass


def measure_tables(count: int) -> dict[str, float]:
    """The costs of so many tables, of four partitions each."""
    names = [f"t{number}" for number in range(count)]
    with tempfile.TemporaryDirectory() as directory:
        return {**_planner_costs(Path(directory), names), **_agent_costs(Path(directory), names)}


def _planner_costs(directory: Path, names: Sequence[str]) -> dict[str, float]:
    worker = WorkerSettings.from_properties(
        {"bootstrap.servers": "127.0.0.1:1", "checkpoint.dir": str(directory / "checkpoint")}, "bench"
    )
    connectors = {
        f"events-bench.{name}": ConnectorSettings.from_properties(
            {"name": name, "keyspace": "bench", "table": name, "output.format": "json"}, name
        )
        for name in names
    }
    plan = QueryPlan(worker, connectors, str(directory))
    plan.save()
    _batch_planner._WAIT_S = 0.0  # one look for each call
    planner, ends = BatchPlanner(str(plan.file)), Ends(connectors)
    planner._client = cast(Any, ends)
    offset: dict[str, Any] = {"tick": 0, "topics": {}}
    spent = dict.fromkeys(("first", "idle", "few", "all"), 0.0)

    def plan_batch(kind: str) -> None:
        """As Spark calls the planner: offsets come and go as JSON."""
        nonlocal offset
        text = json.dumps(offset)
        before = time.process_time()
        start = json.loads(text)
        end = planner.latest_offset(start, ReadMaxRows(1))
        end_text = json.dumps(end)
        if end != start:
            planner.partitions(json.loads(text), json.loads(end_text))
            planner.commit(json.loads(end_text))
        spent[kind] += time.process_time() - before
        offset = json.loads(end_text)

    for _ in range(5):
        plan_batch("all")
    spent["all"] = 0.0
    for number in range(ROUNDS):
        ends.append(list(connectors)[number % 7 :: max(1, len(names) // FEW)][:FEW])
        plan_batch("few")
        plan_batch("first")
        plan_batch("idle")
        ends.append(connectors)
        plan_batch("all")
    return {
        "planner, ms for a look in vain": spent["idle"] / ROUNDS * 1e3,
        "planner, ms for the first after a batch": spent["first"] / ROUNDS * 1e3,
        f"planner, ms for a batch of {FEW} tables": spent["few"] / ROUNDS * 1e3,
        "planner, ms for a batch of all tables": spent["all"] / ROUNDS * 1e3,
        "offset of a batch, kB": len(json.dumps(offset)) / 1e3,
    }


def _agent_costs(directory: Path, names: Sequence[str]) -> dict[str, float]:
    columns = Column("k", parse("int"), "partition_key", 0), Column("v", parse("text"))
    tables = {table.id: table for table in (Table("bench", n, uuid.uuid4(), columns, cdc=True) for n in names)}
    properties = {"cdc.raw.dir": str(directory), "state.dir": str(directory / "agent")}
    settings = AgentSettings.from_properties({**properties, "bootstrap.servers": "127.0.0.1:1"}, "bench")
    positions = Positions(str(uuid.uuid4()), {number: SegmentMark(1 << 20) for number in range(8)})
    positions.done = list(range(1_000, 1_512))
    state = StateDirectory(directory / "agent")
    outbox = Outbox(cast(Any, MemoryLog()), settings)
    fake = cast(Any, SimpleNamespace())
    followed = FollowedTables(settings, fake, outbox, fake, state, positions, lambda _: None)
    followed.tables.update(tables, [], 0)
    followed.open()

    def commit() -> None:
        """What an agent does four times a second while events come, but for the flush."""
        followed.note_positions()
        state.save(positions)
        followed.forget_acknowledged()
        outbox.confirm_all(followed.tables.followed)

    commit()
    before = time.process_time()
    for _ in range(ROUNDS):
        commit()
    spent = time.process_time() - before
    size = (directory / "agent" / "positions.json").stat().st_size
    state.close()
    return {"agent, ms for a commit": spent / ROUNDS * 1e3, "positions of an agent, kB": size / 1e3}
