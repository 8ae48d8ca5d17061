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

from helenus_schemas.codec import avro_long
from helenus_schemas.codec.avro_long import whole_long
from helenus_schemas.codec.wire_bytes import read_long
from helenus_schemas.event.change import Change, Origin, Scope

COMPILED = not __file__.endswith(".py")
_compiled = COMPILED
_LONG = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_OPTIONAL = rb"(?:\x00|\x02(" + _LONG + rb"))"
_KEY_EVENT = re.compile(
    rb"\x02@[0-9a-f]{32}\x02H[\x00-\x7f]{36}\x00[\x00\x02\x04]"
    + (_LONG * 2 + rb"(" + _LONG * 2 + rb")" + _OPTIONAL * 2 + rb"\x00\x00(" + _LONG + rb")" + _OPTIONAL)
    + rb"(?:\x00\x02(.*))?",
    re.DOTALL,
)
# The offsets of the first fields are the same in all values.
_DIGEST, _DIGEST_END = 2, 34
_NODE, _NODE_END = 36, 72
_SCOPE, _HEAD = 73, 74
HAS_WRITTEN, HAS_EXPIRES, HAS_EXPIRED = 1, 2, 4
"""Bits of `Match.present_times`."""
_new = tuple.__new__
_LOG = Origin.LOG
_SCOPES: tuple[Any, ...] = (Scope.ROW, None, Scope.STATIC, None, Scope.PARTITION)


class Match:
    """The fields of an event's `value`: `digest`, `node` and `scope` as bytes, and what `parse_match` and
    `log_position` read: what the regular expression found, or else the numbers that were scanned.

    `present_times` says which times the change has, by `HAS_WRITTEN` and the other bits.
    """

    value: bytes
    regex_match: re.Match[bytes] | None
    segment: int
    position: int
    write_time: int
    expires_at: int
    effect: int
    all_expired_at: int
    present_times: int
    cells: bytes | None

    @property
    def digest(self) -> bytes:
        """Return 32 hexadecimal characters."""
        return self.value[_DIGEST:_DIGEST_END]

    @property
    def node(self) -> bytes:
        """Return a host id, as text."""
        return self.value[_NODE:_NODE_END]

    @property
    def scope(self) -> bytes:
        """Return an Avro int."""
        return self.value[_SCOPE:_HEAD]

    def decode_scope(self) -> Scope:
        """Return the scope."""
        scope: Scope = _SCOPES[self.value[_SCOPE]]
        return scope


def match_own_format(value: bytes) -> Match | None:
    """Find the fields of an event's value: digest, node, scope, position in the commit log, and more. None if no agent
    of ours wrote it, or if it concerns more than a key.
    """
    if _compiled:
        try:
            scanned = scan(value)
        except IndexError:  # it ends early
            scanned = None
        if scanned is not None:
            return scanned
    regex_match = _KEY_EVENT.fullmatch(value)
    if regex_match is None:
        return None
    match = Match()
    match.value, match.regex_match = value, regex_match
    return match


def parse_match(match: Match) -> Change:
    """Return the Change of a match, without its part, segment and position. Raises Malformed."""
    regex_match = match.regex_match
    if regex_match is None:
        present_times = match.present_times
        write_time: int | None = match.write_time if present_times & HAS_WRITTEN else None
        expires_at: int | None = match.expires_at if present_times & HAS_EXPIRES else None
        all_expired_at: int | None = match.all_expired_at if present_times & HAS_EXPIRED else None
        effect, cells = match.effect, match.cells
    else:
        write_time_bytes, expires_bytes, effect_bytes, expired_bytes, cells = regex_match.group(2, 3, 4, 5, 6)
        write_time = None if write_time_bytes is None else whole_long(write_time_bytes)
        expires_at = None if expires_bytes is None else whole_long(expires_bytes)
        all_expired_at = None if expired_bytes is None else whole_long(expired_bytes)
        effect = _effect(effect_bytes)
    value = match.value
    digest, node = value[_DIGEST:_DIGEST_END].decode("ascii"), value[_NODE:_NODE_END].decode("ascii")
    ids = digest, node, _SCOPES[value[_SCOPE]], 0, 1, -1, -1
    times = write_time, expires_at, None, None, False, effect, all_expired_at, _LOG, cells
    return _new(Change, ids + times)  # by its own constructor it takes twice as long


def match_cells(match: Match) -> bytes | None:
    """Return the field `cells` of a match."""
    if match.regex_match is None:
        return match.cells
    cells: bytes | None = match.regex_match[6]
    return cells


@lru_cache(4096)
def _effect(data: bytes) -> int:
    """Read an effect. Cached: a table's writes have few different ones."""
    return avro_long.read_long(data, 0)[0]


def log_position(match: Match | Change) -> tuple[int, int]:
    """Return the position of a Change, matched or decoded, in its node's commit log: segment and position, which only
    grow.
    """
    if isinstance(match, Change):
        return match.segment, match.position
    if match.regex_match is None:
        return match.segment, match.position
    segment, offset = avro_long.read_long(match.regex_match[1], 0)
    return segment, avro_long.read_long(match.regex_match[1], offset)[0]


def scan(value: bytes) -> Match | None:
    """Match as `match_own_format`, byte by byte: to Python itself the regular expression is cheaper. None for what is
    not as agents write it; raises IndexError for what ends early.
    """
    if value[0] != 2 or value[1] != 64 or value[34] != 2 or value[35] != 72 or value[72] != 0:
        return None
    byte = value[_SCOPE]
    # What follows reads without checks where the value ends: it has so many bytes.
    if not (are_hex_digits(value, _DIGEST, _DIGEST_END) and are_ascii(value, _NODE, _NODE_END)):
        return None
    if byte > 4 or byte & 1:
        return None
    match = Match()
    offset, present_times = _HEAD, 0
    _, offset = read_long(value, offset)  # part
    _, offset = read_long(value, offset)  # parts
    match.segment, offset = read_long(value, offset)
    match.position, offset = read_long(value, offset)
    match.write_time, offset, is_present = _read_optional(value, offset)
    present_times |= is_present
    match.expires_at, offset, is_present = _read_optional(value, offset)
    present_times |= is_present << 1
    if value[offset] != 0 or value[offset + 1] != 0:
        return None
    match.effect, offset = read_long(value, offset + 2)
    match.all_expired_at, offset, is_present = _read_optional(value, offset)
    present_times |= is_present << 2
    match.cells = None
    if offset != len(value):
        if value[offset] != 0 or value[offset + 1] != 2:
            return None
        match.cells = value[offset + 2 :]
    match.value, match.regex_match, match.present_times = value, None, present_times
    return match


def _read_optional(data: bytes, offset: int) -> tuple[int, int, int]:
    """Read an optional Avro long; return it, the offset after it, and 1 if it is present, else 0."""
    if data[offset] == 0:
        return 0, offset + 1, 0
    if data[offset] != 2:
        raise IndexError(offset)
    value, offset = read_long(data, offset + 1)
    return value, offset, 1


def are_hex_digits(data: bytes, start: int, end: int) -> bool:
    """Return whether these bytes, which are there, are lowercase hexadecimal digits."""
    for i in range(start, end):
        byte = data[i]
        if not (48 <= byte <= 57 or 97 <= byte <= 102):
            return False
    return True


def are_ascii(data: bytes, start: int, end: int) -> bool:
    """Return whether these bytes, which are there, are ASCII."""
    bits = 0
    for i in range(start, end):
        bits |= data[i]
    return bits < 0x80


def is_of_node(match: Match, node: bytes) -> bool:
    """Return whether `match.node` is this node's host id."""
    if not _compiled or len(node) != _NODE_END - _NODE:
        return match.node == node
    return are_equal(match.value, _NODE, node, _NODE_END - _NODE)


def are_equal(data: bytes, start: int, other: bytes, count: int) -> bool:
    """Return whether so many bytes of `data`, from `start` on, are the first ones of another; both are there."""
    bits = 0
    for i in range(count):
        bits |= data[start + i] ^ other[i]
    return bits == 0
