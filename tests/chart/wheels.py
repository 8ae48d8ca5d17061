"""The two packages of requirements.txt, in the cache: 98 MB to download, 105 MB on disk, once. Nothing is installed.

pip checks their hashes. They are for these tests alone, too large for each development environment.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import pytest

from helenus_stack.files import cache_directory, exclusive
from helenus_stack.progress import Silent

_REQUIREMENTS = Path(__file__).with_name("requirements.txt")
LIBRARY = "helm_python/lib/libhelm_c.so"


@cache
def directory() -> Path:
    """Return the directory with Helm's library unpacked, and the wheel of the schemas. Skips the test where pip can't
    download them, or has none for this machine.
    """
    digest = hashlib.sha256(_REQUIREMENTS.read_bytes()).hexdigest()[:12]
    target = cache_directory() / f"chart-{digest}"
    with exclusive(target.with_suffix(".lock"), Silent(), "another test downloads Helm's library"):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
                command += ["--disable-pip-version-check", "--only-binary=:all:", "--dest", f"{folder}/new"]
                process = subprocess.run(
                    [*command, "--requirement", str(_REQUIREMENTS)], capture_output=True, text=True, timeout=300
                )
                assert "DO NOT MATCH THE HASHES" not in process.stderr, process.stderr
                if process.returncode:
                    reason = (process.stderr.strip().splitlines() or ["?"])[-1]
                    pytest.skip(f"no Helm library and schemas here, and pip can't download them: {reason}")
                _unpack(Path(folder, "new"))
                Path(folder, "new").rename(target)
    return target


def _unpack(folder: Path) -> None:
    """Unpack Helm's library, which is three times in its wheel, once."""
    (wheel,) = folder.glob("helm_python_sdk-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.startswith("helm_python/lib/") or name == LIBRARY]
        archive.extractall(folder, names)
    wheel.unlink()
