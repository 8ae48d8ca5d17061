"""Files of certificates and keys: whether TLS can use them."""

from __future__ import annotations

import ssl
from pathlib import Path


def no_authorities(file: Path) -> str | None:
    """Why a file is none of authorities, or None."""
    try:
        ssl.create_default_context(cafile=file)
    except (OSError, ValueError):
        return "it holds no certificates in PEM"
    return None


def no_pair(certificate: Path, key: Path | None, password: str) -> str | None:
    """Why a file is none of a certificate with this key, which by default is in it too, or None."""
    try:
        # Without a function, OpenSSL would ask for the key's password at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, lambda: password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            return f"the key in {key or 'it'} is of another certificate"
        return f"no certificate can be read from it, with its key{f' from {key}' if key else ''}, in PEM"
    except (OSError, ValueError) as error:
        return str(error)
    return None
