"""The epochs of topics on Pulsar, which say whose producers may append: `helenus_sinks.pulsar.owners` has how.

An epoch is the time of a start, and which of its runs it is. So a later start has the higher one also where the topic
was deleted and made anew, and forgot its epoch.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from helenus_schemas.errors import HelenusError, Kind

_TIME_BITS, _RANDOM_BITS = 20, 10
"""Below an epoch's time in ms, and of these at random: the others are for the runs of one start, of which each has two
epochs. Should there be more than 512, they run on into the bits above, and are higher all the same.
"""
_TERM_MS = 60_000
"""Between the epochs of two leaders, however their clocks differ: room for the runs of the first one, of which a
millisecond has 512.
"""
_CURRENT = re.compile(r"Current epoch: (\d+)")
_FIRST_TIME_MS = 1_500_000_000_000
"""Of 2017: a lower one is no time. Other programs count epochs from 0."""


@dataclass(frozen=True)
class EpochOwner:
    """A run, as the owner of what a connector makes of events topics: the epoch of each. `who` is for people."""

    who: str
    epochs: Mapping[str, int]

    def for_topics(self, topics: Collection[str]) -> EpochOwner:
        """Return the same owner, with the epochs of these events topics alone."""
        return replace(self, epochs={topic: self.epochs[topic] for topic in topics if topic in self.epochs})


def first_epoch(now_ms: int, random: int, next_epoch: int = 0) -> int:
    """Return the epoch before those of a start's runs: higher than any of an earlier start. `next_epoch` is the one
    that follows the topic's, of a start whose clock may have been ahead.
    """
    time_ms = max(now_ms, (next_epoch >> _TIME_BITS) + 1 if next_epoch else 0)
    return time_ms << _TIME_BITS | random % (1 << _RANDOM_BITS) << (_TIME_BITS - _RANDOM_BITS)


def run_epoch(first: int, run: int) -> int:
    """Return the epoch of a start's run, whose numbers begin with 1. The one below is the run's as well: a claim tries
    whether it is refused.
    """
    return first + 2 * run


def term_epoch(now_ms: int, random: int, former: int) -> int:
    """Return the epoch before those of a leader's runs: higher than all that a `former` leader has, 0 for none."""
    return first_epoch(now_ms, random, former + (_TERM_MS << _TIME_BITS) if former else 0)


class TermEpochs:
    """The epochs of one term of a group's leader, after its `first`. Any thread may use it."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._runs = itertools.count(1)

    def take(self) -> int:
        """Return the next one, for whatever it writes to; the one below is the term's as well."""
        return run_epoch(self._first, next(self._runs))


def since(epoch: int) -> str:
    """Return when the start of an epoch was, for people; empty if it is none of ours."""
    time_ms = epoch >> _TIME_BITS
    if not _FIRST_TIME_MS < time_ms < 4 * _FIRST_TIME_MS:
        return ""
    return time.strftime("since %Y-%m-%dT%H:%M:%SZ", time.gmtime(time_ms / 1000))


class TakenOver(HelenusError):
    """The error of a producer whose epoch is lower than the partition's; 0 if that is not known."""

    epoch = 0

    def __reduce__(self) -> tuple[type[HelenusError], tuple[Kind, str, str, str]]:
        return (HelenusError, (self.kind, self.what, self.where, self.advice))


def taken_over(refusal: str, where: str) -> TakenOver:
    """Return the error of a producer whose epoch is too low, as a broker's `refusal` says."""
    current = _CURRENT.search(refusal)
    begun = since(int(current[1])) if current else ""
    other = f": {begun}" if begun else ""
    error = TakenOver(Kind.NOT_OWNER, f"another worker writes these records{other}", where)
    error.epoch = int(current[1]) if current else 0
    return error
