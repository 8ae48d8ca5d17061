"""The types of fields: what a property may be. For any other value they raise ValueError that says what is expected.

The error never quotes a value that may hold a login: the `Problem` shows the value, masked.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from helenus_schemas.settings import masking

_HTTP = "give it as http://host:port or https://host:port"
_PROTOCOL = re.compile("^(PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)://", re.IGNORECASE)
_AZURE = ("abfs", "abfss", "wasb", "wasbs")
"""File systems that have a container before the @."""
_FILE_SYSTEM = "give a path, or a URL such as s3a://bucket/directory or hdfs://namenode:8020/directory"
_PULSAR = "give it as pulsar://host:port or pulsar+ssl://host:port, with commas between several host:port"


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def is_host(text: str) -> bool:
    """Return whether it can be a host: a name, or an address, of IPv6 without brackets."""
    if ":" in text:
        try:
            ipaddress.ip_address(text)
        except ValueError:
            return False
        return True
    try:
        text.encode("idna")  # as sockets do, which raise UnicodeError
    except UnicodeError:
        return False
    return re.fullmatch(r"[\w-][\w.-]*", text) is not None


def hosts_and_ports(text: str) -> list[tuple[str, int | None]]:
    """Return the hosts and ports in `host[:port],...`, IPv6 addresses in brackets. Raises ValueError."""
    hosts: list[tuple[str, int | None]] = []
    for part in text.split(","):
        match = re.fullmatch(r"(?:\[([^]]+:[^]]*)\]|([^][:]+))(?::([0-9]{1,5}))?", part.strip())
        host, port = (match[1] or match[2], int(match[3]) if match[3] else None) if match else ("", None)
        if not is_host(host) or (port is not None and not 0 < port < 65536):
            raise ValueError("not host:port")
        hosts.append((host, port))
    return hosts


def pulsar_addresses(url: str) -> tuple[str, list[tuple[str, int | None]]]:
    """Return the scheme, and the hosts and ports, of `pulsar://host[:port][,host[:port]...]` or `pulsar+ssl://`.

    Raises ValueError.
    """
    scheme, _, addresses = url.partition("://")
    if scheme.lower() not in ("pulsar", "pulsar+ssl"):
        raise ValueError(_PULSAR)
    try:
        return scheme.lower(), hosts_and_ports(addresses.rstrip("/"))
    except ValueError:
        raise ValueError(_PULSAR) from None


def http_address(url: str, login: bool = False) -> SplitResult:
    """Return the parts of an HTTP or HTTPS URL, the scheme in small letters. A `login` in it is an error unless it is
    allowed.

    Raises ValueError.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError(_HTTP) from None
    cut = re.search(r"\s", url) or "@" in parts.path + parts.query + parts.fragment  # a line break, a slash in a login
    if parts.scheme not in ("http", "https") or not is_host(host or "") or cut:
        raise ValueError(_HTTP)
    if "@" in parts.netloc and not login:
        raise ValueError("leave the login out of the address: there are properties for it")
    return parts


def listener_address(listener: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port of `http://host:port` or `https://host:port`; None if it is neither."""
    try:
        parts = http_address(listener)
    except ValueError:
        return None
    plain = parts.path in ("", "/") and not (parts.query or parts.fragment)
    return (parts.scheme, parts.hostname, parts.port) if plain and parts.hostname and parts.port is not None else None


def _pulsar_url(value: str) -> str:
    scheme, _ = pulsar_addresses(value)
    return scheme + value[len(scheme) :]


def _http_url(value: str) -> str:
    return http_address(value).geturl()


def _registries(value: str) -> str:
    try:
        return ",".join(http_address(url, login=True).geturl() for url in _parts(value))
    except ValueError as error:
        raise ValueError(f"{error}; in a login, %40 is @ and %2F is /" if "@" in value else str(error)) from None


def _brokers(value: str) -> str:
    reason = "give Kafka's brokers as host:port, with commas between them"
    try:
        hosts_and_ports(",".join(_PROTOCOL.sub("", part) for part in _parts(value)))
    except ValueError:
        raise ValueError(reason) from None
    return value


def _parts(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


def _hosts(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        raise ValueError("name a host at least")
    if wrong := next((host for host in value if not is_host(host)), None):
        port = ", whose port is a property of its own" if ":" in wrong else ""
        raise ValueError(f"{masking.shown(wrong, secret=False)} is neither a host's name nor an address{port}")
    return value


def _pulsar_name(value: str) -> str:
    if not re.fullmatch(r"[\w.:=-]+", value, re.ASCII):
        raise ValueError("a name has letters, digits and .:=_- alone: tenant and namespace are properties of their own")
    return value


def _login(value: SecretStr | None) -> SecretStr | None:
    if value is not None and not re.fullmatch("[^:]+:.+", value.get_secret_value()):
        raise ValueError("give it as user:password")
    return value


def _token(value: SecretStr | None) -> SecretStr | None:
    """Check a token here, since errors of HTTP libraries show an illegal header: the whole token."""
    if value is not None and not re.fullmatch("[!-~]+", value.get_secret_value()):
        raise ValueError("a token has no spaces and no line break, and ASCII characters only")
    return value


def without_blanks(value: object) -> object:
    """Return the same. Raises ValueError for text with blanks at its ends: no name has them, and nobody sees them."""
    if isinstance(value, str) and value != value.strip():
        raise ValueError("take out the blanks at its ends")
    return value


def path(value: object) -> object:
    """Return a path as it is given. Raises ValueError for an empty one, and for a URL or a ~, which would become
    folders.
    """
    if value == "":
        raise ValueError("name a path, or leave the property out")
    if isinstance(value, str) and re.match(r"[A-Za-z][\w+.-]*:/", value):
        raise ValueError("give a path, of a disk that every machine which uses it sees: an address is none")
    if isinstance(value, str) and value.startswith("~"):
        raise ValueError("give the whole path: only shells know what ~ is")
    return value


def _path_or_url(value: str) -> str:
    """Return a path, or the URL of a directory on a file system of Spark's without a slash at its end; that of a local
    one as its path.
    """
    scheme, separator, location = value.partition("://")
    if not separator:
        return str(path(value))
    if not re.fullmatch("[a-z][a-z0-9+.-]*", scheme) or not location:
        raise ValueError(_FILE_SYSTEM)
    if scheme in ("s3", "s3n", "http", "https"):
        raise ValueError(f"Spark has no file system {scheme}://: S3 and what speaks like it is s3a://bucket/directory")
    host, _, directory = location.partition("/")
    login, has_login, _ = host.rpartition("@")
    if has_login and (":" in login or scheme not in _AZURE):
        raise ValueError("leave the login out: give it as spark.hadoop.*, such as spark.hadoop.fs.s3a.access.key")
    if re.search(r"[\s?#%]", value) or ".." in directory.split("/") or "//" in location.strip("/"):
        raise ValueError("leave out blanks, ?, #, %, '..' and empty folders")
    if scheme == "file":
        if host:
            raise ValueError("give a local directory as a path")
        return f"/{directory}"
    if not host and scheme != "hdfs":
        raise ValueError(_FILE_SYSTEM)
    return value.rstrip("/")


def _replication_factor(value: int) -> int:
    if value != -1 and not 0 < value < 1 << 15:
        raise ValueError("a number of brokers, or -1 for what the brokers have as their default")
    return value


def topic(name: str) -> str:
    """Return a topic's name, or its beginning. Raises ValueError for one that brokers refuse."""
    if len(name) > 249 or name in (".", "..") or not re.fullmatch(r"[\w.-]*", name, re.ASCII):
        raise ValueError("a topic's name has letters, digits, '.', '_' and '-' alone, and 249 of them at most")
    return name


def local_topic(name: str, topic_prefix: str | None) -> str:
    """Return a topic's name without `topic_prefix`: `persistent://tenant/namespace/`, empty on Kafka, None if it is not
    known.

    Raises ValueError for a full name with another prefix.
    """
    if topic_prefix is None:
        return re.sub("^(persistent://)?[^/]+/[^/]+/", "", name)
    for prefix in (topic_prefix, topic_prefix.partition("://")[2]):
        name = name.removeprefix(prefix)
    if topic_prefix and "/" in name:
        raise ValueError(f"topics are in {topic_prefix}, as pulsar.tenant and pulsar.namespace say")
    return name


CommaList = Annotated[tuple[str, ...], BeforeValidator(_split)]
"""A list, separated by commas."""
PassThrough = Annotated[dict[str, str], AfterValidator(masking.Hidden)]
"""Settings under a prefix that are passed to a library unchanged; their secrets are masked when they are printed."""
Milliseconds = Annotated[int, Field(ge=0)]
ReplicationFactor = Annotated[int, AfterValidator(_replication_factor)]
"""A topic's replication factor; -1 for the brokers' default."""
Hosts = Annotated[CommaList, AfterValidator(_hosts)]
"""Names or addresses without ports, one at least."""
Brokers = Annotated[str, AfterValidator(_brokers)]
"""`host:port,...`, as librdkafka takes it: also with `PLAINTEXT://` before a host."""
PulsarUrl = Annotated[str, AfterValidator(_pulsar_url)]
PulsarName = Annotated[str, AfterValidator(_pulsar_name)]
"""A tenant's or a namespace's name."""
PathOrUrl = Annotated[str, AfterValidator(_path_or_url)]
"""A local directory, or one on a file system of Spark's by its URL."""
HttpUrl = Annotated[str, AfterValidator(_http_url)]
RegistryUrls = Annotated[str, AfterValidator(_registries)]
"""URLs of HTTP or HTTPS with commas between them, or none; they may have logins."""
Login = Annotated[SecretStr | None, AfterValidator(_login)]
"""`user:password`."""
Token = Annotated[SecretStr | None, AfterValidator(_token)]
"""Characters that an HTTP header can have."""
