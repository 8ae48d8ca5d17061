"""The decoder twice: the plain file, and what Cython makes of it."""

from __future__ import annotations

import secrets
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import twice
from shared_servers import SharedServers

# Settings of a node, by the form of its log.
LOGS: dict[str, Any] = {
    "v7": {"storage_compatibility_mode": "CASSANDRA_4"},
    "v8": {"storage_compatibility_mode": "NONE"},
    "v8-lz4": {
        "storage_compatibility_mode": "NONE",
        "commitlog_compression": [{"class_name": "LZ4Compressor"}],
    },
    "3.11-lz4": {"commitlog_compression": [{"class_name": "LZ4Compressor"}]},
}
# Versions of Cassandra that have one form of it.
VERSIONS = ("6.0", "4.1", "4.0", "3.11")
ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "agent" / "helenus_agent" / "commitlog"


SMALL_SEGMENTS: dict[str, Any] = {
    "commitlog_segment_size": "1MiB",
    "commitlog_sync_period": "500ms",
    "cdc_total_space": "12MiB",
    "auto_snapshot": True,  # as by default: TRUNCATE and DROP flush first
    "materialized_views_enabled": True,
}


@pytest.fixture(scope="module")
def small_segments(shared_servers: SharedServers, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A stack of a Cassandra with SMALL_SEGMENTS and a Kafka, for the group's files."""
    stack = pytest.importorskip("helenus_stack.stack")
    directory = tmp_path_factory.mktemp("stack")
    servers = ["cassandra", "kafka"]
    return shared_servers("segments", lambda: stack.Stack(directory, only=servers, cassandra_yaml=SMALL_SEGMENTS))


@pytest.fixture(scope="session")
def plain() -> ModuleType:
    """decoder.py as it is."""
    return twice.plain(PACKAGE / "decoder.py")


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """decoder.py compiled as it is now."""
    return twice.compiled(PACKAGE / "decoder.py", tmp_path_factory)


@pytest.fixture(scope="session", params=["plain", "compiled"])
def decoder(request: pytest.FixtureRequest) -> ModuleType:
    """Each test with this runs with both."""
    module: ModuleType = request.getfixturevalue(request.param)
    return module


@pytest.fixture(scope="session")
def oracles(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Gives Cassandra's own reader, that of 6.0 or of 5.0, compiled at the first call."""
    pytest.importorskip("helenus_stack.stack")
    from agent.oracle.reader import Oracle

    return cache(lambda version: Oracle(tmp_path_factory.mktemp(f"oracle-{version}"), version))


@pytest.fixture(scope="session")
def recordings(oracles: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Gives a random workload as a real node logs it in one of the forms, recorded at the first call."""
    from agent.oracle.recording import record

    def record_form(form: str) -> Any:
        version = form.partition("-")[0]
        version = version if version in VERSIONS else "5.0"
        directory = tmp_path_factory.mktemp(form)
        return record(
            directory, LOGS.get(form, {}), secrets.randbits(32), oracles("6.0" if version == "6.0" else "5.0"), version
        )

    return cache(record_form)


# `make test` has the form that a new cluster writes.
@pytest.fixture(params=["v8", *(pytest.param(f, marks=pytest.mark.long) for f in (*LOGS, *VERSIONS) if f != "v8")])
def recording(request: pytest.FixtureRequest, recordings: Any) -> Any:
    """A recording in each form of the log, and of each version."""
    return recordings(request.param)
