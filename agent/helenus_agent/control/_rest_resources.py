"""The REST API of the control plane: paths, bodies and statuses as Cassandra's Sidecar has them, and an overview of all
agents.
"""

from __future__ import annotations

import json
import re
import threading
import time
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

import structlog

from helenus_agent.control._config_follower import ConfigFollower, describe
from helenus_agent.control._config_store import ConfigStore, NotApplied, StoredReport
from helenus_agent.control._row_keys import SERVICES, shown_config
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.monitoring import HttpAnswer, HttpRequest, error_answer, json_answer
from helenus_schemas.settings.properties import ConfigError, shown_key

_CONFIG = re.compile("/api/v1/services/([^/]*)/config")
_NO_CONFIG = "There is no configuration present for this service."
_BODY = 'give {"config": {"key": "value"}}, whose values are texts'
_OVERVIEW_S = 1.0  # s that the answer about all agents is given again: it reads a whole table
_log = structlog.get_logger(__name__)


class ControlApi:
    """Answers requests; several threads may call it."""

    def __init__(self, follower: ConfigFollower, store: ConfigStore) -> None:
        self._follower = follower
        self._store = store
        self._overview: HttpAnswer | None = None
        self._overview_read_at = 0.0
        self._overview_lock = threading.Lock()

    def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer a request below `/api/`."""
        try:
            answer = self._dispatch(request)
        except ConfigError as error:
            answer = error_answer(400, describe(error))
        except NotApplied as error:
            answer = error_answer(409, str(error))
        except HelenusError as error:
            answer = error_answer(503 if error.kind is Kind.CASSANDRA_UNREACHABLE else 500, str(error))
        if request.method not in ("GET", "HEAD"):
            path = request.path[:200]
            _log.info("rest.call", method=request.method, path=path, status=answer.status, client=request.client)
        return answer

    def _dispatch(self, request: HttpRequest) -> HttpAnswer:
        method = "GET" if request.method == "HEAD" else request.method
        path = request.path.partition("?")[0].rstrip("/")
        if path == "/api/v1/services":
            return self._services() if method == "GET" else _not_allowed("GET, HEAD")
        if path == "/api/v1/cdc/agents":
            return self._agents() if method == "GET" else _not_allowed("GET, HEAD")
        match = _CONFIG.fullmatch(path)
        if match is None:
            return error_answer(404, "Not Found")
        service = match[1].lower()  # the Sidecar takes any case
        if service not in SERVICES:
            supported = ", ".join(SERVICES)
            return error_answer(400, f"Invalid service provided. Supported services: {supported}")
        if method == "GET":
            return self._config(service)
        if method == "PUT":
            return self._put(service, request)
        if method == "DELETE":
            is_deleted = self._follower.delete(service)
            return json_answer(200, {"status": "OK"}) if is_deleted else error_answer(404, _NO_CONFIG)
        return _not_allowed("GET, HEAD, PUT, DELETE")

    def _services(self) -> HttpAnswer:
        rows = self._follower.read()
        services = [{"service": name, "config": shown_config(rows[name])} for name in SERVICES if name in rows]
        return json_answer(200, {"services": services})

    def _config(self, service: str) -> HttpAnswer:
        rows = self._follower.read()
        if service not in rows:
            return error_answer(404, _NO_CONFIG)
        return json_answer(200, {"service": service, "config": shown_config(rows[service])})

    def _put(self, service: str, request: HttpRequest) -> HttpAnswer:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            return error_answer(415, "send the body as Content-Type: application/json")
        try:
            config = _read_config(request.body)
        except ValueError as error:
            return error_answer(400, str(error))
        self._follower.write(service, config)
        return json_answer(200, {"service": service, "config": config})

    def _agents(self) -> HttpAnswer:
        with self._overview_lock:  # whoever waits for it has the same one
            if self._overview is None or time.monotonic() > self._overview_read_at + _OVERVIEW_S:
                reports = [_shown_report(stored) for stored in self._store.reports()]
                self._overview, self._overview_read_at = json_answer(200, {"agents": reports}), time.monotonic()
            return self._overview


def _read_config(body: bytes) -> dict[str, str]:
    """Return the keys and values of a PUT's body. Raises ValueError, which shows no value: it may be a secret."""
    try:
        parsed = json.loads(body.decode("utf-8-sig"), object_pairs_hook=_unique)
    except UnicodeDecodeError:
        raise ValueError(f"the body is not UTF-8: {_BODY}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"the body is no JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"the body is nested too deeply: {_BODY}") from None
    if not isinstance(parsed, dict) or "config" not in parsed:
        raise ValueError(f"Invalid request payload. config needs to be passed: {_BODY}")
    if unknown := parsed.keys() - {"config", "service"}:
        raise ValueError(f"the body has {shown_key(sorted(unknown)[0][:100])}: {_BODY}")
    config = parsed["config"]
    if not isinstance(config, dict):
        raise ValueError(f"Invalid configuration provided: {_BODY}")
    for key, value in config.items():
        if not isinstance(value, str):
            raise ValueError(f"{shown_key(key[:100])}: a text is expected, in quotes")
        if not key.strip() or not _is_encodable(key + value):
            raise ValueError("a key is empty, or a text is no Unicode")
    return config


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("the body has a key twice: leave one of them out")
    return content


def _is_encodable(text: str) -> bool:
    """Return whether a text has no half of a surrogate pair, which JSON can express and Cassandra can't store."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown_report(stored: StoredReport) -> dict[str, Any]:
    report = asdict(stored.report)
    del report["interval_ms"]
    written_at = datetime.fromtimestamp(stored.written_at_ms / 1000, timezone.utc)
    return {
        **report,
        "host_id": str(stored.report.host_id),
        "alive": stored.is_alive,
        "age_ms": max(0, stored.age_ms),
        "reported_at": written_at.isoformat(timespec="milliseconds"),
    }


def _not_allowed(methods: str) -> HttpAnswer:
    answer = error_answer(405, f"Allowed: {methods}")
    return HttpAnswer(405, answer.body, answer.kind, {"Allow": methods})
