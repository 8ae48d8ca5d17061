"""pytest, and what fails is run once more with nothing else on the machine.

Many processes on two cores are slow at times. A test that passes then is reported as flaky, with its name: a fault that
is only seen at first is a fault all the same.

    python tests/rerun_failed.py ARGUMENTS OF PYTEST [-- MORE, FOR THE FIRST PASS ONLY]
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

CACHE = Path(".pytest_cache", "again")
REPORT = Path(".pytest_cache", "first.xml")
TESTS_FAILED = 1
MOST_OF_A_REASON = 500
MOST_AGAIN = 20
"""More failures than that are not a slow machine's."""


def run(*arguments: str) -> int:
    """One pass; returns pytest's exit status."""
    return subprocess.run([sys.executable, "-m", "pytest", "-o", f"cache_dir={CACHE}", *arguments]).returncode


def print_reasons(report: Path) -> None:
    """Print why each test of a JUnit report failed, in a few lines: a second pass that succeeds hides it otherwise."""
    for case in ElementTree.parse(report).iter("testcase"):
        for failure in (*case.iter("failure"), *case.iter("error")):
            reason = failure.get("message", "")[:MOST_OF_A_REASON]
            print(f"FAILED AT FIRST: {case.get('classname')}.{case.get('name')}: {reason}")


def failed() -> set[str]:
    """Names of the tests that failed in the last pass they were in."""
    path = CACHE / "v" / "cache" / "lastfailed"
    return set(json.loads(path.read_text())) if path.exists() else set()


def main(arguments: list[str]) -> int:
    end = arguments.index("--") if "--" in arguments else len(arguments)
    always, first = arguments[:end], arguments[end + 1 :]
    status = run("--cache-clear", f"--junitxml={REPORT}", *always, *first)
    if status != TESTS_FAILED:
        return status
    before = failed()
    if len(before) > MOST_AGAIN:
        return status
    print(f"\nOnce more the {len(before)} that failed, one at a time:", flush=True)
    status = run("--last-failed", "--last-failed-no-failures=none", *always)
    print_reasons(REPORT)
    for name in sorted(before - failed()):
        print(f"FLAKY: {name} failed, and passed when it ran alone", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
