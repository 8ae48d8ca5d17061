"""Prometheus' programs for the tests: those that are installed, or those of Debian's package, which needs no root."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from helenus_stack.files import cache_directory, exclusive
from helenus_stack.progress import Silent


def program(name: str) -> str:
    """The path of `prometheus` or `promtool`. Skips the test where there is neither, and says what to install."""
    return shutil.which(name) or str(_package() / "usr" / "bin" / name)


def _package() -> Path:
    """Debian's package, unpacked in the cache: 19 MB to download, 98 MB on disk, once. Nothing is installed."""
    target = cache_directory() / "prometheus"
    with exclusive(target.with_suffix(".lock"), Silent(), "another test unpacks Prometheus"):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                try:
                    subprocess.run(["apt-get", "download", "prometheus"], cwd=folder, check=True, capture_output=True)
                    (package,) = Path(folder).glob("*.deb")
                    subprocess.run(["dpkg-deb", "-x", str(package), f"{folder}/unpacked"], check=True)
                except (OSError, subprocess.CalledProcessError):
                    pytest.skip("no prometheus here, and no package of it: apt-get install prometheus")
                Path(folder, "unpacked").rename(target)
    return target
