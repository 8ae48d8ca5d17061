"""What the gate does with each event that one of our agents wrote of a row: a loop over a batch's events.

    RF 3, one change: the first event goes on as Admitted, the two others are counted in its `copies`

It runs as it is, and compiled by Cython with the types of `_admission.pxd`: the results are the same.
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
from helenus_schemas.event.own_format import log_position, match_own_format, parse_match

COMPILED = not __file__.endswith(".py")
_PUBLISHED = PUBLISHED
# Places in an Event: by name they are slow to look up.
_PARTITION: Final = 1
_KEY: Final = 4
_VALUE: Final = 5

Counted = Callable[[AdmittedChange, CacheEntry, bytes, Event], "AdmittedChange | None"]
"""What goes on when one more event of a change came from a node."""


class Admission:
    """Of one batch of a table's events, whose keys `codec` reads. `at` is the place in a list of events that `run` came
    to, `values` are the columns of the keys that were met, and `confirmed` counts copies of confirmed changes.

    Where reports are counted, `counted` says what goes on, and may have a partition `stopped`. `is_done` gets each copy
    of a confirmed change. `paused` counts by node the events of changes whose keys are not to be read yet.
    """

    def __init__(
        self,
        codec: KeyCodec,
        stopped: Mapping[int, int],
        counted: Counted | None = None,
        is_done: Callable[[bytes, Event], None] | None = None,
    ) -> None:
        self.at = 0
        self.confirmed = 0
        self.values: dict[bytes, Key] = {}
        self.paused: dict[bytes, int] = {}
        self._codec = codec
        self._grows = codec.may_grow
        self._stopped = stopped
        self._counted = counted
        self._is_done = is_done

    def run(self, events: list[Event], at: int, cache: ChangeCache, admitted: list[AdmittedChange]) -> None:
        """Add what goes on of `events`, from place `at` on, to `admitted`. All are of the partition of `cache`, up to
        where this ends: at an event of another partition, or one that needs more than is done here; or when a partition
        was stopped. Raises Malformed for the event that it is at.
        """
        codec, counted = self._codec, self._counted
        self.at = at
        count = len(events)
        partition = events[at][_PARTITION]
        reporter: Reporter | None = None
        while self.at < count:
            event = events[self.at]
            if event[_PARTITION] != partition:
                return
            value, key = event[_VALUE], event[_KEY]
            match = match_own_format(value) if value and key is not None else None
            if match is None or key is None:
                return
            node = match.node
            if reporter is None or reporter.name != node:
                reporter = cache.reporter(node)
            if self._grows:
                key = codec.current_key(key)
            name = change_id(key, match.scope, match.digest)
            entry = cache.look(name)
            known = entry.admitted
            if match.regex_match is None:
                segment, position = match.segment, match.position
            else:
                segment, position = log_position(match)
            if known is not None:
                if not entry.nodes & reporter.bit:
                    entry.nodes |= reporter.bit
                    reporter.note(segment, position)
                known.copies += 1
            elif cache.hears(entry, reporter, segment, position):
                change = None if match.regex_match is None else parse_match(match)
                cache.report(name, entry, reporter.bit)
                values = self.values.get(key)
                if values is None:
                    values = self.values[key] = decode_key(codec, key)
                known = AdmittedChange(event, change, key, values, name, 1, entry.flags & _PUBLISHED > 0, match)
                if entry.repeats:
                    known.pause_s = cache.pause(entry)
                    if known.pause_s > 0:
                        self.paused[node] = self.paused.get(node, 0) + 1
                if not known.is_published and not known.pause_s:
                    entry.admitted = known
                if counted is None:
                    admitted.append(known)
            else:
                self.confirmed += 1
                if self._is_done is not None:
                    self._is_done(name, event)
                self.at += 1
                continue
            self.at += 1
            if counted is not None:
                goes_on = counted(known, entry, node, event)
                if goes_on is not None:
                    admitted.append(goes_on)
                if self._stopped:
                    return
