"""Results of benchmarks as lines of JSON, and whether the last one is slower than those before on the same machine.

    python -m bench history [--file bench/history.jsonl] [--slower 1.25]

Each line is one run: when, which commit, machine, load, versions, options, and its figures by name. A figure in
`records/s` is better when higher, all others when lower. Runs are compared with earlier ones of the same benchmark,
options and machine; the exit status is 1 if a figure is worse than their median by the factor `--slower`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("history.jsonl")
_PACKAGES = ("pyspark", "confluent-kafka", "cassandra-driver", "fastavro")


def make_result(
    benchmark: str, options: Mapping[str, Any], figures: Mapping[str, float], load_before: float, **versions: str
) -> dict[str, Any]:
    """Return a run as the file has it. Figures are named with their unit: `debezium records/s`."""
    root = Path(__file__).parents[1]
    git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True)
    return {
        "benchmark": benchmark,
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": git.stdout.strip() or None,
        "machine": _machine(),
        "load": [round(load_before, 1), round(os.getloadavg()[0], 1)],
        "versions": {
            "python": platform.python_version(),
            **{package: metadata.version(package) for package in _PACKAGES},
            **versions,
        },
        "options": dict(options),
        "figures": {name: round(value, 3) for name, value in figures.items()},
    }


def _machine() -> dict[str, Any]:
    """Return what a figure depends on of this machine, without its name."""
    with open("/proc/cpuinfo") as lines:
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "memory_gib": memory_gib, "system": platform.system()}


def append(file: Path, result: Mapping[str, Any]) -> None:
    """Add a run to the file, which need not exist."""
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(result, sort_keys=True) + "\n")


def read(file: Path) -> list[dict[str, Any]]:
    """Return the file's runs, the oldest first."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def slowdowns(results: list[dict[str, Any]]) -> list[tuple[str, float, float, float]]:
    """Return each figure of the last run that earlier ones of its kind have too: its name, the median of the earlier
    ones, its value, and by what factor it is worse.
    """
    if not results:
        return []
    kind = "benchmark", "options", "machine"
    last = results[-1]
    earlier = [run["figures"] for run in results[:-1] if all(run[field] == last[field] for field in kind)]
    rows = []
    for name, value in last["figures"].items():
        values = [figures[name] for figures in earlier if name in figures]
        if values:
            median = statistics.median(values)
            old, new = (value, median) if name.endswith("records/s") else (median, value)
            rows.append((name, median, value, new / old if old else float("inf")))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--slower", type=float, default=1.25)
    options = parser.parse_args()
    if not options.file.exists():
        print(f"{options.file}: no run was noted yet")
        return
    results = read(options.file)
    last_of_kind = {(run["benchmark"], str(run["options"]), str(run["machine"])): n for n, run in enumerate(results)}
    is_slower = False
    for n in sorted(last_of_kind.values()):
        run = results[n]
        print(f"{run['benchmark']}, {run['at']}, {run['commit']}, load {run['load'][0]} to {run['load'][1]}")
        rows = slowdowns(results[: n + 1])
        if not rows:
            print("  the first of its kind on this machine")
        for name, median, value, factor in rows:
            worse = factor > options.slower
            is_slower |= worse
            print(f"  {name:48} {median:10.1f} before, {value:10.1f} now, {factor:5.2f}{' SLOWER' if worse else ''}")
    sys.exit(1 if is_slower else 0)


if __name__ == "__main__":
    main()
