"""What a client of the listener may ask of it, whoever it is: sizes, times, and numbers that every JSON parser takes.

The bounds of connections are those of `BoundedListener`.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import h11
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from helenus_schemas.service.connections import HEAD_BYTES, BoundedListener
from helenus_schemas.service.monitoring import HEADERS

_BODY_BYTES = 1 << 20
_HEADERS = 100  # as http.server, and most others
_DEPTH = 16  # the deepest body there is has four levels
_DIGITS = 1000  # a varint in a key may have more than an int of 64 bits; Python's own limit is 4,300
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Protocol(H11Protocol):
    """Answers what is no HTTP, and closes. uvicorn writes a line of log each time, and more when an answer is already
    on its way.
    """

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error_code": 400, "message": msg}).encode()
            headers = {
                "Content-Type": "application/json",
                "Content-Length": str(len(body)),
                "Connection": "close",
                **HEADERS,
            }
            answer = h11.Response(status_code=400, headers=list(headers.items()), reason=b"Bad Request")
            for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """A client that would rather have a WebSocket is answered as all others: no reason for three lines of log."""


class RequestLimits:
    """Tells the listener how far a request is, so that the time for it is bounded; refuses long heads."""

    def __init__(self, app: ASGIApp, listener: BoundedListener) -> None:
        self._app = app
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        address = tuple(scope["client"] or ("", 0))  # uvicorn knows none of a client that has gone already

        async def receive_part() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body"):
                self._listener.work_on(address)
            return message

        async def send_part(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._listener.begin_answer(address)
            await send(message)

        headers = scope["headers"]
        length = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(n) + len(v) for n, v in headers)
        app = self._app
        if length > HEAD_BYTES or len(headers) > _HEADERS:
            problem = (
                f"the request line and the headers may have {HEAD_BYTES} bytes, and there may be {_HEADERS} headers"
            )
            app = JSONResponse({"error_code": 431, "message": problem}, 431, {"Connection": "close"})
        try:
            await app(scope, receive_part, send_part)
        finally:
            self._listener.end_answer(address)


async def read_body(request: Request) -> bytes:
    """Return the body. Raises HTTPException 413 for a long one."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _BODY_BYTES:
            raise HTTPException(413)
    return bytes(body)


async def read_json(request: Request) -> Any:
    """Return the body as JSON; None if there is none. Raises HTTPException: 413 for a long one, 415 for another type,
    500 for what is no JSON, as Kafka Connect, and 400 for JSON that is beyond what others could read again.
    """
    body = await read_body(request)
    if not body:
        return None
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415)
    return parse_json(body)


def parse_json(body: bytes) -> Any:
    """Return a body as JSON. Raises HTTPException, see `read_json`."""
    try:
        parsed = json.loads(
            body.decode("utf-8-sig"), parse_int=_integer, parse_float=_fraction, parse_constant=_fraction
        )
        if _SURROGATE.search(body):
            json.dumps(parsed, ensure_ascii=False).encode()
    except UnicodeError:
        raise HTTPException(400, "the body has text that is no Unicode: half of a pair, or not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise HTTPException(500, f"the body is no JSON: {error}") from None
    if _is_deeper(parsed, _DEPTH):
        raise HTTPException(400, f"the body has more than {_DEPTH} levels")
    return parsed


def _is_deeper(parsed: Any, levels: int) -> bool:
    """Return whether lists and objects are nested deeper than this. json.loads itself ends at some thousand levels."""
    layer = [parsed]
    for _ in range(levels):
        layer = [
            inner
            for outer in layer
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return any(isinstance(inner, (dict, list)) for inner in layer)


def _integer(text: str) -> int:
    if len(text) > _DIGITS:
        raise HTTPException(400, f"the body has a number of {len(text)} digits: {_DIGITS} are the most")
    return int(text)


def _fraction(text: str) -> float:
    number = float(text) if len(text) <= _DIGITS else math.inf
    if not math.isfinite(number):
        raise HTTPException(400, f"the body has a number that is none: {text[:20]}")
    return number
