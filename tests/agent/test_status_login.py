"""The login of `helenus-agent status` goes to the agent, and nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest
from pydantic import SecretStr

from helenus_agent import status


@contextmanager
def server(location: str = "") -> Iterator[tuple[str, list[str | None]]]:
    """Serve an answer, or a redirect; yields its address, and the logins that come."""
    logins: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            logins.append(self.headers["Authorization"])
            self.send_response(302 if location else 200)
            self.send_header("Location", location)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as listener:
        thread = threading.Thread(target=listener.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{listener.server_port}", logins
        listener.shutdown()
        thread.join()


def test_neither_a_redirect_nor_a_proxy_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SimpleNamespace(rest_basic_auth_user_info=SecretStr("operator:secret"), secure=False)
    with server() as (other, logins_of_other), server(other) as (agent, logins), server() as (proxy, logins_of_proxy):
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.delenv("no_proxy", raising=False)
        status._fetch(settings, agent)  # type: ignore[arg-type]
    assert logins == ["Basic b3BlcmF0b3I6c2VjcmV0"]
    assert logins_of_other == [None]
    assert logins_of_proxy == []
