"""Pulsar's admin REST API, as far as topics need it: to create one, and to set its retention."""

from __future__ import annotations

import contextlib
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from html.parser import HTMLParser
from http.client import HTTPException
from typing import Any

from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.pulsar.connection import Access
from helenus_sinks.pulsar.errors import advice, pulsar_error

_TIMEOUT_S = 30.0
_CONFLICT = 409
_OWNED_BY_ANOTHER = 307
_COMPACT_BYTES = 100 * 1024 * 1024
_SUPPORTED_CONFIG = ("retention.ms", "cleanup.policy")


class Admin:
    """Asks the API at `url`. Every method raises HelenusError: BROKER_UNREACHABLE, or BROKER_REFUSED with a reason."""

    def __init__(self, url: str, access: Access) -> None:
        self._url = url.rstrip("/")
        self._token = access.token
        # A broker is never behind the proxy that the environment may name.
        handlers: list[Any] = [urllib.request.ProxyHandler({}), _OwnerRedirects()]
        if self._url.startswith("https:"):
            handlers.append(urllib.request.HTTPSHandler(context=access.context()))
        self._opener = urllib.request.build_opener(*handlers)

    def create(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create the topic `tenant/namespace/name`, if it is missing. `config` has Kafka's keys."""
        if unknown := [key for key in config if key not in _SUPPORTED_CONFIG]:
            message = f"Pulsar's topics know {' and '.join(_SUPPORTED_CONFIG)}, not {', '.join(unknown)}"
            raise HelenusError(Kind.CONFIG, message, f"topic {topic}")
        try:
            self.ask("PUT", f"persistent/{topic}/partitions", partitions)
        except Refused as error:
            if error.status != _CONFLICT:  # somebody else created it
                raise
        if config.get("cleanup.policy") == "delete":
            # Any schema may follow: the table may be recreated with another key, and events are not read as one table.
            with contextlib.suppress(Refused):  # then the namespace's strategy applies
                self.ask("PUT", f"persistent/{topic}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
        self.retain(topic, config)

    def retain(self, topic: str, config: Mapping[str, str]) -> None:
        """Set a topic's retention, if neither it nor its namespace has one. A compacted topic keeps everything.

        Without retention Pulsar deletes messages that no subscription waits for.
        """
        reply = self.ask("GET", f"persistent/{topic}/retention?applied=true")
        if reply and reply.get("retentionTimeInMinutes"):
            return
        compacts = config.get("cleanup.policy") == "compact"
        retention_ms = -1 if compacts else int(config.get("retention.ms", "-1"))
        minutes = -1 if retention_ms < 0 else max(1, retention_ms // 60_000)
        if compacts:
            self.ask("POST", f"persistent/{topic}/compactionThreshold", _COMPACT_BYTES)
        retention = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": -1}
        self.ask("POST", f"persistent/{topic}/retention", retention)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request; return the answer's JSON, None if it has none."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        data = json.dumps(body).encode() if body is not None else None
        try:
            request = urllib.request.Request(f"{self._url}/admin/v2/{path}", data, headers, method=method)
            if self._token:  # it is for this address alone: no redirect takes it along
                request.add_unredirected_header("Authorization", f"Bearer {self._token}")
            try:
                with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                    text = answer.read()
            except urllib.error.HTTPError as error:
                with error:
                    refusal = _reason(error.read().decode(errors="replace"))
                    if self._token and error.code in (401, 403) and not error.url.startswith(self._url):
                        redirected_to = error.url.partition("/admin/")[0]
                        refusal += f"; it redirects to {redirected_to}, which is sent no login: name that, or a proxy"
                    raise Refused(error.code, refusal, self._url, path) from None
            return json.loads(text) if text else None
        # urllib raises OSError; the others come from malformed addresses and answers.
        except (OSError, ValueError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
                reason = "the answer is not JSON; does pulsar.admin.url name a broker, or a proxy?"
            refused = isinstance(reason, ssl.SSLCertVerificationError)
            kind = Kind.BROKER_REFUSED if refused else Kind.BROKER_UNREACHABLE
            raise pulsar_error(kind, f"Pulsar's admin API: {reason}", self._url) from None


class _OwnerRedirects(urllib.request.HTTPRedirectHandler):
    """Sends a request on to the broker that has its topic. urllib itself does so with GET alone."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if code != _OWNED_BY_ANOTHER or req.get_method() == "GET":
            return super().redirect_request(req, fp, code, msg, headers, newurl)
        # Without what was added for the first address alone: the login.
        return urllib.request.Request(newurl, req.data, req.headers, req.origin_req_host, True, req.get_method())


class Refused(HelenusError):
    """An error answer, with its HTTP status."""

    def __init__(self, status: int, reason: str, url: str = "", path: str = "") -> None:
        kind = Kind.BROKER_UNREACHABLE if status >= 500 else Kind.BROKER_REFUSED
        message = f"Pulsar's admin API: {reason or 'no reason given'} ({status})"
        super().__init__(kind, message, f"{url}, {path}", advice(kind))
        self.status = status

    def __reduce__(self) -> tuple[type[HelenusError], tuple[Kind, str, str, str]]:
        return (HelenusError, (self.kind, self.what, self.where, self.advice))


def _reason(text: str) -> str:
    """Return the reason in an error's body, which is JSON or a page of HTML."""
    try:
        return str(json.loads(text)["reason"])
    except (ValueError, KeyError, TypeError):
        page = _Text()
        page.feed(text)
        return " ".join(page.words)[:300]


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def handle_data(self, data: str) -> None:
        self.words += data.split()
