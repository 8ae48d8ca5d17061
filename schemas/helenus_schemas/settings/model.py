"""Java `.properties` files as pydantic models: one model per command, all errors at once, secrets never echoed.

A field's key is its name with dots for underscores: `bootstrap_servers` is `bootstrap.servers`. A field of type
`PassThrough` takes every key below its own: `producer` collects `producer.*`, without the prefix. The text below a
field and its `Group` are what the configuration reference and Kafka Connect's `validate` say of the key.
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
from pydantic import BaseModel, ConfigDict, PrivateAttr, SecretStr, ValidationError, ValidationInfo, field_validator
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


EXPERT = "Expert"
"""The section of the keys that no operator should have to set, the last one wherever keys are shown."""


@dataclass(frozen=True)
class Group:
    """The group of keys that a field belongs to, and how likely it is that somebody sets it.

    `expert` keys are margins and bounds whose defaults suit every deployment. A key that is an older way to say what
    another says has that key in `replaced_by`.
    """

    group: str
    importance: Literal["HIGH", "MEDIUM", "LOW"] = "MEDIUM"
    expert: bool = False
    replaced_by: str = ""

    @property
    def section(self) -> str:
        """Return the section in which the key is shown."""
        return EXPERT if self.expert else self.group


@dataclass(frozen=True)
class Alias:
    """A key of another product: which of ours to `use`, or `why` there is none.

    `convert` turns its value into one of ours, or into None where there is nothing to set; it raises ValueError for a
    value that has no counterpart, also where there is no key to `use`. It does not count where the key to use is given
    too, or the key `unless`.
    """

    use: str = ""
    why: str = ""
    convert: Callable[[str], str | None] = str
    unless: str = ""


@dataclass
class _RawProperties:
    """The properties of one source: our key -> its value, resolved, and as it was written."""

    source: str
    allowed: masking.Allowed | None = None
    trusted: Mapping[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """Our key -> its name in the source, which may be an older one."""
    problems: list[Problem] = field(default_factory=list)

    def add_problem(self, key: str, reason: str, secret: bool, is_known: bool = True) -> None:
        """Note a problem, once a key. Of a key that is not known the value is not shown: it may be a secret."""
        name = self.names.get(key, key)
        if any(p.key == name for p in self.problems):
            return
        written = self.written.get(key)
        value = self.values.get(key, "")
        if value and written is not None and (secret or masking.refers(written)):
            # A short one may be part of any word of ours.
            pattern = re.escape(value) if len(value) > 3 else rf"(?<!\w){re.escape(value)}(?!\w)"
            reason = re.sub(pattern, masking.STARS, reason)
        shown = None if written is None or not is_known else masking.shown(written, secret)
        self.problems.append(Problem(self.source, name, shown, reason))


class Settings(BaseModel):
    """The base of every command's configuration.

    `older_names` maps the names that keys of ours had to those that they have; a `*` at the end of both is the same
    text. `aliases` maps keys of other products, one that ends in `.*` for all keys below it; `environment` maps their
    variables to our keys. Each alias that is used is logged as a warning, with the key to use instead.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=lambda name: name.replace("_", "."),
        hide_input_in_errors=True,
        defer_build=True,  # a process that is given settings by another needs no validators
    )
    older_names: ClassVar[Mapping[str, str]] = {}
    aliases: ClassVar[Mapping[str, str | Alias]] = {}
    environment: ClassVar[Mapping[str, str]] = {}
    meant: ClassVar[Mapping[str, str]] = {}
    """By the beginning of a key that people write, that of the key they mean."""
    text_lists: ClassVar[frozenset[str]] = frozenset()
    """The names of fields of text that hold a list: blanks around its parts do not count."""
    listed: ClassVar[frozenset[str]] = frozenset()
    """The names of fields of type PassThrough whose own key lists the names that begin the keys below it. The list is
    in the field under the empty name."""
    placeholders: ClassVar[Mapping[str, Sequence[str]]] = {}
    """By key the names that its value may have in it as `${NAME}`."""
    own_references: ClassVar[tuple[str, ...]] = ()
    """The beginnings of keys whose library has references of its own."""

    _names: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a properties file. Raises ConfigError that names every wrong key of the file at once.

        Variables in `environment` count where the file does not have their key.
        """
        variables = {variable: os.environ[variable] for variable in cls.environment if variable in os.environ}
        return cls.from_properties(read_properties(path), str(path), variables)

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
        raw = _RawProperties(source, allowed, {cls.present_name(name): text for name, text in (trusted or {}).items()})
        cls._add_properties(raw, {v: (cls.environment[v], text) for v, text in (environment or {}).items()})
        cls._add_properties(raw, {key: (key, text) for key, text in cls._by_present_names(raw, properties).items()})
        keys = {name: field.alias or name for name, field in cls.model_fields.items()}
        prefixes = cls.prefixes()
        values: dict[str, Any] = {}
        for key, value in raw.values.items():
            prefix = next((p for p in prefixes if key.startswith(p) and key not in keys.values()), None)
            if key in cls.listed:
                values.setdefault(key, {})[""] = value
            elif prefix is None:
                values[key] = value
            else:
                values.setdefault(prefix[:-1], {})[key[len(prefix) :]] = value
        settings: Self | None = None
        try:
            settings = cls.model_validate(values, context=context)
        except ValidationError as error:
            for e in error.errors(include_url=False):
                field_name = str(e["loc"][0]) if e["loc"] else ""
                cls._explain(raw, keys.get(field_name, field_name), e["type"], e["msg"], e.get("ctx", {}))
        for key, reason in cls.conflicts(raw.values):
            raw.add_problem(key, reason, cls.hides(key, raw.written.get(key, "")))
        if raw.problems or settings is None:
            raise ConfigError(raw.problems) from None
        if cls.older_names:
            settings._names = raw.names
        return settings

    def name_in_file(self, key: str) -> str:
        """Return the name under which the file has a key, or would have it: an older one if it has such names."""
        if key in self._names:
            return self._names[key]
        for older, present in self.older_names.items():
            before, now = older.removesuffix("*"), present.removesuffix("*")
            if key.startswith(now) and any(name.startswith(before) for name in self._names.values()):
                return before + key[len(now) :]
        return key

    @classmethod
    def conflicts(cls, properties: Mapping[str, str]) -> Iterable[tuple[str, str]]:  # noqa: ARG003
        """Yield (key, reason) for `properties` that do not go together. Each of them may be wrong by itself too."""
        return ()

    def check_files(self, source: str) -> None:
        """Raise ConfigError for files of certificates and keys that are missing, or that TLS can't use. To be called on
        the machine that uses them.
        """
        values = {name: getattr(self, name) for name in type(self).model_fields}
        files = {name: path for name, path in values.items() if name.endswith("file") and isinstance(path, Path)}
        passwords = {name: value.get_secret_value() for name, value in values.items() if isinstance(value, SecretStr)}
        if wrong := _certificates.find_unusable(files, passwords):
            keys = type(self).model_fields
            raise ConfigError([Problem(source, keys[n].alias or n, str(files[n]), why) for n, why in wrong.items()])

    def check_directory(self, source: str, name: str) -> None:
        """Raise ConfigError if the directory in a field can't be written, or made. Makes none. To be called on the
        machine that uses it, by the user that will.
        """
        directory: Path = getattr(self, name).absolute()
        existing = next(existing for existing in (directory, *directory.parents) if os.path.lexists(existing))
        if not existing.is_dir():
            why = errno.ENOTDIR
        elif not os.access(existing, os.W_OK | os.X_OK):
            why = errno.EROFS if os.statvfs(existing).f_flag & os.ST_RDONLY else errno.EACCES
        else:
            return
        reason = f"{os.strerror(why)} ({existing}): create it, owned by the user that runs this, or name another"
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
        """Return `topic.config.` for a field `topic_config` of type PassThrough; the longest first."""
        passed = [f.alias or name for name, f in cls.model_fields.items() if f.annotation == get_args(PassThrough)[0]]
        return sorted((f"{key}." for key in passed), key=len, reverse=True)

    @classmethod
    def knows(cls, key: str) -> bool:
        """Return whether a key is one of ours here, whatever its value."""
        fields = (field.alias or name for name, field in cls.model_fields.items())
        return key in fields or any(key.startswith(prefix) for prefix in cls.prefixes())

    @classmethod
    def hides(cls, key: str, value: str = "") -> bool:
        """Return whether the value of a key, ours or another product's, must never be shown."""
        for name, model_field in cls.model_fields.items():
            if key == (model_field.alias or name):
                return cls._is(model_field, SecretStr)
        return masking.is_secret(key, value)

    @staticmethod
    def _is(model_field: FieldInfo, kind: type) -> bool:
        return model_field.annotation is kind or kind in get_args(model_field.annotation)

    @classmethod
    def present_name(cls, name: str) -> str:
        """Return the name that a key of ours has now, for an older one; any other name as it is."""
        if name in cls.older_names:
            return cls.older_names[name]
        for older, present in cls.older_names.items():
            if older.endswith("*") and name.startswith(older[:-1]):
                return present[:-1] + name[len(older) - 1 :]
        return name

    @classmethod
    def _by_present_names(cls, raw: _RawProperties, properties: Mapping[str, str]) -> dict[str, str]:
        """Return properties by the names that keys have now. An older name may be given too, with the same value."""
        renamed: dict[str, str] = {}
        for name, text in properties.items():
            key = cls.present_name(name)
            first = raw.names.setdefault(key, name)
            if first == name:
                renamed[key] = text
                continue
            raw.names[key] = key
            if renamed[key] != text:
                older = first if name == key else name
                reason = f"{older} is an older name of it, and has another value: leave that one out"
                raw.add_problem(key, reason, cls.hides(key, text))
        return renamed

    @classmethod
    def _add_properties(cls, raw: _RawProperties, properties: Mapping[str, tuple[str, str]]) -> None:
        """Add properties by name: (key, value). A key of ours that is given takes precedence over its aliases."""
        log = structlog.get_logger(__name__)
        for name, (key, text) in properties.items():
            alias = cls._alias(key)
            if alias is not None and not alias.use:
                try:
                    alias.convert(text)
                except ValueError as error:
                    raw.written[name] = text
                    raw.add_problem(name, str(error), cls.hides(name, text))
                    continue
                log.warning("config.ignored", source=raw.source, key=name, why=alias.why)
                continue
            if alias is not None:
                more = {"why": alias.why} if alias.why else {}
                log.warning("config.alias", source=raw.source, key=name, use=alias.use, **more)
                if alias.use in properties or (alias.unless and alias.unless in properties):
                    continue
            use = alias.use if alias else key
            raw.written[use] = text
            try:
                if not use.startswith(cls.own_references):
                    masking.check_references(text, cls.placeholders.get(use, ()))
                allowed = None if raw.trusted.get(name) == text else raw.allowed
                value: str | None = masking.resolve(text, allowed)
                if alias is not None and value is not None:
                    value = alias.convert(value)
            except ValueError as error:
                raw.written[name] = text
                raw.add_problem(name, str(error), cls.hides(use, text) or cls.hides(name, text))
                if name != use:
                    del raw.written[use]
                continue
            if value is None:
                del raw.written[use]
                continue
            raw.values[use] = value
            if not masking.refers(text):
                raw.written[use] = value

    @classmethod
    def texts(cls) -> Mapping[str, str]:
        """Return the text below each field, by key."""
        return _field_texts(cls)

    @classmethod
    def key_of(cls, name: str) -> str:
        """Return our key for an older name, or for a key of another product's; any other name as it is."""
        key = cls.present_name(name)
        alias = cls._alias(key)
        return alias.use if alias and alias.use else key

    @classmethod
    def _alias(cls, key: str) -> Alias | None:
        alias = cls.aliases.get(key)
        if alias is None:
            alias = next((a for k, a in cls.aliases.items() if k.endswith(".*") and key.startswith(k[:-1])), None)
        return Alias(alias) if isinstance(alias, str) else alias

    @classmethod
    def _explain(cls, raw: _RawProperties, key: str, kind: str, message: str, limits: Mapping[str, Any]) -> None:
        """Note an error of pydantic's, in our words; `limits` are those that the value is beyond."""
        reason = message.removeprefix("Value error, ")
        secret = cls.hides(key, raw.written.get(key, ""))
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
        elif kind == "dict_type":
            reason = f"it is the beginning of keys: give {key}.…"
        elif kind in _BOUNDS:
            reason = _BOUNDS[kind].format(**limits)
        elif words := re.search(r"match pattern '\^\(([\w|-]+)\)\$'", reason):
            reason = f"give one of {', '.join(words[1].split('|'))}"
        raw.add_problem(key, reason, secret, is_known=kind != "extra_forbidden")

    @classmethod
    def unknown(cls, key: str) -> str:
        """Return what is said of a key that is not known."""
        near = cls._nearest(key)
        return "unknown property" + (f", did you mean {near}?" if near else "")

    @classmethod
    def _nearest(cls, key: str) -> str | None:
        """Return the known key most similar to this one; below a prefix every key is known."""
        prefixes = [prefix[:-1] for prefix in cls.prefixes()]  # no keys by themselves
        fields = (field.alias or name for name, field in cls.model_fields.items())
        keys = [key for key in fields if key not in prefixes]
        for words, meant in _MEANT.items():
            if (ours := re.sub(rf"\b({words})$", meant, key)) in keys and ours != key:
                return ours
        for written, ours in cls.meant.items():
            if key.startswith(written):
                return ours + key[len(written) :]
        parts = key.split(".")
        for prefix in cls.prefixes():
            depth = prefix.count(".")
            if parts[depth:] and difflib.get_close_matches(".".join(parts[:depth]), [prefix[:-1]], cutoff=0.7):
                keys.append(prefix + ".".join(parts[depth:]))
        return next(iter(difflib.get_close_matches(key, keys, 1)), None)


@cache
def _field_texts(model: type[Settings]) -> Mapping[str, str]:
    texts: dict[str, str] = {}
    for settings_class in reversed(model.__mro__):
        if not issubclass(settings_class, Settings):
            continue
        body = cast("ast.ClassDef", ast.parse(textwrap.dedent(inspect.getsource(settings_class))).body[0]).body
        for statement, text in pairwise(body):
            if isinstance(statement, ast.AnnAssign) and isinstance(text, ast.Expr):
                texts[ast.unparse(statement.target).replace("_", ".")] = inspect.cleandoc(ast.literal_eval(text.value))
    return texts
