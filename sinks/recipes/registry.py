"""The schemas of a data topic, from a registry with Confluent's API.

Needs confluent-kafka[schemaregistry] and fastavro.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError
from fastavro.repository import AbstractSchemaRepository
from fastavro.schema import load_schema
from records import Columns, Failure, read_columns
from settings import Notes, Settings, without_login

_BACKOFF_MAX_S = 30.0
notes = Notes()


class Registry:
    """Asks a registry, without end if it can't be reached; with --once, raises Failure then."""

    def __init__(self, settings: Settings) -> None:
        self._url, self._once = without_login(settings.registry), settings.once
        try:
            self._client = SchemaRegistryClient({"url": settings.registry, **settings.registry_client})
        except (ValueError, OSError) as error:
            raise Failure(f"a property of the registry's client is wrong: {error}") from None

    def get_schema(self, schema_id: int) -> str:
        """Return the text of the schema with an id."""
        return _whole(*self._ask(lambda: self._with_references(self._client.get_schema(schema_id))))

    def get_newest(self, subject: str) -> str:
        """Return the text of a subject's newest schema."""
        self._client.clear_latest_caches()  # it would give the first one for ever
        return _whole(*self._ask(lambda: self._with_references(self._client.get_latest_version(subject).schema)))

    def columns(self, subject: str) -> Columns:
        """Return the columns of a subject's newest schema."""
        return read_columns(self.get_newest(subject))

    def _with_references(self, schema: Any) -> tuple[str, dict[str, Any]]:
        """Return a schema's text, and the schemas that it refers to, directly or not, by the name of their type."""
        schemas: dict[str, Any] = {}
        for reference in schema.references or ():  # of the connector's own schemas none
            referenced = self._client.get_version(reference.subject, reference.version, True).schema
            text, others = self._with_references(referenced)
            schemas |= {**others, reference.name: json.loads(text)}
        return str(schema.schema_str), schemas

    def _ask(self, read: Callable[[], tuple[str, dict[str, Any]]]) -> tuple[str, dict[str, Any]]:
        pause = 1.0
        while True:
            try:
                return read()
            except SchemaRegistryError as error:
                code = error.http_status_code
                problem = f"the registry {self._url} answers {code}: {error.error_message}{_ADVICE.get(code, '')}"
                may_pass = code >= 500 or code in _MAY_PASS
            except Exception as error:  # of httpx or httpx2, whichever the client uses
                problem, may_pass = f"the registry {self._url} can't be reached: {error or type(error).__name__}", True
            if self._once or not may_pass:
                raise Failure(problem)
            notes.say(f"{problem}; trying again")
            time.sleep(pause)
            pause = min(pause * 2, _BACKOFF_MAX_S)


class _Referenced(AbstractSchemaRepository):
    def __init__(self, schemas: dict[str, Any]) -> None:
        self._schemas = schemas

    def load(self, name: str) -> Any:
        return self._schemas[name]


def _whole(text: str, referenced: dict[str, Any]) -> str:
    """Return the text of a schema, with the types of those that it refers to. Raises Failure for one without them."""
    if not referenced:
        return text
    try:
        schema = load_schema("", repo=_Referenced({**referenced, "": json.loads(text)}))
    except Exception as error:  # fastavro has several
        raise Failure(f"a schema can't be used with those that it refers to: {error!r}") from None
    return json.dumps({name: part for name, part in schema.items() if not name.startswith("__")})


_LOGIN = ": --config has schema.registry.basic.auth.user.info"
_ADVICE = {
    401: _LOGIN,
    403: _LOGIN,
    404: ": is that its address, as in value.converter.schema.registry.url, and has the connector published a record?",
}
_MAY_PASS = (401, 403, 404, 429)  # a login is mended there, and subjects come with the first record
