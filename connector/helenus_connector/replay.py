"""Dead letters, appended to the events topic again: `helenus-connector replay`."""

from __future__ import annotations

import structlog

from helenus_connector.brokers import data_log, events_log, unread
from helenus_connector.config import ConnectorSettings, WorkerSettings
from helenus_connector.events import Message
from helenus_schemas import datastax
from helenus_schemas.cassandra import connect
from helenus_schemas.change import decode, encode, unframed
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.table import read_tables
from helenus_sinks import dead_letters
from helenus_sinks.log import Schemas

_FLUSH_TIMEOUT_S = 60.0


def replay(worker: WorkerSettings, settings: ConnectorSettings) -> int:
    """Append the dead letters that are there now, and were not replayed before, to the partitions they came from.

    Returns how many. Raises HelenusError: a dead letter of another topic (POISON_EVENT), and the broker's errors. What
    was appended before stays, and is noted.
    """
    log, letters = events_log(worker), data_log(worker)
    try:
        counts = {
            topic: of.topics().get(topic) for of, topic in ((letters, settings.dead_letters), (log, settings.events))
        }
        for topic, count in counts.items():
            if count is None:
                raise HelenusError(Kind.CONFIG, f"there is no topic {topic}", settings.name)
        if log.keeps_schemas:
            log.declare(settings.events, _schemas(settings))
        done = 0
        for partition in range(counts[settings.dead_letters] or 0):
            for chunk in unread(worker, f"helenus-replay-{settings.name}", settings.dead_letters, partition):
                for letter in chunk:
                    target = _target(letter, settings.events, counts[settings.events] or 0)
                    key, value = unframed(letter.key(), letter.value() or b"")
                    log.append(settings.events, target, key, _again(value, log.keeps_schemas))
                log.flush(_FLUSH_TIMEOUT_S)
                done += len(chunk)
                structlog.get_logger(__name__).info("replay.done", connector=settings.name, events=done)
        return done
    finally:
        log.close()
        letters.close()


def _schemas(settings: ConnectorSettings) -> Schemas:
    """The schemas of an events topic that keeps them. Raises as `connect`, and TABLE_MISSING."""
    session = connect(settings)
    try:
        table = next((t for t in read_tables(session, settings.keyspace).values() if t.name == settings.table), None)
    finally:
        session.cluster.shutdown()
    if table is None:
        raise HelenusError(Kind.TABLE_MISSING, "there is no such table", f"{settings.keyspace}.{settings.table}")
    return Schemas(datastax.key_schema(table), datastax.VALUE, value_properties=datastax.VALUE_PROPERTIES)


def _target(letter: Message, events: str, partitions: int) -> int:
    where = f"topic {letter.topic()}, partition {letter.partition()}, offset {letter.offset()}"
    try:
        topic, partition = dead_letters.origin(letter.headers())
    except ValueError as error:
        raise HelenusError(Kind.POISON_EVENT, f"not a dead letter: {error}", where) from None
    if topic != events or not 0 <= partition < partitions:
        what = f"a dead letter of {topic}, partition {partition}, not of {events}, which has {partitions}"
        raise HelenusError(Kind.POISON_EVENT, what, where)
    return partition


def _again(value: bytes, is_sorted: bool) -> bytes:
    """The event without its node, so that it is no copy of one that is settled, and is always read."""
    try:
        change = decode(value)
    except ValueError:
        return value
    again = encode(change._replace(node=None))
    return datastax.sorted_value(again) if is_sorted and change.digest else again
