"""Who leads a group on Pulsar, decided from what a member reads in the group's topic: events in, decisions out.

A leader writes a sign of life every moment, and is replaced when others read none for the session's time. Only the
brokers say who leads, by epochs (`helenus_sinks.pulsar.owners`): what is decided here is when to try. It goes by this
member's own clock, and believes neither the clock of a leader, nor that one that is silent is dead.

- **Silence** grows with each look at the topic that finds nothing, by a step at most: what a member that hung, or a
  slow broker, did not see is not held against the leader. Looks that fail take half of it back, so that a leader has
  time to come back as well after brokers were away.
- **A sign counts for when it was sent**, not for when it came: by the fastest of the last ones. Those that a broker
  delivers late, all at once, don't make a dead leader look alive.
- **A candidate announces itself** as soon as it has the topic, and waits a random time before. Who reads of it, or is
  refused for it, waits a session anew, and longer at random with each attempt: else two would take the topic from each
  other for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from helenus_sinks.pulsar.epochs import term_epoch

_STEPS = 6
"""Of a session: as often a leader writes, and so much silence a look finds at most."""
_LEAST_STEP_S = 0.1
_SPREAD, _LONGEST_SPREAD = 0.15, 8.0
"""Of a session: how far the first attempts of candidates are apart, and later ones."""
_FASTEST_OF = 60
"""Clocks of two hosts drift apart, or stand still with one: the fastest of so many signs counts."""
_MOST_MEMBERS = 16
_RANDOM_BITS = 32


class Sign(Enum):
    """What a sign of life says."""

    CANDIDATE = "candidate"
    LEADER = "leader"
    LEFT = "left"
    """It leads no more, and another one may begin at once."""


@dataclass(frozen=True)
class SignOfLife:
    """A sign of a member, sent at `sent_s` by its own monotonic clock."""

    sign: Sign
    member: str
    epoch: int
    sent_s: float


class Election:
    """What `member` knows of its group's election. `random` returns numbers from 0 to 1. Times are s of a monotonic
    clock.
    """

    def __init__(self, member: str, session_s: float, random: Callable[[], float]) -> None:
        self._member = member
        self._session_s = session_s
        self._random = random
        self._silence_s = 0.0
        self._looked_at: float | None = None
        self._has_looked = False
        self._spread = _SPREAD
        self._delay_s = random() * _SPREAD * session_s
        self._highest_epoch = 0
        self._delays: dict[tuple[str, int], deque[float]] = {}
        self._claimed: int | None = None
        self.leads = False

    @property
    def step_s(self) -> float:
        """Return how often a leader writes a sign, and a member looks for one at least."""
        return max(_LEAST_STEP_S, min(1.0, self._session_s / _STEPS))

    def note_look(self, now: float, signs: Sequence[SignOfLife], is_new: bool = False) -> None:
        """Note a look at the topic up to its end, with what came since the last one. `is_new` says that it never had a
        sign.
        """
        self._silence_s += self._step(now)
        for sign in signs:
            self._highest_epoch = max(self._highest_epoch, sign.epoch)
            if sign.member == self._member:
                continue
            age_s = self._age(now, sign)
            if sign.sign is Sign.LEFT:
                self._silence_s = max(self._silence_s, self._session_s)
                continue
            self._silence_s = min(self._silence_s, age_s)
            if sign.sign is Sign.LEADER and self._spread > _SPREAD:  # the contest is over
                self._spread = _SPREAD
                self._delay_s = self._random() * _SPREAD * self._session_s
            if self._claimed is not None and sign.epoch >= self._claimed:
                self.note_refused(now, sign.epoch)
        if not self._has_looked and is_new:
            self._silence_s = self._session_s
        self._has_looked = True

    def note_failed_look(self, now: float) -> None:
        """Note that the topic could not be read."""
        self._silence_s = max(-self._session_s, self._silence_s - self._step(now) / 2)

    @property
    def may_claim(self) -> bool:
        """Return whether it is time to try to lead."""
        return self._claimed is None and self._has_looked and self._silence_s >= self._session_s + self._delay_s

    def begin_claim(self, now_ms: int) -> int:
        """Begin to try, at a time since the epoch, ms; return the epoch to try it with."""
        self._claimed = term_epoch(now_ms, int(self._random() * 2**_RANDOM_BITS), self._highest_epoch)
        self._delay_anew()
        return self._claimed

    def note_claimed(self) -> bool:
        """Note that brokers took it, and that a look found nobody with a higher epoch. Returns whether it leads."""
        self.leads = self._claimed is not None
        return self.leads

    def note_unclaimed(self) -> None:
        """Note that brokers did not answer: it is tried again soon."""
        self._claimed = None
        self._silence_s = min(self._silence_s, self._session_s - self.step_s)

    def note_refused(self, now: float, epoch: int) -> None:
        """Note that another one has this epoch, 0 if it is not known which: it has a session's time, as after a sign of
        its.
        """
        self._step(now)
        self._highest_epoch = max(self._highest_epoch, epoch)
        self._claimed, self.leads = None, False
        self._silence_s = min(self._silence_s, 0.0)

    def _step(self, now: float) -> float:
        """Return for how long it was silent by a look, s."""
        looked_at, self._looked_at = self._looked_at, now
        return 0.0 if looked_at is None else min(max(0.0, now - looked_at), 2 * self.step_s)

    def _age(self, now: float, sign: SignOfLife) -> float:
        """Return how old a sign is at least, s: 0 for the fastest one."""
        name = sign.member, sign.epoch
        delays = self._delays.pop(name, None) or deque(maxlen=_FASTEST_OF)
        self._delays[name] = delays
        if len(self._delays) > _MOST_MEMBERS:
            del self._delays[next(iter(self._delays))]
        delays.append(now - sign.sent_s)
        return delays[-1] - min(delays)

    def _delay_anew(self) -> None:
        """Wait for longer before the next attempt, unless a leader is heard meanwhile."""
        self._spread = min(2 * self._spread, _LONGEST_SPREAD)
        self._delay_s = self._random() * self._spread * self._session_s
