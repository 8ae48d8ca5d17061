"""Parse what a snapshot is requested of: the whole table, ranges of tokens, or some partitions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from helenus_schemas.cql.table import Table
from helenus_schemas.cql.types import CqlType, quote
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event import placement
from helenus_schemas.event.placement import LEAST_TOKEN, MOST_TOKEN

_STRING = r"'(?:[^']|'')*'"
_WORD = r"[-+.\w]+"  # numbers, uuids and blobs too
_LITERAL = rf"(?:{_STRING}|{_WORD})"  # two ways to match one would take for ever
_CONDITION = re.compile(
    rf'\s*(?:"((?:[^"]|"")+)"|(\w+))\s*(?:=\s*({_LITERAL})|[iI][nN]\s*\(\s*({_LITERAL}(?:\s*,\s*{_LITERAL})*)\s*\))\s*'
)
_AND = re.compile(r"and\b", re.IGNORECASE)
_QUOTED = ("ascii", "text", "inet", "date", "time", "timestamp", "custom")
"""Types whose values CQL has in quotes."""


@dataclass(frozen=True)
class SnapshotRequest:
    """The partitions of `token_ranges`, each above the first token, up to the second; or those that `where` names, as
    CQL.
    """

    token_ranges: tuple[tuple[int, int], ...] = ((LEAST_TOKEN, MOST_TOKEN),)
    where: str = ""

    @property
    def is_whole(self) -> bool:
        """Return whether it is the whole table."""
        return not self.where and self.token_ranges == ((LEAST_TOKEN, MOST_TOKEN),)


def request_for_tokens(text: str) -> SnapshotRequest:
    """Return the request for `AFTER:UNTIL`, two tokens: above the first, up to the second; or for several of them, with
    commas. Raises HelenusError CONFIG.
    """
    try:
        return SnapshotRequest(tuple(placement.token_ranges(text)))
    except ValueError as error:
        raise _config_error(str(error)) from None


def request_for_key(key: Mapping[str, Any]) -> SnapshotRequest:
    """Return the request for the columns of a partition key by name: `{"id": 5}`. Raises HelenusError CONFIG."""
    return SnapshotRequest(
        where=" AND ".join(f"{quote(name)} = {_literal(name, value)}" for name, value in key.items())
    )


def checked_request(requested: SnapshotRequest, table: Table) -> SnapshotRequest:
    """Return the request with its `where` parsed and rewritten. Raises HelenusError CONFIG unless it gives values for
    each column of the partition key, and for no other.
    """
    if not requested.where:
        return requested
    try:
        requested.where.encode()
    except UnicodeEncodeError:  # half of a pair, which JSON can say
        raise _config_error(f"{ascii(requested.where)[:60]} is no UTF-8") from None
    conditions: dict[str, str] = {}
    index = 0
    while True:
        match = _CONDITION.match(requested.where, index)
        if match is None:
            raise _config_error(f"cannot read {requested.where[index:][:40]!r}", _FORM)
        name = match[1].replace('""', '"') if match[1] else match[2].lower()
        if name in conditions:
            raise _config_error(f"{name} is given twice", _FORM)
        conditions[name] = f"= {match[3]}" if match[3] is not None else f"IN ({match[4]})"
        index = match.end()
        if index == len(requested.where):
            break
        between = _AND.match(requested.where, index)
        if between is None:
            raise _config_error(f"cannot read {requested.where[index:][:40]!r}", _FORM)
        index = between.end()
    types = {column.name: column.type for column in table.partition_key}
    names = list(types)
    if sorted(conditions) != sorted(names):
        problem = f"the partition key of {table.full_name} is {', '.join(names)}, and {', '.join(conditions)} was given"
        raise _config_error(problem, "give a value for each column of the partition key, and for no other")
    return SnapshotRequest(
        where=" AND ".join(f"{quote(name)} {_with_literals(conditions[name], types[name])}" for name in names)
    )


_FORM = "write it as: a = 1 AND b IN ('x', 'y'), with the columns of the partition key"


def _literal(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if not isinstance(value, str):
        raise _config_error(f"{name}: a value of a partition key is text or a number")
    return "'" + value.replace("'", "''") + "'"


def _with_literals(condition: str, column_type: CqlType) -> str:
    """Write the values of a condition as their type requires: a uuid, for example, without quotes."""
    if column_type.name in _QUOTED:
        return condition
    return re.sub(_STRING, lambda text: text[0][1:-1] if re.fullmatch(_WORD, text[0][1:-1]) else text[0], condition)


def _config_error(problem: str, advice: str = "") -> HelenusError:
    return HelenusError(Kind.CONFIG, problem, "", advice)
