"""What is kept of unconfirmed keys next to a query's checkpoint, in two files; a path is that of the first.

`unconfirmed` has when each topic was read last. `unconfirmed.keys` has the keys that wait longer than the next start
steps back, by topic, partition and scope: each with the changes that it waits for, `packed`, in hexadecimal. A range
has its bounds between: whether it is inclusive, and its values in hexadecimal; null where the range is open.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from helenus_connector.interfaces.image import Bounds
from helenus_connector.unconfirmed.unproven_changes import unstamp_changes
from helenus_schemas.event.change import Bound
from helenus_schemas.service import durable

if TYPE_CHECKING:
    from helenus_connector.unconfirmed.unconfirmed_key import UnconfirmedKey

_VERSION = 1


class ReadEnd(NamedTuple):
    """When a run last read a topic, s since the epoch, and how many s from there the next one steps back."""

    at: float
    replay_s: float


def begins(file: Path) -> Callable[[str, float, float], float]:
    """Return a function of topic, `replay_s` and the time: from when on a starting run reads the topic again, s since
    the epoch. That is `replay_s` before the last run ended, or more if that run had a larger `replay_s`.

    Raises HelenusError(STATE).
    """
    try:
        read_ends = load_ended(file)
        _load_keys(file)
    except durable.Damaged:  # the driver has said so
        read_ends = {"": ReadEnd(0.0, 0.0)}

    def begin(topic: str, replay_s: float, now: float) -> float:
        ended = read_ends.get(topic, read_ends.get("", ReadEnd(now, replay_s)))
        return max(0.0, ended.at - max(ended.replay_s, replay_s))

    return begin


def load_ended(file: Path) -> dict[str, ReadEnd]:
    """Return when topics were read, by what a run kept: under "" those that it does not name. Raises Damaged, and
    HelenusError(STATE).
    """
    try:
        return {topic: ReadEnd(*ended) for topic, ended in durable.load(file, _VERSION).items()}
    except FileNotFoundError:
        return {}


def save_ended(file: Path, ended: Mapping[str, ReadEnd]) -> None:
    """Raises HelenusError(STATE)."""
    durable.make_directory(file.parent)
    durable.save(file, ended, _VERSION, "when topics were read", "unconfirmed.after-write")


def load_keys(file: Path) -> Iterator[tuple[str, int, int, bytes, Bounds | None, bytes]]:
    """Topic, partition, scope, key and bounds of what waits, and for which Changes. Raises as `load_ended`."""
    for topic, partition, scope, names in _load_keys(file):
        for name in names:
            yield topic, partition, scope, *_from_json(name)


def as_text(keys: Iterable[UnconfirmedKey]) -> str:
    """Return keys as `save_keys` takes them."""
    keys_by_partition: dict[tuple[str, int, int], list[Any]] = {}
    for unconfirmed in keys:
        keys_by_partition.setdefault((unconfirmed.topic, unconfirmed.partition, int(unconfirmed.scope)), []).append(
            _to_json(unconfirmed)
        )
    return json.dumps([[*partition_scope, names] for partition_scope, names in keys_by_partition.items()])


def save_keys(file: Path, text: str) -> None:
    """Raises HelenusError(STATE)."""
    durable.make_directory(file.parent)
    sealed = durable.sealed(text, _VERSION)
    durable.write(file.with_suffix(".keys"), sealed, "the unconfirmed keys", "unconfirmed.keys-after-write")


def _load_keys(file: Path) -> Any:
    try:
        return durable.load(file.with_suffix(".keys"), _VERSION)
    except FileNotFoundError:
        return []


def _to_json(unconfirmed: UnconfirmedKey) -> Any:
    bounds = unconfirmed.bounds or ()
    ends = [end and [end.inclusive, [value.hex() for value in end.values]] for end in bounds]
    return [unconfirmed.key.hex(), *ends, unconfirmed.awaited.hex()]


def _from_json(name: list[Any]) -> tuple[bytes, Bounds | None, bytes]:
    key, *ends, awaited = name
    start, end = (end and Bound(end[0], tuple(map(bytes.fromhex, end[1]))) for end in ends or (None, None))
    return bytes.fromhex(key), (start, end) if ends else None, unstamp_changes(bytes.fromhex(awaited))
