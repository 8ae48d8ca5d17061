"""The decoder twice: the plain file, and what Cython makes of it."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import secrets
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from helenus_stack.files import cache_directory

# Settings of a node, by the form of its log.
LOGS: dict[str, Any] = {
    "v7": {"storage_compatibility_mode": "CASSANDRA_4"},
    "v8": {"storage_compatibility_mode": "NONE"},
    "v8-lz4": {
        "storage_compatibility_mode": "NONE",
        "commitlog_compression": [{"class_name": "LZ4Compressor"}],
    },
}
# Versions of Cassandra that have one form of it.
VERSIONS = ("4.1", "4.0")
ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "agent" / "helenus_agent" / "commitlog"


def load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def plain() -> ModuleType:
    """decoder.py as it is."""
    return load("plain.decoder", PACKAGE / "decoder.py")


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """decoder.py compiled as it is now: once, by the first process of tests that needs it, for all clones."""
    cython = pytest.importorskip("Cython")
    sources = [PACKAGE / "decoder.py", PACKAGE / "decoder.pxd", ROOT / "hatch_build.py"]
    version = f"{cython.__version__} {sys.version}".encode()
    digest = hashlib.sha256(b"".join([version, *(path.read_bytes() for path in sources)])).hexdigest()
    directory = cache_directory() / "tests" / digest[:16]
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = next(directory.glob("decoder*.so"), None)
        if path is None:
            work = tmp_path_factory.mktemp("compiled")
            path = load("hatch_build", ROOT / "hatch_build.py").compile_decoder(PACKAGE, work)
            if path is None:
                pytest.skip("there is no C compiler")
            path = path.rename(work / f"{path.name}.whole").replace(directory / path.name)
    return load("compiled.decoder", path)


@pytest.fixture(scope="session", params=["plain", "compiled"])
def decoder(request: pytest.FixtureRequest) -> ModuleType:
    """Each test with this runs with both."""
    module: ModuleType = request.getfixturevalue(request.param)
    return module


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Gives a random workload as a real node logs it in one of the forms, recorded at the first call."""
    pytest.importorskip("helenus_stack.stack")
    from agent.oracle.reader import Oracle
    from agent.oracle.recording import record

    oracle = Oracle(tmp_path_factory.mktemp("oracle"))

    def of(form: str) -> Any:
        version = form if form in VERSIONS else "5.0"
        directory = tmp_path_factory.mktemp(form)
        return record(directory, LOGS.get(form, {}), secrets.randbits(32), oracle, version)

    return cache(of)


# `make test` has the form that a new cluster writes.
@pytest.fixture(params=["v8", *(pytest.param(f, marks=pytest.mark.long) for f in (*LOGS, *VERSIONS) if f != "v8")])
def recording(request: pytest.FixtureRequest, recordings: Any) -> Any:
    """A recording in each form of the log, and of each version."""
    return recordings(request.param)
