"""Schemas of a registry that may be away: meanwhile records name a schema by its GUID, and a topic keeps it.

    the registry answers       values: its id; keys: what their topic has had until now
    it is away, and the id
    is known on this host      the id
    it is away                 the GUID, after the schema is in the topic

Bytes of a key decide on compaction, so a key that was once written under a GUID stays so, and one under an id. Where
that can't be known, records wait for the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from helenus_connector.schema_registration._entry import SchemaEntry
from helenus_connector.schema_registration._outage import RegistryOutage
from helenus_connector.schema_registration._schema_topic import SchemaTopic
from helenus_connector.schema_store.contract import SchemaId
from helenus_connector.shape.encoding.registry import Registry
from helenus_schemas.avro.canonical import canonical_text, guid
from helenus_schemas.avro.compare import kept_problem, parsed, without_names
from helenus_schemas.errors import HelenusError, Kind

_log = structlog.get_logger(__name__)


class DeferredSchemas:
    """The schemas of a table's records: see `RecordSchemas`. `defers` says of a subject whether its schemas may wait,
    `data_topic` returns the topic of a subject's records. `register` and `keep` raise as those of `Registry`, and as
    `SchemaTopic`.
    """

    def __init__(
        self,
        registry: Registry,
        topic: SchemaTopic,
        outage: RegistryOutage,
        defers: Callable[[str], bool],
        data_topic: Callable[[str], str],
    ) -> None:
        self._registry = registry
        self._topic = topic
        self._outage = outage
        self._defers = defers
        self._data_topic = data_topic
        self._waiting: set[str] = set()  # subjects with a schema that waits for the registry
        self._names: dict[tuple[str, str], SchemaId] = {}  # of schemas that records ask for one by one

    @property
    def is_registration_due(self) -> bool:
        return bool(self._waiting) and not self._outage.is_away

    def register(self, subject: str, schema: str) -> SchemaId:
        if not self._defers(subject):
            return self._registry.register(subject, schema)
        if self.is_registration_due:
            self._begin_version()
        name = self._names.get((subject, schema))
        if name is None:
            name = self._names[subject, schema] = self._register(subject, schema)
        return name

    def _register(self, subject: str, schema: str) -> SchemaId:
        text = canonical_text(schema)
        entries = self._topic.entries(subject)
        own_entries = [entry for entry in entries if entry.schema == text]
        # The driver registers the text in the topic: some registries take another text for another schema.
        sent = text if own_entries else schema
        registry_id = self._registered(subject, text, entries, lambda: self._registry.register(subject, sent))
        if registry_id is not None:
            return registry_id if not is_key(subject) else self._key_name(subject, text, registry_id, own_entries)
        if own_entries:
            return self._wait(own_entries[0])
        remembered = self._registry.remembered_id(subject, schema)
        if remembered is not None:
            return remembered
        if is_key(subject) and not subject.endswith("-truncation"):
            self._check_no_keys(subject)
        return self._defer(SchemaEntry(subject, text, guid(text), "deferred"))

    def keep(self, subject: str, schema: str, value: str) -> SchemaId:
        if not self._defers(subject):
            return self._registry.keep(subject, schema, value)
        self._begin_version()  # which begins with its keys
        text = canonical_text(schema)
        entries = self._topic.entries(subject)
        sent = text if any(entry.schema == text for entry in entries) else schema
        registry_id = self._registered(subject, text, entries, lambda: self._registry.keep(subject, sent, value))
        alike = [entry for entry in entries if _is_alike(entry.schema, schema)]
        if registry_id is not None:
            latest = self._registry.schema(registry_id) if not alike else None
            return self._key_name(subject, canonical_text(latest or schema), registry_id, alike)
        # An id is not verified as a GUID is: what this host knows of the subject counts more than what the topic says.
        if remembered_ids := self._registry.remembered_ids(subject):
            believed = [entry for entry in alike if not isinstance(entry.name, int) or entry.name in remembered_ids]
        else:
            believed = alike
        last = entries[-1] if entries else None
        if last is not None and (problem := kept_problem(parsed(last.schema), parsed(schema), parsed(value))):
            raise HelenusError(Kind.REGISTRY_REFUSED, problem, f"{self._topic.where}, subject {subject}")
        if believed:
            return self._wait(believed[0])
        remembered = self._registry.remembered_id(subject, schema + value)
        if remembered is not None:
            return remembered
        if last is None or alike:
            self._check_no_keys(subject)
        return self._defer(SchemaEntry(subject, text, guid(text), "deferred"))

    def schema(self, schema_id: SchemaId) -> str | None:
        if isinstance(schema_id, int):
            return self._registry.schema(schema_id)
        entry = self._topic.find(lambda entry: entry.guid == schema_id)
        return None if entry is None else entry.schema

    def close(self) -> None:
        """Close the connections to the registry; those to the topic are the process's."""
        self._registry.close()

    def _begin_version(self) -> None:
        """Forget what was asked for before: what records of this version need is asked for again."""
        self._names.clear()
        self._waiting.clear()

    def _registered(
        self, subject: str, text: str, entries: Sequence[SchemaEntry], request: Callable[[], int]
    ) -> int | None:
        """Return the id that the registry answers, after it got the schemas of the subject that wait; None if it is
        away. Raises as `request` else.
        """
        if self._outage.is_away:
            return None
        try:
            for entry in entries:
                if entry.state == "deferred" and entry.schema != text:
                    self._register_earlier(entry)
            registry_id = request()
        except HelenusError as error:
            if error.kind is not Kind.REGISTRY_UNREACHABLE:
                raise
            self._outage.begin()
            _log.warning("registry.away", subject=subject, error=error.what)
            return None
        self._outage.end()
        self._waiting.discard(subject)
        return registry_id

    def _register_earlier(self, entry: SchemaEntry) -> None:
        """Register a schema that waits since before: a version of a subject comes after those before it. One that is
        refused is left to the driver, which says so.
        """
        try:
            self._registry.register(entry.subject, entry.schema)
        except HelenusError as error:
            if error.kind is not Kind.REGISTRY_REFUSED:
                raise

    def _key_name(self, subject: str, text: str, registry_id: int, entries: Sequence[SchemaEntry]) -> SchemaId:
        """Return what names the schema in keys, or in values that keep theirs: the id, unless the topic's first entry
        of it says that they have its GUID. The topic gets to know which.
        """
        first = entries[0] if entries else None
        if first is not None and not isinstance(first.name, int):
            return first.name
        if not any(entry.name == registry_id for entry in entries):
            noted = self._topic.append(SchemaEntry(subject, text, registry_id, "registered", registry_id))
            first = next((entry for entry in noted if _is_alike(entry.schema, text)), None)
            if first is not None and not isinstance(first.name, int):
                return first.name
        return registry_id

    def _check_no_keys(self, subject: str) -> None:
        """Raise REGISTRY_UNREACHABLE if the data topic may have keys under an id of the registry: under a GUID the same
        rows would have two.
        """
        topic = self._data_topic(subject)
        if self._registry.knows(subject) or self._topic.has_records(topic):
            problem = f"the registry is away, and nothing here says by which id the keys in {topic} name their schema"
            advice = "start the registry; from its answer on, records of this table go on without it"
            raise HelenusError(Kind.REGISTRY_UNREACHABLE, problem, f"subject {subject}", advice)

    def _defer(self, entry: SchemaEntry) -> SchemaId:
        """Append an entry, and return what names its schema: the first entry of it decides, of whichever process."""
        noted = self._topic.append(entry)
        first = next(other for other in noted if _is_alike(other.schema, entry.schema))
        _log.warning("schema.deferred", subject=entry.subject, guid=str(entry.guid), topic=self._topic.name)
        return self._wait(first if is_key(entry.subject) else next(e for e in noted if e.key == entry.key))

    def _wait(self, entry: SchemaEntry) -> SchemaId:
        """Return what names the schema of an entry; note that the registry may have to get it."""
        if entry.state == "deferred":
            self._waiting.add(entry.subject)
        return entry.name


def is_key(subject: str) -> bool:
    """Return whether a subject has schemas of keys."""
    return subject.endswith(("-key", "-key-nullable", "-truncation"))


def _is_alike(schema: str, other: str) -> bool:
    """Return whether what two schemas write has the same bytes."""
    return bool(without_names(parsed(schema)) == without_names(parsed(other)))
