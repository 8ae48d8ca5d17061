"""Pulsar's admin REST API, as far as topics need it: to make one, and to say how long it keeps what it has."""

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
from helenus_sinks.pulsar.session import Access

_TIMEOUT = 30.0
_CONFLICT = 409
_COMPACT_BYTES = 100 * 1024 * 1024
_KNOWN = ("retention.ms", "cleanup.policy")


class Admin:
    """Asks the API at `url`. Every method raises HelenusError: BROKER_UNREACHABLE, or BROKER_REFUSED with its words."""

    def __init__(self, url: str, access: Access) -> None:
        self._url = url.rstrip("/")
        self._token = access.token
        # A broker is never behind the proxy that the environment may name.
        handlers: list[Any] = [urllib.request.ProxyHandler({})]
        if self._url.startswith("https:"):
            handlers.append(urllib.request.HTTPSHandler(context=access.context()))
        self._opener = urllib.request.build_opener(*handlers)

    def create(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        """Make the topic `tenant/namespace/name`, if it is missing, with what `config` says in Kafka's words."""
        if unknown := [key for key in config if key not in _KNOWN]:
            what = f"Pulsar's topics know {' and '.join(_KNOWN)}, not {', '.join(unknown)}"
            raise HelenusError(Kind.CONFIG, what, f"topic {topic}")
        try:
            self.ask("PUT", f"persistent/{topic}/partitions", partitions)
        except Refused as error:
            if error.status != _CONFLICT:  # another one made it
                raise
        if config.get("cleanup.policy") == "delete":
            # Events are no rows to read on as one table: it may be made anew, with another key.
            with contextlib.suppress(Refused):  # then the namespace says what fits
                self.ask("PUT", f"persistent/{topic}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
        self.retain(topic, config)

    def retain(self, topic: str, config: Mapping[str, str]) -> None:
        """Have a topic keep what it has, where neither it nor its namespace says for how long.

        Without retention Pulsar deletes what no subscription waits for. What is compacted is kept.
        """
        said = self.ask("GET", f"persistent/{topic}/retention?applied=true")
        if said and said.get("retentionTimeInMinutes"):
            return
        compacts = config.get("cleanup.policy") == "compact"
        keep = -1 if compacts else int(config.get("retention.ms", "-1"))
        minutes = -1 if keep < 0 else max(1, keep // 60_000)
        if compacts:
            self.ask("POST", f"persistent/{topic}/compactionThreshold", _COMPACT_BYTES)
        retention = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": -1}
        self.ask("POST", f"persistent/{topic}/retention", retention)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The answer's JSON, None if it has none."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = json.dumps(body).encode() if body is not None else None
        try:
            request = urllib.request.Request(f"{self._url}/admin/v2/{path}", data, headers, method=method)
            try:
                with self._opener.open(request, timeout=_TIMEOUT) as answer:
                    text = answer.read()
            except urllib.error.HTTPError as error:
                with error:
                    raise Refused(error.code, _reason(error.read().decode(errors="replace")), self._url, path) from None
            return json.loads(text) if text else None
        # OSError is also what urllib makes of it; the others are of addresses and answers that are none.
        except (OSError, ValueError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
                reason = "the answer is no JSON; does pulsar.admin.url name a broker, or a proxy?"
            refused = isinstance(reason, ssl.SSLCertVerificationError)
            kind = Kind.BROKER_REFUSED if refused else Kind.BROKER_UNREACHABLE
            raise HelenusError(kind, f"Pulsar's admin API: {reason}", self._url) from None


class Refused(HelenusError):
    """An answer that says no, by its status."""

    def __init__(self, status: int, reason: str, url: str = "", path: str = "") -> None:
        kind = Kind.BROKER_UNREACHABLE if status >= 500 else Kind.BROKER_REFUSED
        super().__init__(kind, f"Pulsar's admin API: {reason or 'no reason given'} ({status})", f"{url}, {path}")
        self.status = status

    def __reduce__(self) -> tuple[type[HelenusError], tuple[Kind, str, str]]:
        return (HelenusError, (self.kind, self.what, self.where))


def _reason(text: str) -> str:
    """What an error's body says, which is JSON or a page of HTML."""
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
