"""The REST API of a worker that does not lead its group: it forwards to the leader, over real listeners."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests
import structlog
import trustme
from connector.test_rest import CONFIG, LOGIN, PLUGIN, SECRET, Api, authority, served, settings, tls  # noqa: F401
from hostile_clients import answer_to, redirecting

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.rest import _forwarding, _leader_exchange
from helenus_connector.rest import server as rest
from helenus_connector.rest._leader_exchange import LeaderAddress

STANDBY = "standby: host:8083 leads the group helenus"
NO_LEADER = "Cannot complete request momentarily due to no known leader URL, likely because a rebalance was underway."


class Member:
    """A listener of a member that does not lead, and a client of it."""

    def __init__(self, worker: WorkerSettings, leader: str | None) -> None:
        self.leader = leader
        self.standby = STANDBY
        self.listener = rest.serve_member(worker, lambda: self.leader, lambda: self.standby)
        self.base = f"{'https' if worker.secure else 'http'}://127.0.0.1:{self.listener.port}"
        self.session = requests.Session()
        if worker.secure:  # the end of the listener waits for an idle connection with TLS whose client just closes it
            self.session.headers["Connection"] = "close"

    def call(self, method: str, path: str, body: Any = None, **more: Any) -> requests.Response:
        return self.session.request(method, self.base + path, json=body, timeout=20, allow_redirects=False, **more)

    def error(self, method: str = "GET", path: str = "/connectors", **more: Any) -> tuple[int, str]:
        """Return status and message of an answer that is an error."""
        answer = self.call(method, path, **more)
        assert answer.json()["error_code"] == answer.status_code
        return answer.status_code, answer.json()["message"]


@contextlib.contextmanager
def member(worker: WorkerSettings, leader: str | None = None) -> Iterator[Member]:
    member = Member(worker, leader)
    try:
        yield member
    finally:
        member.session.close()
        member.listener.shutdown()


@dataclass
class Recorded:
    """A server that records what it is sent, and answers each with the same."""

    status: int = 200
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b"[]"
    requests: list[tuple[str, str, list[tuple[str, str]], bytes]] = field(default_factory=list)
    url: str = ""

    @property
    def sent(self) -> dict[str, str]:
        """Return the headers of the last request, by their names in lower case."""
        return {name.lower(): value for name, value in self.requests[-1][2]}


@contextlib.contextmanager
def recorder(**answer: Any) -> Iterator[Recorded]:
    recorded = Recorded(**answer)

    class Record(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            recorded.requests.append((self.command, self.path, self.headers.items(), body))
            self.send_response(recorded.status)
            for name, value in recorded.headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(recorded.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(recorded.body)

        do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = do_OPTIONS = answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Record) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        recorded.url = f"http://127.0.0.1:{server.server_port}"
        yield recorded
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def sending(parts: Callable[[], Iterator[bytes]]) -> Iterator[str]:
    """The address of a server that takes any connection, reads a head, and sends these bytes."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while not ended.is_set():
                with contextlib.suppress(OSError):
                    client, _ = listening.accept()
                    threading.Thread(target=answer, args=(client,), daemon=True).start()

        def answer(client: socket.socket) -> None:
            with client, contextlib.suppress(OSError):
                client.recv(1 << 16)
                for part in parts():
                    client.sendall(part)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        ended.set()
        with contextlib.suppress(OSError):
            socket.create_connection(listening.getsockname(), 1).close()


@pytest.fixture
def worker(tmp_path: Path) -> WorkerSettings:
    return settings(tmp_path)


def test_a_standby_serves_what_the_leader_does(worker: WorkerSettings) -> None:
    with served(worker) as leader, member(worker, leader.base) as standby:
        created = standby.call("POST", "/connectors", {"name": "f/1", "config": CONFIG})
        assert created.status_code == 201
        assert created.headers["Location"] == f"{standby.base}/connectors/f%2F1", "where the client reaches it"
        assert leader.connectors.names() == ["f/1"]
        assert standby.call("GET", "/connectors/f%2F1/config").json()["name"] == "f/1"
        assert standby.call("PATCH", "/connectors/f%2F1/config", {"table": "a"}).json()["config"]["table"] == "a"
        assert standby.call("PUT", "/connectors/f%2F1/pause").status_code == 202
        assert standby.call("GET", "/connectors?expand=status").json().keys() == {"f/1"}
        for path in (
            "/admin/loggers/root",
            "/connectors",
            "/connectors/none",
            "/connector-plugins",
            f"/connector-plugins/{PLUGIN}/config",
        ):
            direct, forwarded = leader.call("GET", path), standby.call("GET", path)
            assert (forwarded.status_code, forwarded.content) == (direct.status_code, direct.content), path
            own = {"date"}
            assert {n.lower(): v for n, v in forwarded.headers.items() if n.lower() not in own} == {
                n.lower(): v for n, v in direct.headers.items() if n.lower() not in own
            }
        page = standby.call("GET", "/", headers={"Accept": "text/html"})
        assert page.headers["Content-Type"].startswith("text/html")
        assert page.headers["Content-Security-Policy"]
        deleted = standby.call("DELETE", "/connectors/f%2F1")
        assert (deleted.status_code, deleted.content) == (204, b"")
        assert leader.connectors.names() == []


def test_its_health_and_metrics_are_its_own(worker: WorkerSettings) -> None:
    with recorder() as leader, member(worker, leader.url) as standby:
        health = standby.call("GET", "/health")
        assert (health.status_code, health.json()) == (200, {"status": "healthy", "message": STANDBY})
        ready = standby.call("GET", "/health/ready")
        assert (ready.status_code, ready.text) == (200, f"{STANDBY}\n"), "a rollout goes on"
        standby.standby = "starting: joins the group helenus"
        health = standby.call("GET", "/health")
        assert (health.status_code, health.json()) == (503, {"status": "starting", "message": standby.standby})
        ready = standby.call("GET", "/health/ready")
        assert (ready.status_code, ready.text) == (503, "starting: joins the group helenus\n")
        assert standby.call("GET", "/health/live").text == "live\n"
        assert "python_info" in standby.call("GET", "/metrics").text
        assert standby.call("POST", "/health").status_code == 405
        assert leader.requests == []


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("body", [b"", b'{"a": 1}', b"\x00\xff" * 10_000])
def test_requests_are_forwarded_as_they_are(worker: WorkerSettings, method: str, body: bytes) -> None:
    target = "/connectors/a%2Fb%20c/x//y/?expand=info&expand=status&q=%26+"
    headers = {"Accept": "text/html", "Accept-Encoding": "br", "Content-Type": "text/x", "X-Own": "caf\xe9"}
    with recorder(status=418, headers=[("X-Answer", "yes")], body=b"\x00tea\xff") as leader:
        with member(worker, leader.url) as standby:
            prepared = requests.Request(method, standby.base, headers=headers, data=body).prepare()
            prepared.url = standby.base + target
            answer = standby.session.send(prepared, timeout=20)
        sent_method, path, _, sent_body = leader.requests[0]
        assert (sent_method, path, sent_body) == (method, target, body)
        assert {name: leader.sent[name.lower()] for name in headers} == headers
        assert leader.sent["host"] == leader.url.removeprefix("http://")
    assert (answer.status_code, answer.content, answer.headers["X-Answer"]) == (418, b"\x00tea\xff", "yes")


def test_head(worker: WorkerSettings) -> None:
    with recorder(body=b"x" * 1234) as leader, member(worker, leader.url) as standby:
        answer = standby.call("HEAD", "/connectors")
        assert (answer.status_code, answer.headers["Content-Length"], answer.content) == (200, "1234", b"")
        assert leader.requests[0][0] == "HEAD"
        assert standby.call("GET", "/connectors").content == b"x" * 1234, "over the same connection"


def test_headers_of_one_hop_stay_on_it(worker: WorkerSettings) -> None:
    """So do those that a browser adds for the address that it knows, and cookies of other services on it."""
    answered = [("Keep-Alive", "timeout=5"), ("Connection", "x-hop"), ("X-Hop", "1"), ("Trailer", "t"), ("X-End", "2")]
    hop = {"Connection": "keep-alive, X-Secret-Hop", "X-Secret-Hop": "1", "TE": "trailers", "Upgrade": "h2c"}
    hop |= {"Keep-Alive": "1", "Proxy-Authorization": "Basic x", "Expect": "100-continue", "Cookie": "session=1"}
    with recorder(headers=answered) as leader, member(worker, leader.url) as standby:
        browser = {"Origin": standby.base, "Referer": f"{standby.base}/", "Sec-Fetch-Site": "same-origin"}
        answer = standby.call("POST", "/connectors", {}, headers={**hop, **browser, "Authorization": "Basic eDp5"})
        assert answer.status_code == 200
        assert leader.sent["authorization"] == "Basic eDp5"
        assert leader.sent["connection"] == "close"
        assert not leader.sent.keys() & {name.lower() for name in {**hop, **browser}} - {"connection"}
    assert answer.headers["X-End"] == "2"
    assert not answer.headers.keys() & {"keep-alive", "trailer", "x-hop"}
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_a_body_in_chunks(worker: WorkerSettings) -> None:
    chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n[1,\r\n2\r\n2]\r\n0\r\n\r\n"
    with sending(lambda: iter([chunks])) as url, member(worker, url) as standby:
        assert standby.call("GET", "/connectors").json() == [1, 2]
    with recorder() as leader, member(worker, leader.url) as standby:
        assert standby.call("POST", "/connectors", data=iter([b"a" * 1000, b"b"])).status_code == 200
        assert leader.requests[0][3] == b"a" * 1000 + b"b"
        assert leader.sent["content-length"] == "1001"
        assert "transfer-encoding" not in leader.sent


def test_no_more_is_taken_than_by_the_leader(worker: WorkerSettings) -> None:
    with recorder() as leader, member(worker, leader.url) as standby:
        assert standby.call("PUT", "/connectors/a/config", data=b"x" * (1 << 20)).status_code == 200
        assert standby.call("PUT", "/connectors/a/config", data=b"x" * ((1 << 20) + 1)).status_code == 413
        assert standby.call("GET", "/connectors", headers={"X": "y" * (15 << 10)}).status_code == 200
        assert (
            answer_to(standby.listener.port, b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 101 + b"\r\n")[0]
            == 431
        )
        assert len(leader.requests) == 2


def test_redirects_are_not_followed(worker: WorkerSettings) -> None:
    with recorder() as other, redirecting(other.url) as port, member(worker, f"http://127.0.0.1:{port}") as standby:
        answer = standby.call("GET", "/connectors", auth=LOGIN)
        assert (answer.status_code, answer.headers["Location"]) == (307, f"{other.url}/connectors")
        assert other.requests == []


def test_a_location_elsewhere_stays(worker: WorkerSettings) -> None:
    with recorder(status=201) as leader, member(worker, leader.url) as standby:
        port = leader.url.rpartition(":")[2]
        for location in (f"http://127.0.0.1:{port}0/a", f"http://127.0.0.1.example.com:{port}/a", f"/x?{leader.url}/a"):
            leader.headers = [("Location", location)]
            assert standby.call("POST", "/connectors", {}).headers["Location"] == location


def test_no_leader(worker: WorkerSettings) -> None:
    with member(worker) as standby:
        for method, path in (
            ("GET", "/"),
            ("GET", "/connectors"),
            ("POST", "/connectors"),
            ("DELETE", "/connectors/a"),
        ):
            assert standby.error(method, path) == (409, NO_LEADER)
        with recorder() as leader:
            standby.leader = leader.url
            assert standby.call("GET", "/connectors").json() == [], "as soon as it is known"


def test_a_leader_that_is_not_there(worker: WorkerSettings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with member(worker, f"http://127.0.0.1:{port}") as standby:
        status, message = standby.error("PUT", "/connectors/a/config", body={"password": SECRET}, auth=("a", SECRET))
        assert status == 503
        assert f"the leader http://127.0.0.1:{port} does not answer: Connection refused" in message
        assert "set listeners and rest.advertised.host.name of that worker" in message
        assert SECRET not in message
        standby.leader = "http://none.invalid:8083"
        status, message = standby.error()
        assert (status, "the leader http://none.invalid:8083 does not answer" in message) == (503, True)


def test_a_leader_that_hangs(worker: WorkerSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that says nothing, nor one whose head or body trickles in, keeps a request or a thread for longer."""
    monkeypatch.setattr(_forwarding, "ANSWER_S", 0.5)
    monkeypatch.setattr(_forwarding, "CONNECT_S", 0.5)

    def nothing() -> Iterator[bytes]:
        time.sleep(60)
        yield b""

    def head() -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\n"
        while True:
            time.sleep(0.05)
            yield b"X: y\r\n"

    def body() -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
        while True:
            time.sleep(0.05)
            yield b"x"

    for parts in (nothing, head, body):
        with sending(parts) as url, member(worker, url) as standby:
            began = time.monotonic()
            status, message = standby.error()
            assert time.monotonic() - began < 10, parts
            assert (status, f"the leader {url} does not end its answer" in message) == (503, True), message
            assert eventually_none(), "its thread has ended"


def eventually_none() -> bool:
    """Return whether no thread forwards a request any more, or will not soon."""
    for _ in range(500):
        if not any(thread.name == "forward" for thread in threading.enumerate()):
            return True
        time.sleep(0.02)
    return False


def test_a_leader_that_is_slow_at_each_part(worker: WorkerSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_leader_exchange, "ANSWER_S", 0.3)
    with sending(lambda: (time.sleep(5), iter([b""]))[1]) as url, member(worker, url) as standby:
        status, message = standby.error("PUT", "/connectors/a/pause")
        assert (status, f"the leader {url} does not answer: timed out: it may have done" in message) == (503, True)


def test_the_end_of_a_worker_waits_for_no_leader(worker: WorkerSettings, capfd: pytest.CaptureFixture[str]) -> None:
    with sending(lambda: (time.sleep(60), iter([b""]))[1]) as url, member(worker, url) as standby:
        errors: list[tuple[int, str]] = []
        clients = [threading.Thread(target=lambda: errors.append(standby.error())) for _ in range(3)]
        for client in clients:
            client.start()
        while sum(thread.name == "forward" for thread in threading.enumerate()) < 3:
            time.sleep(0.01)
        began = time.monotonic()
        standby.listener.shutdown()
        assert time.monotonic() - began < 4.5, "two seconds are for those that are under way"
        assert not standby.listener._thread.is_alive()
        for client in clients:
            client.join(10)
        assert eventually_none()
        assert [status for status, _ in errors] == [503] * 3
        assert all("this worker ends" in message for _, message in errors)
    assert "Traceback" not in capfd.readouterr().err


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LARGE = b"x" * (1 << 20)


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", CHUNKED + b"-1\r\n"]
)
def test_an_answer_that_is_too_large(worker: WorkerSettings, head: bytes) -> None:
    sizes: list[int] = []

    def endless() -> Iterator[bytes]:
        yield head
        while True:
            sizes.append(len(LARGE))
            yield LARGE

    with sending(endless) as url, member(worker, url) as standby:
        status, message = standby.error()
        assert (status, message) == (502, f"the leader {url} answers with more than 16 MiB: ask for less at once")
    assert sum(sizes) < 64 << 20


def test_the_largest_answer(worker: WorkerSettings) -> None:
    with recorder(body=b"x" * (16 << 20)) as leader, member(worker, leader.url) as standby:
        assert standby.call("GET", "/connectors").content == leader.body


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"", 503),
        (b"SSH-2.0-OpenSSH_9.2\r\n", 502),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort", 503),
        (CHUNKED + b"5\r\nab", 503),
        (CHUNKED + b"none\r\nab", 503),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", 502),
        (b"HTTP/1.1 999 None\r\nContent-Length: 0\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000 + b"\r\n", 502),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", 502),
    ],
)
def test_what_is_no_answer(
    worker: WorkerSettings, capfd: pytest.CaptureFixture[str], answer: bytes, status: int
) -> None:
    with sending(lambda: iter([answer])) as url, member(worker, url) as standby:
        got, message = standby.error()
        assert (got, f"the leader {url} " in message) == (status, True), message
        assert standby.call("GET", "/health/live").status_code == 200
    assert capfd.readouterr().err == ""


def test_headers_that_none_could_send_on(worker: WorkerSettings, capfd: pytest.CaptureFixture[str]) -> None:
    headers = (
        b"X-Folded: a\r\n b\r\nX-Bad: \x01\x00b\r\nX Name: c\r\nX-Good: caf\xe9\r\nDate: never\r\nContent-Length: 2\r\n"
    )
    with sending(lambda: iter([b"HTTP/1.1 200 OK\r\n" + headers + b"\r\n[]"])) as url, member(worker, url) as standby:
        answer = standby.call("GET", "/connectors")
        assert answer.status_code == 200
        assert not answer.headers.keys() & {"x-folded", "x-bad", "x name"}
        assert answer.headers["Date"] != "never"
    assert "Traceback" not in capfd.readouterr().err


def test_two_members_that_take_each_other_for_the_leader(worker: WorkerSettings) -> None:
    with member(worker) as first, member(worker, first.base) as second:
        first.leader = second.base
        for standby in (first, second):
            status, message = standby.error("PUT", "/connectors/a/pause")
            assert (status, "does not lead the group" in message) == (409, True)
            assert "set listeners and rest.advertised.host.name of each worker" in message
        first.leader = first.base
        assert first.error()[0] == 409, "nor one that takes itself for another"


def test_a_leader_does_not_look_at_the_mark(worker: WorkerSettings) -> None:
    with served(worker) as leader:
        assert leader.call("GET", "/connectors", headers={"Helenus-Forwarded": "true"}).status_code == 200


@pytest.mark.parametrize(
    "url",
    [
        f"http://user:{SECRET}@127.0.0.1:PORT",
        "file:///etc/passwd",
        "ftp://127.0.0.1:PORT",
        "127.0.0.1:PORT",
        "http://127.0.0.1",
        "http://127.0.0.1:0",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:PORT/connectors",
        "http://127.0.0.1:PORT?a",
        "http://127.0.0.1:PORT#a",
        "http://127.0.0.1:PORT\n",
        "http://127.0.0.1:PORT\r\nX: y",
        "http://127.0.0.1:PORT\x00",
        "\x01http://127.0.0.1:PORT",
        "http://127.0.0.1:PORT/@h:1",
        "http://[::1%\x01]:PORT",
        "http://\u2100.example.com:PORT",
        "http://" + "a." * 5000 + "b:PORT",
        "http://127.0.0.1:" + "0" * 10_000 + "PORT",
        "",
    ],
)
def test_urls_that_are_no_address(worker: WorkerSettings, capfd: pytest.CaptureFixture[str], url: str) -> None:
    with recorder() as leader, member(worker, url.replace("PORT", leader.url.rpartition(":")[2])) as standby:
        status, message = standby.error(auth=LOGIN)
        assert (status, "the leader's address is no http://host:port" in message) == (503, True)
        assert "rest.advertised.host.name" in message
        assert SECRET not in message
        assert len(message) < 300
        assert leader.requests == []
    assert capfd.readouterr().err == ""


def test_addresses() -> None:
    for url in ("http://h:8083", "https://h.example.com:443", "http://[::1]:8083", "http://10.0.0.1:80"):
        assert str(LeaderAddress.from_url(url)) == url
    assert str(LeaderAddress.from_url("HTTP://H:1/")) == "http://h:1"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6")
def test_a_leader_with_an_address_of_ipv6(tmp_path: Path) -> None:
    with served(settings(tmp_path, listeners="http://[::1]:0")) as leader, member(settings(tmp_path)) as standby:
        standby.leader = f"http://[::1]:{leader.listener.port}"
        assert standby.call("GET", "/connectors").json() == []


def test_the_login_is_asked_for_before_anything_is_forwarded(tmp_path: Path) -> None:
    locked = settings(tmp_path, rest_basic_auth_user_info=":".join(LOGIN))
    with recorder() as leader, member(locked, leader.url) as standby:
        assert standby.call("GET", "/connectors").status_code == 401
        assert standby.call("GET", "/connectors", auth=("operator", "x")).status_code == 401
        assert standby.call("GET", "/health").status_code == 401
        assert standby.call("GET", "/health/live").status_code == 200
        assert leader.requests == []
    with served(locked) as api, member(locked, api.base) as standby:
        assert standby.call("GET", "/connectors", auth=LOGIN).json() == []
        assert standby.call("POST", "/connectors", {"name": "f1", "config": CONFIG}, auth=LOGIN).status_code == 201
    other = settings(tmp_path, rest_basic_auth_user_info="other:one")
    with served(other) as api, member(locked, api.base) as standby:
        refused = standby.call("GET", "/connectors", auth=LOGIN)
        assert refused.status_code == 401, "of the leader, whose login is another"
        assert refused.headers["WWW-Authenticate"].startswith("Basic")


def test_pages_of_others_are_refused_before_anything_is_forwarded(worker: WorkerSettings, tmp_path: Path) -> None:
    with recorder() as leader, member(worker, leader.url) as standby:
        assert standby.error("GET", "/", headers={"Host": "rebound.example.com"})[0] == 403
        for headers in ({"Origin": "https://evil.example.com"}, {"Sec-Fetch-Site": "cross-site"}):
            assert standby.error("POST", "/connectors/a/restart", headers=headers)[0] == 403
        assert leader.requests == []
        own = {"Origin": standby.base, "Sec-Fetch-Site": "same-origin"}
        assert standby.call("POST", "/connectors/a/restart", headers=own).status_code == 200
        with member(settings(tmp_path, listeners="http://0.0.0.0:0"), leader.url) as opened:
            own = {"Origin": opened.base}
            assert "browsers may only read" in opened.error("POST", "/connectors/a/restart", headers=own)[1]
        assert len(leader.requests) == 1
    with served(worker) as api, member(worker, api.base) as standby:
        own = {"Origin": standby.base, "Sec-Fetch-Site": "same-origin"}
        assert standby.call("POST", "/connectors", {"name": "f1", "config": CONFIG}, headers=own).status_code == 201


def test_calls_that_change_something_are_logged(worker: WorkerSettings) -> None:
    with (
        recorder(status=202) as leader,
        member(worker, leader.url) as standby,
        structlog.testing.capture_logs() as logs,
    ):
        standby.call("PUT", "/connectors/a/pause", auth=("a", SECRET))
        standby.call("GET", "/connectors")
    (line,) = logs
    assert (line["event"], line["method"], line["path"]) == ("rest.call", "PUT", "/connectors/a/pause")
    assert (line["status"], SECRET in json.dumps(line)) == (202, False)


def test_tls(tls: dict[str, str], authority: trustme.CA, tmp_path: Path) -> None:  # noqa: F811
    """Each shows its certificate to the other, and verifies the other's."""
    ca, client = str(tmp_path / "ca.pem"), str(tmp_path / "client.pem")
    secure = settings(tmp_path, **tls, **{"listeners.https.ssl.cafile": ca})
    with served(secure) as leader, member(secure, leader.base) as standby:
        assert standby.call("GET", "/connectors", verify=ca, cert=client).json() == []
        created = standby.call("POST", "/connectors", {"name": "f", "config": CONFIG}, verify=ca, cert=client)
        assert (created.status_code, created.headers["Location"]) == (201, f"{standby.base}/connectors/f")
        # A name that its certificate does not have.
        standby.leader = f"https://localhost:{leader.listener.port}"
        status, message = standby.error(verify=ca, cert=client)
        assert status == 503
        assert f"the leader {standby.leader} does not answer: its certificate is refused: Hostname mismatch" in message
        # One that has no TLS would get the login in plain text.
        standby.leader = "http" + leader.base.removeprefix("https")
        status, message = standby.error(verify=ca, cert=client)
        assert (status, "set listeners of both to https" in message) == (503, True)


def test_a_leader_whose_certificate_others_signed(
    tls: dict[str, str],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ca = str(tmp_path / "ca.pem")
    secure = settings(tmp_path, **tls)
    with served(secure) as leader:
        with member(secure, leader.base) as standby:
            status, message = standby.error(verify=ca)
            assert (status, "its certificate is refused" in message) == (503, True), "by the system's authorities"
            assert "set listeners.https.ssl.cafile" in message
        monkeypatch.setenv("SSL_CERT_FILE", ca)
        with member(secure, leader.base) as standby:
            assert standby.call("GET", "/connectors", verify=ca).json() == []
        with member(settings(tmp_path), leader.base) as standby:
            assert standby.call("GET", "/connectors").json() == [], "from a listener without TLS too"
        with sending(lambda: iter([b"HTTP/1.1 200 OK\r\n\r\n"])) as url, member(secure) as standby:
            standby.leader = url.replace("http:", "https:")
            status, message = standby.error(verify=ca)
            assert (status, f"the leader {standby.leader} does not answer" in message) == (503, True)


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
def test_a_leader_that_asks_for_a_certificate(tls: dict[str, str], tmp_path: Path) -> None:  # noqa: F811
    """It refuses the one of a stranger: with TLS 1.3, in the midst of the exchange."""
    ca = str(tmp_path / "ca.pem")
    stranger = trustme.CA().issue_cert("127.0.0.1")
    stranger.private_key_pem.write_to_path(str(tmp_path / "stranger.key"))
    stranger.cert_chain_pems[0].write_to_path(str(tmp_path / "stranger.pem"))
    files = {"certfile": tmp_path / "stranger.pem", "keyfile": tmp_path / "stranger.key", "cafile": ca}
    strange = settings(
        tmp_path,
        listeners="https://127.0.0.1:0",
        **{f"listeners.https.ssl.{key}": str(value) for key, value in files.items()},
    )
    with served(settings(tmp_path, **tls, **{"listeners.https.ssl.cafile": ca})) as leader:
        with member(strange, leader.base) as standby:
            status, message = standby.error(verify=False, cert=str(tmp_path / "client.pem"))
            assert (status, f"the leader {leader.base} does not answer: " in message) == (503, True)
            assert "a certificate that the other one's listeners.https.ssl.cafile signed" in message
        assert leader.call("GET", "/connectors", verify=ca, cert=str(tmp_path / "client.pem")).json() == []


def test_an_application_is_replaced_while_it_listens(worker: WorkerSettings) -> None:
    """A standby that becomes the leader closes neither its port nor a connection, and fails no request."""
    failures: list[str] = []
    served_by: set[str] = set()
    ended = threading.Event()
    count = 0

    with recorder(body=b'["leader"]') as leader, served(worker) as api, member(worker, leader.url) as standby:
        apps = [
            rest.application(
                worker, api.connectors, api.snapshots, api.verifications, api.history, lambda: None, lambda: None
            ),
            rest.member_application(worker, lambda: leader.url, lambda: STANDBY),
        ]

        def request_always() -> None:
            nonlocal count
            with requests.Session() as session:
                while not ended.is_set():
                    try:
                        answer = session.get(f"{standby.base}/connectors", timeout=20)
                        served_by.add(answer.text)
                        if answer.status_code != 200:
                            failures.append(answer.text)
                    except requests.RequestException as error:
                        failures.append(str(error))
                    count += 1

        clients = [threading.Thread(target=request_always) for _ in range(8)]
        for client in clients:
            client.start()
        for number in range(50):
            before = count
            standby.listener.show(apps[number % 2])
            while count < before + 10 and not failures:
                time.sleep(0.001)
        ended.set()
        for client in clients:
            client.join(30)
        assert failures == []
        assert served_by == {"[]", '["leader"]'}
        standby.listener.show(apps[0])
        assert standby.call("GET", "/health/ready").text == "ready\n"
        standby.listener.show(apps[1])
        assert standby.call("GET", "/health/ready").text == f"{STANDBY}\n"


def test_a_request_ends_with_the_application_that_it_began_with(worker: WorkerSettings) -> None:
    answered = threading.Event()

    def parts() -> Iterator[bytes]:
        answered.wait(20)
        yield b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n[123]"

    with sending(parts) as url, member(worker, url) as standby, served(worker) as api:
        answers: list[Any] = []
        client = threading.Thread(target=lambda: answers.append(standby.call("GET", "/connectors").json()))
        client.start()
        while not any(thread.name == "forward" for thread in threading.enumerate()):
            time.sleep(0.01)
        parts_of_api = api.connectors, api.snapshots, api.verifications, api.history
        standby.listener.show(rest.application(worker, *parts_of_api, lambda: None, lambda: None))
        assert requests.get(f"{standby.base}/connectors", timeout=20).json() == []
        answered.set()
        client.join(20)
        assert answers == [[123]]


def test_limits_stay_when_the_application_is_replaced(tmp_path: Path) -> None:
    locked = settings(tmp_path, rest_basic_auth_user_info=":".join(LOGIN))
    with member(locked) as standby:
        standby.listener.show(rest.member_application(locked, lambda: None, lambda: STANDBY))
        assert standby.call("GET", "/connectors").status_code == 401
        head = b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 101 + b"\r\n"
        assert answer_to(standby.listener.port, head)[0] == 431


def test_many_requests_at_once(worker: WorkerSettings) -> None:
    """Forty are forwarded at once. Others wait, and health checks have their own threads."""
    entered = threading.Semaphore(0)
    answered = threading.Event()

    def parts() -> Iterator[bytes]:
        entered.release()
        answered.wait(30)
        yield b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"

    with sending(parts) as url, member(worker, url) as standby:
        statuses: list[int] = []

        def request() -> None:
            statuses.append(requests.get(f"{standby.base}/connectors", timeout=30).status_code)

        clients = [threading.Thread(target=request) for _ in range(60)]
        for client in clients:
            client.start()
        for _ in range(40):
            assert entered.acquire(timeout=20)
        assert not entered.acquire(timeout=0.3)
        for path in ("/health", "/health/ready", "/health/live", "/metrics"):
            assert standby.call("GET", path).status_code == 200
        answered.set()
        for client in clients:
            client.join(30)
        assert statuses == [200] * 60


def test_the_advertised_url(tmp_path: Path, tls: dict[str, str]) -> None:  # noqa: F811
    assert settings(tmp_path, listeners="http://h:8083").advertised_url == "http://h:8083"
    assert settings(tmp_path, listeners="http://0.0.0.0:8083").advertised_url == f"http://{socket.gethostname()}:8083"
    assert settings(tmp_path, listeners="http://[::1]:8083").advertised_url == "http://[::1]:8083"
    named = settings(tmp_path, **{**tls, "listeners": "https://0.0.0.0:8083"}, rest_advertised_host_name="public")
    assert named.advertised_url == "https://public:8083"
    six = settings(tmp_path, listeners="http://h:8083", rest_advertised_host_name="fd00::1")
    assert six.advertised_url == "http://[fd00::1]:8083"
