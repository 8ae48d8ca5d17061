"""A request to the worker that leads a group, and its answer.

The leader's address comes from a topic, and its answer from the network. Neither is trusted: addresses are checked, and
an answer is bounded in size and time.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead

from starlette import exceptions
from starlette.requests import Request
from starlette.responses import Response

from helenus_schemas.service.monitoring import HEADERS
from helenus_schemas.settings.fields import listener_address

MARK = "helenus-forwarded"
"""Header of a request that a member of the group has forwarded. The leader does not look at it."""
CONNECT_S = 5.0  # to each of the host's addresses: workers of one group are near each other
ANSWER_S = 90.0  # as Kafka Connect's workers wait
_MAX_ANSWER_BYTES = 16 << 20  # as of a registry: a thousand connectors have some megabytes
_MAX_URL = 300  # characters: a host has at most 253
_PART = 64 << 10

_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade".split()
)
_KEPT_BACK = _HOP_BY_HOP | frozenset(b"host content-length expect origin referer cookie helenus-forwarded".split())
"""Headers of a request that the leader does not get. Those of browsers have been checked here, against this listener's
address; their cookies are of other services on this host."""
_BROWSER = b"sec-fetch-"
_OWN = _HOP_BY_HOP | {b"content-length", b"date"} | {name.lower().encode() for name in HEADERS}
"""Headers of an answer that this listener writes itself."""
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE = re.compile(rb"[\t -~\x80-\xff]*")

REACHABLE = "set listeners and rest.advertised.host.name of that worker to an address that this one reaches"
MAY_BE_DONE = "it may have done what was requested: look before you repeat it"
_CERTIFICATE = "give this worker a certificate that the other one's listeners.https.ssl.cafile signed, for clients too"

_Header = tuple[bytes, bytes]


@dataclass(frozen=True)
class LeaderAddress:
    """The address of a leader's listener, checked."""

    secure: bool
    host: str
    port: int

    @classmethod
    def from_url(cls, url: str) -> LeaderAddress | None:
        """Return the address in `http://host:port` or `https://host:port`; None if it is neither."""
        parts = listener_address(url) if len(url) <= _MAX_URL and url.isascii() and url.isprintable() else None
        if parts is None or not parts[2]:
            return None
        scheme, host, port = parts
        return cls(scheme == "https", host, port)

    @property
    def host_and_port(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.host_and_port}"


@dataclass(frozen=True)
class ForwardedRequest:
    """A client's request, with the headers that the leader gets. `base` is the address that the client used."""

    method: str
    target: str
    headers: list[_Header]
    body: bytes
    base: bytes

    @classmethod
    def from_request(cls, request: Request, body: bytes) -> ForwardedRequest:
        scope = request.scope
        # As it was sent: a connector's name may have a slash, as %2F.
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        hidden = _KEPT_BACK | _named_in_connection(scope["headers"])
        headers = [
            (name, value) for name, value in scope["headers"] if name not in hidden and not name.startswith(_BROWSER)
        ]
        return cls(request.method, target.decode("ascii"), headers, body, str(request.base_url).rstrip("/").encode())


class LeaderExchange:
    """One request and its answer, over a connection of its own. A thread runs it, and any other may abort it."""

    def __init__(self, request: ForwardedRequest) -> None:
        self.leader = "the leader"
        """Its name in messages, with its address when that is known."""
        self._request = request
        self._socket: socket.socket | None = None
        self._is_aborted = False

    def abort(self) -> None:
        """End the connection, so that the thread that waits for the leader ends too."""
        self._is_aborted = True
        if self._socket is not None:
            with suppress(OSError):  # it has ended
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def run(self, address: LeaderAddress, tls: ssl.SSLContext | None) -> Response:
        """Send the request, and return the answer. Raises HTTPException, see `LeaderForwarder.forward`."""
        self.leader = f"the leader {address}"
        try:
            # 1. connect
            try:
                self._connect(address, tls)
            except (OSError, ValueError) as error:
                problem = f"{self.leader} does not answer: {_reason(error)}: {_advice(error)}"
                raise exceptions.HTTPException(503, problem) from None
            # 2. send, and read the answer
            try:
                return self._exchange(address)
            except (OSError, IncompleteRead) as error:
                # asyncio ends a connection whose certificate it refuses, and mostly does not say why.
                is_refused = tls is not None and isinstance(error, (ssl.SSLError, ConnectionError))
                advice = f"{MAY_BE_DONE}. If that stays so, {_CERTIFICATE}" if is_refused else MAY_BE_DONE
                problem = f"{self.leader} does not answer: {_reason(error)}: {advice}"
                raise exceptions.HTTPException(503, problem) from None
            except (HTTPException, ValueError):
                problem = f"{self.leader} sent what is no answer of a worker: {REACHABLE}"
                raise exceptions.HTTPException(502, problem) from None
        finally:
            if self._socket is not None:
                self._socket.close()

    def _connect(self, address: LeaderAddress, tls: ssl.SSLContext | None) -> None:
        self._socket = socket.create_connection((address.host, address.port), CONNECT_S)
        if tls is not None:
            # It can be aborted during the handshake too, which lasts as long as each part of it comes in time.
            secured = tls.wrap_socket(self._socket, server_hostname=address.host, do_handshake_on_connect=False)
            self._socket = secured
            secured.do_handshake()
        self._socket.settimeout(ANSWER_S)
        if self._is_aborted:
            raise ConnectionAbortedError("aborted")

    def _exchange(self, address: LeaderAddress) -> Response:
        request = self._request
        connection = HTTPConnection(address.host, address.port)
        connection.sock = self._socket
        connection.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
        headers = [(b"host", address.host_and_port.encode()), (b"connection", b"close"), (MARK.encode(), b"true")]
        if request.body or request.method in ("POST", "PUT", "PATCH"):
            headers.append((b"content-length", str(len(request.body)).encode()))
        for name, value in (*headers, *request.headers):
            connection.putheader(name.decode("ascii"), value)
        with suppress(ConnectionError):  # a leader that refuses a request may answer before it has read the body
            connection.endheaders(request.body or None)
        with connection.getresponse() as response:
            if not 200 <= response.status < 600:
                raise ValueError("no status of an answer")
            return self._answer(response, address)

    def _answer(self, response: HTTPResponse, address: LeaderAddress) -> Response:
        headers = [
            (name.lower().encode("latin-1"), value.strip().encode("latin-1")) for name, value in response.getheaders()
        ]
        hidden = _OWN | _named_in_connection(headers)
        body = _read_answer(response, self.leader)
        answer = Response(body, response.status)
        answer.raw_headers = [
            (name, self._own_location(value, address) if name == b"location" else value)
            for name, value in headers
            if name not in hidden and _TOKEN.fullmatch(name) and _VALUE.fullmatch(value)
        ]
        length = response.headers.get("Content-Length", "") if self._request.method == "HEAD" else str(len(body))
        if re.fullmatch(r"\d{1,9}", length, re.ASCII) and response.status not in (204, 304):
            answer.raw_headers.append((b"content-length", length.encode()))
        return answer

    def _own_location(self, value: bytes, address: LeaderAddress) -> bytes:
        """Return the URL of what was created with the address that the client used, as from this worker itself."""
        own = re.match(rb"https?://" + re.escape(address.host_and_port.encode()) + rb"(?=/)", value, re.IGNORECASE)
        return self._request.base + value[own.end() :] if own else value


def _read_answer(response: HTTPResponse, leader: str) -> bytes:
    """Return the body. Raises IncompleteRead, TimeoutError, and HTTPException 502 if it is too large."""
    body = bytearray()
    deadline = time.monotonic() + ANSWER_S
    # In chunks whose sizes are the leader's, only read1 reads no more than it was told to.
    read = response.read1 if response.chunked else response.read
    while part := read(_PART):
        body += part
        if len(body) > _MAX_ANSWER_BYTES:
            problem = f"{leader} answers with more than {_MAX_ANSWER_BYTES >> 20} MiB: ask for less at once"
            raise exceptions.HTTPException(502, problem)
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    if response.length:
        raise IncompleteRead(bytes(body), response.length)
    return bytes(body)


def _named_in_connection(headers: Iterable[_Header]) -> set[bytes]:
    """Return the headers that `Connection` names: they are for the next hop alone."""
    names = [value.lower().split(b",") for name, value in headers if name == b"connection"]
    return {name.strip() for group in names for name in group}


def _reason(error: Exception) -> str:
    """Return why a server is not reached, in few words of this machine's libraries, none of the server's."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no TLS").replace("_", " ").lower()
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, IncompleteRead):
        return "its answer ends too early"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "its host is no name"


def _advice(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "set listeners.https.ssl.cafile, and give it a certificate with the name in its address"
    return REACHABLE
