"""The one `mapInArrow` stage: hands a task's events to each connector's `Stage`, returns what became of them."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from helenus_connector.gate import Event
from helenus_connector.plan import Plan
from helenus_connector.rows import RawProtocolHandler, row_factory
from helenus_connector.settle import Pending
from helenus_connector.stage import Outcome, Stage
from helenus_schemas.cassandra import connect
from helenus_schemas.errors import HelenusError
from helenus_sinks.kafka import KafkaLog

OUTCOME = "outcome binary"
"""One row a connector and task: a pickled `Outcome`."""

_stages: dict[tuple[str, str], Stage] = {}


def task(
    plan: Plan, due: dict[str, list[Pending]], trust_images: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`. `due` are pending keys by events topic; see `Stage.run` for `trust_images`."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        first = context is None or context.attemptNumber() == 0
        owned: set[tuple[str, int]] = set()
        events: dict[str, list[Event]] = {}
        lost: Counter[str] = Counter()
        for batch in batches:
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                event = Event(*row)
                members = events.setdefault(event.topic, [])
                if event.offset < 0:
                    owned.add((event.topic, event.partition))
                    lost[event.topic] += event.timestamp
                else:
                    members.append(event)
        outcomes = []
        for topic, members in events.items():
            again = [p for p in due.get(topic, ()) if (topic, p.partition) in owned]
            if members or again or lost[topic]:
                outcome = _run(plan, topic, members, again, trust_images and first)
                outcome.lost = lost[topic]
                outcomes.append(pickle.dumps(outcome))
        yield pa.RecordBatch.from_arrays([pa.array(outcomes, pa.binary())], names=["outcome"])

    return run


def _run(plan: Plan, topic: str, events: list[Event], due: list[Pending], trust_images: bool) -> Outcome:
    """Run a connector's stage. Its own errors are handed to the driver, which knows what to do with each kind."""
    settings = plan.connectors[topic]
    name = (plan.directory, settings.name)
    stage = _stages.get(name)
    try:
        if stage is None:
            directory = Path(plan.directory)
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            session = connect(settings, protocol_handler=RawProtocolHandler, row_factory=row_factory, metadata=True)
            stage = _stages[name] = Stage(settings, session, KafkaLog(plan.worker.producer_config), directory)
        return stage.run(events, due, trust_images)
    except HelenusError as error:
        if stage is not None:
            stage.log.close()
        return Outcome(settings.name, error=error)
    except BaseException:
        # Spark runs the task again: nothing of this attempt may still be in the producer's queue.
        if stage is not None:
            stage.log.close()
        raise
