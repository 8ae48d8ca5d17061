"""Serves `/metrics`, `/health`, and a page that shows them. The agent's work does not depend on it."""

from __future__ import annotations

import errno
import os
import socket
import threading

import structlog

from helenus_agent.config import AgentSettings
from helenus_schemas.errors import HelenusError
from helenus_schemas.service import monitoring, page
from helenus_schemas.service.listener_tls import server_tls
from helenus_schemas.service.monitoring import HttpAccess, HttpApi, Ready

_RETRY_S = 1.0  # s between two tries to listen
_BUSY = {errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EMFILE, errno.ENFILE}
_log = structlog.get_logger(__name__)


def busy_port(host: str, port: int) -> str | None:
    """Return why a port can't be listened on now, with advice; None if it can. An agent that runs has its own."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        return f"{os.strerror(error.errno or 0)}: it is this agent's own if one runs, else choose another"
    return None


class Monitor:
    """Listens where the settings say, if they do. An address in use is tried again until it is free. `api` answers what
    is asked below `/api/`. Raises HelenusError CONFIG for certificates that can't be used.
    """

    def __init__(self, settings: AgentSettings, api: HttpApi | None = None) -> None:
        self._host, self._port = settings.listener
        secret = settings.rest_basic_auth_user_info
        self._access = HttpAccess(
            secret.get_secret_value() if secret else None,
            server_tls(settings) if settings.secure else None,
            settings.read_only,
        )
        has_certificates = settings.secure and settings.listeners_https_ssl_cafile is not None
        self._is_open = secret is None and not has_certificates
        self._api = api
        self._stop = threading.Event()
        self._server: monitoring.HttpListener | None = None
        self._thread: threading.Thread | None = None

    def serve(self, ready: Ready) -> None:
        """Start to listen. Raises HelenusError CONFIG for a host or a port that can never be used."""
        if not self._port:
            return
        if not monitoring.is_loopback(self._host) and self._is_open:
            advice = "anyone who reaches it can read it, and so can the network: restrict it by a firewall or a proxy"
            _log.warning("http.open", address=f"{self._host}:{self._port}", advice=advice)
        elif not monitoring.is_loopback(self._host) and self._access.tls is None:
            advice = "use https: passwords can be read on the way"
            _log.warning("http.plain", address=f"{self._host}:{self._port}", advice=advice)
        error = self._listen(ready)
        if error is not None:
            then = "it is tried again each second; the agent works meanwhile"
            _log.warning("http.busy", error=error.what, address=error.where, then=then)
            self._thread = threading.Thread(
                target=self._retry_listening, args=(ready,), name="monitoring-bind", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._server is not None:
            self._server.shutdown()

    def _retry_listening(self, ready: Ready) -> None:
        while not self._stop.wait(_RETRY_S):
            try:
                if self._listen(ready) is None:
                    _log.info("http.listens", address=f"{self._host}:{self._port}")
                    return
            except HelenusError as error:
                _log.error("http.failed", error=str(error))
                return

    def _listen(self, ready: Ready) -> HelenusError | None:
        """Listen. Return the error if the address is in use."""
        try:
            html = page.load("helenus_agent", "page.html")
            self._server = monitoring.serve(self._host, self._port, ready, html, self._access, self._api)
        except HelenusError as error:
            if getattr(error.__cause__, "errno", None) in _BUSY:
                return error
            raise
        return None
