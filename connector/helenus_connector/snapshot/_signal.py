"""A signal, as Debezium has it: a message's JSON value, which anybody who may write to the topic wrote.

    {"type": "execute-snapshot", "data": {"data-collections": ["ks.table"], "type": "INCREMENTAL",
        "additional-conditions": [{"data-collection": "ks.table", "filter": "id = 5"}]}}

Fields that are not named here are ignored, as Debezium ignores them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

EXECUTE, STOP, PAUSE, RESUME = "execute-snapshot", "stop-snapshot", "pause-snapshot", "resume-snapshot"
_TYPES = (EXECUTE, STOP, PAUSE, RESUME)
_KINDS = ("incremental", "blocking")
_MAX_BYTES = 64 << 10
_SHOWN = 80


@dataclass(frozen=True)
class Signal:
    """A request: `type`, of tables whose full names match `collections`, regular expressions; all of them, if
    there are none. `filters` are an expression each, and the partitions of the tables that match it, as CQL.
    """

    type: str
    collections: tuple[str, ...] = ()
    filters: tuple[tuple[str, str], ...] = ()

    def tables(self, names: Sequence[str]) -> list[str]:
        """Return those of these full names that match. Raises ValueError for what is no regular expression."""
        if not self.collections:
            return list(names)
        matches = [_matching_names(pattern, names) for pattern in self.collections]
        return [name for name in names if any(name in matching for matching in matches)]

    def where(self, name: str) -> str:
        """Return the condition on a table's partitions; empty for all. Raises ValueError."""
        return next((where for pattern, where in self.filters if _matching_names(pattern, [name])), "")


def parse_signal(value: bytes) -> Signal:
    """Parse the signal in a message. Raises ValueError, which says what is wrong with it."""
    if len(value) > _MAX_BYTES:
        raise ValueError(f"it has {len(value)} bytes, and a signal has {_MAX_BYTES} at most")
    try:
        content = json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError(f"it is no JSON: {_shown(value.decode(errors='replace'))}") from None
    if not isinstance(content, dict):
        raise ValueError(f"it is no JSON object: {_shown(content)}")
    signal_type, data = content.get("type"), content.get("data")
    if signal_type not in _TYPES:
        raise ValueError(f"type: {_shown(signal_type)} is not known: there are {', '.join(_TYPES)}")
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ValueError(f"data: an object is expected, not {_shown(data)}")
    kind = data.get("type") or "incremental"
    if not isinstance(kind, str) or kind.lower() not in _KINDS:
        raise ValueError(f"data: type: {_shown(kind)} is not known: there are INCREMENTAL and BLOCKING")
    collections = data.get("data-collections") or []
    if not isinstance(collections, list) or not all(isinstance(item, str) and item for item in collections):
        raise ValueError(f"data-collections: a list of texts is expected, not {_shown(collections)}")
    if signal_type == EXECUTE and not collections:
        raise ValueError("data-collections: name the tables, as KEYSPACE.TABLE or regular expressions")
    conditions = data.get("additional-conditions") or []
    if not isinstance(conditions, list):
        raise ValueError(f"additional-conditions: a list is expected, not {_shown(conditions)}")
    return Signal(signal_type, tuple(collections), tuple(_parse_condition(item) for item in conditions))


def _parse_condition(condition: Any) -> tuple[str, str]:
    pattern, where = (
        (condition.get("data-collection"), condition.get("filter")) if isinstance(condition, dict) else (None, None)
    )
    if not (isinstance(pattern, str) and isinstance(where, str) and pattern and where):
        expected = "each has the texts data-collection and filter"
        raise ValueError(f"additional-conditions: {expected}, and one is {_shown(condition)}")
    return pattern, where


def _matching_names(pattern: str, names: Sequence[str]) -> set[str]:
    # RE2, of Arrow's: it takes linear time. With Python's `re` a short pattern can stop the worker for ever.
    import pyarrow as pa
    from pyarrow import compute

    try:
        is_matching = compute.match_substring_regex(pa.array(names, pa.string()), pattern=rf"\A(?:{pattern})\z")
    except (pa.ArrowInvalid, UnicodeError):
        raise ValueError(f"{_shown(pattern)} is no regular expression") from None
    return {name for name, matches in zip(names, is_matching.to_pylist(), strict=True) if matches}


def _shown(value: object) -> str:
    try:
        text = value if isinstance(value, str) else json.dumps(value)
    except RecursionError:
        text = "…"
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
