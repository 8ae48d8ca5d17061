"""The read budget, with a clock of its own: time passes when somebody waits."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from helenus_connector.cassandra_rows.budget import ReadBudget


class Clock:
    """Seconds; `waited` is what was slept."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waited = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.waited += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def budget(path: Path, keys_per_second: int, clock: Clock) -> ReadBudget:
    return ReadBudget(path / "budget", keys_per_second, clock, clock.sleep)


def rate(read_budget: ReadBudget, clock: Clock, seconds: float = 2.0) -> float:
    """Rows a second that it lets through, in groups of ten."""
    start, rows = clock.now, 0
    while clock.now - start < seconds and rows < 100_000:
        read_budget.take(10)
        rows += 10
        clock.now += 0.001  # what a request takes
    return rows / (clock.now - start)


def test_reads_stay_within_the_rate(tmp_path: Path, clock: Clock) -> None:
    read_budget = budget(tmp_path, 200, clock)
    rate(read_budget, clock)  # a second's worth is there at once
    assert rate(read_budget, clock, 10) == pytest.approx(200, rel=0.05)
    clock.now += 30
    read_budget.take(200)
    waited = clock.waited
    read_budget.take(200)
    assert clock.waited - waited == pytest.approx(1.0), "what was not used is kept for a second alone"


def test_without_limit_nothing_waits(tmp_path: Path, clock: Clock) -> None:
    read_budget = budget(tmp_path, 0, clock)
    read_budget.take(10**6)
    assert rate(read_budget, clock) > 9_000
    assert clock.waited == 0


def test_the_tasks_of_a_host_share_it(tmp_path: Path, clock: Clock) -> None:
    first, other = (budget(tmp_path, 100, clock) for _ in range(2))
    first.take(100)
    other.take(50)
    assert clock.waited == pytest.approx(0.5)


@pytest.mark.parametrize("keys_per_second", [0, 1000])
def test_a_timeout_halves_the_rate_and_calm_restores_it(
    tmp_path: Path, clock: Clock, keys_per_second: int, capsys: pytest.CaptureFixture[str]
) -> None:
    read_budget = budget(tmp_path, keys_per_second, clock)
    for _ in range(5_000):  # 1,000 a second
        read_budget.take(1)
        clock.now += 0.001
    read_budget.note_timeout()
    read_budget.note_timeout()  # of a request at the same time
    assert rate(read_budget, clock, 1.0) == pytest.approx(520, rel=0.1)
    assert capsys.readouterr().out.count("query.slowed_down") == 1
    clock.now += 1
    read_budget.note_timeout()
    assert rate(read_budget, clock, 1.0) < 400
    for _ in range(30):
        slow = rate(read_budget, clock, 1.0)
    if keys_per_second:
        assert slow == pytest.approx(1000, rel=0.05), "and no further"
    else:
        assert slow > 2_000
    clock.now += 61
    waited = clock.waited
    if not keys_per_second:
        rate(read_budget, clock)
        assert clock.waited == waited, "it is forgotten"


@pytest.mark.parametrize("keys_per_second", [0, 100_000])
def test_repeated_timeouts_halve_the_rate_of_reads(
    tmp_path: Path, clock: Clock, keys_per_second: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not what is allowed, which grows on where less is read: that slowed nothing down."""
    read_budget = budget(tmp_path, keys_per_second, clock)
    for _ in range(8):
        for _ in range(1_000):  # at most 1,000 a second, for ten seconds
            read_budget.take(10)
            clock.now += 0.01
        read_budget.note_timeout()
        before = rate(read_budget, clock, 0.5)
        assert before == pytest.approx(500, rel=0.15)
    rates = [int(n) for n in re.findall(r"rows_per_second=(\d+)", capsys.readouterr().out)]
    assert (len(rates), max(rates) <= 550) == (8, True)


def test_the_rate_never_falls_to_zero(tmp_path: Path, clock: Clock) -> None:
    read_budget = budget(tmp_path, 0, clock)
    for _ in range(100):
        read_budget.note_timeout()
        clock.now += 1.1
    read_budget.take(10)
    waited = clock.waited
    read_budget.take(10)
    assert clock.waited - waited <= 1.0


def test_a_file_from_before_the_last_boot(tmp_path: Path, clock: Clock) -> None:
    read_budget = budget(tmp_path, 10, clock)
    read_budget.take(10_000)
    read_budget.note_timeout()
    clock.now = 5.0
    clock.waited = 0.0
    read_budget.take(10)
    assert clock.waited == 0.0


TAKE = """
import sys
from pathlib import Path
from helenus_connector.cassandra_rows.budget import ReadBudget

one = ReadBudget(Path(sys.argv[1]), 10**9, clock=lambda: 1.0)
for _ in range(2_000):
    one.take(1)
"""


def test_processes_do_not_overwrite_each_others_counts(tmp_path: Path) -> None:
    path = tmp_path / "budget"
    running = [subprocess.Popen([sys.executable, "-c", TAKE, str(path)]) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    first = ReadBudget(path, 10**9, clock=lambda: 1.0)
    with first._locked_state() as (state, _):
        assert state.recent_rows == 6_000
    first.close()


def test_a_late_timeout_is_judged_by_the_rate_at_its_time(tmp_path: Path, clock: Clock) -> None:
    read_budget = budget(tmp_path, 0, clock)
    for _ in range(5_000):  # 1,000 a second
        read_budget.take(1)
        clock.now += 0.001
    clock.now += 12
    read_budget.note_timeout()
    assert 250 < rate(read_budget, clock) < 1_000
