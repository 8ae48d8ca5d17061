"""Masks of columns, under Debezium's names of keys: whose text is replaced before it is published, and by what.

Source: `ColumnMappers` and `MaskStrings` of Debezium 3. Salts are secrets, and in the names of keys: no text here, nor
what is raised, has one in it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from helenus_connector.config._patterns import check_excluded
from helenus_schemas.settings.properties import shown_key

MASK, TRUNCATE = "column.mask.", "column.truncate."
_HASH = re.compile(r"hash\.(v2\.)?([^.]+)\.with\.salt\.(.+)", re.DOTALL)
_CHARACTERS = re.compile(r"with\.([0-9]{1,9})\.chars")
_LENGTH = re.compile(r"to\.([0-9]{1,9})\.chars")
_MOST_CHARACTERS = 1_000_000  # stars for each value of a column: no more than most brokers take as a record
ALGORITHMS: Mapping[str, str] = {
    "MD5": "md5",
    **dict.fromkeys(("SHA", "SHA1", "SHA-1"), "sha1"),
    **{f"SHA-{bits}": f"sha{bits}" for bits in (224, 256, 384, 512)},
    **{f"SHA-512/{bits}": f"sha512_{bits}" for bits in (224, 256)},
    **{f"SHA3-{bits}": f"sha3_{bits}" for bits in (224, 256, 384, 512)},
}
"""Names of Java's `MessageDigest` to those of `hashlib`."""


@dataclass(frozen=True)
class ColumnMask:
    """A mask of columns. `option` is its key as it may be shown; `entries` are `keyspace.table.column`, each part a
    regular expression.

    With an `algorithm` of hashlib's it is a hash of `salt` and value, as Debezium's `version` 1 or 2 has it; else
    `length` stars, or the first `length` characters if it `truncates`.
    """

    option: str
    entries: tuple[str, ...]
    length: int = 0
    truncates: bool = False
    algorithm: str = ""
    salt: str = field(default="", repr=False)
    version: int = 1


class MaskKeys(dict[str, str]):
    """What follows `column.mask.` in keys, and their values: printed without salts."""

    def __repr__(self) -> str:
        return repr({shown_key(f"{MASK}{key}").removeprefix(MASK): value for key, value in self.items()})


def check_masks(keys: dict[str, str]) -> dict[str, str]:
    """Return keys below `column.mask.`. Raises ValueError for one that is no mask."""
    for key, columns in keys.items():
        _mask(key, columns)
    return MaskKeys(keys)


def check_truncations(keys: dict[str, str]) -> dict[str, str]:
    """Return keys below `column.truncate.`. Raises ValueError for one that says no length."""
    for key, columns in keys.items():
        _truncation(key, columns)
    return keys


def column_masks(masks: Mapping[str, str], truncations: Mapping[str, str]) -> tuple[ColumnMask, ...]:
    """Return the masks that the keys below `column.mask.` and `column.truncate.` say."""
    return _parsed(tuple(masks.items()), tuple(truncations.items()))


@functools.lru_cache(100)  # asked for each table and definition
def _parsed(masks: Iterable[tuple[str, str]], truncations: Iterable[tuple[str, str]]) -> tuple[ColumnMask, ...]:
    return (*(_mask(*item) for item in masks), *(_truncation(*item) for item in truncations))


def _mask(key: str, columns: str) -> ColumnMask:
    option, entries = shown_key(f"{MASK}{key}"), _entries(columns)
    if match := _CHARACTERS.fullmatch(key):
        if int(match[1]) > _MOST_CHARACTERS:
            raise ValueError(f"{option}: at most {_MOST_CHARACTERS} characters")
        return ColumnMask(option, entries, int(match[1]))
    if match := _HASH.fullmatch(key):
        algorithm = ALGORITHMS.get(match[2].upper())
        if algorithm is None:
            raise ValueError(f"there is no algorithm {match[2][:20]}: give one of {', '.join(ALGORITHMS)}")
        return ColumnMask(option, entries, algorithm=algorithm, salt=match[3], version=2 if match[1] else 1)
    forms = "with.NUMBER.chars, hash.ALGORITHM.with.salt.SALT and hash.v2.ALGORITHM.with.salt.SALT"
    raise ValueError(f"the masks are {MASK}{forms.replace(' and ', f' and {MASK}').replace(', ', f', {MASK}')}")


def _truncation(key: str, columns: str) -> ColumnMask:
    match = _LENGTH.fullmatch(key)
    if match is None:
        raise ValueError(f"give {TRUNCATE}to.NUMBER.chars")
    return ColumnMask(f"{TRUNCATE}{key}", _entries(columns), int(match[1]), truncates=True)


def _entries(columns: str) -> tuple[str, ...]:
    entries = tuple(part.strip() for part in columns.split(",") if part.strip())
    if not entries:
        raise ValueError("name the columns to mask, as keyspace.table.column")
    return check_excluded(entries)
