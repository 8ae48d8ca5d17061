"""pytest for tests that need servers: what fails is run once more with nothing else on the machine.

Several stacks of servers on two cores are slow at times. A test that passes then is reported as flaky, with its name: a
fault that is only seen at first is a fault all the same.

    python tests/again.py ARGUMENTS OF PYTEST [-- MORE, FOR THE FIRST PASS ONLY]
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CACHE = Path(".pytest_cache", "again")
TESTS_FAILED = 1


def run(*arguments: str) -> int:
    """One pass; returns pytest's exit status."""
    return subprocess.run([sys.executable, "-m", "pytest", "-o", f"cache_dir={CACHE}", *arguments]).returncode


def failed() -> set[str]:
    """Names of the tests that failed in the last pass they were in."""
    path = CACHE / "v" / "cache" / "lastfailed"
    return set(json.loads(path.read_text())) if path.exists() else set()


def main(arguments: list[str]) -> int:
    end = arguments.index("--") if "--" in arguments else len(arguments)
    always, first = arguments[:end], arguments[end + 1 :]
    status = run("--cache-clear", *always, *first)
    if status != TESTS_FAILED:
        return status
    before = failed()
    print(f"\nOnce more the {len(before)} that failed, one at a time:", flush=True)
    status = run("--last-failed", "--last-failed-no-failures=none", *always)
    for name in sorted(before - failed()):
        print(f"FLAKY: {name} failed, and passed when it ran alone", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
