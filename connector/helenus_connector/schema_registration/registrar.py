"""Registers in the driver what waited for a registry: also of tables without further changes, and after a restart.

The topic remembers what waits. Only schemas of subjects that a connector of this worker writes are registered: whoever
may write to the topic gets no other subject by this worker's login.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

import structlog

from helenus_connector import metrics
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.backoff import ReasonLog, pause
from helenus_connector.control.connectors import Connectors
from helenus_connector.schema_registration._entry import SchemaEntry
from helenus_connector.schema_registration._schema_topic import SchemaTopic
from helenus_connector.schema_registration.choice import schema_topic
from helenus_connector.shape.encoding.registry import Registry, registry_memory
from helenus_schemas.errors import HelenusError, Kind, reason

_log = structlog.get_logger(__name__)
_EVERY_S, _LONGEST_PAUSE_S = 5.0, 60.0
_REFUSED_EVERY_S = 60.0
"""How often a schema that was refused is tried again: its subject's level may have been changed meanwhile."""
_SUBJECT = re.compile(r"(.+)-(key|value|truncation|key-nullable|value-nullable)")
_MOVED = re.compile(r"(.+)-[0-9a-f]{8}")
ConnectorTables = tuple[ConnectorSettings, tuple[str, ...]]
"""A connector, and the names of its tables."""
SubjectPrefixes = Mapping[str, ConnectorSettings]
"""Tables by what their subjects begin with."""


class SchemaRegistrar:
    """Registers the schemas of connectors that defer. `turn` is called all the time, and never waits: `run_in_thread`
    runs what may. `directory` is the run's.
    """

    def __init__(
        self,
        worker: WorkerSettings,
        connectors: Connectors,
        run_in_thread: Callable[[Callable[[], None]], Future[None]],
    ) -> None:
        self._worker = worker
        self._connectors = connectors
        self._run_in_thread = run_in_thread
        self._run: Future[None] | None = None
        self._next_at = 0.0
        self._failures: Counter[object] = Counter()  # by registry
        self._retry_at: dict[object, float] = {}
        self._refused_at: dict[tuple[str, str], float] = {}
        self._reasons = ReasonLog()
        self._names: set[str] = set()
        self._prefixes: dict[str, tuple[ConnectorSettings, tuple[str, ...], SubjectPrefixes]] = {}
        self.refusal: str | None = None
        """Why a registry refuses a schema by which records were published, None if none does."""

    def turn(self, directory: Path) -> None:
        """Begin to register, if it is time."""
        if (self._run is not None and not self._run.done()) or time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + _EVERY_S
        connectors = {c.settings.name: c for c in self._connectors.all().values() if c.settings.defers_schemas}
        for name in self._names - connectors.keys():
            metrics.schemas_deferred(name, None)
            self._prefixes.pop(name, None)
        self._names = set(connectors)
        if not connectors:
            self.refusal = None
            return
        tables = [(c.settings, tuple(c.tasks)) for _, c in sorted(connectors.items())]
        self._run = self._run_in_thread(lambda: self.register(tables, directory))

    def register(self, tables: Sequence[ConnectorTables], directory: Path) -> None:
        """Register once what waits of these connectors' tables."""
        refusals: list[str] = []
        for settings, names in tables:
            if names:
                with self._failures_logged(settings.name):
                    refusals += self._register_connector(settings, self._own_tables(settings, names), directory)
        self.refusal = next(iter(refusals), None)

    def _own_tables(self, settings: ConnectorSettings, names: tuple[str, ...]) -> SubjectPrefixes:
        """Return the tables by their subjects' prefix: of a thousand, this takes seconds, so it is kept."""
        former = self._prefixes.get(settings.name)
        if former is None or former[0] is not settings or former[1] != names:
            former = self._prefixes[settings.name] = settings, names, subject_prefixes(map(settings.of_table, names))
        return former[2]

    def _register_connector(
        self, settings: ConnectorSettings, tables: SubjectPrefixes, directory: Path
    ) -> Iterator[str]:
        name = settings.name
        topic = schema_topic(self._worker, settings)
        own = [entry for entry in topic.entries() if is_own(entry.subject, tables)]
        topic.note_orders()
        registry = Registry(settings, directory / "registrar.json", registry_memory(self._worker.checkpoint_dir))
        try:
            with contextlib.suppress(_RegistryAway):
                for entry in own:
                    if entry.state != "registered" and not isinstance(entry.name, int):
                        self._register_entry(name, registry, topic, entry)
        finally:
            registry.close()
            states = Counter(e.state for e in topic.entries() if is_own(e.subject, tables))
            metrics.schemas_deferred(name, (states["deferred"], states["refused"]))
        for entry in topic.entries():
            if entry.state == "refused" and is_own(entry.subject, tables):
                yield f"{name}: the registry refuses a schema of {entry.subject}: {entry.reason}"

    def _register_entry(self, name: str, registry: Registry, topic: SchemaTopic, entry: SchemaEntry) -> None:
        """Register a schema, and note in the topic what became of it. Raises _RegistryAway."""
        now, identity = time.monotonic(), registry.identity
        if now < self._retry_at.get(identity, 0.0):
            raise _RegistryAway
        refused_key = entry.subject, entry.key
        if entry.state == "refused" and now < self._refused_at.get(refused_key, 0.0):
            return
        try:
            registry_id = registry.register(entry.subject, entry.schema)
        except HelenusError as error:
            if error.kind is not Kind.REGISTRY_REFUSED:
                self._failures[identity] += 1
                self._retry_at[identity] = now + pause(self._failures[identity], _EVERY_S, _LONGEST_PAUSE_S)
                if self._reasons.is_due(name, error.what):
                    _log.warning("schemas.waiting", connector=name, subject=entry.subject, reason=str(error))
                raise _RegistryAway from None
            self._refused_at[refused_key] = now + _REFUSED_EVERY_S
            if self._reasons.is_due(entry.key, error.what):
                advice = f"let subject {entry.subject} take it, as by the level NONE; it is tried again every minute"
                _log.error(
                    "schema.refused",
                    connector=name,
                    subject=entry.subject,
                    guid=str(entry.guid),
                    reason=error.what,
                    advice=f"{advice}; until then the topic {topic.name} alone has it",
                )
            if entry.state != "refused" or entry.reason != error.what[:1000]:
                topic.append(entry.with_state("refused", reason=error.what))
            return
        self._failures[identity] = 0
        topic.append(entry.with_state("registered", registry_id))
        self._refused_at.pop(refused_key, None)
        _log.info(
            "schema.registered", connector=name, subject=entry.subject, guid=str(entry.guid), schema_id=registry_id
        )

    @contextlib.contextmanager
    def _failures_logged(self, name: str) -> Iterator[None]:
        try:
            yield
            self._reasons.forget(f"topic {name}")
        except Exception as error:  # also of this host, as of a full disk: nobody waits for the thread, to say it
            if self._reasons.is_due(f"topic {name}", reason(error)):
                _log.warning("schemas.waiting", connector=name, reason=reason(error))


class _RegistryAway(Exception):
    """The registry does not answer, or takes no login: what waits of it is tried later."""


def subject_prefixes(tables: Iterable[ConnectorSettings]) -> SubjectPrefixes:
    """Return tables by what the subjects of their records begin with."""
    return {settings.subject_prefix(settings.data): settings for settings in tables}


def is_own(subject: str, tables: SubjectPrefixes) -> bool:
    """Return whether a subject is one of these tables' records, also in the topics in which a refused table goes on."""
    if (match := _SUBJECT.fullmatch(subject)) is None:
        return False
    prefix, part = match.groups()
    settings = tables.get(prefix)
    if settings is None and (moved := _MOVED.fullmatch(prefix)) is not None:
        settings = tables.get(moved[1])
        settings = None if settings is None or settings.shares_data_topic else settings
    if settings is None:
        return False
    return settings.defers_values if part.startswith("value") else settings.defers_keys
