"""The positions of a connector, as an operator reads and sets them: `/connectors/NAME/offsets` of the REST API.

Each function takes the worker's connectors and the name of one, and raises Unknown if it is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog

from helenus_connector import metrics
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.state import begin_anew
from helenus_connector.control._ownership import other_rows
from helenus_connector.control.connectors import Connectors
from helenus_connector.control.positions import HeldPositions
from helenus_connector.control.status import Task
from helenus_schemas.errors import HelenusError, Kind

_log = structlog.get_logger(__name__)


def offsets(connectors: Connectors, name: str) -> dict[str, dict[int, int]]:
    """Where a connector stands: the next offset by events topic and partition, of the topics it has read."""
    with connectors.lock:
        connector = connectors.get(name)
        held = connectors.held(connector.settings.query_group)
        where = held.where()
        topics = [t.events for t in connector.tasks.values() if held.owners.owner(t.events) in (None, name)]
        return {t: {int(p): o for p, o in sorted(where[t].items())} for t in topics if where.get(t)}


def alter(connectors: Connectors, name: str, offsets: Mapping[str, Mapping[int, int | None]]) -> None:
    """Let a stopped connector go on from elsewhere; None is the topic's first event.

    Raises NotStopped, HelenusError CONFIG for a topic or partition that is not its own, for an offset that no
    topic can have, and with state=rows, and the broker's errors.
    """
    first = connectors.earliest(_events_of(connectors, name))
    with connectors.lock:
        held = connectors.held(_movable(connectors, name).query_group)
        for topic, wanted in offsets.items():
            for partition, offset in wanted.items():
                if str(partition) not in first.get(topic, {}):
                    what = f"topic {topic}, partition {partition} is none of its events topics"
                    raise HelenusError(Kind.CONFIG, what, name)
                if offset is not None and not _is_offset(connectors, offset):
                    raise HelenusError(Kind.CONFIG, f"topic {topic}: no offset {offset}", name)
        where = held.where()
        for topic, wanted in offsets.items():
            # All partitions: a running batch no longer moves any of them.
            moved = {str(p): first[topic][str(p)] if o is None else o for p, o in wanted.items()}
            stood = {p: at for p, at in where.get(topic, {}).items() if p in first[topic]}
            _move(connectors, name, topic, {**first[topic], **stood, **moved})


def reset(connectors: Connectors, name: str) -> None:
    """Let a stopped connector begin at the first event of its topics. Raises as `alter`."""
    first = connectors.earliest(_events_of(connectors, name))
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
    for group, of_group in by_group.items():
        held = connectors.held(group)
        others = [task for task in of_group if held.owners.owner(task.events) != task.connector]
        claimed += [task for task in of_group if task not in others]
        where = held.where() if others else {}
        # Those of an earlier version, and new ones, at once: there may be hundreds at a start.
        free = [task for task in others if not where.get(task.events) or held.owners.owner(task.events) is None]
        with connectors.lock:
            held.owners.take({task.events: (task.connector, where.get(task.events, {})) for task in free})
        claimed += free
        claimed += [task for task in others if task not in free and _takes_over(connectors, task, held)]
    return claimed


def _takes_over(connectors: Connectors, task: Task, held: HeldPositions) -> bool:
    """Have a task begin at its own position, in the place of another connector; False if it can't, or not yet."""
    name, topic, owner = task.connector, task.events, held.owners.owner(task.events)
    if task.settings.state == "rows":
        task.error = other_rows(name, owner, str(held.checkpoint))
        return False
    first = connectors.earliest([topic]).get(topic)
    if not first:
        return False
    own = held.owners.former(topic, name)
    with connectors.lock:
        _log.info("connector.begins", connector=name, topic=topic, reason=f"the position is of connector {owner}")
        _move(connectors, name, topic, {partition: own.get(partition, offset) for partition, offset in first.items()})
    return True


def _movable(connectors: Connectors, name: str) -> ConnectorSettings:
    """The settings of a stopped connector whose positions may be moved. Raises NotStopped, and HelenusError CONFIG."""
    settings = connectors.stopped(name).settings
    if settings.state == "rows":
        what = "with state=rows positions can't be moved: the rows that are kept are those of now"
        advice = f"{begin_anew(settings.query_group)}: then it starts from the first event"
        raise HelenusError(Kind.CONFIG, what, name, advice)
    return settings


def _move(connectors: Connectors, name: str, topic: str, offsets: Mapping[str, int]) -> None:
    """Let a connector go on from here in a topic, which has these partitions and no others."""
    connector = connectors.get(name)
    connectors.held(connector.settings.query_group).move(topic, offsets, name)
    partitions = {*map(int, offsets)}
    group = connector.settings.query_group
    copies = connectors.unconfirmed(group).shrink(topic, partitions) + connectors.waiting(group).shrink(
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
        return [task.events for task in connectors.stopped(name).tasks.values()]
