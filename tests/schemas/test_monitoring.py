"""What a command shows of itself over HTTP, and in its log."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from helenus_schemas.errors import HelenusError
from helenus_schemas.service import monitoring

TROUBLE: list[str] = []


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    server = monitoring.serve("127.0.0.1", 0, lambda: TROUBLE[0] if TROUBLE else None)
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_health(base: str) -> None:
    TROUBLE.clear()
    assert get(f"{base}/health/ready") == get(f"{base}/health") == (200, "ready\n")
    TROUBLE.append("the broker is away")
    assert get(f"{base}/health/ready") == get(f"{base}/health") == (503, "the broker is away\n")
    assert get(f"{base}/health/live") == (200, "live\n")


def test_metrics_and_nothing_else(base: str) -> None:
    status, text = get(f"{base}/metrics")
    assert status == 200
    assert "python_info" in text
    assert get(f"{base}/else")[0] == 404


def test_a_port_that_is_taken(base: str) -> None:
    with pytest.raises(HelenusError, match="cannot listen"):
        monitoring.serve("127.0.0.1", int(base.rpartition(":")[2]), lambda: None)


def test_every_line_of_a_json_log_is_json() -> None:
    """Those of libraries too."""
    code = """
import logging, structlog
from helenus_schemas.service import logs
logs.configure()
logs.configure("warning", "json")
log, library = structlog.get_logger(), logging.getLogger("library")
log.warning("a.thing", count=1)
log.info("not this")
library.warning("hello %s", "you")
library.info("not this")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("a.failure")
    library.exception("oops")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["a.thing", "hello you", "a.failure", "oops"]
    assert all(line.keys() >= {"event", "level", "timestamp"} for line in lines)
    assert lines[0]["count"] == 1
    assert lines[1]["logger"] == "library"
    assert all("ZeroDivisionError" in line["exception"] for line in lines[2:])
