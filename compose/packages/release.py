"""Makes a release of what is committed: `python compose/packages/release.py 0.2.0`, on a clean checkout.

It writes the version and the date into the source, the changelog and the chart, commits that, tags it, and builds all
files of the release into dist. Nothing leaves this machine: the last lines say what to push and to upload.
"""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from pathlib import Path

from build import PYTHONS, ROOT, BuildFailed, build, version_of_source

_VERSION = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
_EDITS = {
    "schemas/helenus_schemas/__init__.py": (r'__version__ = ".*"', '__version__ = "{version}"'),
    "compose/helm/helenus/Chart.yaml": (r'appVersion: ".*"', 'appVersion: "{version}"'),
    "CHANGELOG.md": (r"## Unreleased\n", "## Unreleased\n\n## {version} - {date}\n"),
}
"""What is replaced, once, in which file."""


def main() -> None:
    if len(sys.argv) != 2 or not _VERSION.fullmatch(sys.argv[1]):
        sys.exit(
            f"usage: python compose/packages/release.py VERSION, such as 0.2.0 or 0.2.0rc1; now {version_of_source()}"
        )
    version = sys.argv[1]
    if _git("status", "--porcelain"):
        sys.exit("there are changes that are not committed: commit them, or put them aside")
    if f"v{version}" in _git("tag", "--list").split():
        sys.exit(f"there is a tag v{version} already: choose the next version")
    paths = [write_version(file, version, datetime.date.today()) for file in _EDITS]
    try:
        build(ROOT / "dist", PYTHONS, "3.11")
    except BuildFailed as failure:
        _git("checkout", "--", *map(str, paths))
        sys.exit(f"{failure}\nnothing is committed")
    _git("commit", "--quiet", "--message", f"Release {version}", "--", *map(str, paths))
    _git("tag", "--annotate", "--message", f"Helenus {version}", f"v{version}")
    print(f"next: git push origin HEAD v{version}, and upload what is in dist")


def write_version(file: str, version: str, date: datetime.date) -> Path:
    """Write a release's version into a file, and return its path."""
    pattern, replacement = _EDITS[file]
    path = ROOT / file
    text, count = re.subn(pattern, replacement.format(version=version, date=date), path.read_text(), count=1)
    if not count:
        sys.exit(f"{path} has nothing like {pattern}")
    path.write_text(text)
    return path


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
