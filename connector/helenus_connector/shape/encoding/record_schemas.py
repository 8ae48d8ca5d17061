"""The interface by which shapes name the schemas of what they encode, wherever these are kept."""

from __future__ import annotations

from typing import Any, Protocol

from helenus_connector.schema_store.contract import SchemaId


class SchemaIds(Protocol):
    """Gives schemas their ids: see `Registry`."""

    def register(self, subject: str, schema: str) -> SchemaId: ...
    def keep(self, subject: str, schema: str, value: str) -> SchemaId: ...


class RecordSchemas(SchemaIds, Protocol):
    """The schemas of a table's records, wherever they are kept. All but `Registry` are in `schema_registration`."""

    @property
    def is_registration_due(self) -> bool:
        """Return whether schemas that the registry did not take may be registered now: by `register` and `keep`."""
        ...

    def schema(self, schema_id: Any) -> str | None:
        """Return the schema that a record names; None if there is none of Avro's. Raises HelenusError."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...
