"""The interface of a store of Avro schemas: `schema.store=module:Class` names a class that implements it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Protocol

SchemaId = int | uuid.UUID
"""What names a schema in a record: a number of 32 bits without sign, or a GUID. In front of the record's Avro there are
a byte 0 and the 4 bytes of the number, or a byte 1 and the 16 bytes of the GUID, as Confluent's serializers write them.
"""


class AvroSchemaStore(Protocol):
    """Keeps the Avro schemas of records, by subject: `<data topic>-key`, `-value` and so on.

    `Class(config)` makes one, with the properties below `schema.store.config.` of the connector's file, references such
    as `${env:X}` replaced by what they stand for. That must not connect: a store is made in each of Spark's Python
    workers, for each table, and pickled never. One thread at a time uses it, while other threads use those of other
    tables; several processes use the same schemas.

    Errors decide what happens. OSError, of which ConnectionError and TimeoutError are kinds: the batch is repeated,
    with growing pauses. ValueError: the schema is refused, `schema.on.incompatible` counts. PermissionError: the table
    stops. Any other is taken for a mistake of the class, and the batch repeated. Messages are logged: they must have no
    secrets.
    """

    def register(self, subject: str, schema: str) -> SchemaId:
        """Return what names a schema, given as Avro's JSON, in the records of a subject; store it if it is new.

        It is durable when this returns: records that name it follow. The same schema has the same name at every call,
        in every process, also when two processes register it at once. Whether a schema may follow those that the
        subject has, the store decides: ValueError refuses it. Called when a table is new to a process, or was altered.
        """
        ...

    def latest(self, subject: str) -> tuple[SchemaId, str] | None:
        """Return the newest schema of a subject, and what names it; None if the subject has none. It is current when
        this is called: keys, of which each has to keep its bytes, go on by it.
        """
        ...

    def schema(self, schema_id: SchemaId) -> str | None:
        """Return the schema that a record names, None if the store has none of this name. A record may name anything.
        `verify` and `state=keys` call it once for each name.
        """
        ...

    def close(self) -> None:
        """Close all connections. No other method is called after it."""
        ...


class StoreFactory(Protocol):
    """A class of stores."""

    def __call__(self, config: Mapping[str, str]) -> AvroSchemaStore: ...
