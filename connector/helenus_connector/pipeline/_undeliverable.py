"""What can't be published: poison events, rows that no record can hold, records too large.

`errors.tolerance` and `errors.large.record` say what happens: the connector stops, a dead letter is appended, or a
smaller record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate.event_content import requested_scope
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.resolver import SchemaChanged
from helenus_connector.interfaces.shape import Record, Shape, ShapedRecord
from helenus_schemas.errors import Action, HelenusError, Kind
from helenus_schemas.event.change import Change, Scope
from helenus_schemas.event.wire import decode, encode, without_frames
from helenus_sinks import dead_letters
from helenus_sinks.log import Log

_log = structlog.get_logger(__name__)


class Undeliverable:
    """Handles what can't be published, as the connector's settings say."""

    def __init__(self, settings: ConnectorSettings) -> None:
        self._settings = settings
        self._name = f"{settings.keyspace}.{settings.table}"
        self._stops_on_error = settings.errors_tolerance == "none"
        self._has_topic = settings.has_dead_letters  # created with the connector's other topics

    def bury_events(self, log: Log, events: Iterable[tuple[Event, HelenusError]]) -> int:
        """Dead-letter events that can't be decoded, and return their number. Raises the first one's error if the
        connector stops.
        """
        count = 0
        for event, cause in events:
            if self._stops_on_error:
                raise self._shown_cause(event, cause)
            self._append(log, event, cause)
            count += 1
        return count

    def bury_key(self, log: Log, resolved: ResolvedKey, cause: HelenusError) -> None:
        """Dead-letter a key that can't be read. Raises `cause` if the connector stops."""
        cause = self._with_position(resolved, cause, cause.where)
        if self._stops_on_error:
            raise cause if resolved.event is None else self._shown_cause(resolved.event, cause)
        self._bury(log, resolved, resolved.key, cause)

    def bury_row(
        self, log: Log, resolved: ResolvedKey, bury_key: bytes, cause: HelenusError, is_altered: Callable[[], bool]
    ) -> None:
        """Dead-letter a row that no record can hold. If the connector stops, raises `cause`; or SchemaChanged if the
        table was altered meanwhile: the row may be one of another definition.
        """
        if self._stops_on_error and is_altered():
            raise SchemaChanged(cause.what)
        cause = self._with_position(resolved, cause, cause.where)
        if self._stops_on_error:
            raise cause
        self._bury(log, resolved, bury_key, cause)

    def replace_large_record(
        self,
        log: Log,
        resolved: ResolvedKey,
        shaped: ShapedRecord,
        shape: Shape,
        append: Callable[[Record], None],
        error: HelenusError,
    ) -> None:
        """Do what `errors.large.record` says with a record that the broker refuses for its size: `append` a smaller
        one, or a dead letter. Raises RECORD_TOO_LARGE if the connector stops, or no dead letter can be written.
        """
        cause = self._with_position(resolved, error, self._name)
        if self._settings.errors_large_record == "reference" and shaped.image is not None:
            for smaller, left_out in shape.smaller(shaped.image):
                record = shaped.make(smaller)
                try:
                    append(record._replace(headers=[*record.headers, left_out]))
                    return
                except HelenusError as retry_error:
                    if retry_error.kind is not Kind.RECORD_TOO_LARGE:
                        raise
        if self._settings.errors_large_record == "fail":
            raise cause
        self._create_topic(log, cause)
        topic = self._settings.dead_letters
        _log.warning("record.too_large", table=self._name, error=cause.what, where=cause.where, dead_letters=topic)
        self._bury(log, resolved, shaped.key, cause)

    def _create_topic(self, log: Log, cause: HelenusError) -> None:
        """Create the topic of dead letters where it was not expected to be needed. Raises the `cause`, with why there
        is none, if the broker refuses it.
        """
        if self._has_topic:
            return
        try:
            log.create(self._settings.dead_letters, 1, {})
        except HelenusError as error:
            if error.action is Action.RETRY:
                raise
            topic = self._settings.dead_letters
            advice = f"it has no dead letter: {error.what}. Let the worker create and write {topic}; or {cause.advice}"
            raise HelenusError(cause.kind, cause.what, cause.where, advice) from None
        self._has_topic = True

    def _with_position(self, resolved: ResolvedKey, error: HelenusError, where: str) -> HelenusError:
        offset = f", offset {resolved.event.offset}" if resolved.event else ""
        return error.with_location(f"{where}, event of {resolved.topic} {resolved.partition}{offset}")

    def _bury(self, log: Log, resolved: ResolvedKey, bury_key: bytes, cause: HelenusError) -> None:
        """Append a dead letter: the event that asked for the key, or else an event that would ask for it."""
        own, event = bury_key == resolved.key, resolved.event
        if not own or event is None or requested_scope(event, resolved.values) is not resolved.scope:
            event = _event(resolved, bury_key)
        self._append(log, event, cause)
        resolved.dead_lettered |= own

    def _append(self, log: Log, event: Event, cause: HelenusError) -> None:
        topic, name, has_value = self._settings.dead_letters, self._settings.name, True
        cause = self._shown_cause(event, cause)
        if self._settings.hides_values:
            event, has_value = _without_values(event)
        dead_letters.append(log, topic, name, event, cause, has_value)

    def _shown_cause(self, event: Event, cause: HelenusError) -> HelenusError:
        """Return an error of an event as logs and dead letters may show it: where values are hidden, an error of an
        event that has some may quote them.
        """
        if not self._settings.hides_values:
            return cause
        bare, has_value = _without_values(event)
        if bare is event and has_value:
            return cause
        return HelenusError(cause.kind, "what the event says is no change that a record can show", cause.where)


def _without_values(event: Event) -> tuple[Event, bool]:
    """Return an event without the values of its row: without cells, and without the hash of them; and whether it may
    have a value at all. If it can't be decoded, nobody knows what is in it.
    """
    try:
        change = decode(without_frames(None, event.value or b"")[1])
    except ValueError:
        return event, False
    if change.cells is None:
        return event, True
    return event._replace(value=encode(change._replace(cells=None, digest=None))), True


def _event(resolved: ResolvedKey, key: bytes) -> Event:
    """Return an event that asks for a key by itself: of a live row after a marker, or of a key that is read again."""
    own = key == resolved.key
    start, end = resolved.bounds if own and resolved.bounds else (None, None)
    scope, parts = (resolved.scope, resolved.parts) if own else (Scope.ROW, 1)
    change = Change(None, None, scope, parts=parts, write_time=resolved.newest, start=start, end=end)
    return Event(resolved.topic, resolved.partition, -1, 0, key, encode(change))
