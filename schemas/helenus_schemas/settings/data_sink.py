"""The address of a data sink: `kafka://host:port,host:port?name=value&…`, as CEP-44's `CREATE DATA_SINK` has it.

It comes from a statement or from a table that CQL can write to, and is never trusted: the agent takes the parameters
that a row of `configs` may have, the worker those of `CONNECTOR_PARAMETERS`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from helenus_schemas.settings import masking

SCHEME = "kafka://"
MAX_CHARACTERS = 4000
"""Of an address: more than any list of brokers with its settings has."""
CONNECTOR_PARAMETERS = frozenset(
    "output.format resolver gate gate.timeout.ms key.compat cep44.payload tombstones.on.delete decimal.handling.mode "
    "varint.handling.mode time.precision.mode".split()
)
"""Keys of a connector's file that an address may have: what records look like. None of them names a server, a file, a
class or a column.
"""
_BROKER = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[\w.-]+)(?P<port>:\d{1,5})?", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_DEFAULT_PORT = 9092


class AddressError(ValueError):
    """What is wrong with an address; `start` and `end` are where in it. The message shows no value."""

    def __init__(self, reason: str, start: int, end: int) -> None:
        super().__init__(reason)
        self.start, self.end = start, end


@dataclass(frozen=True)
class SinkAddress:
    """Where a data sink is: its brokers as librdkafka takes them, and the parameters by name."""

    brokers: str
    parameters: Mapping[str, str]

    @property
    def broker_set(self) -> frozenset[str]:
        """Return the brokers, in any order."""
        return frozenset(self.brokers.lower().split(","))

    @property
    def connector_parameters(self) -> dict[str, str]:
        """Return what is for the connector."""
        return {name: text for name, text in self.parameters.items() if name in CONNECTOR_PARAMETERS}

    @property
    def agent_parameters(self) -> dict[str, str]:
        """Return what is for the agents."""
        return {name: text for name, text in self.parameters.items() if name not in CONNECTOR_PARAMETERS}


def parse_sink_address(text: str) -> SinkAddress:
    """Return the address of a data sink. Raises AddressError."""
    if len(text) > MAX_CHARACTERS:
        raise AddressError(f"an address has {MAX_CHARACTERS} characters at most", 0, len(SCHEME))
    if not text.lower().startswith(SCHEME):
        scheme, mark, _ = text.partition("://")
        scheme_end = len(scheme + mark) if mark else min(len(text), len(SCHEME))
        raise AddressError(f"an address begins with {SCHEME}: no other data sinks are there", 0, scheme_end)
    servers, mark, query = text[len(SCHEME) :].partition("?")
    brokers = _parse_brokers(servers, len(SCHEME))
    return SinkAddress(brokers, _parse_parameters(query, len(SCHEME) + len(servers) + 1) if mark else {})


def _parse_brokers(servers: str, start: int) -> str:
    if "@" in servers:
        reason = "a login has no place here: give sasl.username and sasl.password as parameters, as references"
        raise AddressError(reason, start, start + len(servers))
    brokers = []
    for server in servers.removesuffix("/").split(","):
        match = _BROKER.fullmatch(server)
        port = int(((match and match["port"]) or f":{_DEFAULT_PORT}")[1:])
        if match is None or not 0 < port < 65536:
            raise AddressError("brokers are given as host:port,host:port", start, start + max(1, len(server)))
        brokers.append(f"{match['host']}:{port}")
        start += len(server) + 1
    return ",".join(brokers)


def _parse_parameters(query: str, start: int) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for part in query.split("&"):
        end = start + max(1, len(part))
        name, mark, value = part.partition("=")
        # A part that is none may be the end of a password with an & in it: the message does not show it.
        if not mark or not _NAME.fullmatch(name):
            raise AddressError("a parameter is name=value; of a value that has & in it write %26", start, end)
        value = unquote(value)
        if name in parameters:
            raise AddressError(f"{name} is there twice: leave one of them out", start, start + len(name))
        if not value.isprintable():
            raise AddressError(f"{name}: its value has a character that nobody sees", start, start + len(name))
        if masking.is_secret(name) and masking.shown(value, secret=True) != value:
            reason = f"{name}: a secret is not stored in clear: give a reference, ${{env:NAME}} or ${{file:PATH:KEY}}"
            raise AddressError(reason, start, start + len(name))
        if name in CONNECTOR_PARAMETERS and "$" in value:
            raise AddressError(f"{name}: give the value itself: it is no secret", start, start + len(name))
        parameters[name] = value
        start = end + 1
    return parameters


def connector_name(keyspace: str, table: str) -> str:
    """Return the name of the connector that a worker makes for the data source of a table."""
    return f"cdc-{keyspace}.{table}"


def hide_values(text: str) -> str:
    """Return a line of statements as it may be shown: as long as it was, with stars for what may be a secret, the
    values of parameters and a login. References and the names of parameters stay; after a name of a secret's nothing
    does, since a password may have any character in it.
    """
    text = re.sub(r"(?<=://)[^']*(?=@)", lambda match: _hide(match[0]), text)
    shown, is_hidden = [], False
    for part in re.split(r"([?&'])", text):
        if part == "'":
            is_hidden = False
        name, mark, value = part.partition("=")
        if is_hidden:
            part = _hide(part)
        elif mark and not re.fullmatch(r"\$\{(env|file):[^}]*\}", value):
            is_hidden = masking.is_secret(unquote(name))
            part = f"{name}={_hide(value)}"
        shown.append(part)
    return "".join(shown)


def _hide(text: str) -> str:
    return re.sub(r"[^\n]", "*", text)
