"""`helenus-stack watch`: shows what arrives in a topic, decoded."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Iterator
from contextlib import closing

import fastavro

from helenus_connector.log.events import Message
from helenus_schemas.avro.build import key_schema
from helenus_schemas.cql.table import read_tables
from helenus_stack.cql import session
from helenus_stack.errors import StackError
from helenus_stack.readers import Reader, reader
from helenus_stack.records import read
from helenus_stack.show import key_text, value_text
from helenus_stack.status import Status

_POLL_SECONDS = 0.2


def watch(status: Status, topic: str, whole: bool) -> Iterator[str]:
    """A line for every message that comes, or with `whole` for those that are there too; never ends.

    Topics of events and of records are decoded. Raises StackError if there is no such topic.
    """
    with closing(reader(status)) as topics:
        topic_names = topics.topics()
        if topic not in topic_names:
            where = status.bootstrap_servers or status.pulsar_url or ""
            raise StackError(
                f"there is no topic {topic}", where, f"topics are: {', '.join(sorted(topic_names)) or 'none'}"
            )
        text = _events(status, topics, topic) if topic.startswith("events-") else _records(topics)
        topics.follow(topic, whole)
        print(
            f"Watching {topic}. Ctrl-C ends it{'' if whole else ', --all shows what was there before'}.",
            file=sys.stderr,
        )
        while True:
            message = topics.arrival(_POLL_SECONDS)
            if message is not None:
                written_at = datetime.datetime.fromtimestamp(message.timestamp()[1] / 1000)
                yield f"{written_at:%H:%M:%S.%f}"[:-3] + f"  {text(message)}"


def _records(topics: Reader) -> Callable[[Message], str]:
    def text(message: Message) -> str:
        record = topics.record(message)
        return f"{key_text(record.key)} {value_text(record.value)}"

    return text


def _events(status: Status, topics: Reader, topic: str) -> Callable[[Message], str]:
    name = topic.removeprefix("events-")
    with session(status) as connected:
        table = next((t for t in read_tables(connected).values() if t.full_name == name), None)
    if table is None:
        raise StackError(f"there is no table {name}", topic, "an event's key can be read with its table only")
    schema = fastavro.parse_schema(key_schema(table))

    def text(message: Message) -> str:
        key = read(message.key() or b"", schema)
        change = topics.change(message)
        return f"{key_text(key)} {change.scope.name}, written at {change.write_time} µs, digest {change.digest}"

    return text
