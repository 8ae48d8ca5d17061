"""Planning of batches: limits, steps back, partitions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from helenus_connector.config import ConnectorSettings, WorkerSettings
from helenus_connector.plan import Plan
from helenus_connector.source import EventsReader, limited, refuse_other_partitions
from helenus_schemas.errors import HelenusError, Kind

TOPIC = "events-ks.t"
offsets = st.dictionaries(st.sampled_from("0123"), st.integers(0, 10_000), min_size=1)


@given(offsets, offsets, st.integers(1, 5_000))
def test_a_limit_is_shared_and_nothing_moves_back(start: dict[str, int], more: dict[str, int], limit: int) -> None:
    latest = {p: start.get(p, 0) + n for p, n in more.items()}
    end = limited({TOPIC: start}, {TOPIC: latest}, ReadMaxRows(limit))[TOPIC]
    taken = {p: last - start.get(p, 0) for p, last in end.items()}
    assert all(taken[p] >= 0 and end[p] <= max(latest.get(p, 0), start.get(p, 0)) for p in end)
    assert all(taken.get(p, 0) > 0 for p, n in more.items() if n)
    assert sum(taken.values()) <= limit + len(more)
    everything = limited({TOPIC: start}, {TOPIC: latest}, ReadAllAvailable())[TOPIC]
    assert all(everything[p] == last for p, last in latest.items() if last > start.get(p, 0))


class Broker:
    """A broker's answers, for a planner: 4 partitions, and what `since` finds."""

    def __init__(self, found: dict[str, int]) -> None:
        self.found = found

    def partitions(self, topics: list[str]) -> dict[str, int]:
        return dict.fromkeys(topics, 4)

    def since(self, partitions: dict[str, int], _: int) -> dict[str, dict[str, int]]:
        return dict.fromkeys(partitions, self.found)


def reader(found: dict[str, int], tasks: int = 1) -> EventsReader:
    worker = WorkerSettings.of({"bootstrap.servers": "h:1", "checkpoint.dir": "c"}, "worker")
    keys = {"name": "t", "keyspace": "ks", "table": "t", "value.converter.schema.registry.url": "http://r"}
    connector = ConnectorSettings.of({**keys, "tasks.max": str(tasks)}, "t")
    planned = EventsReader(Plan(worker, {TOPIC: connector}, "/nowhere"))
    planned._planner = Broker(found)  # type: ignore[assignment]
    return planned


def offset(tick: int, *ends: int) -> dict[str, Any]:
    return {"tick": tick, "topics": {TOPIC: {str(p): end for p, end in enumerate(ends)}}}


def ranges(planned: EventsReader, start: dict[str, Any], end: dict[str, Any]) -> list[list[tuple[int, int, int]]]:
    return [[(r.partition, r.start, r.end) for r in task.ranges] for task in planned.partitions(start, end)]  # type: ignore[attr-defined]


def test_the_first_batch_steps_back_every_time_it_is_planned_and_later_ones_do_not() -> None:
    planned = reader({"0": 7, "1": -1, "2": 30, "3": 0})
    first, second, third = offset(0, 10, 10, 20, 0), offset(0, 12, 10, 20, 0), offset(0, 13, 10, 20, 0)
    stepped = [[(0, 7, 12), (1, 10, 10), (2, 20, 20), (3, 0, 0)]]
    assert ranges(planned, first, second) == stepped
    assert ranges(planned, first, second) == stepped
    assert ranges(planned, second, third) == [[(0, 12, 13)]]


def test_a_tick_plans_every_partition_so_that_due_keys_find_their_task() -> None:
    planned = reader({}, tasks=2)
    ranges(planned, offset(0, 0, 0, 0, 0), offset(0, 1, 1, 1, 1))
    assert ranges(planned, offset(0, 1, 1, 1, 1), offset(1, 1, 1, 1, 1)) == [
        [(0, 1, 1), (2, 1, 1)],
        [(1, 1, 1), (3, 1, 1)],
    ]


def test_another_number_of_partitions_is_refused() -> None:
    refuse_other_partitions({TOPIC: {"0": 1}}, {TOPIC: {"0": 5}})
    with pytest.raises(HelenusError) as error:
        refuse_other_partitions({TOPIC: {"0": 1}}, {TOPIC: {"0": 5, "1": 0}})
    assert error.value.kind is Kind.PARTITIONS_CHANGED


def test_a_topic_that_appears_later_is_taken_in_whole() -> None:
    latest = {TOPIC: {"0": 3, "1": 0}}
    end = limited({}, latest, ReadMaxRows(10))
    assert end == latest
    refuse_other_partitions(end, latest)
