"""The schemas of a table's records in a `AvroSchemaStore`, with what holds for keys in any: they keep their bytes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from helenus_connector.schema_store.contract import AvroSchemaStore, SchemaId
from helenus_schemas.avro.compare import kept_problem, parsed, without_names
from helenus_schemas.errors import HelenusError, Kind

_MOST_NAMES = 10_000


class StoreSchemas:
    """The schemas of a table's records: see `RecordSchemas`. `where` names the store. The methods raise HelenusError
    REGISTRY_UNREACHABLE, REGISTRY_REFUSED or REGISTRY_AUTH for errors of the store, as its contract says.
    """

    is_registration_due = False

    def __init__(self, store: AvroSchemaStore, where: str) -> None:
        self._store = store
        self._where = where
        self._names: dict[tuple[str, str], SchemaId] = {}
        self._texts: dict[SchemaId, str | None] = {}

    def register(self, subject: str, schema: str) -> SchemaId:
        name = self._names.get((subject, schema))
        if name is None:
            with self._errors(subject):
                name = self._checked(self._store.register(subject, schema))
            self._names[subject, schema] = name
        return name

    def keep(self, subject: str, schema: str, value: str) -> SchemaId:
        self._names.clear()  # a version of the table begins with its keys
        with self._errors(subject):
            latest = self._store.latest(subject)
            former, key = (None, None) if latest is None else (parsed(latest[1]), parsed(schema))
        if latest is not None:
            if problem := kept_problem(former, key, parsed(value)):
                raise HelenusError(Kind.REGISTRY_REFUSED, problem, f"{self._where}, subject {subject}")
            if without_names(former) == without_names(key):
                return self._checked(latest[0])
        return self.register(subject, schema)

    def schema(self, schema_id: SchemaId) -> str | None:
        if schema_id not in self._texts:
            if len(self._texts) >= _MOST_NAMES:  # records may name anything
                self._texts.clear()
            with self._errors(""):
                self._texts[schema_id] = self._store.schema(schema_id)
        return self._texts[schema_id]

    def close(self) -> None:
        with self._errors(""):
            self._store.close()

    def _checked(self, name: object) -> SchemaId:
        """Return a name that fits into a record. Raises HelenusError STATE."""
        if isinstance(name, uuid.UUID) or (isinstance(name, int) and 0 <= name < 1 << 32):
            return name
        problem = f"the store named a schema {str(name)[:40]}, which is neither a number of 32 bits nor a GUID"
        raise HelenusError(Kind.CONFIG, problem, self._where, "correct the class")

    @contextmanager
    def _errors(self, subject: str) -> Iterator[None]:
        where = f"{self._where}, subject {subject}" if subject else self._where
        try:
            yield
        except HelenusError:
            raise
        except PermissionError as error:
            raise HelenusError(Kind.REGISTRY_AUTH, f"the store refused the login: {error}", where) from None
        except OSError as error:
            raise HelenusError(Kind.REGISTRY_UNREACHABLE, f"the store does not answer: {error}", where) from None
        except ValueError as error:
            raise HelenusError(Kind.REGISTRY_REFUSED, f"the store refuses the schema: {error}", where) from None
