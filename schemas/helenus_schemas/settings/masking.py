"""Secrets in properties: references to them are resolved, and wherever they would be shown there are stars.

A reference, `${env:NAME}` or `${file:PATH:KEY}`, is shown as it is written, its value never.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import javaproperties

from helenus_schemas.settings import regular_files
from helenus_schemas.settings.properties import STARS as STARS
from helenus_schemas.settings.properties import parsed_content

_REFERENCE = re.compile(r"\$\{(env|file):([^}]*)\}")
_OTHER = re.compile(r"\$\{(?!(?:env|file):[^}]*\})([^}]*)(\}?)")
_SECRET_KEY = re.compile(r"pass|pwd|secret|jaas|token|credential|user\.?info|\bkeys?\b|[^.]key\b", re.IGNORECASE)
_NO_SECRET_KEY = re.compile(
    r"(location|file|path|dir|type|class|url|enable|enabled|(de)?serializer|converter)$", re.IGNORECASE
)
_SECRET_VALUE = re.compile(r"(pass\w*|pwd|secret|token)\W?[=:]", re.IGNORECASE)
# A login follows the scheme, or begins an address without one, as `user:`. A password may have any of :, /, @ and
# commas in it, so the login ends at the last @ before a space, or before a comma with a scheme after it.
_LOGIN = re.compile(r"(?:(?<=://)|(?<![^\s,])(?=[^\s,:/@]+:(?!//)))(?:(?!,[\w+.-]+://)\S)+(?=@)")


def refers(value: str) -> bool:
    """Return whether a value as written has a reference in it."""
    return _REFERENCE.search(value) is not None


class NotAllowed(ValueError):
    """A reference that a configuration may not use; the message says what allows it."""


@dataclass(frozen=True)
class Allowed:
    """Which references may be used by a configuration that did not come from an operator's file: by the `subject`,
    which comes to the `owner`.

    A file has to be in one of `folders`, after links are resolved, and the whole name of a variable has to match
    `variables`; by default none is allowed. The files in `never` are always refused, by whatever name: the worker's
    own, and those with its secrets. All of it is looked at when a reference is used: files of Kubernetes' secrets are
    links, which lead elsewhere after each renewal.
    """

    folders: tuple[Path, ...] = ()
    variables: str = ""
    never: frozenset[Path] = frozenset()
    subject: str = "a connector's configuration that comes over REST"
    owner: str = "the worker"

    def check_variable(self, name: str) -> None:
        """Raise NotAllowed for a variable that may not be used."""
        if not self.has_variable(name):
            key = "config.providers.env.param.allowlist.pattern"
            raise NotAllowed(f"{self.subject} may not refer to it: variables have to match {self.owner}'s {key}")

    def has_variable(self, name: str) -> bool:
        """Return whether a variable of the environment may be used, whether it exists or not."""
        return re.fullmatch(self.variables, name) is not None

    def read_file(self, path: str) -> bytes:
        """Read a file. Raises NotAllowed if it may not be used, whether it exists or not; OSError if it can't be read,
        or is none that ends.
        """
        names = _names(path)
        file = os.path.realpath(path)
        is_below = any(Path(file).is_relative_to(os.path.realpath(folder)) for folder in self.folders)
        if not is_below or any(names & _names(own) for own in self.never):
            raise self._file_refusal()
        with regular_files.opened(file, follows_link=False) as descriptor:
            # By another name, too: a hard link, or a mount of the same file.
            status = os.fstat(descriptor)
            if any(os.path.samestat(status, status_of_own) for status_of_own in filter(None, map(_status, self.never))):
                raise self._file_refusal()
            with open(descriptor, "rb", closefd=False) as opened:
                return opened.read(regular_files.LARGEST)

    def _file_refusal(self) -> NotAllowed:
        key = "config.providers.file.param.allowed.paths"
        return NotAllowed(
            f"{self.subject} may not refer to it: files have to be below a folder of {self.owner}'s {key}, which has "
            f"none by default, and {self.owner}'s own files are not among them"
        )


NONE = Allowed()


def files(values: Iterable[str]) -> Iterator[Path]:
    """Yield the file of each `${file:…}` in values, by its absolute path as it is named there."""
    for value in values:
        for kind, name in _REFERENCE.findall(value):
            if kind == "file" and (path := name.rpartition(":")[0]):
                yield absolute(path)


def absolute(path: str | Path) -> Path:
    """Return the absolute path of a file as it is named: without `..`, and no link is followed."""
    return Path(os.path.normpath(Path(path).absolute()))


def _names(path: str | Path) -> set[str]:
    """Return a file's names: as it is given, and where links lead now."""
    return {str(absolute(path)), os.path.realpath(path)}


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def check_references(value: str, names: Iterable[str] = ()) -> None:
    """Raise ValueError for what looks like a reference and is none: of another kind, as to a vault, a name alone, or
    one without its end. `names` are those that the value may have in it as `${NAME}`, and that somebody else resolves.
    """
    for match in _OTHER.finditer(value):
        inside, end = match.groups()
        if end and inside in names:
            continue
        if not end:
            raise ValueError("a reference ends in }: give ${env:NAME} or ${file:PATH:KEY}")
        if kind := re.match(r"[\w.-]+(?=:)", inside):
            raise ValueError(f"there are no references ${{{kind[0]}:…}}: give ${{env:NAME}} or ${{file:PATH:KEY}}")
        # In a longer value it may be a part of a secret.
        if match[0] == value and re.fullmatch(r"[\w.-]+", inside):
            raise ValueError(
                f"there is no reference {value}: for a variable give ${{env:{inside.removeprefix('env.')}}}"
            )
        named_references = "".join(f"${{{name}}}, " for name in names)
        raise ValueError(f"there is no such reference: give {named_references}${{env:NAME}} or ${{file:PATH:KEY}}")


def resolve(value: str, allowed: Allowed | None = None) -> str:
    """Return the value with its references resolved: with `allowed`, only those that it permits.

    Raises ValueError for a reference that cannot be resolved.
    """

    def resolve_match(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "env":
            if allowed is not None:
                allowed.check_variable(name)
            if not name:
                raise ValueError("a reference names a variable: ${env:NAME}")
            if name not in os.environ:
                raise ValueError(f"the environment has no {name}")
            return os.environ[name]
        path, _, entry = name.rpartition(":")
        if not path or not entry:
            raise ValueError("a reference names a properties file and a key in it: ${file:/path:KEY}")
        try:
            content = Path(path).read_bytes() if allowed is None else allowed.read_file(path)
            return dict(parsed_content(content))[entry]
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror}") from None
        except javaproperties.InvalidUEscapeError:
            raise ValueError(f"{path} is not a properties file") from None
        except NotAllowed:
            raise
        except ValueError as error:
            raise ValueError(f"cannot read {path}: {error}") from None
        except KeyError:
            raise ValueError(f"{path} has no {entry}") from None

    return _REFERENCE.sub(resolve_match, value)


def is_secret(key: str, value: str = "") -> bool:
    """Return whether a setting of a library is to be hidden, by its name or its value."""
    named = _SECRET_KEY.search(key) is not None and _NO_SECRET_KEY.search(key) is None
    return named or _SECRET_VALUE.search(value) is not None


def shown(value: str, secret: bool) -> str:
    """Return a value as it may be shown: stars for a secret, and for the login in an address."""
    if secret and not _REFERENCE.fullmatch(value):
        return STARS
    return _LOGIN.sub(STARS, value)


class Hidden(dict[str, str]):
    """Settings that print their secrets as stars."""

    def __repr__(self) -> str:
        return repr({key: shown(value, is_secret(key, value)) for key, value in self.items()})
