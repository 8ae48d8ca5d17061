"""Secrets in properties: references to them resolved, and stars wherever they would be shown.

A reference, `${env:NAME}` or `${file:PATH:KEY}`, is shown as it is written; what it stands for never is.
"""

from __future__ import annotations

import os
import re

import javaproperties

STARS = "*****"
_REFERENCE = re.compile(r"\$\{(env|file):([^}]*)\}")
_SECRET_KEY = re.compile(r"pass|pwd|secret|jaas|token|credential|user\.?info|\bkeys?\b|[^.]key\b", re.IGNORECASE)
_NO_SECRET_KEY = re.compile(r"(location|file|path|dir|type|class|url|enable|enabled|(de)?serializer)$", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"(pass\w*|pwd|secret|token)\W?[=:]", re.IGNORECASE)
# A login is behind the scheme, or where an address without one begins, as `user:`. A password may have any of :, /, @
# and commas in it, so the login ends at the last @ before a space, or before a comma that a scheme is behind.
_LOGIN = re.compile(r"(?:(?<=://)|(?<![^\s,])(?=[^\s,:/@]+:(?!//)))(?:(?!,[\w+.-]+://)\S)+(?=@)")


def refers(value: str) -> bool:
    """Whether a value as written stands for another one."""
    return _REFERENCE.search(value) is not None


def resolve(value: str) -> str:
    """The value with its references resolved. Raises ValueError that says which cannot be."""

    def resolved(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "env":
            if name not in os.environ:
                raise ValueError(f"the environment has no {name}")
            return os.environ[name]
        path, _, entry = name.rpartition(":")
        try:
            with open(path, encoding="utf-8") as file:
                return str(javaproperties.load(file)[entry])
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror}") from None
        except (UnicodeDecodeError, javaproperties.InvalidUEscapeError):
            raise ValueError(f"{path} is no properties file") from None
        except KeyError:
            raise ValueError(f"{path} has no {entry}") from None

    return _REFERENCE.sub(resolved, value)


def is_secret(key: str, value: str = "") -> bool:
    """Whether a setting that is handed on to a library is, by its name or what it holds, one to hide."""
    named = _SECRET_KEY.search(key) is not None and _NO_SECRET_KEY.search(key) is None
    return named or _SECRET_VALUE.search(value) is not None


def shown(value: str, secret: bool) -> str:
    """A value as written, fit to be shown: stars for a secret, and for the login in an address."""
    if secret and not _REFERENCE.fullmatch(value):
        return STARS
    return _LOGIN.sub(STARS, value)


class Hidden(dict[str, str]):
    """Settings whose secrets are stars when it is printed."""

    def __repr__(self) -> str:
        return repr({key: shown(value, is_secret(key, value)) for key, value in self.items()})
