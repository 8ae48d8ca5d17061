"""The positions of a connector, as an operator reads and sets them: `/connectors/NAME/offsets` of the REST API.

Each function takes the worker's connectors and the name of one, and raises UnknownConnector if it does not exist.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import structlog

from helenus_connector import metrics
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.state import begin_anew
from helenus_connector.control._ownership import other_rows
from helenus_connector.control.connectors import Connectors
from helenus_connector.control.positions import HeldPositions
from helenus_connector.control.status import Task
from helenus_connector.log.events import Offsets
from helenus_schemas.errors import HelenusError, Kind

_log = structlog.get_logger(__name__)
_LAST_BATCH_S, _TURN_S = 20.0, 0.1


def offsets(connectors: Connectors, name: str) -> dict[str, dict[int, int]]:
    """Return a connector's position: the next offset by events topic and partition, of the topics it has read. Raises
    the brokers' errors.
    """
    if unknown_topics := _unknown_topics(connectors, name):
        _learn(connectors, name, connectors.earliest(unknown_topics))
    with connectors.lock:
        connector = connectors.get(name)
        held_positions = connectors.held_positions(connector.settings.query_group)
        topic_offsets = held_positions.read_offsets()
        owners = held_positions.owners
        topics = [task.events for task in connector.tasks.values() if owners.owner(task.events) in (None, name)]
        return {
            topic: {int(partition): offset for partition, offset in sorted(topic_offsets[topic].items())}
            for topic in topics
            if topic_offsets.get(topic)
        }


def alter(connectors: Connectors, name: str, offsets: Mapping[str, Mapping[int, int | None]]) -> None:
    """Let a stopped connector go on from elsewhere; None is the topic's first event.

    Raises NotStopped, HelenusError CONFIG for a topic or partition that is not its own, for an offset that no
    topic can have, and with state=rows, and the broker's errors.
    """
    first = connectors.earliest(_events_of(connectors, name))
    _await_last_batch(connectors, name)
    _learn(connectors, name, first)
    with connectors.lock:
        held_positions = connectors.held_positions(_movable(connectors, name).query_group)
        for topic, new_offsets in offsets.items():
            for partition, offset in new_offsets.items():
                if str(partition) not in first.get(topic, {}):
                    problem = f"topic {topic}, partition {partition} is none of its events topics"
                    raise HelenusError(Kind.CONFIG, problem, name)
                if offset is not None and not _is_offset(connectors, offset):
                    raise HelenusError(Kind.CONFIG, f"topic {topic}: no offset {offset}", name)
        topic_offsets = held_positions.read_offsets()
        for topic, new_offsets in offsets.items():
            # All partitions: a running batch no longer moves any of them.
            altered = {str(p): first[topic][str(p)] if offset is None else offset for p, offset in new_offsets.items()}
            former = {p: offset for p, offset in topic_offsets.get(topic, {}).items() if p in first[topic]}
            _move(connectors, name, topic, {**first[topic], **former, **altered})


def reset(connectors: Connectors, name: str) -> None:
    """Let a stopped connector begin at the first event of its topics. Raises as `alter`."""
    first = connectors.earliest(_events_of(connectors, name))
    _await_last_batch(connectors, name)
    _learn(connectors, name, first)
    with connectors.lock:
        _movable(connectors, name)
        for topic, offsets in first.items():
            _move(connectors, name, topic, offsets)


def claim(connectors: Connectors, tasks: Iterable[Task]) -> list[Task]:
    """Have tasks that do not run yet begin at their own connectors' positions: at the first event of a topic if the
    query's position in it is another connector's. Returns those that may run; the topics of others are not there.
    With state=rows, a task whose group has another connector's rows fails.

    Raises HelenusError: the broker's errors, and STATE.
    """
    claimed: list[Task] = []
    by_group: dict[str, list[Task]] = {}
    for task in tasks:
        by_group.setdefault(task.settings.query_group, []).append(task)
    for group, group_tasks in by_group.items():
        held_positions = connectors.held_positions(group)
        unowned_tasks = [task for task in group_tasks if held_positions.owners.owner(task.events) != task.connector]
        claimed += [task for task in group_tasks if task not in unowned_tasks]
        topic_offsets = held_positions.read_offsets() if unowned_tasks else {}
        # Those of an earlier version, and new ones, at once: there may be hundreds at a start.
        claimable = [
            task
            for task in unowned_tasks
            if not topic_offsets.get(task.events) or held_positions.owners.owner(task.events) is None
        ]
        with connectors.lock:
            held_positions.owners.assign(
                {task.events: (task.connector, topic_offsets.get(task.events, {})) for task in claimable}
            )
        claimed += claimable
        claimed += [
            task for task in unowned_tasks if task not in claimable and _takes_over(connectors, task, held_positions)
        ]
    return claimed


def _takes_over(connectors: Connectors, task: Task, held_positions: HeldPositions) -> bool:
    """Have a task begin at its own position, in the place of another connector. Returns False if it
    can't, or not yet.
    """
    name, topic, owner = task.connector, task.events, held_positions.owners.owner(task.events)
    if task.settings.state == "rows":
        task.error = other_rows(name, owner, str(held_positions.checkpoint))
        return False
    first = connectors.earliest([topic]).get(topic)
    if not first:
        return False
    former_offsets = held_positions.owners.former(topic, name)
    positions = connectors.broker_positions
    if positions is not None and positions.has(task.settings):
        position = positions.read(task.settings, {topic: len(first)}).get(topic)
        former_offsets = former_offsets if position is None else position.offsets
    with connectors.lock:
        _log.info("connector.begins", connector=name, topic=topic, reason=f"the position is of connector {owner}")
        _move(connectors, name, topic, {p: former_offsets.get(p, offset) for p, offset in first.items()})
    return True


def _unknown_topics(connectors: Connectors, name: str) -> list[str]:
    """Return the events topics of a connector of which no position is known here, though the brokers may have one."""
    with connectors.lock:
        connector, positions = connectors.get(name), connectors.broker_positions
        if positions is None or not positions.has(connector.settings):
            return []
        topic_offsets = connectors.held_positions(connector.settings.query_group).read_offsets()
        return [task.events for task in connector.tasks.values() if not topic_offsets.get(task.events)]


def _learn(connectors: Connectors, name: str, first: Offsets) -> None:
    """Hold where a connector that does not run stands, as the brokers have it: another worker may have run it since.
    `first` are the first offsets of its topics.
    """
    with connectors.lock:
        settings, positions = connectors.get(name).settings, connectors.broker_positions
    if positions is None or not positions.has(settings):
        return
    topic_positions = positions.read(settings, {topic: len(offsets) for topic, offsets in first.items()})
    with connectors.lock:
        held_positions = connectors.held_positions(settings.query_group)
        topic_offsets = held_positions.read_offsets()
        for topic, (offsets, epoch, is_loose) in topic_positions.items():
            is_earlier = epoch is not None and epoch < held_positions.epoch(topic)
            if not is_earlier and not (is_loose and topic_offsets.get(topic)):
                held_positions.raise_epoch(topic, epoch or 0)
                held_positions.hold(topic, offsets, held_positions.epoch(topic))


def _await_last_batch(connectors: Connectors, name: str) -> None:
    """Wait until no task of a stopped connector writes any more: its batch would commit where it ends. Raises
    HelenusError(CONFIG).
    """
    deadline = time.monotonic() + _LAST_BATCH_S
    while not connectors.ending:
        with connectors.lock:
            if not connectors.topics_in_batch(connectors.get(name)):
                return
        if time.monotonic() > deadline:
            raise HelenusError(Kind.CONFIG, "its last batch has not ended yet", name, "try again")
        time.sleep(_TURN_S)


def _movable(connectors: Connectors, name: str) -> ConnectorSettings:
    """Return the settings of a stopped connector whose positions may be moved. Raises NotStopped, and HelenusError
    CONFIG.
    """
    settings = connectors.get_stopped(name).settings
    if settings.state == "rows":
        problem = "with state=rows positions can't be moved: the rows that are kept are those of now"
        advice = f"{begin_anew(settings.query_group)}: then it starts from the first event"
        raise HelenusError(Kind.CONFIG, problem, name, advice)
    return settings


def _move(connectors: Connectors, name: str, topic: str, offsets: Mapping[str, int]) -> None:
    """Let a connector go on from here in a topic, which has these partitions and no others."""
    connector = connectors.get(name)
    held_positions, positions = connectors.held_positions(connector.settings.query_group), connectors.broker_positions
    if positions is not None and positions.has(connector.settings):
        positions.move(connector.settings, topic, offsets, held_positions.epoch(topic) + 1)
    held_positions.move(topic, offsets, name)
    partitions = {*map(int, offsets)}
    group = connector.settings.query_group
    copies = connectors.unconfirmed_keys(group).shrink(topic, partitions) + connectors.waiting_changes(group).shrink(
        topic, partitions
    )
    for task in connector.tasks.values():
        if copies and task.events == topic:
            metrics.EVENTS.labels(*task.labels, "outdated").inc(copies)


def _is_offset(connectors: Connectors, offset: int) -> bool:
    """Return whether a topic can have this offset: Kafka's are longs; Pulsar's are a long followed by ints."""
    if connectors.log == "kafka":
        return 0 <= offset < 1 << 63
    return 0 <= offset < 1 << 127 and offset & 0xFFFFFFFF < 1 << 31


def _events_of(connectors: Connectors, name: str) -> list[str]:
    with connectors.lock:
        return [task.events for task in connectors.get_stopped(name).tasks.values()]
