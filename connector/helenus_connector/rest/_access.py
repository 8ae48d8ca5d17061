"""Who may use the API: middleware that refuses pages of other origins, and clients without the login."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from helenus_schemas.service.monitoring import is_own_name
from helenus_schemas.settings import masking

_SAFE = ("GET", "HEAD", "OPTIONS")
_BROWSERS = {b"origin", b"sec-fetch-site"}
"""Headers that a browser sends with each request that changes something."""
OPEN = "/health/live"
"""Answered without a password: it shows nothing, and it is all that is needed to restart a dead process."""


class OwnPages:
    """Refuses requests that a page of another origin makes in an operator's browser.

    `names` are the names of a listener on loopback, next to localhost and addresses: otherwise a page whose host name
    resolves to 127.0.0.1 would pass for the worker's own. None where the listener may have any name. A page changes
    nothing unless it is `writable`: without a login, a page of another name that resolves to the listener could too.
    """

    def __init__(self, app: ASGIApp, names: set[str] | None, writable: bool) -> None:
        self._app = app
        self._names = names
        self._writable = writable

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        if self._names is not None and host and not is_own_name(host, self._names):
            problem = "this listener answers to localhost, 127.0.0.1, [::1] and rest.advertised.host.name alone"
            await error_response(403, f"Host: {masking.shown(host, secret=False)}: {problem}")(scope, receive, send)
        elif scope["method"] not in _SAFE and self._is_foreign(headers, f"{scope['scheme']}://{host}"):
            problem = "a page of another origin may not change connectors: use the worker's own address, or no browser"
            await error_response(403, problem)(scope, receive, send)
        elif scope["method"] not in _SAFE and not self._writable and headers.keys() & _BROWSERS:
            problem = "browsers may only read here: set rest.basic.auth.user.info, or listeners to localhost"
            await error_response(403, problem)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    @staticmethod
    def _is_foreign(headers: Mapping[bytes, str], own: str) -> bool:
        """Return whether a browser says so; other clients say nothing. Some old browsers send `Origin` alone."""
        site = headers.get(b"sec-fetch-site")
        if site is not None:
            return site not in ("same-origin", "none")
        return headers.get(b"origin", own).lower() != own.lower()


class LoginCheck:
    """Asks for the password, if there is one, and leaves paths encoded, so that a name may have a slash in it."""

    def __init__(self, app: ASGIApp, user_info: str | None) -> None:
        self._app = app
        self._login = None if user_info is None else base64.b64encode(user_info.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["raw_path"].decode("ascii").rstrip("/") or "/"
        if self._login is not None and path != OPEN and not self._knows(scope):
            answer = error_response(
                401, "User cannot access the resource.", {"WWW-Authenticate": 'Basic realm="helenus"'}
            )
            await answer(scope, receive, send)
        else:
            await self._app({**scope, "path": path}, receive, send)

    def _knows(self, scope: Scope) -> bool:
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, login = header.partition(b" ")
        return scheme.lower() == b"basic" and hmac.compare_digest(login.strip(), self._login or b"")


def error_response(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error_code": status, "message": message}, status, headers)
