"""An entry of the topic of schemas: a schema of a subject, and what became of it. JSON, under the key `NAME SUBJECT`.

What a topic holds is not trusted: an entry counts only if its GUID is that of its schema, and its key is its own.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from helenus_connector.schema_store.contract import SchemaId
from helenus_schemas.avro.canonical import canonical_text, guid

State = Literal["deferred", "registered", "refused"]
_STATES: tuple[State, ...] = get_args(State)
MOST_TEXT_BYTES = 4 << 20
"""Largest schema that is read: one of a thousand columns has some 100 kB, and a topic takes 1 MB unless set."""
_MOST_SUBJECT_CHARACTERS = 1000
_MOST_REASON_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class SchemaEntry:
    """A schema, in canonical form, of a subject, under the `name` that records have for it.

    `state` is `deferred` until a registry has it; then `registry_id` is its id there. `order` is the offset of the
    first record of the entry, by which the subject's schemas follow each other; -1 for one that was not read yet.
    """

    subject: str
    schema: str
    name: SchemaId
    state: State
    registry_id: int | None = None
    reason: str = ""
    order: int = -1

    @property
    def guid(self) -> uuid.UUID:
        """Return the schema's GUID."""
        return guid(self.schema)

    @property
    def key(self) -> str:
        """Return the key of the entry's records."""
        return f"{self.name} {self.subject}"

    def to_record(self) -> tuple[bytes, bytes]:
        """Return key and value of a record of it."""
        document = {
            "subject": self.subject,
            "schemaType": "AVRO",
            "schema": self.schema,
            "guid": str(self.guid),
            "id": self.name if isinstance(self.name, int) else self.registry_id,
            "state": self.state,
            "reason": self.reason[:_MOST_REASON_CHARACTERS],
            "order": self.order,
        }
        return self.key.encode(), json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()

    def with_state(self, state: State, registry_id: int | None = None, reason: str = "") -> SchemaEntry:
        """Return the entry with what became of it."""
        return replace(self, state=state, registry_id=registry_id, reason=reason)


def parse_entry(key: bytes, value: bytes) -> SchemaEntry:
    """Return the entry of a record; of its first record it has no `order`. Raises ValueError for one that is none, or
    whose schema has another GUID.
    """
    if len(value) > MOST_TEXT_BYTES:
        raise ValueError(f"it has {len(value)} bytes, where {MOST_TEXT_BYTES} are read")
    try:
        document = json.loads(value)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    if not isinstance(document, dict) or document.get("schemaType") != "AVRO":
        raise ValueError("it is none of an Avro schema")
    subject, schema = _text(document, "subject"), _text(document, "schema")
    if not subject or len(subject) > _MOST_SUBJECT_CHARACTERS:
        raise ValueError("it has no subject")
    if document.get("guid") != str(guid(schema)):
        raise ValueError("its guid is not that of its schema")
    if canonical_text(schema) != schema:
        raise ValueError("its schema is not in the form that a registry gives it")
    state, registry_id, order = document.get("state"), document.get("id"), document.get("order")
    known_state = next((name for name in _STATES if name == state), None)
    if known_state is None:
        raise ValueError("it has no state")
    if registry_id is not None and not _is_number(registry_id, 1 << 32):
        raise ValueError("its id is none of a registry's")
    if not isinstance(order, int) or not (order == -1 or _is_number(order, 1 << 63)):
        raise ValueError("its order is none")
    entry = SchemaEntry(subject, schema, guid(schema), known_state, registry_id, _text(document, "reason"), order)
    if entry.key.encode() == key:
        return entry
    if registry_id is not None:
        of_id = replace(entry, name=registry_id)
        if of_id.key.encode() == key:
            return of_id
    raise ValueError("its key is another one's")


def _text(document: dict[str, Any], name: str) -> str:
    text = document.get(name)
    if not isinstance(text, str):
        raise ValueError(f"it has no {name}")
    text.encode()  # raises UnicodeEncodeError, a ValueError, for half a character
    return text


def _is_number(number: Any, end: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < end
