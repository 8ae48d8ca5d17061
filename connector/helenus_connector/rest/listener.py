"""What a worker's listener needs of its machine: a free address, and certificates, for the leader of its group too."""

from __future__ import annotations

import ssl

from helenus_connector.config.worker import WorkerSettings
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import connections
from helenus_schemas.service.connections import BoundedListener
from helenus_schemas.service.listener_tls import load_certificate


def listen(settings: WorkerSettings) -> BoundedListener:
    """Return a socket that listens on `listeners`. Raises HelenusError CONFIG: the address is taken, or not this
    machine's.
    """
    host, port = settings.listener
    try:
        return connections.listen(host, port)
    except OSError as error:
        advice = "set listeners to an address of this machine that is free"
        raise HelenusError(Kind.CONFIG, f"cannot listen: {error.strerror}", f"{host}:{port}", advice) from None


def leader_tls(settings: WorkerSettings) -> ssl.SSLContext:
    """Return the TLS settings of a connection to another worker, which may ask for the certificate of this one's
    listener. Raises HelenusError CONFIG.
    """
    where = str(settings.listeners_https_ssl_cafile or "the system's CA certificates")
    try:
        context = ssl.create_default_context(cafile=settings.listeners_https_ssl_cafile)
        if settings.listeners_https_ssl_certfile:
            where = str(settings.listeners_https_ssl_certfile)
            load_certificate(context, settings)
    except (OSError, ValueError) as error:
        raise HelenusError(Kind.CONFIG, f"cannot connect with TLS: {error}", where) from None
    return context
