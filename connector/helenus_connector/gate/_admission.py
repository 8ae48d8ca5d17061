"""Admits the row events that Helenus agents wrote: the loop over a batch's events.

    RF 3, one change: the first event becomes an AdmittedChange, the two others are counted in its `copies`

The module runs as plain Python, and compiled by Cython with the types of `_admission.pxd`: the results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from helenus_connector.gate._slots import PUBLISHED, CacheEntry, Reporter, change_id
from helenus_connector.gate.cache import ChangeCache
from helenus_connector.gate.event_content import decode_key
from helenus_connector.interfaces.admitted_change import AdmittedChange
from helenus_connector.interfaces.event import Event
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.event.own_format import Match, is_of_node, log_position, match_own_format, parse_match

COMPILED = not __file__.endswith(".py")
_PUBLISHED = PUBLISHED
# Places in an Event: by name they are slow to look up.
_PARTITION: Final = 1
_KEY: Final = 4
_VALUE: Final = 5
_SHORT_KEY: Final = 5_000
"""Bytes of an event's key that can't be of a partition key that is too long: one byte may stand for 12 of them."""

Counted = Callable[[AdmittedChange, CacheEntry, bytes, Event], "AdmittedChange | None"]
"""Returns the change that one more event of a node completes; None if it waits on."""


class Admission:
    """Admits the events of one batch of a table, whose keys `codec` decodes.

    `index` is the position in the list of events that `admit_events` has reached, `values` are the decoded keys so far,
    and `confirmed` counts copies of confirmed changes. Where reports are counted, `count_report` returns the change
    that an event completes, and may stop a partition, as `stopped` shows. `note_confirmed_copy` is called for each copy
    of a confirmed change. `paused` counts by node the events of changes whose keys are not to be read yet.
    """

    def __init__(
        self,
        codec: KeyCodec,
        stopped: Mapping[int, int],
        count_report: Counted | None = None,
        note_confirmed_copy: Callable[[bytes, Event], None] | None = None,
    ) -> None:
        self.index = 0
        self.confirmed = 0
        self.values: dict[bytes, Key] = {}
        self.paused: dict[bytes, int] = {}
        self._codec = codec
        self._grows = codec.may_grow
        self._read_key = codec.read_key
        self._stopped = stopped
        self._count_report = count_report
        self._note_confirmed_copy = note_confirmed_copy

    def admit_events(self, events: list[Event], start: int, cache: ChangeCache, admitted: list[AdmittedChange]) -> None:
        """Add the admitted changes of `events`, from the index `start` on, to `admitted`.

        It ends at an event of another partition than that of `cache`, at one that needs more than is done here, or when
        a partition was stopped. Raises Malformed for the event at `index`.
        """
        codec, count_report = self._codec, self._count_report
        self.index = start
        count = len(events)
        partition = events[start][_PARTITION]
        reporter: Reporter | None = None
        while self.index < count:
            event = events[self.index]
            if event[_PARTITION] != partition:
                return
            value, key = event[_VALUE], event[_KEY]
            match = match_own_format(value) if value and key is not None else None
            if match is None or key is None:
                return
            if reporter is None or not is_of_node(match, reporter.name):
                reporter = cache.reporter(match.node)
            if self._grows:
                key = codec.current_key(key)
            change_name = change_id(key, match.scope, match.digest)
            entry = cache.look(change_name)
            change_admitted = entry.admitted
            if match.regex_match is None:
                segment, position = match.segment, match.position
            else:
                segment, position = log_position(match)
            if change_admitted is not None:  # the change is of this batch: this is one more event of it
                if not entry.nodes & reporter.bit:
                    entry.nodes |= reporter.bit
                    reporter.note(segment, position)
                change_admitted.copies += 1
            elif cache.hears(entry, reporter, segment, position):
                change_admitted = self._take_first_report(event, match, key, change_name, entry, cache, reporter)
                if count_report is None:
                    admitted.append(change_admitted)
            else:  # a copy of a confirmed change
                self.confirmed += 1
                if self._note_confirmed_copy is not None:
                    self._note_confirmed_copy(change_name, event)
                self.index += 1
                continue
            self.index += 1
            if count_report is not None:
                completed = count_report(change_admitted, entry, reporter.name, event)
                if completed is not None:
                    admitted.append(completed)
                if self._stopped:
                    return

    def _take_first_report(
        self,
        event: Event,
        match: Match,
        key: bytes,
        change_name: bytes,
        entry: CacheEntry,
        cache: ChangeCache,
        reporter: Reporter,
    ) -> AdmittedChange:
        """Return the change of an event that is the first of it in this batch. Raises Malformed."""
        change = None if match.regex_match is None else parse_match(match)
        cache.report(change_name, entry, reporter.bit)
        values = self.values.get(key)
        if values is None:
            values = self.values[key] = self._decode_key(key)
        admitted = AdmittedChange(event, change, key, values, change_name, 1, entry.flags & _PUBLISHED > 0, match)
        if entry.repeats:
            admitted.pause_s = cache.pause(entry)
            if admitted.pause_s > 0:
                self.paused[reporter.name] = self.paused.get(reporter.name, 0) + 1
        if not admitted.is_published and not admitted.pause_s:
            entry.admitted = admitted  # its copies in this batch are only counted
        return admitted

    def _decode_key(self, key: bytes) -> Key:
        """Return what `decode_key` does. Raises Malformed."""
        if self._read_key is not None and len(key) < _SHORT_KEY:
            values = self._read_key(key)
            if values is not None and None not in values:
                return values
        return decode_key(self._codec, key)
