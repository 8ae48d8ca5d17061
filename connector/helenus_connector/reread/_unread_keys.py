"""Keys that can't be read now: each waits alone, with its events, while others are read and published.

Their replicas may be away, or Cassandra fails to read them, as for too many tombstones. The second kind is read apart
from others, so that it does not hold them up each time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from helenus_connector.cassandra_rows.row_reader import UnreadReason
from helenus_connector.reread._key_read import KeyRead
from helenus_connector.unconfirmed.unconfirmed_key import AWAY, STUCK, Name, UnconfirmedKey
from helenus_connector.unconfirmed.unproven_changes import pack_changes
from helenus_schemas.codec.key import Key
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.text import as_text
from helenus_schemas.cql.types import CqlType
from helenus_schemas.errors import HelenusError, Kind

MOST_READS = 10
"""After so many reads that failed, a key may become a dead letter: in some five minutes."""
_MOST_WHILE_AWAY = 5
_MOST_STUCK = 10_000
_LONGEST = 200  # characters of a value in a message


class StuckKeys:
    """The keys of one table whose last read failed in this process though their replicas were there.

    `names` are those that have to be published, in the order of their reads, and `cut` the markers of which a part was
    published when their read failed.
    """

    def __init__(self) -> None:
        self.names: dict[Name, None] = {}
        self.cut: set[Name] = set()

    def add(self, name: Name) -> None:
        self.names[name] = None
        if len(self.names) > _MOST_STUCK:
            del self.names[next(iter(self.names))]


class UnreadKeys:
    """The keys that one attempt at a batch could not read, and why."""

    def __init__(self, stuck: StuckKeys) -> None:
        self._stuck = stuck
        self._causes: dict[int, UnreadReason] = {}

    def note(self, key_read: KeyRead, cause: UnreadReason) -> None:
        """Note that a key was not read."""
        self._causes.setdefault(id(key_read), cause)
        if key_read.is_asked_for and not cause.is_away:  # else only its confirmation was not to be had
            self._stuck.add(key_read.name)

    @property
    def has_stuck(self) -> bool:
        """Return whether the last read of any key failed though its replicas were there."""
        return bool(self._stuck.names)

    def is_stuck(self, key_read: KeyRead) -> bool:
        """Return whether a key's last read failed though its replicas were there."""
        if key_read.unconfirmed is not None and key_read.unconfirmed.unread == STUCK:
            return True
        return bool(self._stuck.names) and key_read.name in self._stuck.names

    def cut(self, key_read: KeyRead) -> None:
        """Note that a marker's read failed after a part of it was published: the batch is done again, without it."""
        self._stuck.cut.add(key_read.name)

    def was_cut(self, key_read: KeyRead) -> bool:
        """Return whether the attempt before failed for this marker; it is tried again after this one."""
        if key_read.name not in self._stuck.cut:
            return False
        self._stuck.cut.remove(key_read.name)
        return True

    def select_unread(self, reads: Iterable[KeyRead]) -> list[KeyRead]:
        """Return those that were to be published and were not read."""
        unread = []
        for key_read in reads:
            if key_read.read_at is not None:
                if self._stuck.names:
                    self._stuck.names.pop(key_read.name, None)
            elif not key_read.is_outdated and key_read.is_asked_for:
                unread.append(key_read)
        return unread

    def is_away(self, key_read: KeyRead) -> bool:
        """Return whether an unread key waits for its replicas alone."""
        cause = self._causes.get(id(key_read))
        return cause is None or cause.is_away

    def attempts(self, key_read: KeyRead) -> int:
        """Return how many reads of an unread key failed before this one. An outage is not the key's fault, and counts
        for a part of them only.
        """
        failed = key_read.unconfirmed.attempts + 1 if key_read.unconfirmed and key_read.unconfirmed.unread else 0
        return min(failed, _MOST_WHILE_AWAY) if self.is_away(key_read) else failed

    def cause(self, key_read: KeyRead, table: Table) -> HelenusError:
        """Return why a key was not read."""
        cause = self._causes.get(id(key_read))
        why = cause.error.what if cause else "cannot read rows"
        where = ", ".join(filter(None, (table.full_name, key_text(table, key_read.values))))
        return HelenusError(Kind.CASSANDRA_READ if self.is_away(key_read) else Kind.ROW_UNREADABLE, why, where)

    def unconfirmed(self, key_read: KeyRead) -> UnconfirmedKey:
        """Return an unread key as it waits: its events have no outcome yet."""
        unconfirmed = key_read.unconfirmed
        return UnconfirmedKey(
            key_read.topic,
            key_read.partition,
            key_read.key,
            key_read.scope,
            pack_changes(key_read.awaited),
            copies=key_read.events + (unconfirmed.copies if unconfirmed else 0),
            attempts=self.attempts(key_read),
            bounds=key_read.bounds,
            since=key_read.since,
            unread=AWAY if self.is_away(key_read) else STUCK,
            stripe=unconfirmed.stripe if unconfirmed and not key_read.events else 0,
            newest=key_read.newest,
            deleted_at=key_read.deleted_at,
        )


def key_text(table: Table, key: Key) -> str:
    """Return a key as CQL names it: `k = 5 AND c = x`; a value without a text form by its bytes."""
    return " AND ".join(
        f"{column.name} = {_text(column.type, value)}"
        for column, value in zip(table.primary_key, key, strict=False)
        if value is not None
    )


def _text(cql_type: CqlType, value: bytes) -> str:
    make = as_text(cql_type)
    try:
        text = make(value) if make else f"0x{value.hex()}"
    except (ValueError, struct.error):
        text = f"0x{value.hex()}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
