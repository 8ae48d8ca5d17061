"""Modules that Cython may compile, in both forms."""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import importlib.util
import re
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

from helenus_stack.files import cache_directory

ROOT = Path(__file__).resolve().parents[1]


def load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def plain(source: Path) -> ModuleType:
    """The .py as it is."""
    return load(f"plain.{source.stem}", source)


def compiled(source: Path, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The .py compiled as it is now. If it was changed since `make` compiled it here, that is done once, by
    the first process of tests that needs it, for all clones.
    """
    sources = [source, ROOT / "hatch_build.py", *sorted(ROOT.glob("*/helenus_*/**/*.pxd"))]  # it may use their types
    for used in re.findall(r"from (helenus\S+) cimport", source.with_suffix(".pxd").read_text()):
        types = importlib.import_module(used)
        if not types.COMPILED or Path(types.__file__ or "").stat().st_mtime < max(
            p.stat().st_mtime for p in sources[2:]
        ):
            pytest.skip(f"{used} is not compiled as it is now")
    installed = source.with_name(f"{source.stem}{sysconfig.get_config_var('EXT_SUFFIX')}")
    if installed.exists() and installed.stat().st_mtime > max(path.stat().st_mtime for path in sources):
        return load(f"compiled.{source.stem}", installed)
    cython = pytest.importorskip("Cython")
    version = f"{cython.__version__} {sys.version}".encode()
    digest = hashlib.sha256(b"".join([version, *(path.read_bytes() for path in sources)])).hexdigest()
    directory = cache_directory() / "tests" / digest[:16]
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = next(directory.glob(f"{source.stem}*.so"), None)
        if path is None:
            build_directory = tmp_path_factory.mktemp("compiled")
            path = load("hatch_build", ROOT / "hatch_build.py").compile_module(source, build_directory)
            if path is None:
                pytest.skip("there is no C compiler")
            path = path.rename(build_directory / f"{path.name}.whole").replace(directory / path.name)
    return load(f"compiled.{source.stem}", path)
