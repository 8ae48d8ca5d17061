"""Full disks and clocks that step, on real file systems and processes, where the machine can have them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.chaos import machine, machine_faults
from bench.chaos.fault_registry import KINDS
from bench.chaos.faults import kinds_for
from bench.chaos.topology import Topology

_CLOCKS = """
import datetime, time
begin = time.monotonic()
time.sleep(0.01)
print(time.time(), datetime.datetime.now().timestamp(), time.monotonic() - begin)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if not machine.can_mount():
        pytest.skip("no right to mount a file system")
    folder = tmp_path / "disk"
    machine.mount_disk(folder, 4)
    yield folder
    machine.unmount_disk(folder)
    assert not os.path.ismount(folder)


def test_a_disk_is_full_to_the_last_byte_and_has_room_again(disk: Path) -> None:
    file = disk / "positions.json"
    with machine.full_disk(disk), pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        file.write_bytes(b"{}")
    file.write_bytes(b"{}" * 500_000)


@pytest.mark.skipif(machine.compiler() is None, reason="no C compiler")
@pytest.mark.parametrize("offset_s", [-90, 0, 90])
def test_a_clock_steps_for_its_processes_alone(offset_s: int, tmp_path: Path) -> None:
    library = machine.make_clock_library(tmp_path)
    environment = {**os.environ, **machine.clock_environment(library, tmp_path / "clock")}
    machine.set_clock(tmp_path / "clock", offset_s)
    shown = subprocess.check_output([sys.executable, "-c", _CLOCKS], env=environment, text=True)
    (of_day, in_date), waited_s = map(float, shown.split()[:2]), float(shown.split()[2])
    assert of_day - time.time() == pytest.approx(offset_s, abs=30)
    assert in_date == pytest.approx(of_day, abs=2)
    assert waited_s < 30, "it does not wait by that clock"


def test_faults_that_the_machine_can_not_have_are_left_out_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_faults, "can_mount", lambda: False)
    monkeypatch.setattr(machine_faults, "compiler", lambda: None)
    names = {kind.name for kind in kinds_for([], ["worker1"], Topology())}
    assert not names & (machine_faults.DISK_FAULTS | machine_faults.CLOCK_FAULTS)
    assert "flip-segment" in names
    with pytest.raises(ValueError, match="fill-agent-disk takes the right to mount a file system"):
        kinds_for(["fill-agent-disk"], ["worker1"], Topology())


def test_no_table_is_altered_by_the_clock_of_a_node_that_is_off() -> None:
    """Before Cassandra 6 the newest write time decides which of two definitions counts, not their order."""
    assert KINDS["step-node-clock"].keeps_schema
