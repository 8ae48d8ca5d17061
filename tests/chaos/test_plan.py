"""`bench chaos`: a plan is a function of its seed, and the smallest that fails is found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from bench.chaos.faults import kinds_for
from bench.chaos.modes import MODES
from bench.chaos.plan import FaultKind, Plan, make_plan
from bench.chaos.random_table import KINDS
from bench.chaos.shrink import fewest, shrink
from bench.chaos.topology import Topology

FAULTS = [
    FaultKind("kill", ["a", "b"], "servers", (0, 5)),
    FaultKind("pause", ["a"], "servers", (1, 3)),
    FaultKind("cut", ["c"], "connections"),
]


def plan(seed: int, minutes: float = 2, modes: Sequence[str] = tuple(MODES)) -> Plan:
    return make_plan(seed, minutes, FAULTS, modes)


def test_a_seed_gives_the_same_plan() -> None:
    assert plan(1) == plan(1)
    assert plan(1).to_json() != plan(2).to_json()
    assert json.loads(plan(1).to_json())["seed"] == 1


def test_some_statements_go_to_the_second_data_centre() -> None:
    local, spread = plan(2).statements, make_plan(2, 2, FAULTS, tuple(MODES), data_centers=2).statements
    assert [replace(s, data_center=1) for s in spread] == local
    assert {s.data_center for s in local} == {1}
    assert 0.2 < sum(s.data_center == 2 for s in spread) / len(spread) < 0.4
    assert {s.data_center for s in spread if not s.statement.partition} == {1}, "a whole table's"


def test_what_agents_in_one_data_centre_are_sure_to_see() -> None:
    everywhere, local = Topology(data_centers=2), Topology(data_centers=2, has_local_agents=True)
    writes = [(level, data_center) for level in ("ONE", "LOCAL_QUORUM", "ALL") for data_center in (1, 2)]
    assert all(everywhere.reaches_agents(*write) for write in writes)
    assert [write for write in writes if local.reaches_agents(*write)] == [("LOCAL_QUORUM", 1), ("ALL", 1), ("ALL", 2)]


def test_every_kind_of_statement_comes_where_its_mode_has_it() -> None:
    made = plan(3, minutes=20)
    for name, mode in MODES.items():
        kinds = {s.statement.kind for s in made.statements if s.mode == name}
        assert kinds <= (mode.kinds or set(KINDS))
    assert {s.statement.kind for s in made.statements} == set(KINDS)


def test_faults_of_one_lane_follow_each_other_and_each_kind_comes() -> None:
    made = plan(4, minutes=5)
    assert {fault.name for fault in made.faults} == {kind.name for kind in FAULTS}
    servers = [fault for fault in made.faults if fault.name != "cut"]
    assert all(b.second > a.second + a.lasting_s for a, b in pairwise(servers))
    assert all(fault.second < 300 for fault in made.faults)


def test_a_long_fault_keeps_no_other_lane_waiting() -> None:
    kinds = [FaultKind("replace", ["a"], "nodes", (200, 200)), FaultKind("cut", ["c"], "connections", (1, 5))]
    faults = make_plan(7, 4, kinds, tuple(MODES)).faults
    replaced = next(fault for fault in faults if fault.name == "replace")
    meanwhile = [f for f in faults if replaced.second < f.second < replaced.second + replaced.lasting_s]
    assert len(meanwhile) > 10
    assert {fault.name for fault in meanwhile} == {"cut"}


def test_a_fault_that_takes_minutes_comes_in_some_turns_only() -> None:
    kinds = [FaultKind("replace", ["a"], "nodes", share=0.25), FaultKind("flush", ["a"], "nodes")]
    names = [fault.name for fault in make_plan(9, 60, kinds, tuple(MODES)).faults]
    assert 0.1 < names.count("replace") / names.count("flush") < 0.4
    assert {fault.name for fault in make_plan(9, 5, kinds[:1], tuple(MODES)).faults} == {"replace"}, "asked for alone"


def test_minutes_of_every_fault_have_many_of_them() -> None:
    """All lanes together: a fault every four seconds or so."""
    kinds = kinds_for([], ["worker1", "worker2", "worker-state"], Topology())
    assert len(make_plan(8, 5, kinds, tuple(MODES)).faults) > 60
    assert {kind.lane for kind in kinds} == {"nodes", "brokers", "agents", "workers", "connections"}


def test_statements_name_no_column_that_was_dropped() -> None:
    dropped: dict[str, set[str]] = {}
    for planned in plan(5, minutes=20).statements:
        statement, gone = planned.statement, dropped.setdefault(planned.mode, set())
        words = set(statement.cql.replace(",", " ").replace(")", " ").replace("(", " ").split())
        if statement.kind == "drop":
            gone.add(statement.cql.split()[-1])
        else:
            assert not gone & words
    assert any(dropped.values())


@pytest.mark.parametrize("culprits", [{3}, {0, 9}, {2, 3, 7}, set(range(10))])
def test_the_fewest_items_that_fail(culprits: set[int]) -> None:
    assert set(fewest(range(10), lambda items: culprits <= set(items))) == culprits


def test_nothing_is_left_of_what_fails_always() -> None:
    assert fewest(range(10), lambda _: True) == []


def test_a_planted_cause_is_all_that_is_left_of_a_plan() -> None:
    whole = plan(6)
    cause, statement = whole.faults[5], whole.statements[700]
    runs: list[Plan] = []

    def is_failing(smaller: Plan) -> bool:
        runs.append(smaller)
        return cause in smaller.faults and statement in smaller.statements

    smallest = shrink(whole, is_failing)
    assert smallest.faults == [cause]
    assert smallest.statements == [statement]
    assert smallest.tables == whole.tables
    assert len(runs) < 60
