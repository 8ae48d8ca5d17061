"""Files of certificates and keys: whether TLS can use them.

Fields come in sets: `x_cafile`, `x_certfile` and its `x_keyfile`, whose password is `x_keyfile_password`.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from helenus_schemas.settings import regular_files


def find_unusable(files: Mapping[str, Path], passwords: Mapping[str, str]) -> dict[str, str]:
    """Return why files can't be used, by their fields."""
    missing = {name for name, path in files.items() if not os.access(path, os.R_OK)}
    wrong: dict[str, str | None] = dict.fromkeys(missing, "there is no such file, or it may not be read")
    for name, path in files.items():
        key = name.removesuffix("certfile") + "keyfile"
        if name.endswith("cafile") and name not in missing:
            wrong[name] = _check_authorities(path)
        elif name.endswith("certfile") and not missing & {name, key}:
            wrong[name] = _check_pair(path, files.get(key), passwords.get(f"{key}_password", ""))
    return {name: why for name in files if (why := wrong.get(name)) is not None}


def _check_authorities(file: Path) -> str | None:
    try:
        regular_files.check(file)
        ssl.create_default_context(cafile=file)
    except (OSError, ValueError):
        return "it holds no certificates in PEM"
    return None


def _check_pair(certificate: Path, key: Path | None, password: str) -> str | None:
    try:
        regular_files.check(certificate, key)
        # Without a function, OpenSSL would ask for the key's password at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, lambda: password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            return f"the key in {key or 'it'} is of another certificate"
        return f"no certificate can be read from it, with its key{f' from {key}' if key else ''}, in PEM"
    except (OSError, ValueError) as error:
        return str(error)
    return None
