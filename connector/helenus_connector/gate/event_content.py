"""What an event holds: its change, its key in today's form, and what names the change among its replicas' copies."""

from __future__ import annotations

import math
import re
from functools import lru_cache

from helenus_connector.gate._slots import change_id
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.image import Bounds
from helenus_schemas.codec.avro_long import long_bytes
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.values import Malformed
from helenus_schemas.event.change import Bound, Change, Scope
from helenus_schemas.event.own_format import match_own_format, parse_match
from helenus_schemas.event.wire import decode, without_frames

_MD5 = re.compile(r"[0-9a-f]{32}")
_ROW, _PARTITION = Scope.ROW, Scope.PARTITION  # an enum's members are slow to look up
_NO_DIGEST = 32  # bytes; an event that is shorter has none
_decode_short = lru_cache(64)(decode)  # a snapshot's events are all alike
_LARGEST_KEY = 0xFFFF  # bytes that Cassandra takes of a partition key; a byte of Avro may stand for 12 of them


def identity(change: Change, key: bytes) -> bytes | None:
    """16 bytes that name a change among its copies; None if they can't be recognised: without a node, or with a digest
    that is no MD5, as a backfill's. Such a one always goes on.
    """
    if not change.node or not change.digest or not _MD5.fullmatch(change.digest):
        return None
    within = key if change.scope is not Scope.RANGE else key + repr((change.start, change.end)).encode()
    return change_id(within, long_bytes(change.scope), change.digest.encode())


def is_repeated(event: Event) -> bool:
    """Whether an event of before a restart goes on again: it may be of a change that was not confirmed. One without an
    `identity`, as a snapshot's, is of none: it was done with, or its key is kept.
    """
    if event.value and match_own_format(event.value):
        return True
    try:
        change = decode(without_frames(event.key, event.value or b"")[1])
    except ValueError:  # the gate says what is wrong with it
        return True
    return change.scope is Scope.GAP or identity(change, event.key or b"") is not None


def decode_event(event: Event, codec: KeyCodec) -> tuple[Change, bytes]:
    """The change of an event, whichever agent wrote it, and its key in today's form. Raises Malformed."""
    key, value = without_frames(event.key, event.value or b"")
    change = _decode_short(value) if len(value) < _NO_DIGEST else decode(value)
    if change.scope in (Scope.TABLE, Scope.GAP):
        return change, key or b""
    if key is None:
        raise Malformed("an event without key")
    key = codec.current_key(key, change.foreign)
    return _scoped(change, key, codec) if change.foreign else (change, key)


def _scoped(change: Change, key: bytes, codec: KeyCodec) -> tuple[Change, bytes]:
    """Another agent's key with a time stands for all rows of its microsecond."""
    values = codec.decode(key)
    ends = codec.microsecond_bounds(values)
    if ends is None:
        return change, key
    start, end = (Bound(True, values) for values in ends)
    whole = codec.encode([*values[: codec.partition_columns], *[None] * (len(values) - codec.partition_columns)])
    return change._replace(scope=Scope.RANGE, start=start, end=end), whole


def requested_scope(event: Event, values: Key) -> Scope:
    """What an event asks for by itself: others of its key may ask for more."""
    value = event.value or b""
    match = match_own_format(value)
    return read_scope(parse_match(match) if match else decode(without_frames(None, value)[1]), values)


def read_scope(change: Change, key: Key) -> Scope:
    """What to read for a change. DataStax's agent writes no scope: its key without clustering values may be of static
    columns, or of a deleted partition. From our agent such a key is a row's whose clustering values all have no bytes.
    Either way the whole partition is read.
    """
    return _PARTITION if None in key and change.scope is _ROW else change.scope


def decode_key(codec: KeyCodec, key: bytes) -> Key:
    """The CQL bytes of a key's columns. A null among clustering values that are none stands for no bytes."""
    values = codec.decode(key)
    if len(key) > _LARGEST_KEY // 12:
        size = sum(len(value or b"") for value in values[: codec.partition_columns])
        if size > _LARGEST_KEY:
            raise Malformed(f"a partition key of {size} bytes, where {_LARGEST_KEY} are allowed")
    if None not in values or not any(value is not None for value in values[codec.partition_columns :]):
        return values
    return tuple([value or b"" for value in values])


def check_bounds(codec: KeyCodec, values: Key, bounds: Bounds | None) -> None:
    """Raise Malformed for bounds that are none of this table's: it was recreated with other clustering columns."""
    for bound in bounds or ():
        if bound is not None and bound.values:
            partition = values[: codec.partition_columns]
            missing = len(values) - len(partition) - len(bound.values)
            if missing < 0:
                raise Malformed(f"a bound of {len(bound.values)} clustering values, {-missing} more than there are")
            codec.encode([*partition, *bound.values, *[None] * missing])


def event_time(event: Event) -> float:
    """When an event, and the change in it, was written, s since the epoch; infinite if it does not say."""
    try:
        written = decode(event.value or b"").write_time
    except ValueError:
        return math.inf
    return min(event.timestamp / 1000, math.inf if written is None else written / 1e6)
