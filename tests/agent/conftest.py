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
from kept import Kept

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


SMALL_SEGMENTS: dict[str, Any] = {
    "commitlog_segment_size": "1MiB",
    "commitlog_sync_period": "500ms",
    "cdc_total_space": "12MiB",
    "auto_snapshot": True,  # as by default: TRUNCATE and DROP flush first
    "materialized_views_enabled": True,
}


@pytest.fixture(scope="module")
def small_segments(kept: Kept, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A stack of a Cassandra with SMALL_SEGMENTS and a Kafka, for the group's files."""
    stack = pytest.importorskip("helenus_stack.stack")
    directory = tmp_path_factory.mktemp("stack")
    servers = ["cassandra", "kafka"]
    return kept("segments", lambda: stack.Stack(directory, only=servers, cassandra_yaml=SMALL_SEGMENTS))


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
    return cache(lambda form: record(tmp_path_factory.mktemp(form), LOGS[form], secrets.randbits(32), oracle))


# `make test` has the form that a new cluster writes.
@pytest.fixture(params=[form if form == "v8" else pytest.param(form, marks=pytest.mark.long) for form in LOGS])
def recording(request: pytest.FixtureRequest, recordings: Any) -> Any:
    """A recording in each form of the log."""
    return recordings(request.param)
