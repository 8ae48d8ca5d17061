"""What a command shows of itself over HTTP, and in its log."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from hostile_clients import answer_to

from helenus_schemas.errors import HelenusError
from helenus_schemas.service import monitoring, page

TROUBLE: list[str] = []


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    server = monitoring.serve("127.0.0.1", 0, lambda: TROUBLE[0] if TROUBLE else None)
    yield f"http://127.0.0.1:{server.port}"
    server.shutdown()


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


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: localhost:9\r\n\r\n", 200),
        (b"GET /metrics HTTP/1.0\r\n\r\n", 200),
        (b"HEAD /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 200),
        (b"GET /health/live HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", 200),
        (b"GET /metrics HTTP/1.1\r\nHost: attacker.example\r\n\r\n", 403),
        (b"GET / HTTP/1.1\r\nhost:attacker.example:80\r\n\r\n", 403),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: attacker.example\r\n\r\n", 400),
        (b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n", 405),
        (b"GET /else HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 4000 + b"\r\n", 431),
        (b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\n\r\n", 431),
    ],
)
def test_requests(base: str, request_: bytes, status: int) -> None:
    answered, headers, body = answer_to(int(base.rpartition(":")[2]), request_)
    # What is too long may be cut off before the answer is read.
    assert answered == status or (status == 431 and answered == 0)
    if answered:
        assert headers["x-content-type-options"] == "nosniff"
        assert (body == b"") == request_.startswith(b"HEAD")
    assert "python_info" in get(f"{base}/metrics")[1]


def test_a_page_is_served_and_a_fault_is_answered() -> None:
    def fail() -> str | None:
        raise RuntimeError("of ours")

    server = monitoring.serve("127.0.0.1", 0, fail, page.load("helenus_agent", "page.html"))
    try:
        base = f"http://127.0.0.1:{server.port}"
        assert "<html" in get(f"{base}/")[1]
        assert get(f"{base}/health") == (500, "RuntimeError: of ours\n")
        assert get(f"{base}/health/live") == (200, "live\n")
    finally:
        server.shutdown()


def test_a_listener_for_others_has_any_name() -> None:
    server = monitoring.serve("0.0.0.0", 0, lambda: None)
    try:
        assert answer_to(server.port, b"GET /health HTTP/1.1\r\nHost: agent-1.example\r\n\r\n")[0] == 200
    finally:
        server.shutdown()


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
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == ""
    lines = [json.loads(line) for line in process.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["a.thing", "hello you", "a.failure", "oops"]
    assert all(line.keys() >= {"event", "level", "timestamp"} for line in lines)
    assert lines[0]["count"] == 1
    assert lines[1]["logger"] == "library"
    assert all("ZeroDivisionError" in line["exception"] for line in lines[2:])


def test_a_line_that_repeats_itself_is_left_out() -> None:
    """Thousands of them a second fill a disk. How many there were is said with the next one."""
    code = """
import logging, structlog, time
from helenus_schemas.service import logs, _log_rate
logs.configure("info", "json")
log, library = structlog.get_logger(), logging.getLogger("library")
for number in range(100_000):
    log.info("a.flood", number=number)
    library.warning("hello %s", number)
log.info("another.thing")
time.sleep(2 / _log_rate.RATE)
log.info("a.flood")
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in process.stderr.splitlines()]
    floods = [line for line in lines if line["event"] == "a.flood"]
    assert len(lines) < 20_000
    assert len(floods) + sum(line.get("left_out", 0) for line in floods) == 100_001
    assert lines[-2]["event"] == "another.thing"
