"""The TLS of a listener, and of a connection to one of ours: certificates from settings."""

from __future__ import annotations

import ssl

from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings.shared import ListenerSettings


def server_tls(settings: ListenerSettings) -> ssl.SSLContext:
    """Return the TLS settings of an https listener. Raises HelenusError CONFIG."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    where = str(settings.listeners_https_ssl_certfile)
    try:
        load_certificate(context, settings)
        if settings.listeners_https_ssl_cafile:
            where = str(settings.listeners_https_ssl_cafile)
            context.load_verify_locations(where)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:
        raise HelenusError(Kind.CONFIG, f"cannot listen with TLS: {error}", where) from None
    return context


def own_tls(settings: ListenerSettings) -> ssl.SSLContext:
    """Return the TLS settings of a connection to the listener that has these settings too, from its own machine: the
    certificate in its file is trusted, whatever name it has. Raises HelenusError CONFIG.
    """
    context = ssl.create_default_context(cafile=settings.listeners_https_ssl_certfile)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        load_certificate(context, settings)  # the listener may ask for one
    except (OSError, ValueError) as error:
        where = str(settings.listeners_https_ssl_certfile)
        raise HelenusError(Kind.CONFIG, f"cannot connect with TLS: {error}", where) from None
    return context


def load_certificate(context: ssl.SSLContext, settings: ListenerSettings) -> None:
    """Load the listener's certificate and its key. Raises OSError or ValueError."""
    password = settings.listeners_https_ssl_keyfile_password
    context.load_cert_chain(
        str(settings.listeners_https_ssl_certfile),
        settings.listeners_https_ssl_keyfile,
        # Without a function, OpenSSL would ask for the key's password at the terminal.
        lambda: password.get_secret_value() if password else "",
    )
