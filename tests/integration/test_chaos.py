"""`python -m bench chaos`, some minutes of it: every mode of a connector, every fault that a run so short meets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.cluster, pytest.mark.timeout(2400)]

ROOT = Path(__file__).parents[2]
SEED = os.environ.get("HELENUS_SEED", "11")


def test_two_minutes_of_chaos(tmp_path: Path) -> None:
    """Run again with HELENUS_SEED as a failure shows it; another one has other faults."""
    run_chaos(tmp_path, "--minutes", "2")


def test_two_data_centres(tmp_path: Path) -> None:
    """The one that no connector reads is away, and leaves and is built anew."""
    modes, faults = "reread,none,state-rows,gate,gate-each", ("away-center", "rebuild-center")
    services = "kill-agent,kill-worker,pause-worker"
    text = run_chaos(
        tmp_path,
        *("--minutes", "3", "--data-centers", "2"),
        *("--connectors", modes, "--faults", f"{','.join(faults)},{services}"),
    )
    for fault in faults:
        assert f"s  {fault} datacenter2" in text.partition("faults begin")[2], text[-10_000:]
        assert f"{fault} failed" not in text, text[-10_000:]


def run_chaos(directory: Path, *options: str) -> str:
    """Run it, and return its output when it has found no difference."""
    command = [sys.executable, "-m", "bench", "chaos", "--seed", SEED, "--keep", str(directory), *options]
    output = directory / "output"
    with output.open("w") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
        try:
            status = process.wait(2300)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)  # it stops its servers
                process.wait(60)
    text = output.read_text()
    assert not status, text[-10_000:]
    return text
