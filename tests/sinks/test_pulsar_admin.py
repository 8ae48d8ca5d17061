"""What the admin API may answer, and addresses that are none: all of it is an error of ours."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from hostile_clients import recording, redirecting

from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.pulsar._admin import Admin
from helenus_sinks.pulsar.connection import Access


@pytest.fixture
def answering() -> Iterator[Callable[..., str]]:
    """The address of a server that gives each caller these bytes and hangs up, and keeps requests if it is to."""
    servers: list[socket.socket] = []

    def serve(server: socket.socket, response: bytes, requests: list[bytes]) -> None:
        while True:
            try:
                caller, _ = server.accept()
            except OSError:  # closed
                return
            with caller:
                request = caller.recv(65536)
                if b"Content-Length: 8" in request and not request.endswith(b"}"):
                    request += caller.recv(65536)  # the body comes by itself
                requests.append(request)
                caller.sendall(response)

    def start(response: bytes, requests: list[bytes] | None = None) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)
        threading.Thread(
            target=serve, args=(server, response, requests if requests is not None else []), daemon=True
        ).start()
        return f"http://127.0.0.1:{server.getsockname()[1]}"

    yield start
    for server in servers:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", "not JSON; does pulsar.admin.url name a broker"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{\xff", "not JSON"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 60\r\n\r\n[", "IncompleteRead"),
        (b"HTTP/1.1 503 No\r\nContent-Length: 60\r\n\r\n[", "IncompleteRead"),
        (b"SSH-2.0-x\r\n", "SSH-2.0-x"),
        (b"", "closed connection"),
    ],
)
def test_invalid_answers(answering: Callable[..., str], response: bytes, message: str) -> None:
    with pytest.raises(HelenusError, match=message) as error:
        Admin(answering(response), Access()).ask("GET", "clusters")
    assert error.value.kind is Kind.BROKER_UNREACHABLE


def test_a_valid_answer(answering: Callable[..., str]) -> None:
    url = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n[1, 2] ")
    assert Admin(url, Access()).ask("GET", "clusters") == [1, 2]


@pytest.mark.parametrize("url", ["broker", "http://broker:abc", "http://[::1", "http://127.0.0.1:66500", "http://a..b"])
def test_an_invalid_address(url: str) -> None:
    with pytest.raises(HelenusError) as error:
        Admin(url, Access()).ask("GET", "clusters")
    assert error.value.kind is Kind.BROKER_UNREACHABLE
    assert url in str(error.value)


def test_a_topic_that_another_broker_has(answering: Callable[..., str]) -> None:
    """The request goes there as it was, whatever its method."""
    requests: list[bytes] = []
    owner = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1", requests)
    location = f"Location: {owner}/admin/v2/t?authoritative=true"
    moved = f"HTTP/1.1 307 Temporary Redirect\r\n{location}\r\nContent-Length: 0\r\n\r\n"
    broker = Admin(answering(moved.encode()), Access("s3cret"))
    for method in ("POST", "PUT", "GET"):
        assert broker.ask(method, "t", None if method == "GET" else {"a": 1}) == 1
        head, _, body = requests.pop().partition(b"\r\n\r\n")
        assert head.startswith(f"{method} /admin/v2/t?authoritative=true HTTP/1.1".encode())
        assert b"s3cret" not in head
        assert body == (b"" if method == "GET" else b'{"a": 1}')


def test_a_token_follows_no_redirect() -> None:
    """A broker may redirect to the one that owns a topic, and anybody else to their own server."""
    with recording() as (other, logins), redirecting(other) as port:
        with pytest.raises(HelenusError, match="is sent no login") as error:
            Admin(f"http://127.0.0.1:{port}", Access("s3cret")).ask("GET", "persistent/public/default/t/retention")
        assert other in str(error.value)
        assert logins == [None]
        with pytest.raises(HelenusError):
            Admin(other, Access("s3cret")).ask("GET", "clusters")
        assert logins == [None, "Bearer s3cret"]
