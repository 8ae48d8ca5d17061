"""Java `.properties` files as pydantic models: one model per command, all errors at once, secrets never echoed.

A field's key is its name with dots for underscores: `kafka_bootstrap_servers` is `kafka.bootstrap.servers`. A field of
type `PassThrough` takes every key below its own: `kafka_producer` collects `kafka.producer.*`, without the prefix. The
text below a field and its `About` are what the configuration reference and Kafka Connect's `validate` say of the key.
"""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

import javaproperties
import structlog
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from typing_extensions import Self

from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings import fields, masking
from helenus_schemas.settings.fields import Hosts, HttpUrl, Milliseconds, PassThrough, PulsarName, PulsarUrl, Token

T = TypeVar("T")


@dataclass(frozen=True)
class About:
    """Which group of keys a field belongs to, and how likely it is that somebody sets it."""

    group: str
    importance: Literal["HIGH", "MEDIUM", "LOW"] = "MEDIUM"


@dataclass(frozen=True)
class Alias:
    """A key of another product: which of ours to `use`, or `why` there is none.

    `convert` turns its value into one of ours, or into None where there is nothing to set; it raises ValueError for a
    value that has no counterpart.
    """

    use: str = ""
    why: str = ""
    convert: Callable[[str], str | None] = str


@dataclass(frozen=True)
class Problem:
    """What is wrong with a property; `value` as it may be shown, None if the property is not there.

    Without `key` it is the whole of `source` that is wrong.
    """

    source: str
    key: str
    value: str | None
    reason: str

    def __str__(self) -> str:
        return f"{self.key}{'' if self.value is None else f'={self.value}'}: {self.reason}" if self.key else self.reason


class ConfigError(HelenusError):
    """All that is wrong with one or several files: in one line if it is one thing, else with a line for each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        sources = ", ".join(dict.fromkeys(p.source for p in problems))
        super().__init__(Kind.CONFIG, "\n".join(map(str, problems)), sources)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.problems,))

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return super().__str__()
        lines = [f"{len(self.problems)} properties are wrong: {self.advice} [{self.kind.value}]"]
        return "\n".join([*lines, *(f"  {p.source}: {p}" for p in self.problems)])


def together(*steps: Callable[[], T]) -> list[T]:
    """What the steps return. Raises one ConfigError with the problems of all of them."""
    done: list[T] = []
    problems: list[Problem] = []
    for step in steps:
        try:
            done.append(step())
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return done


@dataclass
class _Given:
    """The properties of one source: our key -> its value, resolved, and as it was written."""

    source: str
    allowed: masking.Allowed | None = None
    trusted: Mapping[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def wrong(self, key: str, reason: str, secret: bool) -> None:
        """Note a problem, once a key."""
        if any(p.key == key for p in self.problems):
            return
        written = self.written.get(key)
        value = self.values.get(key, "")
        if value and written is not None and (secret or masking.refers(written)):
            reason = reason.replace(value, masking.STARS)
        told = None if written is None else masking.shown(written, secret)
        self.problems.append(Problem(self.source, key, told, reason))


class Settings(BaseModel):
    """The base of every command's configuration.

    `aliases` says what becomes of keys of other products, one that ends in `.*` for all keys below it; `environment`
    are variables of theirs and the keys that they stand for. Each that is met is warned of, with the key to use.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=lambda name: name.replace("_", "."),
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )
    aliases: ClassVar[Mapping[str, str | Alias]] = {}
    environment: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a properties file. Raises ConfigError that names every wrong key of the file at once.

        What the file does not say is looked for in the environment.
        """
        found = {variable: os.environ[variable] for variable in cls.environment if variable in os.environ}
        return cls.of(read_properties(path), str(path), found)

    @classmethod
    def of(
        cls,
        properties: Mapping[str, str],
        source: str,
        environment: Mapping[str, str] | None = None,
        context: Mapping[str, Any] | None = None,
        *,
        allowed: masking.Allowed | None = None,
        trusted: Mapping[str, str] | None = None,
    ) -> Self:
        """Validate properties that come from `source`, a name for messages; they go before the environment's.

        `${env:NAME}` and `${file:PATH:KEY}` in a value are resolved: all of them, or if `allowed` is given, those that
        it permits and values that `trusted`, properties of an operator's file, has in the same words under the same
        key. `context` is for validators. Raises ConfigError.
        """
        given = _Given(source, allowed, trusted or {})
        cls._take(given, {v: (cls.environment[v], text) for v, text in (environment or {}).items()})
        cls._take(given, {key: (key, text) for key, text in properties.items()})
        keys = {name: field.alias or name for name, field in cls.model_fields.items()}
        prefixes = cls.prefixes()
        values: dict[str, Any] = {}
        for key, value in given.values.items():
            prefix = next((p for p in prefixes if key.startswith(p) and key not in keys.values()), None)
            if prefix is None:
                values[key] = value
            else:
                values.setdefault(prefix[:-1], {})[key[len(prefix) :]] = value
        settings: Self | None = None
        try:
            settings = cls.model_validate(values, context=context)
        except ValidationError as error:
            for e in error.errors(include_url=False):
                place = str(e["loc"][0]) if e["loc"] else ""
                cls._explain(given, keys.get(place, place), e["type"], e["msg"])
        for key, reason in cls.conflicts(given.values):
            given.wrong(key, reason, cls.hides(key, given.written.get(key, "")))
        if given.problems or settings is None:
            raise ConfigError(given.problems) from None
        return settings

    @classmethod
    def conflicts(cls, given: Mapping[str, str]) -> Iterable[tuple[str, str]]:  # noqa: ARG003
        """(key, reason) of what is wrong with properties together. `given` are ours, each perhaps wrong by itself."""
        return ()

    def check_files(self, source: str) -> None:
        """Raise ConfigError for files of certificates and keys that are not there: to be asked where they are used."""
        known = type(self).model_fields.items()
        files = ((of.alias or name, getattr(self, name)) for name, of in known if name.endswith("file"))
        missing = [(key, str(file)) for key, file in files if isinstance(file, Path) and not os.access(file, os.R_OK)]
        if missing:
            reason = "there is no such file, or it may not be read"
            raise ConfigError([Problem(source, key, file, reason) for key, file in missing])

    @field_validator("*", mode="before")
    @classmethod
    def _path(cls, value: object, info: ValidationInfo) -> object:
        return fields.path(value) if cls._is(cls.model_fields[info.field_name or ""], Path) else value

    @classmethod
    def prefixes(cls) -> list[str]:
        """`kafka.producer.` for a field `kafka_producer` of type PassThrough; the longest first."""
        passed = [f.alias or name for name, f in cls.model_fields.items() if f.annotation == get_args(PassThrough)[0]]
        return sorted((f"{key}." for key in passed), key=len, reverse=True)

    @classmethod
    def hides(cls, key: str, value: str = "") -> bool:
        """Whether the value of a key, of ours or not, is never to be shown."""
        for name, known in cls.model_fields.items():
            if key == (known.alias or name):
                return cls._is(known, SecretStr)
        return masking.is_secret(key, value)

    @staticmethod
    def _is(known: FieldInfo, kind: type) -> bool:
        return known.annotation is kind or kind in get_args(known.annotation)

    @classmethod
    def _take(cls, given: _Given, found: Mapping[str, tuple[str, str]]) -> None:
        """Add properties by name: (key, value). A key of ours that is given itself goes before its aliases."""
        log = structlog.get_logger(__name__)
        for name, (key, text) in found.items():
            alias = cls._alias(key)
            if alias is not None and not alias.use:
                log.warning("config.ignored", source=given.source, key=name, why=alias.why)
                continue
            if alias is not None:
                more = {"why": alias.why} if alias.why else {}
                log.warning("config.alias", source=given.source, key=name, use=alias.use, **more)
                if alias.use in found:
                    continue
            use = alias.use if alias else key
            given.written[use] = text
            try:
                allowed = None if given.trusted.get(name) == text else given.allowed
                value: str | None = masking.resolve(text, allowed)
                if alias is not None and value is not None:
                    value = alias.convert(value)
            except ValueError as error:
                given.written[name] = text
                given.wrong(name, str(error), cls.hides(use, text) or cls.hides(name, text))
                if name != use:
                    del given.written[use]
                continue
            if value is None:
                del given.written[use]
                continue
            given.values[use] = value
            if not masking.refers(text):
                given.written[use] = value

    @classmethod
    def key_of(cls, name: str) -> str:
        """Our key for one of another product's; any other name as it is."""
        alias = cls._alias(name)
        return alias.use if alias and alias.use else name

    @classmethod
    def _alias(cls, key: str) -> Alias | None:
        found = cls.aliases.get(key)
        if found is None:
            found = next((a for k, a in cls.aliases.items() if k.endswith(".*") and key.startswith(k[:-1])), None)
        return Alias(found) if isinstance(found, str) else found

    @classmethod
    def _explain(cls, given: _Given, key: str, kind: str, message: str) -> None:
        """Note an error of pydantic's."""
        reason = message.removeprefix("Value error, ")
        secret = cls.hides(key, given.written.get(key, ""))
        if kind == "extra_forbidden":
            near = cls._nearest(key)
            reason = "unknown property" + (f", did you mean {near}?" if near else "")
            secret = secret or (near is not None and cls.hides(near))
        elif kind == "missing":
            reason = "required property is missing"
        given.wrong(key, reason, secret)

    @classmethod
    def _nearest(cls, key: str) -> str | None:
        """The known key most like this one; below a prefix every key is known."""
        known = [field.alias or name for name, field in cls.model_fields.items()]
        parts = key.split(".")
        for prefix in cls.prefixes():
            rest = parts[prefix.count(".") :]
            known += [prefix + ".".join(rest)] if rest else []
        return next(iter(difflib.get_close_matches(key, known, 1)), None)


def read_properties(path: str | Path) -> dict[str, str]:
    """The keys and values of a Java properties file, as they are written; of a key that is given twice, which is warned
    of, the last. Raises ConfigError.
    """
    found = _pairs(path)
    for key in _twice(found):
        structlog.get_logger(__name__).warning("config.twice", source=str(path), key=key, then="the last one counts")
    return dict(found)


def check_properties(path: str | Path) -> None:
    """Raise ConfigError for keys that a properties file has twice."""
    if twice := _twice(_pairs(path)):
        reason = "it is given more than once, and the last one counts: leave the others out"
        raise ConfigError([Problem(str(path), key, None, reason) for key in twice])


def _twice(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]


def _pairs(path: str | Path) -> list[tuple[str, str]]:
    try:
        with open(path, encoding="utf-8") as file:
            found: list[tuple[str, str]] = javaproperties.load(file, object_pairs_hook=list)
            return found
    except OSError as error:
        reason = f"cannot read the properties file: {error.strerror}"
    except (UnicodeDecodeError, javaproperties.InvalidUEscapeError) as error:
        reason = f"cannot read the properties file: {error}"
    raise ConfigError([Problem(str(path), "", None, reason)])


class CassandraSettings(Settings):
    """How to reach Cassandra: the part that agent and connector share."""

    cassandra_contact_points: Annotated[Hosts, About("Cassandra", "HIGH")] = ("127.0.0.1",)
    """Nodes to ask first, by address or name; the others are learned from them."""
    cassandra_port: Annotated[int, Field(gt=0, lt=65536), About("Cassandra", "HIGH")] = 9042
    """Their port for CQL."""
    cassandra_local_dc: Annotated[str | None, About("Cassandra", "HIGH")] = None
    """The data centre to speak with; by default that of the first contact point that answers."""
    cassandra_username: Annotated[str | None, About("Cassandra", "HIGH")] = None
    """The role to log in as, where Cassandra asks for one."""
    cassandra_password: Annotated[SecretStr | None, About("Cassandra", "HIGH")] = None
    """Its password."""
    cassandra_ssl_enabled: Annotated[bool, About("Cassandra")] = False
    """Whether to speak TLS."""
    cassandra_ssl_cafile: Annotated[Path | None, About("Cassandra")] = None
    """A PEM file of the authorities that signed the nodes' certificates; by default the system's count."""
    cassandra_ssl_certfile: Annotated[Path | None, About("Cassandra")] = None
    """A PEM file of a certificate to show to nodes that ask for one."""
    cassandra_ssl_keyfile: Annotated[Path | None, About("Cassandra")] = None
    """A PEM file of that certificate's key."""
    cassandra_ssl_check_hostname: Annotated[bool, About("Cassandra", "LOW")] = True
    """Whether a certificate must name the node that shows it."""
    cassandra_connect_timeout_ms: Annotated[Milliseconds, About("Cassandra", "LOW")] = 10_000
    """How long to wait for a connection."""
    cassandra_request_timeout_ms: Annotated[Milliseconds, About("Cassandra", "LOW")] = 12_000
    """How long to wait for an answer."""

    @classmethod
    def conflicts(cls, given: Mapping[str, str]) -> Iterable[tuple[str, str]]:
        if given.get("cassandra.username") and not given.get("cassandra.password"):
            yield "cassandra.password", "set it too: a cassandra.username alone logs nobody in"

    @property
    def server(self) -> tuple[object, ...]:
        """What tells one Cassandra, and the login there, from another: these can share a session."""
        return tuple(getattr(self, field) for field in CassandraSettings.model_fields)


class LogSettings(Settings):
    """How a command reports on itself."""

    log_level: Annotated[str, Field(pattern="^(debug|info|warning|error)$"), About("Logging")] = "info"
    """What is worth a line: debug, info, warning or error."""
    log_format: Annotated[str, Field(pattern="^(text|json)$"), About("Logging")] = "text"
    """text for people, json for programs; both have one event name and fields."""


NO_PULSAR = "install the extra pulsar: pip install '.[pulsar]' in a checkout, or 'helenus-….whl[pulsar]'"


class PulsarSettings(Settings):
    """How to reach Pulsar: the part that agent and connector share."""

    pulsar_service_url: Annotated[PulsarUrl, About("Pulsar", "HIGH")] = ""
    """Where brokers or proxies are: `pulsar://host:port,host:port`, or `pulsar+ssl://` for TLS."""
    pulsar_admin_url: Annotated[HttpUrl, About("Pulsar", "HIGH")] = ""
    """The REST API, `http://host:port` or `https://`: makes topics. Without it they have to be there."""
    pulsar_tenant: Annotated[PulsarName, About("Pulsar")] = "public"
    """The tenant of all topics."""
    pulsar_namespace: Annotated[PulsarName, About("Pulsar")] = "default"
    """The tenant's namespace."""
    pulsar_auth_token: Annotated[Token, About("Pulsar", "HIGH")] = None
    """A JSON Web Token that says who this is, where Pulsar asks for one."""
    pulsar_tls_cafile: Annotated[Path | None, About("Pulsar")] = None
    """A PEM file of the authorities that signed the brokers' certificates; by default the system's count."""
    pulsar_tls_check_hostname: Annotated[bool, About("Pulsar", "LOW")] = True
    """Whether a certificate must name the broker that shows it."""

    @property
    def pulsar_place(self) -> str:
        """What the full names of all topics begin with."""
        return f"persistent://{self.pulsar_tenant}/{self.pulsar_namespace}/"
