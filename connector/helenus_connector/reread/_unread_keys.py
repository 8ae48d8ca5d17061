"""Keys that can't be read now: each waits alone, with its events, while others are read and published.

A key is `away` if its replicas are down, and `stuck` if they are up and fail to read it, as for too many tombstones.
Stuck keys are read apart from others, so that they do not delay them each time.
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
_MOST_WHILE_AWAY = 5  # of MOST_READS: an outage alone makes no dead letter
_MOST_STUCK = 10_000  # names in memory; those noted first are forgotten, and cost others a delay
_LONGEST = 200  # characters of a value in a message


class StuckKeys:
    """The keys of one table whose last read failed in this process though their replicas were there.

    `names` are those that have to be published, in the order of their reads. `skipped` are markers that the next pass
    is to leave unread, since the last one failed when a part of their records was appended.
    """

    def __init__(self) -> None:
        self.names: dict[Name, None] = {}
        self.skipped: set[Name] = set()

    def add(self, name: Name) -> None:
        self.names[name] = None
        if len(self.names) > _MOST_STUCK:
            del self.names[next(iter(self.names))]


class UnreadKeys:
    """The keys that one pass over a batch could not read, and why."""

    def __init__(self, stuck: StuckKeys) -> None:
        self._stuck = stuck
        self._causes: dict[int, UnreadReason] = {}

    def note(self, key_read: KeyRead, cause: UnreadReason) -> None:
        """Note that a key was not read."""
        self._causes.setdefault(id(key_read), cause)
        if key_read.must_be_published and not cause.is_away:  # else it is published, only not confirmed
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

    def skip_once(self, key_read: KeyRead) -> None:
        """Have the next pass leave a marker unread: this one failed when a part of its records was appended."""
        self._stuck.skipped.add(key_read.name)

    def pop_skipped(self, key_read: KeyRead) -> bool:
        """Return whether this pass is to leave a marker unread (`skip_once`). The pass after it reads it again."""
        if key_read.name not in self._stuck.skipped:
            return False
        self._stuck.skipped.remove(key_read.name)
        return True

    def select_unread(self, reads: Iterable[KeyRead]) -> list[KeyRead]:
        """Return the reads of keys that have to be published and were not read; the others are no longer stuck."""
        unread = []
        for key_read in reads:
            if key_read.read_at is not None:
                if self._stuck.names:
                    self._stuck.names.pop(key_read.name, None)
            elif not key_read.is_outdated and key_read.must_be_published:
                unread.append(key_read)
        return unread

    def is_away(self, key_read: KeyRead) -> bool:
        """Return whether an unread key waits for its replicas alone."""
        cause = self._causes.get(id(key_read))
        return cause is None or cause.is_away

    def failed_reads(self, key_read: KeyRead) -> int:
        """Return how many reads of an unread key failed before this one. Its replicas being down is not the key's
        fault, and counts for some of them at most.
        """
        failed = key_read.unconfirmed.attempts + 1 if key_read.unconfirmed and key_read.unconfirmed.unread else 0
        return min(failed, _MOST_WHILE_AWAY) if self.is_away(key_read) else failed

    def to_error(self, key_read: KeyRead, table: Table) -> HelenusError:
        """Return why a key was not read, as an error that names the key."""
        cause = self._causes.get(id(key_read))
        why = cause.error.what if cause else "cannot read rows"
        where = ", ".join(filter(None, (table.full_name, key_text(table, key_read.values))))
        if not self.is_away(key_read):
            return HelenusError(Kind.ROW_UNREADABLE, why, where)
        return HelenusError(Kind.CASSANDRA_READ, why, where, cause.error.advice if cause else "")

    def to_unconfirmed(self, key_read: KeyRead) -> UnconfirmedKey:
        """Return an unread key as the driver keeps it waiting: its events have no outcome yet."""
        unconfirmed = key_read.unconfirmed
        return UnconfirmedKey(
            key_read.topic,
            key_read.partition,
            key_read.key,
            key_read.scope,
            pack_changes(key_read.awaited),
            copies=key_read.events + (unconfirmed.copies if unconfirmed else 0),
            attempts=self.failed_reads(key_read),
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
