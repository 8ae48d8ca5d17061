"""A record as Kafka Connect passes it from a source to its transforms, and from these to the converters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from helenus_connector.connect_data.schema import ConnectSchema


class ConnectHeader(NamedTuple):
    """A header. Without a schema, `value` is bytes, or what a transform set without one."""

    name: str
    schema: ConnectSchema | None
    value: Any


@dataclass(frozen=True, slots=True)
class ConnectRecord:
    """A record, as `org.apache.kafka.connect.connector.ConnectRecord`: what changes it makes another by `replace`.

    `partition` is the data topic's, None if the record's key is to say it; `timestamp` in ms since the epoch, None
    where the broker sets it. A key or value of None may have a schema all the same. `headers` keep their order, and a
    name may be there twice.
    """

    topic: str
    partition: int | None
    key_schema: ConnectSchema | None
    key: Any
    value_schema: ConnectSchema | None
    value: Any
    timestamp: int | None
    headers: tuple[ConnectHeader, ...] = ()
