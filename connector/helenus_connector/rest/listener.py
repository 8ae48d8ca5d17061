"""What a worker's listener needs of its machine: a free address, and certificates, for the leader of its group too."""

from __future__ import annotations

import ssl

from helenus_connector.config.worker import WorkerSettings
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import connections
from helenus_schemas.service.connections import BoundedListener


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


def tls(settings: WorkerSettings) -> ssl.SSLContext:
    """Return the TLS settings of an https listener. Raises HelenusError CONFIG."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    where = str(settings.listeners_https_ssl_certfile)
    try:
        _load_certificate(context, settings)
        if settings.listeners_https_ssl_cafile:
            where = str(settings.listeners_https_ssl_cafile)
            context.load_verify_locations(where)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:
        raise HelenusError(Kind.CONFIG, f"cannot listen with TLS: {error}", where) from None
    return context


def leader_tls(settings: WorkerSettings) -> ssl.SSLContext:
    """Return the TLS settings of a connection to another worker, which may ask for the certificate of this one's
    listener. Raises HelenusError CONFIG.
    """
    where = str(settings.listeners_https_ssl_cafile or "the system's CA certificates")
    try:
        context = ssl.create_default_context(cafile=settings.listeners_https_ssl_cafile)
        if settings.listeners_https_ssl_certfile:
            where = str(settings.listeners_https_ssl_certfile)
            _load_certificate(context, settings)
    except (OSError, ValueError) as error:
        raise HelenusError(Kind.CONFIG, f"cannot connect with TLS: {error}", where) from None
    return context


def _load_certificate(context: ssl.SSLContext, settings: WorkerSettings) -> None:
    password = settings.listeners_https_ssl_keyfile_password
    context.load_cert_chain(
        str(settings.listeners_https_ssl_certfile),
        settings.listeners_https_ssl_keyfile,
        # Without a function, OpenSSL would ask for the key's password at the terminal.
        lambda: password.get_secret_value() if password else "",
    )
