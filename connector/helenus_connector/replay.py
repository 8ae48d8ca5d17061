"""Dead letters, appended to the events topics again: `helenus-connector replay`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import structlog

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.tables import chosen, missing, read
from helenus_connector.log.choice import data_log, event_schemas, events_log, unread
from helenus_connector.log.events import Message
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event import datastax
from helenus_schemas.event.wire import decode, encode, without_frames
from helenus_sinks import dead_letters
from helenus_sinks.log import Log

_FLUSH_TIMEOUT_S = 60.0


def replay(worker: WorkerSettings, settings: ConnectorSettings) -> Iterator[tuple[ConnectorSettings, int]]:
    """Append the dead letters that are there now, and were not replayed before, to the partitions they came from.

    Yields each table of the connector, when it is done, with the number of its dead letters. Tables without a topic of
    dead letters are left out, but one table must have one. Raises HelenusError: POISON_EVENT for a record that is no
    dead letter; as `connect`, and TABLE_MISSING, where tables are looked up; and the broker's errors. Events that were
    appended before stay, and count as replayed.
    """
    log, undelivered = events_log(worker), data_log(worker)
    try:
        definitions = read(settings) if settings.has_patterns or log.keeps_schemas else {}
        tables = [settings.of_table(name) for name in chosen(settings, definitions)]
        topics = undelivered.topics()
        if not any(table_settings.dead_letters in topics for table_settings in tables):
            names = ", ".join(table_settings.dead_letters for table_settings in tables)
            problem = f"there is no topic {names}" if names else f"no table matches {settings.table}"
            raise HelenusError(
                Kind.CONFIG, problem, settings.name, "there is nothing to replay, or another topic is meant"
            )
        events = log.topics()
        for table_settings in tables:
            replayed = 0
            if table_settings.dead_letters in topics:
                if table_settings.events not in events:
                    advice = "start the agent, which makes it, or correct events.topic"
                    raise HelenusError(Kind.CONFIG, f"there is no topic {table_settings.events}", settings.name, advice)
                if log.keeps_schemas:
                    table = definitions.get(table_settings.table)
                    if table is None:
                        raise missing(table_settings, definitions)
                    log.declare(table_settings.events, event_schemas(table))
                for partition in range(topics[table_settings.dead_letters]):
                    replayed += _replay(worker, table_settings, partition, log, events[table_settings.events])
            yield table_settings, replayed
    finally:
        log.close()
        undelivered.close()


def _replay(worker: WorkerSettings, settings: ConnectorSettings, partition: int, log: Log, partitions: int) -> int:
    """Replay one partition of a table's dead letters, whose events topic has so many; returns how many there were.

    Dead letters of other events topics, or without the original event, are skipped.
    """
    replayed = 0
    where = {"connector": settings.name, "topic": settings.dead_letters, "partition": partition}
    logger = structlog.get_logger(__name__)
    for chunk in unread(worker, f"helenus-replay-{settings.name}", settings.dead_letters, partition):
        others: Counter[str] = Counter()
        incomplete = 0
        for dead_letter in chunk:
            topic, target = _origin(dead_letter)
            if topic != settings.events:
                others[topic] += 1
                continue
            if dead_letters.is_incomplete(dead_letter.headers()):
                incomplete += 1
                continue
            if not 0 <= target < partitions:
                problem = f"a dead letter of {topic}, partition {target}, which has {partitions}"
                raise HelenusError(Kind.POISON_EVENT, problem, _location(dead_letter))
            key, value = without_frames(dead_letter.key(), dead_letter.value() or b"")
            log.append(settings.events, target, key, _without_node(value, log.keeps_schemas))
            replayed += 1
        log.flush(_FLUSH_TIMEOUT_S)
        if others or incomplete:
            logger.warning("replay.skipped", **where, of_other_topics=dict(others), incomplete=incomplete)
        logger.info("replay.done", **where, events=replayed)
    return replayed


def _origin(dead_letter: Message) -> tuple[str, int]:
    """Topic and partition of its event. Raises POISON_EVENT."""
    try:
        return dead_letters.origin(dead_letter.headers())
    except ValueError as error:
        raise HelenusError(Kind.POISON_EVENT, f"not a dead letter: {error}", _location(dead_letter)) from None


def _location(dead_letter: Message) -> str:
    return f"topic {dead_letter.topic()}, partition {dead_letter.partition()}, offset {dead_letter.offset()}"


def _without_node(value: bytes, is_sorted: bool) -> bytes:
    """Return the event without its node, so that it does not count as a copy of a confirmed one, and is always read."""
    try:
        change = decode(value)
    except ValueError:
        return value
    encoded = encode(change._replace(node=None))
    return datastax.sorted_value(encoded) if is_sorted and change.digest else encoded
