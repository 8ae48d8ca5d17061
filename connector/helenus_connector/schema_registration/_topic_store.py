"""A store of schemas without a registry: the topic alone. `schema.store=topic`."""

from __future__ import annotations

from collections.abc import Sequence

from helenus_connector.schema_registration._entry import SchemaEntry
from helenus_connector.schema_registration._schema_topic import SchemaTopic
from helenus_connector.schema_store.contract import SchemaId
from helenus_schemas.avro.canonical import canonical_text, guid
from helenus_schemas.avro.compare import other_times, parsed
from helenus_schemas.avro.resolution import unreadable


class TopicSchemaStore:
    """Keeps schemas in a topic, by their GUIDs: see `AvroSchemaStore`.

    A subject's next schema has to read what its latest one wrote (BACKWARD); not with `is_compatible` false.
    """

    def __init__(self, topic: SchemaTopic, is_compatible: bool) -> None:
        self._topic = topic
        self._is_compatible = is_compatible

    def register(self, subject: str, schema: str) -> SchemaId:
        text = canonical_text(schema)
        all_entries = self._topic.entries(subject)
        entries = _accepted(all_entries)
        if (own := _find(entries, text)) is not None:
            return own.name
        self._check(entries[-1:], text)
        # One that was refused, or that once waited for a registry, keeps its place: of a second first record nothing
        # counts.
        former = _find([entry for entry in all_entries if entry.name == guid(text)], text)
        entry = SchemaEntry(subject, text, guid(text), "registered")
        entry = entry if former is None else former.with_state("registered")
        noted = _accepted(self._topic.append(entry))
        # Another process may have appended one meanwhile: whose is the later one, yields.
        before = noted[: next(i for i, other in enumerate(noted) if other.key == entry.key)]
        try:
            self._check(before[-1:], text)
        except ValueError as error:
            self._topic.append(noted[len(before)].with_state("refused", reason=str(error)))
            raise
        return entry.name

    def latest(self, subject: str) -> tuple[SchemaId, str] | None:
        entries = _accepted(self._topic.entries(subject))
        return (entries[-1].name, entries[-1].schema) if entries else None

    def schema(self, schema_id: SchemaId) -> str | None:
        entry = self._topic.find(lambda entry: entry.name == schema_id)
        return None if entry is None else entry.schema

    def close(self) -> None:
        """Do nothing: the connections to the topic are the process's."""

    def _check(self, latest: Sequence[SchemaEntry], text: str) -> None:
        """Raise ValueError for a schema that does not read what those before it wrote."""
        for entry in latest if self._is_compatible else ():
            former, new = parsed(entry.schema), parsed(text)
            if problem := unreadable(new, former) or other_times(former, new):
                raise ValueError(f"the schema is not compatible with the subject's latest: {problem}")


def _accepted(entries: Sequence[SchemaEntry]) -> list[SchemaEntry]:
    return [entry for entry in entries if entry.state == "registered"]


def _find(entries: Sequence[SchemaEntry], text: str) -> SchemaEntry | None:
    return next((entry for entry in entries if entry.schema == text), None)
