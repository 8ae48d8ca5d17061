"""Asks a running worker over its REST API: what `top`, `snapshot` and other commands do."""

from __future__ import annotations

import base64
import json
import re
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from helenus_schemas.errors import HelenusError, Kind

_TIMEOUT_S = 10.0
_NO_RESOURCE = (404, 405)  # of a worker for a name it does not know, the first, with its own words


class _Refused(HelenusError):
    """A worker's own words: they have the advice, where there is one."""

    def __str__(self) -> str:
        return self.what


@dataclass(frozen=True)
class WorkerClient:
    """How to reach a worker's listener. `login` is user:password; the address has none. Raises HelenusError."""

    url: str
    login: str | None = None
    cafile: Path | None = None
    certfile: Path | None = None
    keyfile: Path | None = None

    def __post_init__(self) -> None:
        if "@" in self.url:
            address = self.url.rpartition("@")[2]
            raise HelenusError(Kind.CONFIG, "--url has a login", address, "give it with --user")
        if not re.fullmatch(r"https?://([\w.-]+|\[[\da-fA-F:.]+\])(:\d{1,5})?(/.*)?", self.url, re.ASCII):
            advice = "give it as http://host:port or https://host:port"
            raise HelenusError(Kind.CONFIG, "--url is no address of a worker", self.url, advice)

    def get(self, path: str) -> str:
        """Return the body of an answer. Raises HelenusError WORKER_UNREACHABLE."""
        status, body = self._answer("GET", path, None)
        if status in _NO_RESOURCE:
            raise self._no_worker(path)
        if status >= 300:
            raise HelenusError(Kind.WORKER_UNREACHABLE, f"the worker answered {status}", self._address(path))
        return body

    def ask(
        self, method: str, path: str, body: Any = None, *, has: str, timeout: float = _TIMEOUT_S
    ) -> list[dict[str, Any]]:
        """Return the objects in the field `has` of an answer's JSON; `timeout` is in s. Raises HelenusError
        WORKER_UNREACHABLE, and CONFIG with the worker's own words for what it refuses.
        """
        status, text = self._answer(method, path, None if body is None else json.dumps(body).encode(), timeout)
        try:
            answer = json.loads(text)
        except ValueError:
            raise self._no_worker(path) from None
        if status >= 300:
            message = answer.get("message") if isinstance(answer, dict) else None
            kind = Kind.CONFIG if 400 <= status < 500 else Kind.WORKER_UNREACHABLE
            if status in _NO_RESOURCE and (message is None or re.fullmatch(rf"HTTP {status} [A-Za-z ]+", str(message))):
                raise self._no_worker(path)
            if message and re.fullmatch("Connector .* not found", str(message)):
                raise HelenusError(kind, str(message), self.url, "helenus-connector top shows the names")
            if message:
                raise _Refused(kind, str(message))
            raise HelenusError(kind, f"the worker answered {status}", self._address(path))
        objects = answer.get(has) if isinstance(answer, dict) else None
        if not isinstance(objects, list) or not all(isinstance(element, dict) for element in objects):
            raise self._no_worker(path)
        return objects

    def _answer(self, method: str, path: str, body: bytes | None, timeout: float = _TIMEOUT_S) -> tuple[int, str]:
        try:
            request = urllib.request.Request(self._address(path), body, method=method)
            if body is not None:
                request.add_header("Content-Type", "application/json")
            if self.login is not None:
                # For this address alone: no redirect takes it along.
                login = base64.b64encode(self.login.encode()).decode()
                request.add_unredirected_header("Authorization", f"Basic {login}")
            with self._opener().open(request, timeout=timeout) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode(errors="replace")
        except urllib.error.URLError as error:
            problem = f"no worker answers: {getattr(error.reason, 'strerror', None) or error.reason}"
        except (OSError, ValueError, HTTPException) as error:
            problem = f"no worker answers: {error}"
        raise HelenusError(Kind.WORKER_UNREACHABLE, problem, self._address(path))

    def _no_worker(self, path: str) -> HelenusError:
        problem = "that is no worker of Helenus"
        return HelenusError(Kind.WORKER_UNREACHABLE, problem, self._address(path))

    def _address(self, path: str) -> str:
        return self.url.rstrip("/") + path

    def _opener(self) -> urllib.request.OpenerDirector:
        # A worker is never behind the proxy that the environment may name: that would get the login.
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if self.url.startswith("https:"):
            handlers.append(urllib.request.HTTPSHandler(context=self._tls()))
        return urllib.request.build_opener(*handlers)

    def _tls(self) -> ssl.SSLContext:
        file = self.cafile
        try:
            context = ssl.create_default_context(cafile=self.cafile)
            if self.certfile is not None:
                file = self.certfile
                context.load_cert_chain(self.certfile, self.keyfile)
        except ssl.SSLError as error:
            problem = f"a certificate or key can't be read: {(error.reason or 'not PEM').replace('_', ' ')}"
            advice = "name PEM files with --cafile, --certfile and --keyfile"
            raise HelenusError(Kind.CONFIG, problem, str(file), advice) from None
        return context
