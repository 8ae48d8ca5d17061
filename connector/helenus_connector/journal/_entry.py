"""An entry of a journal: what waits of one events topic, or how that changed with a batch.

Its bytes are a version, and then Avro: written by `SCHEMA`, of which later versions may have more fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import chain
from typing import Any

import fastavro

from helenus_connector.interfaces.event import Event, WaitingChange
from helenus_connector.interfaces.gate import GateState
from helenus_connector.interfaces.image import Bounds
from helenus_connector.unconfirmed.unconfirmed_key import NameInPartition, PublishedKeys, UnconfirmedKey
from helenus_connector.unconfirmed.unproven_changes import CHANGE_BYTES, unstamp_changes
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Bound

VERSION = b"\1"
_MOST_BYTES = 400_000
"""Of the parts of an entry that is written as several: brokers take a million bytes, unless set."""
_DAMAGED = (
    "stop the worker and delete the topic: connectors then read again what came in the last settle.replay.ms, and "
    "publish it once more"
)


@dataclass
class JournalEntry:
    """What waits of an events topic, whose records `connector` makes.

    With `is_whole` it takes the place of all that was said of the topic before; without, it is what a batch changed:
    `settled` are the names of keys that wait no more, `waiting` those that wait now, `published` what the batch
    published, each by partition, and `at_gate` what it left at the gate. The `since` of a change at the gate is for how
    long it has waited, s.
    """

    connector: str
    topic: str
    is_whole: bool = False
    settled: list[tuple[int, NameInPartition]] = field(default_factory=list)
    waiting: list[UnconfirmedKey] = field(default_factory=list)
    published: dict[int, PublishedKeys] = field(default_factory=dict)
    at_gate: GateState = field(default_factory=GateState)

    @property
    def is_empty(self) -> bool:
        """Return whether it says nothing."""
        gate = self.at_gate
        return not (
            self.is_whole
            or self.settled
            or self.waiting
            or self.published
            or (gate.waits or gate.gone or gate.truncated)
        )

    def to_records(self) -> Iterator[bytes]:
        """Yield the entry's bytes: several that say the same in this order, where one would be too large."""
        fields = _fields(self)
        part: dict[str, list[Any]] = {}
        size = 0
        is_first = True
        for name, item, item_bytes in fields:
            if part and size + item_bytes > _MOST_BYTES:
                yield self._record(part, is_first)
                part, size, is_first = {}, 0, False
            part.setdefault(name, []).append(item)
            size += item_bytes
        if part or is_first:
            yield self._record(part, is_first)

    def _record(self, part: Mapping[str, list[Any]], is_first: bool) -> bytes:
        out = BytesIO()
        head = {"connector": self.connector, "topic": self.topic, "is_whole": self.is_whole and is_first}
        fastavro.schemaless_writer(out, _SCHEMA, {**_NOTHING, **part, **head})
        return VERSION + out.getvalue()

    @staticmethod
    def from_record(record: bytes, where: str) -> JournalEntry:
        """Return the entry of these bytes. Raises HelenusError(STATE)."""
        if record[:1] != VERSION:
            raise HelenusError(Kind.STATE, "an entry is of a version that this worker does not know", where, _DAMAGED)
        try:
            content: Any = fastavro.schemaless_reader(BytesIO(record[1:]), _SCHEMA, None)
            return _entry(content)
        except (ValueError, TypeError, LookupError, EOFError, OverflowError, MemoryError):
            raise HelenusError(Kind.STATE, "an entry is damaged", where, _DAMAGED) from None


def _fields(entry: JournalEntry) -> Iterator[tuple[str, Any, int]]:
    """Yield the parts of an entry in the order in which they are to be applied, each with its field and about how many
    bytes it has.
    """
    for partition, published in entry.published.items():
        for key in published.keys:
            is_marker = published.covers(key)
            item = {"partition": partition, "clustering": published.clustering, "key": key, "is_marker": is_marker}
            yield "published", item, len(key) + 4
    for partition, name in entry.settled:
        key, bounds = name if isinstance(name, tuple) else (name, None)
        yield "settled", {"partition": partition, "key": key, "bounds": _bounds_fields(bounds)}, _size(key, bounds)
    for unconfirmed in entry.waiting:
        item = {name: getattr(unconfirmed, name) for name in _KEY_FIELDS}
        item["bounds"] = _bounds_fields(unconfirmed.bounds)
        yield "waiting", item, _size(unconfirmed.key, unconfirmed.bounds) + len(unconfirmed.awaited) + 64
    for partition, node in entry.at_gate.truncated:
        yield "truncated", {"partition": partition, "node": node}, len(node)
    for partition, change in entry.at_gate.gone:
        yield "gone", {"partition": partition, "change": change}, 20
    for waiting in entry.at_gate.waits:
        item = {"change": waiting.id, "nodes": list(waiting.nodes), "copies": waiting.copies, "waited": waiting.since}
        item |= {name: value for name, value in waiting.event._asdict().items() if name != "topic"}
        event_bytes = len(waiting.event.key or b"") + len(waiting.event.value or b"")
        yield "at_gate", item, event_bytes + 40 * len(waiting.nodes) + 40


def _entry(content: Mapping[str, Any]) -> JournalEntry:
    topic = content["topic"]
    entry = JournalEntry(content["connector"], topic, content["is_whole"])
    for item in content["published"]:
        published = entry.published.setdefault(item["partition"], PublishedKeys(item["clustering"]))
        published.add(item["key"], item["is_marker"])
    for item in content["settled"]:
        bounds = _bounds(item["bounds"])
        entry.settled.append((item["partition"], item["key"] if bounds is None else (item["key"], bounds)))
    for item in content["waiting"]:
        if len(item["awaited"]) % CHANGE_BYTES:
            raise ValueError("no changes")
        fields = {**item, "awaited": unstamp_changes(item["awaited"]), "bounds": _bounds(item["bounds"])}
        entry.waiting.append(UnconfirmedKey(topic, **fields))
    gate = entry.at_gate
    gate.truncated = [(item["partition"], item["node"]) for item in content["truncated"]]
    gate.gone = [(item["partition"], item["change"]) for item in content["gone"]]
    for item in content["at_gate"]:
        event = Event(topic, item["partition"], item["offset"], item["timestamp"], item["key"], item["value"])
        gate.waits.append(WaitingChange(item["change"], event, tuple(item["nodes"]), item["copies"], item["waited"]))
    return entry


def whole_entry(
    connector: str, topic: str, waiting: list[UnconfirmedKey], at_gate: list[WaitingChange]
) -> JournalEntry:
    """Return the entry of all that waits of a topic. Of changes `at_gate`, `since` is as in an entry."""
    return JournalEntry(connector, topic, True, [], waiting, {}, GateState(waits=[replace(w) for w in at_gate]))


def _bounds_fields(bounds: Bounds | None) -> Any:
    if bounds is None:
        return None
    return [None if end is None else {"inclusive": end.inclusive, "values": list(end.values)} for end in bounds]


def _bounds(fields: Any) -> Bounds | None:
    if fields is None:
        return None
    start, end = (None if end is None else Bound(end["inclusive"], tuple(end["values"])) for end in fields)
    return start, end


def _size(key: bytes, bounds: Bounds | None) -> int:
    values = chain.from_iterable(end.values for end in bounds or () if end is not None)
    return len(key) + 4 + sum(len(value or b"") + 8 for value in values)


def _record_schema(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields.items()]}


def _array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


_BOUND = _record_schema("Bound", inclusive="boolean", values=_array("bytes"))
_BOUNDS = ["null", _array(["null", _BOUND])]
_KEY_SCHEMA = {
    "partition": "int",
    "key": "bytes",
    "bounds": ["null", _array(["null", "Bound"])],
    "scope": "int",
    "awaited": "bytes",
    "image": ["null", "bytes"],
    "copies": "int",
    "attempts": "int",
    "since": "double",
    "pause_s": "double",
    "unread": "int",
    "stripe": "int",
    "newest": ["null", "long"],
    "deleted_at": ["null", "long"],
}
_KEY_FIELDS = tuple(_KEY_SCHEMA)
_CHANGE_SCHEMA = {
    "change": "bytes",
    "partition": "int",
    "offset": "long",
    "timestamp": "long",
    "key": ["null", "bytes"],
    "value": ["null", "bytes"],
    "nodes": _array("string"),
    "copies": "int",
    "waited": "double",
}
_PUBLISHED_SCHEMA = {"partition": "int", "clustering": "int", "key": "bytes", "is_marker": "boolean"}
SCHEMA = _record_schema(
    "JournalEntry",
    connector="string",
    topic="string",
    is_whole="boolean",
    published=_array(_record_schema("Published", **_PUBLISHED_SCHEMA)),
    settled=_array(_record_schema("Settled", partition="int", key="bytes", bounds=_BOUNDS)),
    waiting=_array(_record_schema("Waiting", **_KEY_SCHEMA)),
    truncated=_array(_record_schema("Truncated", partition="int", node="string")),
    gone=_array(_record_schema("Gone", partition="int", change="bytes")),
    at_gate=_array(_record_schema("AtGate", **_CHANGE_SCHEMA)),
)
_NOTHING: dict[str, Any] = {field["name"]: [] for field in SCHEMA["fields"] if isinstance(field["type"], dict)}
_SCHEMA = fastavro.parse_schema(SCHEMA)
