"""A small HTTP listener for Prometheus and health checks: `/metrics`, `/health/live`, `/health/ready`.

`/health` is the same as `/health/ready`; `/` is a page for browsers, where there is one. Each connection is for one
request. One thread serves them all, with two more for what takes time, however many clients there are.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus

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
class _Answer:
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


class HttpListener:
    """Serves in a daemon thread until `shutdown`. `names` are those that `Host` may have, None for any."""

    def __init__(self, listening: BoundedListener, ready: Ready, page: HtmlPage | None, names: Collection[str] | None):
        self.port: int = listening.getsockname()[1]
        self._listening = listening
        self._ready = ready
        self._page = page
        self._names = names
        self._pool = ThreadPoolExecutor(_THREADS, "monitoring")
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
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._loop.close()

    async def _serve(self) -> None:
        tasks: set[asyncio.Task[None]] = set()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._converse(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(
            connected, sock=self._listening, limit=connections.HEAD_BYTES, backlog=connections.BACKLOG
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
            self._listening.work_on(address)
            answer = await self._answer(head) if head else _Answer(431, b"too large\n")
            self._listening.begin_answer(address)
            writer.write(answer.encode(not head.startswith(b"HEAD ")))
            await writer.drain()
        except OSError:
            pass  # the client has gone
        finally:
            writer.close()

    async def _answer(self, head: bytes) -> _Answer:
        line, _, headers = head.decode("latin-1").partition("\r\n")
        request = _REQUEST_LINE.fullmatch(line)
        hosts = _HOST.findall(headers)
        if request is None or len(hosts) > 1:
            return _Answer(400, b"bad request\n")
        if self._names is not None and hosts and not is_own_name(hosts[0], self._names):
            return _Answer(403, b"this listener answers to localhost, 127.0.0.1 and [::1] alone\n")
        method, path = request.groups()
        if method not in ("GET", "HEAD"):
            return _Answer(405, b"method not allowed\n", headers={"Allow": "GET, HEAD"})
        if path == "/health/live":
            return _Answer(200, b"live\n")
        if path == "/" and self._page is not None:
            return _Answer(200, self._page.body, "text/html; charset=utf-8", self._page.headers)
        slow = {"/metrics": self._metrics, "/health": self._health, "/health/ready": self._health}.get(path)
        if slow is None:
            return _Answer(404, b"not found\n")
        try:
            return await self._loop.run_in_executor(self._pool, slow)
        except Exception as error:
            return _Answer(500, f"{type(error).__name__}: {error}\n".encode())

    @staticmethod
    def _metrics() -> _Answer:
        return _Answer(200, generate_latest(), CONTENT_TYPE_LATEST)

    def _health(self) -> _Answer:
        reason = self._ready()
        return _Answer(200 if reason is None else 503, f"{reason or 'ready'}\n".encode())


def serve(host: str, port: int, ready: Ready, page: HtmlPage | None = None) -> HttpListener:
    """Listen in a daemon thread; `port` 0 takes a free one (see `HttpListener.port`). Raises HelenusError CONFIG if it
    cannot listen there; its cause is the OSError.
    """
    try:
        listening = connections.listen(host, port)
    except OSError as error:
        raise HelenusError(Kind.CONFIG, f"cannot listen: {error.strerror}", f"{host}:{port}") from error
    return HttpListener(listening, ready, page, {host.lower()} if is_loopback(host) else None)
