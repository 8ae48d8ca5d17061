"""The Java driver's own file, which Debezium's connector gives it: where Cassandra is, the login, and TLS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from helenus_schemas.settings import _hocon
from helenus_schemas.settings.fields import hosts_and_ports

_ROOT = "datastax-java-driver"


def hosts(file: str) -> str | None:
    """Return the contact points' hosts, with commas between. Raises ValueError, as all of these do."""
    return ",".join(host for host, _ in _points(file)) or None


def port(file: str) -> str | None:
    """Return the contact points' port, which is one for all of ours."""
    ports = {port for _, port in _points(file) if port is not None}
    if len(ports) > 1:
        raise ValueError("contact-points: their ports differ, and the driver here takes one for all nodes")
    return str(ports.pop()) if ports else None


def local_dc(file: str) -> str | None:
    return _text(file, "basic.load-balancing-policy.local-datacenter")


def login(setting: str) -> Callable[[str], str | None]:
    """Return a function that reads a file's login: `username` or `password`."""

    def read_login(file: str) -> str | None:
        kind = _text(file, "advanced.auth-provider.class") or "PlainTextAuthProvider"
        if not kind.endswith("PlainTextAuthProvider"):
            raise ValueError(f"advanced.auth-provider.class={kind}: PlainTextAuthProvider is the only way to log in")
        return _text(file, f"advanced.auth-provider.{setting}")

    return read_login


def has_tls(file: str) -> str | None:
    return "true" if _text(file, "advanced.ssl-engine-factory.class") else None


def checks_hostname(file: str) -> str | None:
    return _text(file, "advanced.ssl-engine-factory.hostname-validation")


def _points(file: str) -> list[tuple[str, int | None]]:
    points = _read_setting(file, "basic.contact-points") or []
    if not isinstance(points, list) or not all(isinstance(point, str) for point in points):
        raise ValueError('basic.contact-points: give a list, as ["10.0.0.1:9042"]')
    try:
        return hosts_and_ports(",".join(points)) if points else []
    except ValueError:
        raise ValueError("basic.contact-points: give each as host:port") from None


def _text(file: str, path: str) -> str | None:
    value = _read_setting(file, path)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{path}: give a text")
    return value


def _read_setting(file: str, path: str) -> Any:
    try:
        settings: Mapping[str, Any] = _hocon.parse(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"it can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError("it is no text in UTF-8") from None
    return _hocon.get(settings, f"{_ROOT}.{path}")
