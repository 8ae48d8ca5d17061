"""Logins in the addresses of a registry: each address may have its own."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit


def split_logins(addresses: str) -> tuple[str, dict[str, str]]:
    """Return addresses, with commas between them, without their logins; and by address its login, `user:password`."""
    bare, logins = [], {}
    for address in filter(None, addresses.split(",")):
        parts = urlsplit(address)
        login, _, server = parts.netloc.rpartition("@")
        bare.append(parts._replace(netloc=server).geturl())
        if login:
            logins[bare[-1]] = ":".join(map(unquote, login.partition(":")[::2]))
    return ",".join(bare), logins


def _server_and_path(address: str) -> tuple[tuple[str, str | None, int | None], str]:
    """Return an address's server, in one form for all ways to write it, and its path with a slash at the end."""
    parts = urlsplit(address)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return (parts.scheme, parts.hostname, port), parts.path.rstrip("/") + "/"


def log_in(logins: Mapping[str, str], request: Any) -> Any:
    """Add the login of the address that a request of httpx is for, if it has one. Of several the longest counts."""
    requested = _server_and_path(str(request.url))
    with_login = ((address, _server_and_path(address)) for address in logins)
    same = [
        (path, address)
        for address, (server, path) in with_login
        if server == requested[0] and requested[1].startswith(path)
    ]
    address = max(same, default=("", None))[1]
    if address is not None:
        request.headers["Authorization"] = f"Basic {base64.b64encode(logins[address].encode()).decode()}"
    return request
