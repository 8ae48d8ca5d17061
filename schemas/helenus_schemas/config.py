"""Java `.properties` files as pydantic models: one model per command, all errors at once, secrets never echoed.

A field's key is its name with dots for underscores: `kafka_bootstrap_servers` is `kafka.bootstrap.servers`. A field of
type `PassThrough` takes every key below its own: `kafka_producer` collects `kafka.producer.*`, without the prefix.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import javaproperties
import structlog
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError
from typing_extensions import Self

from helenus_schemas.errors import HelenusError, Kind

_SECRET = re.compile(r"\$\{(env|file):([^}]*)\}")


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


CommaList = Annotated[tuple[str, ...], BeforeValidator(_split)]
"""A list, separated by commas."""
PassThrough = dict[str, str]
"""Settings handed on as they are, below a prefix."""
Milliseconds = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Alias:
    """A key of another product: which of ours to `use`, or `why` there is none.

    `convert` turns its value into one of ours, or into None where there is nothing to set; it raises ValueError for a
    value that has no counterpart.
    """

    use: str = ""
    why: str = ""
    convert: Callable[[str], str | None] = str


class Settings(BaseModel):
    """The base of every command's configuration.

    `aliases` says what becomes of keys of other products, one that ends in `.*` for all keys below it; `environment`
    are variables of theirs and the keys that they stand for. Each that is met is warned of, with the key to use.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=lambda name: name.replace("_", "."), hide_input_in_errors=True
    )
    aliases: ClassVar[Mapping[str, str | Alias]] = {}
    environment: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a properties file. Raises HelenusError(CONFIG) that names every wrong key of the file at once.

        What the file does not say is looked for in the environment.
        """
        found = {variable: os.environ[variable] for variable in cls.environment if variable in os.environ}
        return cls.of(read_properties(path), str(path), found)

    @classmethod
    def of(cls, properties: Mapping[str, str], source: str, environment: Mapping[str, str] | None = None) -> Self:
        """Validate properties that come from `source`, a name for messages; they go before the environment's."""
        wrong: list[str] = []
        theirs = cls._ours({v: (cls.environment[v], text) for v, text in (environment or {}).items()}, source, wrong)
        ours = theirs | cls._ours({key: (key, text) for key, text in properties.items()}, source, wrong)
        keys = {name: field.alias or name for name, field in cls.model_fields.items()}
        prefixes = sorted(
            (keys[name] + "." for name, f in cls.model_fields.items() if f.annotation == PassThrough),
            key=len,
            reverse=True,
        )
        values: dict[str, Any] = {}
        for key, value in ours.items():
            prefix = next((p for p in prefixes if key.startswith(p) and key not in keys.values()), None)
            if prefix is None:
                values[key] = value
            else:
                values.setdefault(prefix[:-1], {})[key[len(prefix) :]] = value
        try:
            settings = cls.model_validate(values)
        except ValidationError as error:
            known = list(keys.values())
            wrong += [_explain(e["loc"], e["type"], e["msg"], known) for e in error.errors(include_url=False)]
        if wrong:
            raise HelenusError(Kind.CONFIG, "; ".join(wrong), source) from None
        return settings

    @classmethod
    def _ours(cls, given: Mapping[str, tuple[str, str]], source: str, wrong: list[str]) -> dict[str, str]:
        """Name -> (key, value) with all keys ours. A key of ours that is given itself goes before its aliases."""
        log = structlog.get_logger()
        found: dict[str, str] = {}
        for name, (key, value) in given.items():
            alias = cls._alias(key)
            if alias is None:
                found[key] = value
            elif not alias.use:
                log.warning("config.ignored", source=source, key=name, why=alias.why)
            else:
                more = {"why": alias.why} if alias.why else {}
                log.warning("config.alias", source=source, key=name, use=alias.use, **more)
                try:
                    converted = alias.convert(value)
                except ValueError as error:
                    wrong.append(f"{name}: {error}")
                    continue
                if converted is not None and alias.use not in given:
                    found[alias.use] = converted
        return found

    @classmethod
    def _alias(cls, key: str) -> Alias | None:
        found = cls.aliases.get(key)
        if found is None:
            found = next((a for k, a in cls.aliases.items() if k.endswith(".*") and key.startswith(k[:-1])), None)
        return Alias(found) if isinstance(found, str) else found


def _explain(location: tuple[int | str, ...], kind: str, message: str, known: list[str]) -> str:
    key = str(location[0]) if location else "file"
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(key, known, 1)
        return f"{key}: unknown property" + (f", did you mean {near[0]}?" if near else "")
    if kind == "missing":
        return f"{key}: required property is missing"
    return f"{key}: {message.removeprefix('Value error, ')}"


def read_properties(path: str | Path) -> dict[str, str]:
    """The keys and values of a Java properties file, with `${env:X}` and `${file:path:key}` resolved."""
    try:
        with open(path, encoding="utf-8") as file:
            properties = javaproperties.load(file)
    except (OSError, UnicodeDecodeError, javaproperties.InvalidUEscapeError) as error:
        raise HelenusError(Kind.CONFIG, f"cannot read the properties file: {error}", str(path)) from None
    return {key: _resolve(key, value, str(path)) for key, value in properties.items()}


def _resolve(key: str, value: str, source: str) -> str:
    def resolved(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "env":
            if name not in os.environ:
                raise HelenusError(Kind.CONFIG, f"{key}: the environment has no {name}", source)
            return os.environ[name]
        path, _, entry = name.rpartition(":")
        try:
            with open(path, encoding="utf-8") as file:
                return str(javaproperties.load(file)[entry])
        except OSError as error:
            raise HelenusError(Kind.CONFIG, f"{key}: cannot read {path}: {error.strerror}", source) from None
        except KeyError:
            raise HelenusError(Kind.CONFIG, f"{key}: {path} has no {entry}", source) from None

    return _SECRET.sub(resolved, value)


class CassandraSettings(Settings):
    """How to reach Cassandra: the part that agent and connector share."""

    cassandra_contact_points: CommaList = ("127.0.0.1",)
    cassandra_port: int = Field(default=9042, gt=0, lt=65536)
    cassandra_local_dc: str | None = None
    cassandra_username: str | None = None
    cassandra_password: SecretStr | None = None
    cassandra_ssl_enabled: bool = False
    cassandra_ssl_cafile: Path | None = None
    cassandra_ssl_certfile: Path | None = None
    cassandra_ssl_keyfile: Path | None = None
    cassandra_ssl_check_hostname: bool = True
    cassandra_connect_timeout_ms: Milliseconds = 10_000
    cassandra_request_timeout_ms: Milliseconds = 12_000


class LogSettings(Settings):
    """How a command reports on itself."""

    log_level: Annotated[str, Field(pattern="^(debug|info|warning|error)$")] = "info"
    log_format: Annotated[str, Field(pattern="^(text|json)$")] = "text"
