"""Makes a release of what is committed: `python compose/packages/release.py [--commit] 0.2.0`, on a clean checkout.

In a clone of the commit it writes the version and the date into the source, the changelog and the chart, commits
that, builds all files of the release into dist, and tries them in clean environments. That is all, unless `--commit`
takes the commit over into this checkout: then the last lines say what to tag, to push and to upload. Nothing leaves
this machine.
"""

from __future__ import annotations

import argparse
import datetime
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from build import PYTHONS, ROOT, BuildFailed, version_of_source
from verify import verify

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:(a|b|rc)(\d+))?")
_EDITS = {
    "schemas/helenus_schemas/__init__.py": (r'__version__ = ".*"', '__version__ = "{version}"'),
    "compose/helm/helenus/Chart.yaml": (r'appVersion: ".*"', 'appVersion: "{version}"'),
    "CHANGELOG.md": (r"## Unreleased\n", "## Unreleased\n\n## {version} - {date}\n"),
}
"""What is replaced, once, in which file. All else reads the version from the first."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help=f"such as 0.2.0 or 0.2.0rc1; the source has {version_of_source()}")
    parser.add_argument(
        "--commit", action="store_true", help="take over the commit that was built; default: build only"
    )
    parser.add_argument("--python", action="append", choices=PYTHONS, help="wheels for these alone")
    parser.add_argument("--agent-python", default="3.11", choices=PYTHONS, help="what the agent's package runs on")
    options = parser.parse_args()
    try:
        release(options.version, options.commit, options.python or [], options.agent_python)
    except BuildFailed as failure:
        sys.exit(f"{failure}\nnothing is committed")


def release(version: str, is_committed: bool, pythons: list[str], agent_python: str) -> None:
    """Build and try a release, and take its commit over if that is wanted. Raises BuildFailed."""
    check_checkout(version, ROOT)
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "helenus"
        _git(ROOT, "clone", "--quiet", "--shared", str(ROOT), str(clone))
        commit_version(clone, version, datetime.date.today())
        dist = ROOT / "dist"
        shutil.rmtree(dist, ignore_errors=True)
        options = [part for python in pythons for part in ("--python", python)]
        command = [sys.executable, str(clone / "compose/packages/build.py"), *options, "--agent-python", agent_python]
        if subprocess.run([*command, str(dist)], check=False).returncode:
            raise BuildFailed("the release could not be built")
        verify(dist)
        if is_committed:
            _git(ROOT, "fetch", "--quiet", str(clone), "HEAD")
            _git(ROOT, "merge", "--quiet", "--ff-only", "FETCH_HEAD")
    if not is_committed:
        print(f"dist has what {version} would consist of; nothing is committed: --commit does that")
        return
    print(
        f"committed. Next: git tag --annotate --message 'Helenus {version}' v{version}\n"
        f"then git push origin HEAD v{version}, and upload what is in dist"
    )


def check_checkout(version: str, root: Path) -> None:
    """Raise BuildFailed if that version can't be made of this checkout."""
    if not _VERSION.fullmatch(version):
        raise BuildFailed(f"{version} is no version such as 0.2.0 or 0.2.0rc1")
    if _git(root, "status", "--porcelain"):
        raise BuildFailed("there are changes that are not committed: commit them, or put them aside")
    versions = [tag[1:] for tag in _git(root, "tag", "--list", "v*").split() if _VERSION.fullmatch(tag[1:])]
    if newer := [other for other in versions if _order(other) >= _order(version)]:
        raise BuildFailed(f"there is a tag v{max(newer, key=_order)} already: choose a later version")
    notes = re.search(r"## Unreleased\n(.*?)(?=^## |\Z)", (root / "CHANGELOG.md").read_text(), re.DOTALL | re.MULTILINE)
    if notes is None or not re.search(r"^- ", notes[1], re.MULTILINE):
        raise BuildFailed("CHANGELOG.md has nothing below Unreleased: say there what is new")


def commit_version(root: Path, version: str, date: datetime.date) -> None:
    """Write a release's version into the files of a checkout, and commit them."""
    for file, (pattern, replacement) in _EDITS.items():
        path = root / file
        text, count = re.subn(pattern, replacement.format(version=version, date=date), path.read_text(), count=1)
        if not count:
            raise BuildFailed(f"{path} has nothing like {pattern}")
        path.write_text(text)
    _git(root, "commit", "--quiet", "--all", "--message", f"Release {version}")


def _order(version: str) -> tuple[int, int, int, str, int]:
    match = _VERSION.fullmatch(version)
    assert match is not None
    major, minor, patch, stage, number = match.groups()
    return int(major), int(minor), int(patch), stage or "z", int(number or 0)


def _git(root: Path, *arguments: str) -> str:
    process = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if process.returncode:
        raise BuildFailed(f"this failed: git {' '.join(arguments)}\n{process.stderr.strip()}")
    return process.stdout


if __name__ == "__main__":
    main()
