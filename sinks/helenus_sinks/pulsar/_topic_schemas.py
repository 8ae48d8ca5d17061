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
        known = self._known_key(topic, schemas) if names_table else None
        if known is not None and (what := recreated(parsed(known), parsed(schemas.key or ""))):
            raise HelenusError(Kind.REGISTRY_REFUSED, what, self._where)
        try:
            return self._registered(topic, schemas)
        except HelenusError as error:
            if error.kind is not Kind.REGISTRY_REFUSED:
                raise
            known = known or self._known_key(topic, schemas)
            adapted = None if known is None else self._with_key(known, schemas)
            if adapted is None:
                raise
            return self._registered(topic, adapted)

    def _registered(self, topic: str, schemas: DeclaredSchemas) -> tuple[Any, bytes]:
        schema = schema_of(schemas)
        return schema, self._ask(lambda client: client.register(self._first(topic), schema))

    def _known_key(self, topic: str, schemas: DeclaredSchemas) -> str | None:
        """Return the topic's key schema, if it differs. None for JSON, which has names in its bytes, for a topic
        without schema, and if this login may not read it.
        """
        if schemas.key is None or schemas.kind == "JSON":
            return None
        known, _ = self._known(topic)
        try:
            return None if known is None or known == schemas.key or parsed(known) is None else known
        except ValueError:  # none of Avro's
            return None

    def _known(self, topic: str) -> tuple[str | None, str]:
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
        new = [parsed(one) if one else None for one in checked]
        if not any(map(has_times, new)):
            return
        for now, known in zip(new, self._known(topic), strict=True):
            try:
                what = other_times(parsed(known), now) if now is not None and known else None
            except ValueError:  # not JSON
                continue
            if what:
                raise HelenusError(Kind.REGISTRY_REFUSED, what, self._where)

    def _with_key(self, known: str, schemas: DeclaredSchemas) -> DeclaredSchemas | None:
        """These schemas with the `known` key schema, if that differs in names only; else None.

        Raises REGISTRY_REFUSED where its names would be wrong.
        """
        old, new, value = map(parsed, (known, schemas.key or "", schemas.value))
        if without_names(old) != without_names(new):
            return None
        if what := incompatibility(old, new, value):
            raise HelenusError(Kind.REGISTRY_REFUSED, what, self._where)
        if without_names(value) == without_names(new):  # a table of key columns only: its value has the key's schema
            without = {name: part for name, part in json.loads(known).items() if name != TABLE_ID}
            return replace(schemas, key=known, value=text(without))
        return replace(schemas, key=known)
