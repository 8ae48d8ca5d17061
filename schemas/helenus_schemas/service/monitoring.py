"""A small HTTP listener for Prometheus and health checks: `/metrics`, `/health/live`, `/health/ready`.

`/health` is the same as `/health/ready`; `/` is a page for browsers, where there is one, and below `/api/` is what an
`HttpApi` answers. Each connection is for one request. One thread serves them all, with two more for what takes time,
and two for the API, however many clients there are.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import ipaddress
import json
import re
import ssl
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, disable_created_metrics, generate_latest

from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import connections
from helenus_schemas.service.connections import BoundedListener
from helenus_schemas.service.page import HtmlPage

disable_created_metrics()  # type: ignore[no-untyped-call]

Ready = Callable[[], "str | None"]
"""Returns None when ready, else a sentence that says why not."""

HEADERS: Mapping[str, str] = {"X-Content-Type-Options": "nosniff"}
"""Of every answer: no browser may take one for anything but what it says that it is."""
_TEXT = "text/plain; charset=utf-8"
_THREADS = 2
_API_CALLS = 8  # that run or wait for a thread: with more, a server that is slow would take all connections
_API = "/api/"
_SAFE = ("GET", "HEAD")
_BODY_BYTES = 256 << 10  # of a configuration: some hundred times what one has
_DISCARDED_BYTES = 4 << 20  # of a body that is not wanted
_LINGER_S = 1.0
_LENGTH_DIGITS = 12
_REQUEST_LINE = re.compile(r"([A-Z]{1,20}) (/[!-~]*) HTTP/1\.[01]")
_HOST = re.compile(r"(?im)^host[ \t]*:[ \t]*(.*?)[ \t]*\r?$")


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_own_name(host: str, names: Collection[str]) -> bool:
    """Return whether a request's `Host` is that of a listener on loopback, which has these names too.

    Any other name may be that of a page on the web that resolves to 127.0.0.1. Any port will do: there may be a tunnel.
    """
    name = re.sub(r":\d*$", "", host).strip("[]").rstrip(".").lower()
    return is_loopback(name) or name in names


@dataclass(frozen=True)
class HttpRequest:
    """A request below `/api/`: its headers by names in small letters, its body, empty if it has none, and the address
    that it came from.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""
    client: str = ""


@dataclass(frozen=True)
class HttpAnswer:
    """What is answered; `kind` is its content type."""

    status: int
    body: bytes
    kind: str = _TEXT
    headers: Mapping[str, str] = field(default_factory=dict)

    def encode(self, has_body: bool = True) -> bytes:
        """Return it as bytes of HTTP/1.1."""
        headers = {
            "Date": formatdate(usegmt=True),
            "Content-Type": self.kind,
            "Content-Length": str(len(self.body)),
            "Connection": "close",
            **HEADERS,
            **self.headers,
        }
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode() + (self.body if has_body else b"")


HttpApi = Callable[[HttpRequest], HttpAnswer]
"""Answers requests below `/api/`, in a thread of its own."""


def json_answer(status: int, content: object) -> HttpAnswer:
    """Return an answer in JSON."""
    return HttpAnswer(status, json.dumps(content).encode(), "application/json")


def error_answer(status: int, message: str) -> HttpAnswer:
    """Return an error in JSON, in the form that Cassandra's Sidecar has for it."""
    return json_answer(status, {"status": HTTPStatus(status).phrase, "code": status, "message": message})


@dataclass(frozen=True)
class HttpAccess:
    """Who may use a listener. `login` is `user:password`, None for none; `tls` the TLS settings of an https listener.

    `read_only` says why nobody may change anything over the API, empty if it may be changed.
    """

    login: str | None = None
    tls: ssl.SSLContext | None = None
    read_only: str = ""

    def is_authenticated(self, headers: Mapping[str, str]) -> bool:
        """Return whether a request has the login, if one is needed."""
        if self.login is None:
            return True
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        expected = base64.b64encode(self.login.encode())
        return scheme.lower() == "basic" and hmac.compare_digest(credentials.strip().encode("latin-1"), expected)

    def refusal(self, headers: Mapping[str, str]) -> str:
        """Return why a request with these headers may not change anything, empty if it may."""
        own = f"{'https' if self.tls else 'http'}://{headers.get('host', '')}"
        site, origin = headers.get("sec-fetch-site"), headers.get("origin", own)
        is_foreign = origin.lower() != own.lower() if site is None else site not in ("same-origin", "none")
        if is_foreign:
            return "a page of another origin may not change anything here: use the agent's own address, or no browser"
        return self.read_only


class HttpListener:
    """Serves in a daemon thread until `shutdown`. `names` are those that `Host` may have, None for any."""

    def __init__(
        self,
        listening: BoundedListener,
        ready: Ready,
        page: HtmlPage | None,
        names: Collection[str] | None,
        access: HttpAccess,
        api: HttpApi | None,
    ):
        self.port: int = listening.getsockname()[1]
        self._listening = listening
        self._ready = ready
        self._page = page
        self._names = names
        self._access = access
        self._api = api
        self._pool = ThreadPoolExecutor(_THREADS, "monitoring")
        self._api_pool = ThreadPoolExecutor(_THREADS, "api")  # it waits for servers, and health checks do not
        self._api_calls = 0
        self._loop = asyncio.new_event_loop()
        self._ending = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="monitoring", daemon=True)
        self._thread.start()

    def shutdown(self) -> None:
        """Stop listening, and drop the connections there are."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(5)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            for pool in (self._pool, self._api_pool):
                pool.shutdown(wait=False, cancel_futures=True)
            self._loop.close()

    async def _serve(self) -> None:
        tasks: set[asyncio.Task[None]] = set()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._converse(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        self._loop.set_exception_handler(_ignore_broken_handshake)
        server = await asyncio.start_server(
            connected,
            sock=self._listening,
            limit=connections.HEAD_BYTES,
            backlog=connections.BACKLOG,
            ssl=self._access.tls,
        )
        await self._ending.wait()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and close. Whoever sends no whole one is ended by the listener's deadline."""
        address: connections.Address = writer.get_extra_info("peername")[:2]
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            head = b""
        except (asyncio.IncompleteReadError, OSError):
            writer.close()
            return
        try:
            answer = await self._answer(head, reader, address) if head else HttpAnswer(431, b"too large\n")
            self._listening.begin_answer(address)
            writer.write(answer.encode(not head.startswith(b"HEAD ")))
            await writer.drain()
            if answer.status >= 400 and not head.startswith((b"GET ", b"HEAD ")):
                # A client that still sends its body when the connection is reset may not see the answer.
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(_discard(reader), _LINGER_S)
        except (asyncio.IncompleteReadError, OSError):
            pass  # the client has gone
        finally:
            writer.close()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, address: connections.Address) -> HttpAnswer:
        line, _, lines = head.decode("latin-1").partition("\r\n")
        match = _REQUEST_LINE.fullmatch(line)
        hosts = _HOST.findall(lines)
        if match is None or len(hosts) > 1:
            return HttpAnswer(400, b"bad request\n")
        if self._names is not None and hosts and not is_own_name(hosts[0], self._names):
            return HttpAnswer(403, b"this listener answers to localhost, 127.0.0.1 and [::1] alone\n")
        method, path = match.groups()
        headers = {name.strip().lower(): value.strip() for name, _, value in map(_split_header, lines.split("\r\n"))}
        if path != "/health/live" and not self._access.is_authenticated(headers):
            advice = b"give the user and the password of rest.basic.auth.user.info\n"
            return HttpAnswer(401, advice, headers={"WWW-Authenticate": 'Basic realm="helenus"'})
        if self._api is not None and path.startswith(_API):
            request = HttpRequest(method, path, headers, client=address[0])
            return await self._call_api(self._api, request, reader, address)
        self._listening.work_on(address)
        if method not in _SAFE:
            return HttpAnswer(405, b"method not allowed\n", headers={"Allow": "GET, HEAD"})
        if path == "/health/live":
            return HttpAnswer(200, b"live\n")
        if path == "/" and self._page is not None:
            return HttpAnswer(200, self._page.body, "text/html; charset=utf-8", self._page.headers)
        slow = {"/metrics": self._metrics, "/health": self._health, "/health/ready": self._health}.get(path)
        if slow is None:
            return HttpAnswer(404, b"not found\n")
        try:
            return await self._loop.run_in_executor(self._pool, slow)
        except Exception as error:
            return HttpAnswer(500, f"{type(error).__name__}: {error}\n".encode())

    async def _call_api(
        self, api: HttpApi, request: HttpRequest, reader: asyncio.StreamReader, address: connections.Address
    ) -> HttpAnswer:
        """Read the body of a request that may change something, and have it answered."""
        if request.method not in _SAFE and (refusal := self._access.refusal(request.headers)):
            return error_answer(403, refusal)
        length = request.headers.get("content-length", "0")
        if "transfer-encoding" in request.headers:
            return error_answer(411, "send the body with its Content-Length")
        if not (length.isascii() and length.isdigit() and len(length) < _LENGTH_DIGITS):
            return error_answer(400, "Content-Length is no length")
        if int(length) > _BODY_BYTES:
            return error_answer(413, f"the body may have {_BODY_BYTES} bytes")
        request = replace(request, body=await reader.readexactly(int(length)))
        self._listening.work_on(address)
        if self._api_calls >= _API_CALLS:
            return error_answer(503, f"{_API_CALLS} calls wait already: repeat it later")
        self._api_calls += 1
        try:
            return await self._loop.run_in_executor(self._api_pool, api, request)
        except Exception as error:
            return error_answer(500, f"{type(error).__name__}: {error}")
        finally:
            self._api_calls -= 1

    @staticmethod
    def _metrics() -> HttpAnswer:
        return HttpAnswer(200, generate_latest(), CONTENT_TYPE_LATEST)

    def _health(self) -> HttpAnswer:
        reason = self._ready()
        return HttpAnswer(200 if reason is None else 503, f"{reason or 'ready'}\n".encode())


async def _discard(reader: asyncio.StreamReader) -> None:
    """Read what a client still sends, until it ends."""
    remaining = _DISCARDED_BYTES
    while remaining > 0 and (piece := await reader.read(connections.HEAD_BYTES)):
        remaining -= len(piece)


def _split_header(line: str) -> tuple[str, str, str]:
    return line.partition(":")


def _ignore_broken_handshake(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what asyncio would, but for a client that speaks no TLS, or has no certificate: there may be thousands."""
    with contextlib.suppress(KeyError):
        if isinstance(context["exception"], OSError):  # as ssl.SSLError is
            return
    loop.default_exception_handler(context)


def serve(
    host: str,
    port: int,
    ready: Ready,
    page: HtmlPage | None = None,
    access: HttpAccess | None = None,
    api: HttpApi | None = None,
) -> HttpListener:
    """Listen in a daemon thread; `port` 0 takes a free one (see `HttpListener.port`). Raises HelenusError CONFIG if it
    cannot listen there; its cause is the OSError.
    """
    try:
        listening = connections.listen(host, port)
    except OSError as error:
        raise HelenusError(Kind.CONFIG, f"cannot listen: {error.strerror}", f"{host}:{port}") from error
    names = {host.lower()} if is_loopback(host) else None
    return HttpListener(listening, ready, page, names, access or HttpAccess(), api)
