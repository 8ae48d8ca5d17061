"""A Change, one decoded effect from one node's log, and its wire form: the value of an event.

The value is an Avro record without a header. Its first three fields are DataStax's `MutationValue`, in the order its
Kafka agents write; the others are ours and follow, so a reader that knows three fields stops before them. DataStax's
Pulsar agents write the three sorted by name: `columns` is always null there, so the first byte tells the two apart.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from zlib import crc32

from helenus_schemas.codec.avro_long import long_bytes, read_long
from helenus_schemas.cql.values import Malformed


class Scope(enum.IntEnum):
    """What a Change touches. A GAP touches nothing: it says that Changes of the table may be missing before it."""

    ROW = 0
    STATIC = 1
    PARTITION = 2
    RANGE = 3
    TABLE = 4
    GAP = 5


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range: a prefix of the clustering key as CQL bytes, compared as a tuple in the table's order."""

    inclusive: bool
    values: tuple[bytes, ...]


class Effect(enum.IntFlag):
    """What a Change does to its row, so that a read can be held against it. 0: the agent does not say, as where the
    cells of a row have several write times.

    Its other bits, from `FIRST_COLUMN` on, are those of the columns it writes or deletes: `column_bit`. Several columns
    may share a bit.
    """

    LIVE = 1
    """It leaves a live cell, or the row itself, with the Change's write time."""
    DELETES = 2
    """It deletes cells, or all that a column of many cells holds; of a RANGE, its rows."""
    ROW = 4
    """It writes the row itself, as INSERT does."""
    GONE = 8
    """It deletes the row, or the partition."""
    COUNTER = 16
    """It adds to counters, whose write times CQL does not tell."""


FIRST_COLUMN = 5
COLUMN_BITS = 26


def column_bit(name: str) -> int:
    """The bit of a column in an effect: one of 26, so that an effect takes five bytes at most."""
    return 1 << FIRST_COLUMN + crc32(name.encode()) % COLUMN_BITS


class Change(NamedTuple):
    """One decoded effect. `digest` is the MD5 of the mutation's raw bytes in the log, 32 hexadecimal characters.

    `part` of `parts`: its place among the Changes of one mutation. `segment` and `position`: the log segment's id and
    the mutation's logical end in it. `write_time`: µs since the epoch, the newest in the Change, None if it has none.
    `expires_at`: s since the epoch, when its first cell expires. `start` and `end` are a RANGE's, None where it's open.
    `effect`: see `Effect`. `all_expired_at`: s since the epoch, when its last cell expires; None if one never does.
    A `foreign` one is another agent's, and may lack all but `node`: its key is in DataStax's form.

    A TABLE Change (a truncation) and a GAP have no key; of their parts each partition of the topic has one.
    """

    digest: str | None
    node: str | None
    scope: Scope = Scope.ROW
    part: int = 0
    parts: int = 1
    segment: int = -1
    position: int = -1
    write_time: int | None = None
    expires_at: int | None = None
    start: Bound | None = None
    end: Bound | None = None
    foreign: bool = False
    effect: int = 0
    all_expired_at: int | None = None


_BOUND = {
    "type": "record",
    "name": "Bound",
    "namespace": "helenus",
    "fields": [
        {"name": "inclusive", "type": "boolean"},
        {"name": "values", "type": {"type": "array", "items": "bytes"}},
    ],
}
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "MutationValue",
    "namespace": "com.datastax.oss.cdc",
    "fields": [
        {"name": "md5Digest", "type": ["null", "string"], "default": None},
        {"name": "nodeId", "type": ["null", "string"], "default": None},
        {"name": "columns", "type": ["null", {"type": "array", "items": "string"}], "default": None},
        {
            "name": "scope",
            "type": {
                "type": "enum",
                "name": "Scope",
                "namespace": "helenus",
                "symbols": [s.name for s in Scope],
                "default": "ROW",
            },
            "default": "ROW",
        },
        {"name": "part", "type": "int", "default": 0},
        {"name": "parts", "type": "int", "default": 1},
        {"name": "segment", "type": "long", "default": -1},
        {"name": "position", "type": "long", "default": -1},
        {"name": "writeTime", "type": ["null", "long"], "default": None},
        {"name": "expiresAt", "type": ["null", "long"], "default": None},
        {"name": "start", "type": ["null", _BOUND], "default": None},
        {"name": "end", "type": ["null", "helenus.Bound"], "default": None},
        {"name": "effect", "type": "long", "default": 0},
        {"name": "allExpiredAt", "type": ["null", "long"], "default": None},
    ],
}
"""The value's Avro schema. Its first three fields alone are DataStax's."""

_FRAME = 5
_THREE = 73
"""Bytes of DataStax's three fields with a digest and a node, in either order."""


def encode(change: Change) -> bytes:
    """The wire form of a Change: what the bytes of the decoder's templates must equal. A foreign one has three."""
    first = _text(change.digest) + _text(change.node) + b"\0"
    if change.foreign:
        return first
    return b"".join(
        (
            first,
            long_bytes(change.scope),
            long_bytes(change.part),
            long_bytes(change.parts),
            long_bytes(change.segment),
            long_bytes(change.position),
            _optional(change.write_time),
            _optional(change.expires_at),
            _bound(change.start),
            _bound(change.end),
            long_bytes(change.effect),
            _optional(change.all_expired_at),
        )
    )


def decode(data: bytes) -> Change:
    """Read a Change: ours, or DataStax's three fields in either order. Raises Malformed if it is none."""
    digest: str | None
    node: str | None
    try:
        if data[:2] == b"\2@" and data[34:36] == b"\2H" and data[72] == 0:  # as our agent writes: 32 and 36 characters
            digest, node, at = data[2:34].decode(), data[36:72].decode(), 73
        elif _is_sorted(data):
            at = _skip_columns(data, 0)
            digest, at = _read_text(data, at)
            node, at = _read_text(data, at)
        else:
            digest, at = _read_text(data, 0)
            node, at = _read_text(data, at)
            at = _skip_columns(data, at)
        if at == len(data):
            return Change(digest, node, foreign=True)
        scope, at = read_long(data, at)
        part, at = read_long(data, at)
        parts, at = read_long(data, at)
        segment, at = read_long(data, at)
        position, at = read_long(data, at)
        write_time, at = _read_optional(data, at)
        expires_at, at = _read_optional(data, at)
        start, at = _read_bound(data, at)
        end, at = _read_bound(data, at)
        if parts < 1:
            raise Malformed(f"not an event's value: a part of {parts}")
        effect, all_expired_at = 0, None
        if at < len(data):  # agents before these fields end here
            effect, at = read_long(data, at)
            all_expired_at, at = _read_optional(data, at)
        return Change(
            digest,
            node,
            Scope(scope),
            part,
            parts,
            segment,
            position,
            write_time,
            expires_at,
            start,
            end,
            effect=effect,
            all_expired_at=all_expired_at,
        )
    except Malformed:
        raise
    except (IndexError, ValueError) as error:
        raise Malformed(f"not an event's value: {error}") from None


_LONG = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_OPTIONAL = rb"(?:\x00|\x02(" + _LONG + rb"))"
_OF_A_KEY = re.compile(
    rb"\x02@([0-9a-f]{32})\x02H(.{36})\x00([\x00\x02\x04])"
    + (_LONG * 2 + rb"(" + _LONG * 2 + rb")" + _OPTIONAL * 2 + rb"\x00\x00(?:(" + _LONG + rb")" + _OPTIONAL + rb")?"),
    re.DOTALL,
)
_SCOPES = {b"\0": Scope.ROW, b"\2": Scope.STATIC, b"\4": Scope.PARTITION}


def matched(value: bytes) -> re.Match[bytes] | None:
    """An event's value if our agents wrote it and it is of a key alone: a match of digest, node, scope, place in the
    log, and more.

    Beside their key, digest and scope tell copies of a Change, for a fraction of what `decode` costs.
    """
    return _OF_A_KEY.fullmatch(value)


def gist(match: re.Match[bytes]) -> Change:
    """What a match tells of a Change: all but its place in the mutation and in the log. Raises Malformed."""
    digest, node, scope, _, written, expires, effect, expired = match.groups()
    write_time = None if written is None else read_long(written, 0)[0]
    expires_at = None if expires is None else read_long(expires, 0)[0]
    all_expired_at = None if expired is None else read_long(expired, 0)[0]
    does = 0 if effect is None else _effect(effect)
    who = digest.decode(), node.decode()
    return Change(*who, _SCOPES[scope], 0, 1, -1, -1, write_time, expires_at, None, None, False, does, all_expired_at)


@lru_cache(4096)
def _effect(data: bytes) -> int:
    """A table's writes have few effects."""
    return read_long(data, 0)[0]


def place(match: re.Match[bytes] | Change) -> tuple[int, int]:
    """Where a Change, matched or decoded, is in its node's log: segment and position, which only grow."""
    if isinstance(match, Change):
        return match.segment, match.position
    segment, at = read_long(match[4], 0)
    return segment, read_long(match[4], at)[0]


def unframed(key: bytes | None, value: bytes) -> tuple[bytes | None, bytes]:
    """Key and value of an event without the registry's frames that DataStax's Kafka agents may write.

    A frame is a zero byte and 4 of a schema's id. Only theirs has a digest's length, 32, behind it.
    """
    if len(value) == _FRAME + _THREE and value[:1] == b"\0" and value[_FRAME : _FRAME + 2] == b"\2@":
        return key and key[_FRAME:], value[_FRAME:]
    return key, value


def _is_sorted(data: bytes) -> bool:
    """Whether columns come first, as DataStax's Pulsar agents write them.

    Behind null columns comes a digest, 32 characters; 36 would be the node behind our order's null digest. Columns that
    are not null may be taken for a digest, but then the rest is not a digest and a node.
    """
    if data[:1] == b"\0":
        return (data[1:4] == b"\0\2H" and len(data) == 40) or (data[1:2] == b"\2" and data[2:3] != b"H")
    try:
        _, at = _read_text(data, _skip_columns(data, 0))
        node, at = _read_text(data, at)
    except (IndexError, ValueError):
        return False
    return at == len(data) and (node is None or len(node) == 36)


def _text(value: str | None) -> bytes:
    if value is None:
        return b"\0"
    data = value.encode()
    return b"\2" + long_bytes(len(data)) + data


def _optional(value: int | None) -> bytes:
    return b"\0" if value is None else b"\2" + long_bytes(value)


def _bound(bound: Bound | None) -> bytes:
    if bound is None:
        return b"\0"
    values = b"".join(long_bytes(len(v)) + v for v in bound.values)
    block = long_bytes(len(bound.values)) + values if bound.values else b""
    return b"\2" + (b"\1" if bound.inclusive else b"\0") + block + b"\0"


def _branch(data: bytes, at: int) -> tuple[bool, int]:
    branch = data[at]
    if branch not in (0, 2):
        raise Malformed(f"not an event's value: union branch {branch}")
    return branch == 2, at + 1


def _take(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_long(data, at)
    if not 0 <= size <= len(data) - at:
        raise Malformed(f"not an event's value: a length of {size}")
    return data[at : at + size], at + size


def _read_text(data: bytes, at: int) -> tuple[str | None, int]:
    there, at = _branch(data, at)
    if not there:
        return None, at
    text, at = _take(data, at)
    return text.decode(), at


def _read_optional(data: bytes, at: int) -> tuple[int | None, int]:
    there, at = _branch(data, at)
    return read_long(data, at) if there else (None, at)


def _read_bound(data: bytes, at: int) -> tuple[Bound | None, int]:
    there, at = _branch(data, at)
    if not there:
        return None, at
    inclusive = data[at] == 1
    values = []
    count, at = read_long(data, at + 1)
    while count:
        if not 0 < count <= len(data) - at:
            raise Malformed(f"not an event's value: a block of {count}")
        for _ in range(count):
            value, at = _take(data, at)
            values.append(value)
        count, at = read_long(data, at)
    return Bound(inclusive, tuple(values)), at


def _skip_columns(data: bytes, at: int) -> int:
    there, at = _branch(data, at)
    if not there:
        return at
    count, at = read_long(data, at)
    while count:
        if not 0 < count <= len(data) - at:
            raise Malformed(f"not an event's value: a block of {count}")
        for _ in range(count):
            _, at = _take(data, at)
        count, at = read_long(data, at)
    return at
