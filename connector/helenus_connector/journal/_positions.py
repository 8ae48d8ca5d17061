"""The positions of connectors that publish exactly once: the committed offsets of a consumer group of each.

The metadata of an offset says how often an operator had moved the topic's positions by then, and when the last event
before it came. Positions that are committed after a batch, not with it, say so: what waited then is in no journal. With
state, it says which batch of it was published (`batch_marks`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import TopicPartition

from helenus_connector.config.worker import WorkerSettings
from helenus_sinks.kafka.groups import LOOSE, read_group

_VERSION = 1


class BatchMark(NamedTuple):
    """A batch of a query with state, by the identity of the state and the batch's number."""

    state: str
    batch: int


class GroupPosition(NamedTuple):
    """A committed offset. It is of an `epoch` of the topic, and the last event before it is of a time, ms since the
    epoch; None if another program has committed it. With `is_loose` it was committed after a batch. `mark` is the batch
    in whose transaction it was committed, of a query with state, which keeps no journal: so it is loose, too.
    """

    offset: int
    epoch: int | None = None
    at_ms: int | None = None
    is_loose: bool = False
    mark: BatchMark | None = None


Positions = Mapping[str, Mapping[str, GroupPosition]]
"""By topic and partition."""


def group_of(connector: str) -> str:
    """Return the consumer group, or on Pulsar the subscription, of a connector."""
    return f"helenus-{connector}"


def to_commit(topic: str, positions: Mapping[int, tuple[int, int]], epoch: int) -> list[TopicPartition]:
    """Return positions by partition, each an offset and a time, as they are committed in a transaction."""
    return [
        TopicPartition(topic, partition, offset, _to_text({"epoch": epoch, "at": at_ms}))
        for partition, (offset, at_ms) in positions.items()
    ]


def to_mark(ends: Mapping[tuple[str, int], int], mark: BatchMark) -> list[TopicPartition]:
    """Return the ends of a batch, by topic and partition, as they are committed in its transaction."""
    note = _to_text({"at": int(time.time() * 1000), **mark._asdict()})
    return [TopicPartition(topic, partition, offset, note) for (topic, partition), offset in ends.items()]


def to_commit_again(topic: str, positions: Mapping[str, GroupPosition]) -> list[TopicPartition]:
    """Return positions that were committed in a transaction, to be committed once more."""
    return [
        TopicPartition(
            topic, int(partition), position.offset, _to_text({"epoch": position.epoch, "at": position.at_ms})
        )
        for partition, position in positions.items()
        if position.epoch is not None
    ]


def read_positions(worker: WorkerSettings, connector: str, partitions: Mapping[str, int]) -> Positions:
    """Return a connector's committed positions; `partitions` says how many each topic has.

    Raises HelenusError BROKER_UNREACHABLE and BROKER_REFUSED.
    """
    names = [TopicPartition(topic, partition) for topic, count in partitions.items() for partition in range(count)]
    answers: Sequence[TopicPartition] = read_group(worker.consumer_config, group_of(connector), names) if names else ()
    positions: dict[str, dict[str, GroupPosition]] = {}
    for answer in answers:
        if answer.offset >= 0:
            position = _position(answer.offset, answer.metadata)
            positions.setdefault(answer.topic, {})[str(answer.partition)] = position
    return positions


def _to_text(note: Mapping[str, object]) -> str:
    return json.dumps({"v": _VERSION, **note}, separators=(",", ":"))


def _position(offset: int, metadata: str | None) -> GroupPosition:
    if metadata == LOOSE:
        return GroupPosition(offset, is_loose=True)
    try:
        note = json.loads(metadata or "null")
        if note["v"] == _VERSION and "state" in note:
            return GroupPosition(offset, is_loose=True, mark=BatchMark(str(note["state"]), int(note["batch"])))
        if note["v"] == _VERSION:
            return GroupPosition(offset, int(note["epoch"]), int(note["at"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        pass
    return GroupPosition(offset)
