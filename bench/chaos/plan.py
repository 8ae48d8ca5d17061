"""What will happen, from a seed: tables, statements and faults, each with its second."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.chaos.modes import KEYSPACE, MODES
from bench.chaos.random_table import DEFINITIONS, RandomTable, Statement

WARM_UP_S = 5.0
"""The first fault comes that much later than the first statement."""
GAP_S = (0.5, 4.0)
"""Between two faults of a lane, beside what the first needs to be back."""
PATIENT = 0.7
"""The part of faults that meet what is ready: on a slow machine few workers would ever run, else."""
LEVELS = {"ONE": 5, "LOCAL_QUORUM": 3, "ALL": 1}
"""Consistency levels of writes, and how often each is drawn."""
ELSEWHERE = 0.3
"""The part of statements that go to the second data centre, if there is one. What concerns a whole table never does."""


@dataclass(frozen=True)
class FaultKind:
    """What the plan needs to know of a kind of fault."""

    name: str
    targets: Sequence[str]
    lane: str
    """One fault of a lane at a time; those of other lanes happen meanwhile."""
    seconds: tuple[float, float] = (0.0, 0.0)
    """How long it lasts, at least and at most."""
    recovery_s: float = 5.0
    """How long what it hits needs to be back, about: the next fault of the same lane comes later."""
    loses_hints: bool = False
    """What a replica missed it may never get: the tables are repaired before they are compared."""
    data_centers: int = 0
    """How many it needs; 0: any number."""
    tokens: int = 0
    """How many tokens each node must have; 0: any number."""
    keeps_schema: bool = False
    """No table is altered meanwhile: a node that joins can't read what others stream to it of a column it does not know
    yet, and by a coordinator's clock that is off Cassandra takes an older definition for a newer one.
    """
    share: float = 1.0
    """In how many turns of its lane it comes: one that takes minutes would leave others no time."""


@dataclass(frozen=True)
class PlannedFault:
    """A fault, its second, and the seed of what it draws itself. A `patient` one waits for a while until the agent or
    worker that it hits is ready, or all of them if it hits another process.
    """

    second: float
    name: str
    target: str
    lasting_s: float
    seed: int
    patient: bool = True

    def line_at(self, second: float) -> str:
        """Return a line that says that it begins at a second."""
        lasting = f" for {self.lasting_s:.1f} s" if self.lasting_s else ""
        return f"{second:6.1f} s  {self.name} {self.target}{lasting}"


@dataclass(frozen=True)
class PlannedStatement:
    """A statement on a mode's table, its second, and its consistency level."""

    second: float
    number: int
    mode: str
    level: str
    statement: Statement
    data_center: int = 1
    """Its coordinator is there."""


@dataclass(frozen=True)
class Plan:
    """Tables by mode, and what happens to them. The same seed and options give the same plan."""

    seed: int
    minutes: float
    tables: Mapping[str, str]
    """The CREATE of each mode's table."""
    statements: Sequence[PlannedStatement]
    faults: Sequence[PlannedFault]

    def less(self, statements: Sequence[PlannedStatement], faults: Sequence[PlannedFault]) -> Plan:
        """The same with fewer statements and faults."""
        return replace(self, statements=statements, faults=faults)

    def to_json(self) -> str:
        """Return the plan as a file's text."""
        whole: dict[str, Any] = {"seed": self.seed, "minutes": self.minutes, "tables": dict(self.tables)}
        whole["faults"] = [vars(fault) for fault in self.faults]
        whole["statements"] = [{**vars(s), "statement": s.statement._asdict()} for s in self.statements]
        return json.dumps(whole, indent=1)


def make_plan(
    seed: int,
    minutes: float,
    kinds: Sequence[FaultKind],
    modes: Sequence[str],
    rate: float = 20.0,
    data_centers: int = 1,
) -> Plan:
    """Plan so many minutes of `rate` statements a second over all modes' tables, and faults of these kinds."""
    chance = random.Random(seed)
    place_chance = random.Random(f"{seed} data centres")  # of its own: the rest is as in one data centre
    tables = {
        name: RandomTable(
            KEYSPACE,
            MODES[name].table,
            random.Random(chance.randrange(2**32)),
            is_merged=MODES[name].is_change,
            is_provable=MODES[name].is_once and not MODES[name].is_change,
        )
        for name in modes
    }
    creates = {name: table.create() for name, table in tables.items()}
    statements = []
    for number in range(int(minutes * 60 * rate)):
        mode = chance.choice(list(modes))
        level = chance.choices(list(LEVELS), list(LEVELS.values()))[0]
        statement = tables[mode].statement(MODES[mode].kinds)
        is_elsewhere = data_centers > 1 and place_chance.random() < ELSEWHERE and statement.kind not in DEFINITIONS
        statements.append(PlannedStatement(number / rate, number, mode, level, statement, 1 + is_elsewhere))
    faults = _plan_faults(chance, minutes * 60, kinds)
    return Plan(seed, minutes, creates, statements, faults)


def _plan_faults(chance: random.Random, end_s: float, kinds: Sequence[FaultKind]) -> list[PlannedFault]:
    """Faults every few seconds, of each lane one after the other. Kinds come in turns, each in an order of its own."""
    faults = []
    for lane in dict.fromkeys(kind.lane for kind in kinds):
        kinds_of_lane = [kind for kind in kinds if kind.lane == lane]
        second, turn = WARM_UP_S + chance.uniform(0, 5), list[FaultKind]()
        while second < end_s:
            while not turn:
                turn = [
                    kind for kind in chance.sample(kinds_of_lane, len(kinds_of_lane)) if chance.random() < kind.share
                ]
            kind = turn.pop()
            lasting_s = round(chance.uniform(*kind.seconds), 1)
            fault = PlannedFault(
                round(second, 1),
                kind.name,
                chance.choice(kind.targets),
                lasting_s,
                chance.randrange(2**32),
                chance.random() < PATIENT,
            )
            faults.append(fault)
            second += lasting_s + kind.recovery_s + chance.uniform(*GAP_S)
    return sorted(faults, key=lambda fault: fault.second)
