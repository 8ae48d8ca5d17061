"""The election of a group's leader on Pulsar, simulated: members that stop and die, slow brokers, and wrong clocks."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.group._election import Election, Sign, SignOfLife
from helenus_sinks.pulsar.epochs import TermEpochs

SESSION_S = 6.0
SETTLE_S = 1.1
NOW_MS = 1_800_000_000_000
CALM_S = 240.0
"""After the last fault: in which the last attempts, which wait longer and longer, are over."""
HOUR_S = 3600.0


@dataclass
class Fault:
    """Of a `member`, or of the brokers where it is None: from `begin` on for `length` s."""

    begin: float
    length: float
    member: int | None
    kills: bool = False


@dataclass
class Brokers:
    """The topic of signs, and the epoch that it has. A request takes `latency` s, or fails."""

    random: random.Random
    latency: float
    epoch: int = 0
    signs: list[SignOfLife] = field(default_factory=list)
    taken_at: list[tuple[float, int]] = field(default_factory=list)
    is_away: bool = False

    def delay(self) -> float:
        return self.latency * self.random.uniform(0.2, 1.0)

    def claim(self, now: float, epoch: int) -> bool:
        if epoch < self.epoch:
            return False
        if epoch > self.epoch:
            self.epoch = epoch
            self.taken_at.append((now, epoch))
        return True


class Member:
    """One member's thread, as a generator of the seconds until it goes on."""

    def __init__(self, number: int, brokers: Brokers, rng: random.Random) -> None:
        self.number, self.brokers = number, brokers
        self.election = Election(f"worker {number}", SESSION_S, rng.random)
        self.wall_offset_ms = int(rng.uniform(-12, 12) * HOUR_S * 1000)
        self.clock_offset_s = rng.uniform(0, 1e6)
        self.read = 0
        self.epoch = 0
        self.is_replaced = self.has_led = False
        self.now = 0.0
        self.led_from: list[float] = []

    @property
    def leads(self) -> bool:
        return self.election.leads and not self.is_replaced

    def clock(self) -> float:
        return self.now + self.clock_offset_s

    def run(self) -> Iterator[float]:
        while True:
            if self.election.leads:
                self.has_led = True
                yield from self.write(Sign.LEADER)
                if not self.election.leads:
                    # As a process that begins anew.
                    self.election = Election(f"worker {self.number}", SESSION_S, self.brokers.random.random)
            else:
                yield from self.look()
                if self.election.may_claim:
                    yield from self.claim()
            yield self.election.step_s / 2

    def write(self, sign: Sign) -> Iterator[float]:
        content = SignOfLife(sign, f"worker {self.number}", self.epoch, self.clock())
        yield self.brokers.delay()
        if self.brokers.is_away:
            return
        if self.brokers.claim(self.now, self.written_epoch):
            self.brokers.signs.append(content)
        else:
            self.election.note_refused(self.clock(), self.brokers.epoch)

    def look(self) -> Iterator[float]:
        end, is_new = len(self.brokers.signs), not self.brokers.signs
        yield self.brokers.delay()
        if self.brokers.is_away:
            self.election.note_failed_look(self.clock())
            return
        signs, self.read = self.brokers.signs[self.read : end], end
        self.election.note_look(self.clock(), signs, is_new)

    def claim(self) -> Iterator[float]:
        self.epoch = self.election.begin_claim(NOW_MS + self.wall_offset_ms + int(self.now * 1000))
        epochs = TermEpochs(self.epoch)
        self.written_epoch = epochs.take()
        before = len(self.brokers.signs)
        yield from self.write(Sign.CANDIDATE)
        if len(self.brokers.signs) == before and self.brokers.is_away:
            self.election.note_unclaimed()
            return
        self.written_epoch = epochs.take()
        yield SETTLE_S + self.brokers.delay()
        if self.brokers.is_away:
            self.election.note_unclaimed()
            return
        if not self.brokers.claim(self.now, self.written_epoch):
            self.election.note_refused(self.clock(), self.brokers.epoch)
            return
        yield from self.look()
        if self.brokers.is_away:
            self.election.note_unclaimed()
        elif self.election.note_claimed():
            self.led_from.append(self.now)


class Simulation:
    """Members of a group from their start, with faults, until `until` s."""

    def __init__(self, count: int, seed: int, latency: float) -> None:
        rng = random.Random(seed)
        self.brokers = Brokers(rng, latency)
        self.members = [Member(number, self.brokers, rng) for number in range(count)]
        self.killed: set[int] = set()
        self.now = 0.0
        self._order = itertools.count()
        self._due: list[tuple[float, int, int, Iterator[float]]] = []
        for member in self.members:
            self._push(rng.uniform(0, 1.0), member.number, member.run())

    def _push(self, next_at: float, number: int, thread: Iterator[float]) -> None:
        heapq.heappush(self._due, (next_at, next(self._order), number, thread))

    def run(self, until: float, faults: list[Fault]) -> None:
        away = [fault for fault in faults if fault.member is None]
        while self._due and self._due[0][0] <= until:
            now, _, number, thread = heapq.heappop(self._due)
            self.now = max(self.now, now)
            hung_until = [
                f.begin + f.length for f in faults if f.member == number and f.begin <= now < f.begin + f.length
            ]
            if hung_until:
                if any(f.kills for f in faults if f.member == number and f.begin <= now):
                    self.killed.add(number)
                    continue
                self._push(max(hung_until), number, thread)
                continue
            self.brokers.is_away = any(f.begin <= now < f.begin + f.length for f in away)
            self.members[number].now = now
            self._push(now + next(thread), number, thread)
        self.now = until

    @property
    def leaders(self) -> list[Member]:
        return [m for m in self.members if m.leads and m.number not in self.killed]


def faults(count: int) -> st.SearchStrategy[list[Fault]]:
    hang = st.builds(Fault, st.floats(0, 120), st.floats(0.1, 60), st.integers(0, count - 1))
    outage = st.builds(Fault, st.floats(0, 120), st.floats(0.1, 40), st.none())
    kill = st.builds(Fault, st.floats(0, 120), st.just(1e9), st.integers(1, count - 1), st.just(True))
    return st.lists(st.one_of(hang, outage, kill), max_size=8)


@given(count=st.integers(2, 5), seed=st.integers(0, 2**32), latency=st.sampled_from([0.02, 0.3, 1.5]), data=st.data())
def test_one_leads_in_the_end_and_stays(count: int, seed: int, latency: float, data: st.DataObject) -> None:
    """Member 0 is never killed: so somebody is there."""
    simulation, drawn = Simulation(count, seed, latency), data.draw(faults(count))
    quiet_from = max([f.begin + f.length for f in drawn if not f.kills] + [f.begin for f in drawn] + [0.0])
    simulation.run(quiet_from + CALM_S, drawn)
    (leader,) = simulation.leaders
    assert leader.written_epoch == simulation.brokers.epoch
    changes = len(simulation.brokers.taken_at)
    simulation.run(simulation.now + 120, drawn)
    assert simulation.leaders == [leader]
    assert len(simulation.brokers.taken_at) == changes, "nobody takes it from a leader that lives"


@given(count=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_how_long_it_takes(count: int, seed: int) -> None:
    """In a group without faults one leads within seconds; one that dies is replaced within a session and 5 s."""
    simulation = Simulation(count, seed, 0.05)
    simulation.run(15, [])
    (leader,) = simulation.leaders
    if count == 1:
        return
    died_at = simulation.now
    simulation.run(died_at + SESSION_S + 5, [Fault(died_at, 1e9, leader.number, kills=True)])
    assert len(simulation.leaders) == 1


@given(seed=st.integers(0, 2**32))
def test_epochs_rise_however_clocks_differ(seed: int) -> None:
    simulation = Simulation(4, seed, 0.05)
    drawn: list[Fault] = []
    for _ in range(6):
        simulation.run(simulation.now + 60, drawn)
        (leader,) = simulation.leaders
        drawn.append(Fault(simulation.now, 20, leader.number))
    epochs = [epoch for _, epoch in simulation.brokers.taken_at]
    assert epochs == sorted(epochs)


def sign(sent_s: float, sign: Sign = Sign.LEADER, epoch: int = 5) -> SignOfLife:
    return SignOfLife(sign, "other", epoch, sent_s)


def looked(signs: dict[float, list[SignOfLife]], until: float) -> Election:
    election = Election("me", SESSION_S, lambda: 0.0)
    for step in range(int(until * 2) + 1):
        election.note_look(step / 2, signs.get(step / 2, []))
    return election


def test_a_burst_does_not_look_alive() -> None:
    regular = {float(second): [sign(second)] for second in range(10)}
    assert looked(regular, 15.5).may_claim
    assert not looked(regular, 14.5).may_claim
    late = regular | {14.5: [sign(9.2), sign(9.4), sign(9.6)]}
    assert looked(late, 16.0).may_claim, "they were sent when it lived, and say nothing of now"
    lives = regular | {14.5: [sign(9.6), sign(14.4)]}
    assert not looked(lives, 19.5).may_claim


def test_a_member_that_hung_waits_anew() -> None:
    election = looked({0.0: [sign(0.0)]}, 3.0)
    election.note_look(100.0, [])
    assert not election.may_claim


@pytest.mark.parametrize("outage_s", [5, 60])
def test_looks_that_fail_give_the_leader_time(outage_s: int) -> None:
    election = looked({0.0: [sign(0.0)]}, 5.5)
    for step in range(outage_s):
        election.note_failed_look(6.5 + step)
    now = 6.5 + outage_s
    election.note_look(now, [])
    election.note_look(now + 1, [])
    assert not election.may_claim
    for step in range(14):
        election.note_look(now + 1 + step, [])
    assert election.may_claim


def test_one_that_left_is_replaced_at_once() -> None:
    assert looked({1.0: [sign(1.0)], 2.0: [sign(2.0, Sign.LEFT)]}, 2.5).may_claim


def test_a_refused_member_waits_a_session() -> None:
    election = looked({0.0: [sign(0.0)]}, 7.0)
    assert election.begin_claim(NOW_MS) > 5
    election.note_refused(7.0, 1 << 62)
    assert not election.leads
    for step in range(1, 6):
        election.note_look(7.0 + step, [])
        assert not election.may_claim
    for step in range(6, 8):
        election.note_look(7.0 + step, [])
    assert election.may_claim
    assert election.begin_claim(NOW_MS) > 1 << 62
