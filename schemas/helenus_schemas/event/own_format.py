"""The fast path for change events that our agents wrote: most of them concern a single key.

`match_own_format` finds the fields of such a value. With the key, digest and scope are enough to recognize replicas'
copies of a Change, for a fraction of what `wire.decode` costs; `parse_match` reads the rest.

It runs as it is, by a regular expression, and compiled by Cython with the types of `own_format.pxd`, byte by byte. The
results are the same: what `scan` does not take is left to the regular expression.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from helenus_schemas.codec.avro_long import read_long, whole_long
from helenus_schemas.event.change import Change, Origin, Scope

COMPILED = not __file__.endswith(".py")
_compiled = COMPILED
_LONG = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_OPTIONAL = rb"(?:\x00|\x02(" + _LONG + rb"))"
_OF_A_KEY = re.compile(
    rb"\x02@[0-9a-f]{32}\x02H[\x00-\x7f]{36}\x00[\x00\x02\x04]"
    + (_LONG * 2 + rb"(" + _LONG * 2 + rb")" + _OPTIONAL * 2 + rb"\x00\x00(" + _LONG + rb")" + _OPTIONAL)
    + rb"(?:\x00\x02(.*))?",
    re.DOTALL,
)
# The places of the first fields are the same in all values.
_DIGEST, _DIGEST_END = 2, 34
_NODE, _NODE_END = 36, 72
_SCOPE, _HEAD = 73, 74
HAS_WRITTEN, HAS_EXPIRES, HAS_EXPIRED = 1, 2, 4
"""Which times a Match has."""
_MOST = 9  # bytes of a long that is scanned
_new = tuple.__new__
_LOG = Origin.LOG
_SCOPES: tuple[Any, ...] = (Scope.ROW, None, Scope.STATIC, None, Scope.PARTITION)


class Match:
    """The fields of an event's `value`: `digest`, `node` and `scope` as bytes, and what `parse_match` and
    `log_position` read: what the regular expression found, or else the numbers that were scanned.

    `has` says which times the change has, by `HAS_WRITTEN` and the other bits.
    """

    value: bytes
    found: re.Match[bytes] | None
    segment: int
    position: int
    written: int
    expires: int
    effect: int
    expired: int
    has: int
    cells: bytes | None

    @property
    def digest(self) -> bytes:
        """32 hexadecimal characters."""
        return self.value[_DIGEST:_DIGEST_END]

    @property
    def node(self) -> bytes:
        """A host id, as text."""
        return self.value[_NODE:_NODE_END]

    @property
    def scope(self) -> bytes:
        """As an Avro int."""
        return self.value[_SCOPE:_HEAD]

    def concerns(self) -> Scope:
        """The scope."""
        scope: Scope = _SCOPES[self.value[_SCOPE]]
        return scope


def match_own_format(value: bytes) -> Match | None:
    """The fields of an event's value: digest, node, scope, place in the commit log, and more. None if no agent of ours
    wrote it, or if it concerns more than a key.
    """
    if _compiled:
        try:
            scanned = scan(value)
        except IndexError:  # it ends early
            scanned = None
        if scanned is not None:
            return scanned
    found = _OF_A_KEY.fullmatch(value)
    if found is None:
        return None
    match = Match()
    match.value, match.found = value, found
    return match


def parse_match(match: Match) -> Change:
    """The Change of a match, without its part, segment and position. Raises Malformed."""
    found = match.found
    if found is None:
        has = match.has
        written: int | None = match.written if has & HAS_WRITTEN else None
        expires: int | None = match.expires if has & HAS_EXPIRES else None
        expired: int | None = match.expired if has & HAS_EXPIRED else None
        effect, cells = match.effect, match.cells
    else:
        of_written, of_expires, of_effect, of_expired, cells = found.group(2, 3, 4, 5, 6)
        written = None if of_written is None else whole_long(of_written)
        expires = None if of_expires is None else whole_long(of_expires)
        expired = None if of_expired is None else whole_long(of_expired)
        effect = _effect(of_effect)
    value = match.value
    digest, node = value[_DIGEST:_DIGEST_END].decode("ascii"), value[_NODE:_NODE_END].decode("ascii")
    ids = digest, node, _SCOPES[value[_SCOPE]], 0, 1, -1, -1
    times = written, expires, None, None, False, effect, expired, _LOG, cells
    return _new(Change, ids + times)  # by its own constructor it takes twice as long


@lru_cache(4096)
def _effect(data: bytes) -> int:
    """Cached: a table's writes have few different effects."""
    return read_long(data, 0)[0]


def log_position(match: Match | Change) -> tuple[int, int]:
    """The place of a Change, matched or decoded, in its node's commit log: segment and position, which only grow."""
    if isinstance(match, Change):
        return match.segment, match.position
    if match.found is None:
        return match.segment, match.position
    segment, at = read_long(match.found[1], 0)
    return segment, read_long(match.found[1], at)[0]


def scan(value: bytes) -> Match | None:
    """As `match_own_format`, byte by byte: to Python itself the regular expression is cheaper. None for what is not as
    agents write it; raises IndexError for what ends early.
    """
    if value[0] != 2 or value[1] != 64 or value[34] != 2 or value[35] != 72 or value[72] != 0:
        return None
    for i in range(_DIGEST, _DIGEST_END):
        byte = value[i]
        if not (48 <= byte <= 57 or 97 <= byte <= 102):
            return None
    for i in range(_NODE, _NODE_END):
        if value[i] >= 0x80:
            return None
    byte = value[_SCOPE]
    if byte > 4 or byte & 1:
        return None
    match = Match()
    at, has = _HEAD, 0
    _, at = _long(value, at)  # part
    _, at = _long(value, at)  # parts
    match.segment, at = _long(value, at)
    match.position, at = _long(value, at)
    match.written, at, there = _optional(value, at)
    has |= there
    match.expires, at, there = _optional(value, at)
    has |= there << 1
    if value[at] != 0 or value[at + 1] != 0:
        return None
    match.effect, at = _long(value, at + 2)
    match.expired, at, there = _optional(value, at)
    has |= there << 2
    match.cells = None
    if at != len(value):
        if value[at] != 0 or value[at + 1] != 2:
            return None
        match.cells = value[at + 2 :]
    match.value, match.found, match.has = value, None, has
    return match


def _long(d: bytes, at: int) -> tuple[int, int]:
    """An Avro long, and the offset after it. Raises IndexError, for one that is longer than usual too."""
    rest, shift = 0, 0
    while shift < 7 * _MOST:
        byte = d[at]
        at += 1
        rest |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (rest >> 1) ^ -(rest & 1), at
        shift += 7
    raise IndexError(at)


def _optional(d: bytes, at: int) -> tuple[int, int, int]:
    """The same of an optional one, and 1 if it is there."""
    if d[at] == 0:
        return 0, at + 1, 0
    if d[at] != 2:
        raise IndexError(at)
    value, at = _long(d, at + 1)
    return value, at, 1
