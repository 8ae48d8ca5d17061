"""The second pass of tests that failed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RERUN_FAILED = Path(__file__).parents[1] / "rerun_failed.py"
TESTS = """
from pathlib import Path

def test_good(): pass

def test_flaky():
    seen = Path("seen")
    if not seen.exists():
        seen.touch()
        raise OSError("a busy machine")
"""


def rerun(directory: Path, tests: str, *more: str) -> subprocess.CompletedProcess[str]:
    for name in ("conftest.py", "longest.py", "shared_servers.py"):
        shutil.copy(RERUN_FAILED.parent / name, directory)
    (directory / "test_some.py").write_text(tests)
    return subprocess.run([sys.executable, str(RERUN_FAILED), *more], cwd=directory, capture_output=True, text=True)


def test_a_test_that_passes_alone_is_flaky_and_named(tmp_path: Path) -> None:
    process = rerun(tmp_path, TESTS, "--", "-n", "1")
    assert process.returncode == 0, process.stdout
    first, _, second = process.stdout.partition("Once more the 1 that failed")
    assert "FAILED: test_some.py::test_flaky: OSError: a busy machine" in first.partition("FAILURES")[0], "at once"
    assert "1 passed" in second
    assert "FLAKY: test_some.py::test_flaky failed" in second


@pytest.mark.parametrize(
    ("tests", "status"), [("def test_bad(missing): pass", 1), pytest.param("import none", 2, marks=pytest.mark.long)]
)
def test_failures_stay_failures(tmp_path: Path, tests: str, status: int) -> None:
    process = rerun(tmp_path, tests)
    assert process.returncode == status
    assert ("Once more" in process.stdout, "FLAKY" in process.stdout) == (status == 1, False)


def test_many_failures_are_no_slow_machine_s(tmp_path: Path) -> None:
    process = rerun(tmp_path, "import pytest\n@pytest.mark.parametrize('n', range(21))\ndef test_bad(n): assert not 1")
    assert process.returncode == 1
    assert ("21 failed" in process.stdout, "Once more" in process.stdout) == (True, False)
