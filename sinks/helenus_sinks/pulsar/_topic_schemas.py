"""The schemas of topics on Pulsar, where its own check of compatibility is too strict or too lax.

It refuses a key column with another name, though a RENAME changes no byte of any key. It accepts times of another unit,
and the keys of a recreated table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from helenus_schemas.avro.build import TABLE_ID, text
from helenus_schemas.avro.compare import has_times, incompatibility, other_times, parsed, recreated, without_names
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.log import DeclaredSchemas
from helenus_sinks.pulsar.client import Client
from helenus_sinks.pulsar.errors import AUTHORIZATION, TOPIC_NOT_FOUND, Answered
from helenus_sinks.pulsar.wire import schema_of, texts_of

Ask = Callable[[Callable[[Client], Coroutine[Any, Any, Any]]], Any]
"""Runs a question to a client, and returns its answer. Raises HelenusError."""


class TopicSchemas:
    """Registers schemas. A topic has the same one in all its partitions, so the first is asked for it: `first` returns
    its full name.
    """

    def __init__(self, where: str, ask: Ask, first: Callable[[str], str]) -> None:
        self._where = where
        self._ask = ask
        self._first = first

    def register(self, topic: str, schemas: DeclaredSchemas) -> tuple[Any, bytes]:
        """Register schemas, with the topic's own key schema if that differs in names only. Returns Pulsar's schema and
        its version. Raises HelenusError: REGISTRY_REFUSED if they do not fit the topic's.
        """
        names_table = schemas.key is not None and TABLE_ID in schemas.key  # those of events do not
        self._check_times(topic, schemas, names_table)
        existing = self._existing_key(topic, schemas) if names_table else None
        if existing is not None and (reason := recreated(parsed(existing), parsed(schemas.key or ""))):
            raise HelenusError(Kind.REGISTRY_REFUSED, reason, self._where)
        try:
            return self._register(topic, schemas)
        except HelenusError as error:
            if error.kind is not Kind.REGISTRY_REFUSED:
                raise
            existing = existing or self._existing_key(topic, schemas)
            adapted = None if existing is None else self._with_key(existing, schemas)
            if adapted is None:
                raise
            return self._register(topic, adapted)

    def _register(self, topic: str, schemas: DeclaredSchemas) -> tuple[Any, bytes]:
        schema = schema_of(schemas)
        return schema, self._ask(lambda client: client.register(self._first(topic), schema))

    def _existing_key(self, topic: str, schemas: DeclaredSchemas) -> str | None:
        """Return the topic's key schema, if it differs. None for JSON, which has names in its bytes, for a topic
        without schema, and if this login may not read it.
        """
        if schemas.key is None or schemas.kind == "JSON":
            return None
        existing, _ = self._existing_schemas(topic)
        try:
            return None if existing is None or existing == schemas.key or parsed(existing) is None else existing
        except ValueError:  # none of Avro's
            return None

    def _existing_schemas(self, topic: str) -> tuple[str | None, str]:
        """Return the schemas of the topic's keys and values; None and "" if there is none, or if the login may not
        ask.
        """
        try:
            return texts_of(self._ask(lambda client: client.schema(self._first(topic))))
        except Answered as error:
            if error.code not in (TOPIC_NOT_FOUND, AUTHORIZATION):
                raise
            return None, ""

    def _check_times(self, topic: str, schemas: DeclaredSchemas, names_table: bool) -> None:
        """Raise REGISTRY_REFUSED for times of another unit than the topic's, which may have records of DataStax's
        connector. Keys of events are left out: those say which agent wrote them.
        """
        checked = ((schemas.key if names_table or schemas.kind == "JSON" else None), schemas.value)
        new = [parsed(schema) if schema else None for schema in checked]
        if not any(map(has_times, new)):
            return
        for declared, existing in zip(new, self._existing_schemas(topic), strict=True):
            try:
                reason = other_times(parsed(existing), declared) if declared is not None and existing else None
            except ValueError:  # not JSON
                continue
            if reason:
                raise HelenusError(Kind.REGISTRY_REFUSED, reason, self._where)

    def _with_key(self, existing: str, schemas: DeclaredSchemas) -> DeclaredSchemas | None:
        """Return these schemas with the `existing` key schema, if that differs in names only; else None.

        Raises REGISTRY_REFUSED where its names would be wrong.
        """
        old, new, value = map(parsed, (existing, schemas.key or "", schemas.value))
        if without_names(old) != without_names(new):
            return None
        if reason := incompatibility(old, new, value):
            raise HelenusError(Kind.REGISTRY_REFUSED, reason, self._where)
        if without_names(value) == without_names(new):  # a table of key columns only: its value has the key's schema
            without = {name: part for name, part in json.loads(existing).items() if name != TABLE_ID}
            return replace(schemas, key=existing, value=text(without))
        return replace(schemas, key=existing)
