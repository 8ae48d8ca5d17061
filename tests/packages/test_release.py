"""`compose/packages/release.py`: what it refuses, what it writes, and that a dry run leaves the checkout as it is."""

from __future__ import annotations

import datetime
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CHANGELOG = "# Changelog\n\n## Unreleased\n### Added\n- More.\n\n## 0.1.0 - 2026-01-01\n- All.\n"
DATE = datetime.date(2026, 12, 1)


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules `release`, `build` and `verify`, which lie beside each other."""
    names = ("release", "build", "verify")
    monkeypatch.syspath_prepend(str(ROOT / "compose/packages"))
    modules = {name: __import__(name) for name in names}
    yield SimpleNamespace(**modules)
    for name in names:
        del sys.modules[name]


def git(root: Path, *arguments: str) -> str:
    own = ["-c", "user.name=t", "-c", "user.email=t@t"]
    return subprocess.run(["git", *own, *arguments], cwd=root, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path: Path, scripts: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the files that a release changes, at a first version; the scripts take it for theirs."""
    root = tmp_path / "checkout"
    for file in scripts.release._EDITS:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text((ROOT / file).read_text())
    (root / "CHANGELOG.md").write_text(CHANGELOG)
    (root / ".gitignore").write_text("/dist\n")
    git(root, "init", "--quiet")
    git(root, "config", "user.name", "t")
    git(root, "config", "user.email", "t@t")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "first")
    monkeypatch.setattr(scripts.release, "ROOT", root)
    for part in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"):
        monkeypatch.setenv(part, "t")
    for part in ("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(part, "t@t")
    return root


def test_what_is_refused(scripts: Any, checkout: Path) -> None:
    def refusal(version: str) -> str:
        with pytest.raises(scripts.build.BuildFailed) as refused:
            scripts.release.check_checkout(version, checkout)
        return str(refused.value)

    for version in ("0.2", "v0.2.0", "0.2.0-1", "0.2.0rc", "1.0.0; true"):
        assert "is no version" in refusal(version)
    for tag in ("v0.2.0rc1", "v0.1.9", "other"):
        git(checkout, "tag", tag)
    for version in ("0.2.0rc2", "0.2.0", "0.10.0"):
        scripts.release.check_checkout(version, checkout)
    for version in ("0.2.0rc1", "0.2.0b7", "0.1.10"):
        assert "a tag v0.2.0rc1 already" in refusal(version)
    (checkout / "new").touch()
    assert "not committed" in refusal("0.2.0")
    (checkout / "new").unlink()
    (checkout / "CHANGELOG.md").write_text(CHANGELOG.replace("- More.\n", ""))
    git(checkout, "commit", "--quiet", "--all", "--message", "nothing new")
    assert "nothing below Unreleased" in refusal("0.2.0")


def test_version_is_written_in_one_commit(scripts: Any, checkout: Path) -> None:
    scripts.release.commit_version(checkout, "0.2.0", DATE)
    assert git(checkout, "log", "-1", "--format=%s") == "Release 0.2.0\n"
    changed = git(checkout, "show", "--format=", "--name-only").split()
    assert sorted(changed) == sorted(scripts.release._EDITS)
    assert (
        (checkout / "CHANGELOG.md")
        .read_text()
        .startswith("# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2026-12-01\n### Added\n- More.\n")
    )
    assert '__version__ = "0.2.0"' in (checkout / "schemas/helenus_schemas/__init__.py").read_text()
    with pytest.raises(scripts.build.BuildFailed, match="nothing below Unreleased"):
        scripts.release.check_checkout("0.3.0", checkout)


@pytest.mark.parametrize("is_committed", [False, True])
def test_commit_that_was_built_is_taken_over(
    scripts: Any,
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_committed: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Building stands here for the seconds of a compiler; `test_packages.py` builds."""
    builder = checkout / "compose/packages/build.py"
    builder.parent.mkdir(parents=True)
    builder.write_text(
        "import pathlib, subprocess, sys\n"
        "dist = pathlib.Path(sys.argv[-1]); dist.mkdir()\n"
        "root = pathlib.Path(__file__).parents[2]\n"
        "(dist / 'commit').write_text(subprocess.check_output(['git', 'rev-parse', 'HEAD'], cwd=root, text=True))\n"
    )
    git(checkout, "add", "--all")
    git(checkout, "commit", "--quiet", "--message", "builder")
    before = git(checkout, "rev-parse", "HEAD")
    tried: list[Path] = []
    monkeypatch.setattr(scripts.release, "verify", tried.append)
    scripts.release.release("0.2.0", is_committed, [], "3.11")
    assert tried == [checkout / "dist"]
    built = (checkout / "dist/commit").read_text()
    assert git(checkout, "rev-parse", built.strip() if is_committed else "HEAD") == (built if is_committed else before)
    assert git(checkout, "rev-parse", "HEAD") == (built if is_committed else before)
    assert git(checkout, "tag", "--list") == ""
    assert git(checkout, "status", "--porcelain") == ""
    assert ("git tag --annotate" in capsys.readouterr().out) is is_committed


def test_failed_trial_commits_nothing(scripts: Any, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = git(checkout, "rev-parse", "HEAD")
    with pytest.raises(scripts.build.BuildFailed, match="could not be built"):  # there is no build.py
        scripts.release.release("0.2.0", True, [], "3.11")
    assert git(checkout, "rev-parse", "HEAD") == before


def test_sums_are_checked(scripts: Any, tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_text("a")
    (tmp_path / "SHA256SUMS").write_text("ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb  a.whl\n")
    scripts.verify.check_sums(tmp_path)
    (tmp_path / "old.whl").touch()
    with pytest.raises(scripts.build.BuildFailed, match=r"differ in old\.whl"):
        scripts.verify.check_sums(tmp_path)
    (tmp_path / "old.whl").unlink()
    (tmp_path / "a.whl").write_text("b")
    with pytest.raises(scripts.build.BuildFailed, match="is not what SHA256SUMS says"):
        scripts.verify.check_sums(tmp_path)
