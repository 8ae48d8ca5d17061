"""Forwards the requests of a worker that does not lead its group to the one that does, as Kafka Connect's workers do.

Each is forwarded once: two workers that each take the other for the leader would send it to and fro.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property

from anyio import CapacityLimiter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.rest._access import error_response
from helenus_connector.rest._leader_exchange import (
    ANSWER_S,
    CONNECT_S,
    MARK,
    MAY_BE_DONE,
    REACHABLE,
    ForwardedRequest,
    LeaderAddress,
    LeaderExchange,
)
from helenus_connector.rest._limits import read_body
from helenus_connector.rest.listener import leader_tls

_MAX_REQUESTS = 40  # at once, as of other calls: each has a thread
_NO_LEADER = "Cannot complete request momentarily due to no known leader URL, likely because a rebalance was underway."
_ADDRESSES = "set listeners and rest.advertised.host.name of each worker of the group to an address of its own"


class LeaderForwarder:
    """Forwards requests to the URL that `leader` returns, None while no leader is known."""

    def __init__(self, settings: WorkerSettings, leader: Callable[[], str | None]) -> None:
        self._settings = settings
        self._leader = leader
        self._limiter = CapacityLimiter(_MAX_REQUESTS)

    async def forward(self, request: Request) -> Response:
        """Return the leader's answer. Raises HTTPException: 409 if there is no leader to send it to, 503 if it does not
        answer, 502 if its answer is none of a worker.
        """
        if MARK in request.headers:
            problem = "this worker does not lead the group, though another member forwarded the request to it: ask "
            raise HTTPException(409, f"{problem}again in a moment. If that stays so, {_ADDRESSES}")
        body = await read_body(request)
        exchange = LeaderExchange(ForwardedRequest.from_request(request, body))
        try:
            async with self._limiter:
                return await asyncio.wait_for(
                    asyncio.wrap_future(_run_in_thread(lambda: self._send(exchange))), CONNECT_S + ANSWER_S
                )
        except asyncio.TimeoutError:
            raise HTTPException(503, f"{exchange.leader} does not end its answer: {MAY_BE_DONE}") from None
        except asyncio.CancelledError:
            # The listener ends: its client is to know that, and no traceback is to be logged. For an exception
            # Starlette awaits something, which Python 3.13 cancels once more.
            return error_response(503, f"this worker ends before {exchange.leader} answers: {MAY_BE_DONE}")
        finally:
            exchange.abort()

    def _send(self, exchange: LeaderExchange) -> Response:
        url = self._leader()
        if url is None:
            raise HTTPException(409, _NO_LEADER)
        address = LeaderAddress.from_url(url)
        if address is None:  # not shown: whatever is written there may be a password
            raise HTTPException(503, f"the leader's address is no http://host:port: {REACHABLE}")
        if self._settings.secure and not address.secure:
            problem = f"the leader has no TLS, {address}, and this worker has: set listeners of both to https"
            raise HTTPException(503, problem)
        return exchange.run(address, self._tls if address.secure else None)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return leader_tls(self._settings)


def _run_in_thread(function: Callable[[], Response]) -> Future[Response]:
    """Run a function in a thread that the end of the process does not wait for: a name server may never answer."""
    future: Future[Response] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="forward", daemon=True).start()
    return future
