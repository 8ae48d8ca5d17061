"""Java `.properties` files as pydantic models: one model per command, all errors at once, secrets never echoed.

A field's key is its name with dots for underscores: `kafka_bootstrap_servers` is `kafka.bootstrap.servers`. A field of
type `PassThrough` takes every key below its own: `kafka_producer` collects `kafka.producer.*`, without the prefix. The
text below a field and its `Group` are what the configuration reference and Kafka Connect's `validate` say of
the key.
"""

from __future__ import annotations

import ast
import difflib
import errno
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, cast, get_args

import structlog
from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from typing_extensions import Self

from helenus_schemas.settings import _certificates, fields, masking
from helenus_schemas.settings.fields import PassThrough
from helenus_schemas.settings.properties import ConfigError, Problem, read_properties

_BOUNDS = {
    "greater_than": "give more than {gt}",
    "greater_than_equal": "give {ge} or more",
    "less_than": "give less than {lt}",
    "less_than_equal": "give {le} or less",
}
_MEANT = {r"hosts?|nodes?|seeds?": "contact.points", r"brokers?|servers?": "bootstrap.servers"}


@dataclass(frozen=True)
class Group:
    """The group of keys that a field belongs to, and how likely it is that somebody sets it."""

    group: str
    importance: Literal["HIGH", "MEDIUM", "LOW"] = "MEDIUM"


@dataclass(frozen=True)
class Alias:
    """A key of another product: which of ours to `use`, or `why` there is none.

    `convert` turns its value into one of ours, or into None where there is nothing to set; it raises ValueError for a
    value that has no counterpart, also where there is no key to `use`.
    """

    use: str = ""
    why: str = ""
    convert: Callable[[str], str | None] = str


@dataclass
class _Given:
    """The properties of one source: our key -> its value, resolved, and as it was written."""

    source: str
    allowed: masking.Allowed | None = None
    trusted: Mapping[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def wrong(self, key: str, reason: str, secret: bool, known: bool = True) -> None:
        """Note a problem, once a key. Of a key that is not known the value is not shown: it may be a secret."""
        if any(p.key == key for p in self.problems):
            return
        written = self.written.get(key)
        value = self.values.get(key, "")
        if value and written is not None and (secret or masking.refers(written)):
            # A short one may be part of any word of ours.
            pattern = re.escape(value) if len(value) > 3 else rf"(?<!\w){re.escape(value)}(?!\w)"
            reason = re.sub(pattern, masking.STARS, reason)
        shown = None if written is None or not known else masking.shown(written, secret)
        self.problems.append(Problem(self.source, key, shown, reason))


class Settings(BaseModel):
    """The base of every command's configuration.

    `aliases` maps keys of other products, one that ends in `.*` for all keys below it; `environment` maps their
    variables to our keys. Each that is used is logged as a warning, with the key to use instead.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=lambda name: name.replace("_", "."),
        hide_input_in_errors=True,
        defer_build=True,  # a process that is given settings by another needs no validators
    )
    aliases: ClassVar[Mapping[str, str | Alias]] = {}
    environment: ClassVar[Mapping[str, str]] = {}
    meant: ClassVar[Mapping[str, str]] = {}
    """By the beginning of a key that people write, that of the key they mean."""
    text_lists: ClassVar[frozenset[str]] = frozenset()
    """The names of fields of text that hold a list: blanks around its parts do not count."""
    placeholders: ClassVar[Mapping[str, Sequence[str]]] = {}
    """By key the names that its value may have in it as `${NAME}`."""
    own_references: ClassVar[tuple[str, ...]] = ()
    """The beginnings of keys whose library has references of its own."""

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a properties file. Raises ConfigError that names every wrong key of the file at once.

        Variables in `environment` count where the file does not have their key.
        """
        found = {variable: os.environ[variable] for variable in cls.environment if variable in os.environ}
        return cls.from_properties(read_properties(path), str(path), found)

    @classmethod
    def from_properties(
        cls,
        properties: Mapping[str, str],
        source: str,
        environment: Mapping[str, str] | None = None,
        context: Mapping[str, Any] | None = None,
        *,
        allowed: masking.Allowed | None = None,
        trusted: Mapping[str, str] | None = None,
    ) -> Self:
        """Validate properties from `source`, a name for messages; they take precedence over the environment's.

        `${env:NAME}` and `${file:PATH:KEY}` in a value are resolved: all of them, or if `allowed` is given, those that
        it permits and those in values that `trusted`, an operator's properties, has under the same key. `context` is
        for validators. Raises ConfigError.
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
                cls._explain(given, keys.get(place, place), e["type"], e["msg"], e.get("ctx", {}))
        for key, reason in cls.conflicts(given.values):
            given.wrong(key, reason, cls.hides(key, given.written.get(key, "")))
        if given.problems or settings is None:
            raise ConfigError(given.problems) from None
        return settings

    @classmethod
    def conflicts(cls, given: Mapping[str, str]) -> Iterable[tuple[str, str]]:  # noqa: ARG003
        """(key, reason) for properties that do not go together. Each of the `given` ones may be wrong by itself too."""
        return ()

    def check_files(self, source: str) -> None:
        """Raise ConfigError for files of certificates and keys that are missing, or that TLS can't use. To be called on
        the machine that uses them.
        """
        given = {name: getattr(self, name) for name in type(self).model_fields}
        files = {name: path for name, path in given.items() if name.endswith("file") and isinstance(path, Path)}
        passwords = {name: value.get_secret_value() for name, value in given.items() if isinstance(value, SecretStr)}
        if wrong := _certificates.unusable(files, passwords):
            keys = type(self).model_fields
            raise ConfigError([Problem(source, keys[n].alias or n, str(files[n]), why) for n, why in wrong.items()])

    def check_directory(self, source: str, name: str) -> None:
        """Raise ConfigError if the directory in a field can't be written, or made. Makes none. To be called on the
        machine that uses it, by the user that will.
        """
        directory: Path = getattr(self, name).absolute()
        place = next(place for place in (directory, *directory.parents) if os.path.lexists(place))
        if not place.is_dir():
            why = errno.ENOTDIR
        elif not os.access(place, os.W_OK | os.X_OK):
            why = errno.EROFS if os.statvfs(place).f_flag & os.ST_RDONLY else errno.EACCES
        else:
            return
        reason = f"{os.strerror(why)} ({place}): create it, owned by the user that runs this, or name another"
        raise ConfigError([Problem(source, type(self).model_fields[name].alias or name, str(directory), reason)])

    @field_validator("*", mode="before")
    @classmethod
    def _text(cls, value: object, info: ValidationInfo) -> object:
        """Check what is not checked by its type: a path, and text, which is a name as a rule."""
        field = cls.model_fields[info.field_name or ""]
        if cls._is(field, Path):
            return fields.path(fields.without_blanks(value))
        is_text = field.annotation in (str, str | None) and info.field_name not in cls.text_lists
        return fields.without_blanks(value) if is_text else value

    @classmethod
    def prefixes(cls) -> list[str]:
        """`kafka.producer.` for a field `kafka_producer` of type PassThrough; the longest first."""
        passed = [f.alias or name for name, f in cls.model_fields.items() if f.annotation == get_args(PassThrough)[0]]
        return sorted((f"{key}." for key in passed), key=len, reverse=True)

    @classmethod
    def knows(cls, key: str) -> bool:
        """Whether a key is one of ours here, whatever its value."""
        fields = (field.alias or name for name, field in cls.model_fields.items())
        return key in fields or any(key.startswith(prefix) for prefix in cls.prefixes())

    @classmethod
    def hides(cls, key: str, value: str = "") -> bool:
        """Whether the value of a key, ours or another product's, must never be shown."""
        for name, known in cls.model_fields.items():
            if key == (known.alias or name):
                return cls._is(known, SecretStr)
        return masking.is_secret(key, value)

    @staticmethod
    def _is(known: FieldInfo, kind: type) -> bool:
        return known.annotation is kind or kind in get_args(known.annotation)

    @classmethod
    def _take(cls, given: _Given, found: Mapping[str, tuple[str, str]]) -> None:
        """Add properties by name: (key, value). A key of ours that is given takes precedence over its aliases."""
        log = structlog.get_logger(__name__)
        for name, (key, text) in found.items():
            alias = cls._alias(key)
            if alias is not None and not alias.use:
                try:
                    alias.convert(text)
                except ValueError as error:
                    given.written[name] = text
                    given.wrong(name, str(error), cls.hides(name, text))
                    continue
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
                if not use.startswith(cls.own_references):
                    masking.check_references(text, cls.placeholders.get(use, ()))
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
    def texts(cls) -> Mapping[str, str]:
        """By key the text below its field."""
        return _texts(cls)

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
    def _explain(cls, given: _Given, key: str, kind: str, message: str, limits: Mapping[str, Any]) -> None:
        """Note an error of pydantic's, in our words; `limits` are those that the value is beyond."""
        reason = message.removeprefix("Value error, ")
        secret = cls.hides(key, given.written.get(key, ""))
        if kind == "extra_forbidden":
            reason = cls.unknown(key)
        elif kind == "missing":
            reason = "required property is missing"
        elif kind == "string_too_short":
            reason = "give it a value"
        elif kind in ("int_parsing", "float_parsing"):
            reason = "give a number" if kind == "float_parsing" else "give a whole number"
        elif kind == "bool_parsing":
            reason = "give true or false"
        elif kind == "literal_error":
            reason = "give one of " + ", ".join(filter(None, re.findall("'([^']*)'", limits["expected"])))
        elif kind in _BOUNDS:
            reason = _BOUNDS[kind].format(**limits)
        elif words := re.search(r"match pattern '\^\(([\w|-]+)\)\$'", reason):
            reason = f"give one of {', '.join(words[1].split('|'))}"
        given.wrong(key, reason, secret, known=kind != "extra_forbidden")

    @classmethod
    def unknown(cls, key: str) -> str:
        """What is said of a key that is not known."""
        near = cls._nearest(key)
        return "unknown property" + (f", did you mean {near}?" if near else "")

    @classmethod
    def _nearest(cls, key: str) -> str | None:
        """The known key most similar to this one; below a prefix every key is known."""
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for words, meant in _MEANT.items():
            if (ours := re.sub(rf"\b({words})$", meant, key)) in known and ours != key:
                return ours
        for written, ours in cls.meant.items():
            if key.startswith(written):
                return ours + key[len(written) :]
        parts = key.split(".")
        for prefix in cls.prefixes():
            depth = prefix.count(".")
            if parts[depth:] and difflib.get_close_matches(".".join(parts[:depth]), [prefix[:-1]], cutoff=0.7):
                known.append(prefix + ".".join(parts[depth:]))
        return next(iter(difflib.get_close_matches(key, known, 1)), None)


@cache
def _texts(model: type[Settings]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for one in reversed(model.__mro__):
        if not issubclass(one, Settings):
            continue
        body = cast("ast.ClassDef", ast.parse(textwrap.dedent(inspect.getsource(one))).body[0]).body
        for known, text in pairwise(body):
            if isinstance(known, ast.AnnAssign) and isinstance(text, ast.Expr):
                found[ast.unparse(known.target).replace("_", ".")] = inspect.cleandoc(ast.literal_eval(text.value))
    return found
