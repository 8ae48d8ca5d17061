"""A connector's stage in this process, against real servers: no Spark and no agent, so a test says what it meets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Message
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from helenus_connector.cassandra_rows.raw_rows import RawProtocolHandler, row_factory
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.event import Event
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.pipeline.stage import Stage
from helenus_connector.unconfirmed.unconfirmed_key import UnconfirmedKey
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import read_tables
from helenus_schemas.event.change import Change, Scope
from helenus_schemas.event.wire import encode
from helenus_schemas.service.cassandra import connect
from helenus_sinks.kafka.log import KafkaLog
from helenus_stack.records import messages
from helenus_stack.status import Status

NODE = "ad310466-96a7-4cb2-acf4-59535a960812"


class Staged:
    """The stage of one table (`ks.table`), whose topics have one partition. `more` are keys with `_` for dots."""

    def __init__(
        self, status: Status, directory: Path, table: str, producer: dict[str, str] | None = None, **more: object
    ) -> None:
        keyspace, name = table.split(".")
        directory.mkdir(parents=True, exist_ok=True)
        properties = {
            "name": table,
            "keyspace": keyspace,
            "table": name,
            "cassandra.contact.points": ",".join(status.contact_points),
            "cassandra.port": str(status.cql_port),
            "cassandra.local.dc": str(status.local_dc),
            "output.format": "key-value-json",
            **{key.replace("_", "."): str(value) for key, value in more.items()},
        }
        self.bootstrap = status.bootstrap_servers
        self.settings = ConnectorSettings.from_properties(properties, "test")
        self.session = connect(
            self.settings, protocol_handler=RawProtocolHandler, row_factory=row_factory, metadata=True
        )
        self.log = KafkaLog({"bootstrap.servers": self.bootstrap, **(producer or {})})
        for topic in (self.settings.events, self.settings.data, self.settings.dead_letters):
            self.log.create(topic, 1, {})
        self.stage = Stage(self.settings, self.session, self.log, directory)
        tables = read_tables(self.session, keyspace).values()
        self.codec = KeyCodec(next(t for t in tables if t.full_name == table))
        self._offset = 0

    def event(
        self,
        *key: bytes | None,
        scope: Scope = Scope.ROW,
        digest: str = "",
        node: str = NODE,
        write_time: int = 1,
        effect: int = 0,
    ) -> Event:
        """An event of a key's CQL bytes, at the next offset; its digest is of the offset if none is given."""
        self._offset += 1
        digest = hashlib.md5((digest or str(self._offset)).encode(), usedforsecurity=False).hexdigest()
        value = encode(Change(digest, node, scope, write_time=write_time, effect=effect))
        return Event(self.settings.events, 0, self._offset, 0, self.codec.encode(key), value)

    def run(self, events: Iterable[Event], due_keys: Sequence[UnconfirmedKey] = ()) -> BatchOutcome:
        """Do a batch, and check that every event is accounted for."""
        outcome = self.stage.run(events, due_keys, trust_images=True)
        waiting = sum(p.copies for p in outcome.waiting)
        handled = outcome.published + outcome.unchanged + outcome.confirmed + outcome.dead_lettered + waiting
        assert outcome.read == handled - sum(p.copies for p in due_keys)
        return outcome

    def records(self) -> list[Message]:
        return list(messages(self.bootstrap, self.settings.data))

    def dead_letters(self) -> list[Message]:
        return list(messages(self.bootstrap, self.settings.dead_letters))

    def topic_takes(self, size: int) -> None:
        """Set the data topic's max.message.bytes."""
        entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.settings.data, incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": self.bootstrap})  # must outlive its request
        admin.incremental_alter_configs([resource])[resource].result()

    def close(self) -> None:
        self.log.close()
        self.stage._registry.close()
        self.session.cluster.shutdown()


def keys(count: int) -> Iterator[bytes]:
    """CQL bytes of the ints from 0."""
    return (i.to_bytes(4, "big") for i in range(count))


def headers(message: Any) -> dict[str, bytes]:
    return dict(message.headers() or ())
