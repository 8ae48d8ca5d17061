"""The worker's listener under clients that mean harm, most of which have no login."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from connector.test_rest import CONFIG, LOGIN, Api, authority, served, settings, tls  # noqa: F401
from hostile_clients import answer_to, connected, has_ended, recording, redirecting
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from patience import eventually
from starlette.types import Message, Receive, Scope, Send

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.rest import _plugins
from helenus_connector.rest._limits import RequestLimits
from helenus_connector.rest.client import WorkerClient
from helenus_schemas.errors import HelenusError
from helenus_schemas.service import connections

HEAD = b"Host: localhost\r\n"
JSON = HEAD + b"Content-Type: application/json\r\n"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A listener with one connector."""
    config = {**CONFIG, "cassandra.contact.points": "127.0.0.1", "cassandra.port": "1"}  # where nothing listens
    with served(settings(tmp_path_factory.mktemp("hostile"))) as api:
        assert api.ask("POST", "/connectors", {"name": "f1", "config": config})[0] == 201
        yield api


def is_alive(api: Api) -> bool:
    """Whether a new client is answered."""
    context = {"verify": False} if api.base.startswith("https") else {}
    with requests.Session() as session:
        return session.get(f"{api.base}/health/live", timeout=60, **context).text == "live\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /connectors HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        b"PUT /connectors/f1/config HTTP/1.1\r\n" + JSON + b"Content-Length: 100\r\n\r\n{",
        b"PUT /connectors/f1/config HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
        b"GET /connectors HTTP/1.1\r\n" + HEAD + b"\r\nGET /connectors HTTP/1.1\r\nHost: ",
    ],
)
def test_idle_connections_cost_nothing(tmp_path: Path, sent: bytes) -> None:
    with served(settings(tmp_path)) as api:
        threads = threading.active_count()
        with connected(api.listener.port, 1000, sent):
            assert is_alive(api)
            assert api.ask("GET", "/connectors") == (200, [])
            assert threading.active_count() < threads + 42, "those of anyio are forty"
            assert len(api.listener._server.server_state.connections) <= 128


def test_idle_connections_cost_nothing_with_tls(tls: dict[str, str], tmp_path: Path) -> None:  # noqa: F811
    """Neither those that do not begin with TLS, nor those that say nothing afterwards."""
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    with served(settings(tmp_path, **tls)) as api:
        with connected(api.listener.port, 1000):
            assert api.call("GET", "/connectors", verify=str(tmp_path / "ca.pem")).json() == []
        clients = []
        for _ in range(200):
            client = socket.create_connection(("127.0.0.1", api.listener.port), timeout=60)
            clients.append(context.wrap_socket(client, server_hostname="127.0.0.1"))
        assert api.call("GET", "/connectors", verify=str(tmp_path / "ca.pem")).json() == []
        assert has_ended(clients[0])
        for client in clients:
            client.close()


@pytest.mark.parametrize("secret", [False, True])
def test_a_request_has_a_deadline(tmp_path: Path, secret: bool) -> None:
    """From the connection to the end of the body, however the bytes trickle in."""
    more = {"rest_basic_auth_user_info": ":".join(LOGIN)} if secret else {}
    with served(settings(tmp_path, **more)) as api:
        begun = [
            (b"GET /connectors HTTP/1.1\r\n", b"x"),
            (b"PUT /connectors/f1/config HTTP/1.1\r\n" + JSON + b"Content-Length: 1000\r\n\r\n", b" "),
            (b"GET /health/live HTTP/1.1\r\n" + HEAD + b"\r\n", b""),
        ]
        clients = []
        for head, more_of_it in begun:
            client = socket.create_connection(("127.0.0.1", api.listener.port), timeout=60)
            client.sendall(head)
            clients.append((client, more_of_it))

        def are_over() -> bool:
            for client, more_of_it in list(clients):
                with contextlib.suppress(OSError):
                    client.sendall(more_of_it)
                if has_ended(client, 0.1):
                    clients.remove((client, more_of_it))
                    client.close()
            return not clients

        eventually(are_over, every=0.2)


def test_a_client_that_does_not_take_its_answer(api: Api) -> None:
    """Nor do many of them keep others from theirs."""
    request = b"GET /connector-plugins/helenus.CassandraSource/config HTTP/1.1\r\n" + HEAD + b"\r\n"
    with connected(api.listener.port, 200, request * 50):
        assert is_alive(api)


def test_a_client_that_is_gone_before_it_is_seen() -> None:
    """uvicorn then knows no address of it."""
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "client": None, "headers": [], "raw_path": b"/", "query_string": b""}
    with connections.listen("127.0.0.1", 0) as listener:
        asyncio.run(RequestLimits(app, listener)(scope, receive, send))
    assert [message["status"] for message in sent] == [200]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HEAD + b"Content-Length: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + HEAD + b"Connection: close\r\nX: " + b"y" * (20 << 10) + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * (20 << 10) + b" HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n", 431),
        (
            b"GET /connectors/f/tasks/" + b"9" * 5000 + b"/status HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n",
            404,
        ),
        (b"GET /connectors/%ED%A0%80 HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n", 404),
        (b"GET /health HTTP/1.1\r\n" + HEAD + b"Connection: upgrade, close\r\nUpgrade: websocket\r\n\r\n", 200),
    ],
)
def test_heads(
    api: Api,
    capfd: pytest.CaptureFixture[str],
    request_: bytes,
    status: int,
) -> None:
    """Each is answered, in JSON that no browser takes for a page, and no line is logged."""
    answered, headers, body = answer_to(api.listener.port, request_)
    assert answered == status or (status == 431 and answered in (0, 400)), body  # too long for one read
    if answered:
        assert headers["x-content-type-options"] == "nosniff"
        assert isinstance(json.loads(body), dict)
    assert is_alive(api)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("path", ["/", "/metrics", "/health", "/health/live", "/connectors", "/none", "/overview"])
def test_no_answer_is_taken_for_a_page(tmp_path: Path, path: str) -> None:
    with served(settings(tmp_path, rest_basic_auth_user_info=":".join(LOGIN))) as api:
        for auth in (None, LOGIN):
            answer = api.call("GET", path, auth=auth, headers={"Accept": "text/html"} if path == "/" else {})
            assert answer.headers["X-Content-Type-Options"] == "nosniff", answer.status_code


HOSTILE = [
    b"9" * 5000,
    b"-" + b"9" * 4000,
    b"1e999",
    b"-1e999",
    b"1." + b"1" * 100_000,
    b"NaN",
    b"Infinity",
    b'"\\ud800"',
    b'"\\udfff\\ud800"',
    b'"\xed\xa0\x80"',
    b'"\xff"',
]
PLACES = [
    ("PUT", "/connectors/f1/config", b"%s"),
    ("PUT", "/connectors/f1/config", b'{"connector.class": "helenus.CassandraSource", "tasks.max": %s}'),
    ("POST", "/connectors", b'{"name": %s, "config": {"connector.class": "helenus.CassandraSource"}}'),
    ("POST", "/connectors", b'{"name": "n", "config": {"name": %s, "connector.class": "helenus.CassandraSource"}}'),
    ("PATCH", "/connectors/f1/config", b'{"table": %s}'),
    ("PUT", "/connector-plugins/helenus.CassandraSource/config/validate", b'{"a": %s}'),
    ("PATCH", "/connectors/f1/offsets", b'{"offsets": [{"partition": {"topic": "t", "partition": %s}}]}'),
    ("POST", "/connectors/f1/snapshots", b'{"key": {"id": %s}}'),
    ("POST", "/connectors/f1/snapshots", b'{"tables": [%s]}'),
    ("POST", "/connectors/f1/verifications", b'{"limit": %s}'),
    ("POST", "/connectors/f1/verifications", b'{"sample": %s}'),
    ("POST", "/connectors/f1/losses", b'{"node": %s}'),
    ("POST", "/connectors/f1/losses", b'{"node": "127.0.0.1", "until": %s}'),
    ("PUT", "/admin/loggers/root", b'{"level": %s}'),
]


@pytest.mark.parametrize(("method", "path", "body"), PLACES)
def test_values_that_no_json_has(
    api: Api, capfd: pytest.CaptureFixture[str], method: str, path: str, body: bytes
) -> None:
    """400, one line, no traceback; also where a key has them."""
    for value in HOSTILE:
        answer = api.session.request(
            method,
            api.base + path,
            data=body.replace(b"%s", value),
            headers={"Content-Type": "application/json"},
            timeout=60,
        )
        assert answer.status_code == 400, (value[:20], answer.text[:300])
        assert "\n" not in answer.json()["message"].strip()
    assert "Traceback" not in capfd.readouterr().err


LARGE = [b"9" * 400, b"-" + b"9" * 400, b"1e308", b"-1e308", b'"' + b"9" * 5000 + b'"', b'"' + b"x" * 500_000 + b'"']


@pytest.mark.parametrize(("method", "path", "body"), PLACES)
@pytest.mark.parametrize("value", LARGE, ids=range(len(LARGE)))
def test_values_that_are_too_large(
    api: Api, capfd: pytest.CaptureFixture[str], method: str, path: str, body: bytes, value: bytes
) -> None:
    """They are JSON, and nothing that a setting, an offset or a key can be."""
    answer = api.session.request(
        method,
        api.base + path,
        data=body.replace(b"%s", value),
        headers={"Content-Type": "application/json"},
        timeout=60,
    )
    assert isinstance(answer.json(), dict)
    # As Kafka Connect answers; and a snapshot's tables are asked of a Cassandra that is not there.
    by_design = ("expected", "Connector", "cassandra-unreachable")
    assert answer.status_code < 500 or any(text in answer.text for text in by_design), answer.text[:300]
    assert "Traceback" not in capfd.readouterr().err


@limits(max_examples=60, deadline=None)
@given(
    key=st.sampled_from(sorted(field.alias or name for name, field in ConnectorSettings.model_fields.items())),
    value=st.one_of(
        st.sampled_from(["9" * 5000, "-" + "9" * 5000, "1e999", "nan", "inf", "0x" + "f" * 5000, "1_" * 3000]),
        st.text(max_size=50),
        st.integers().map(str),
        st.floats().map(str),
    ),
)
def test_no_value_of_a_setting_is_a_fault(api: Api, key: str, value: str) -> None:
    with contextlib.suppress(UnicodeEncodeError):
        value.encode()
        path = "/connector-plugins/helenus.CassandraSource/config/validate"
        status, answer = api.ask("PUT", path, {**CONFIG, "name": "f2", key: value})
        assert status in (200, 400, 500), answer
        assert status == 200 or key == "connector.class", answer


def test_levels_and_names_are_bounded(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("x" * 5000, "a b", "%00", "é" * 200):
        assert api.ask("PUT", f"/admin/loggers/{name}", {"level": "INFO"})[0] == 400
        assert api.ask("GET", f"/admin/loggers/{name}")[0] == 404
    there = len(api.ask("GET", "/admin/loggers")[1])
    assert there < _plugins._LOGGERS
    monkeypatch.setattr(_plugins, "_LOGGERS", there + 3)
    for number in range(5):
        status, _ = api.ask("PUT", f"/admin/loggers/made.up.{number}", {"level": "INFO"})
    assert status == 400
    assert api.ask("PUT", "/admin/loggers/helenus_connector", {"level": "INFO"})[0] == 200
    assert len(api.ask("GET", "/admin/loggers")[1]) <= there + 4
    assert api.ask("PUT", "/admin/loggers/root", {"level": "INFO"})[0] == 200
    for name in ("n" * 300, "n" * 10_000):
        status, answer = api.ask("POST", "/connectors", {"name": name, "config": CONFIG})
        assert (status, "255" in answer["message"]) == (400, True)
    deep: Any = {}
    for _ in range(100):
        deep = {"a": deep}
    assert api.ask("PUT", "/connectors/f1/config", deep)[0] == 400


def test_the_login_of_a_command_follows_no_redirect() -> None:
    with recording() as (other, logins), redirecting(other) as port:
        with pytest.raises(HelenusError):
            WorkerClient(f"http://127.0.0.1:{port}", "me:s3cret").get("/metrics")
        with pytest.raises(HelenusError):
            WorkerClient(other, "me:s3cret").get("/metrics")
    assert (logins[0], len(logins), logins[1] is None) == (None, 2, False)


def test_the_login_of_a_command_goes_to_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """As curl, urllib would send a request for 127.0.0.1 to the proxy that the environment names."""
    monkeypatch.delenv("no_proxy", raising=False)
    with recording() as (other, logins):
        monkeypatch.setenv("http_proxy", other)
        with pytest.raises(HelenusError):
            WorkerClient("http://127.0.0.1:1", "me:s3cret").get("/metrics")
    assert logins == []
