"""Mask the CQL bytes of text as Debezium's `MaskStrings` and `TruncateColumn` do. No mask raises: what it is given is
hidden, whatever it is.

    hash    → hexadecimal digits of digest(salt + UTF-8 of the value); of version 1, of the value as Java serializes it
    chars   → stars
    truncate → the first UTF-16 units of the value, as Java counts characters
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from helenus_connector.config.column_masks import ColumnMask

Mask = Callable[[bytes], bytes]
_JAVA_STREAM = bytes.fromhex("aced0005")
_SHORT_STRING, _LONG_STRING = b"\x74", b"\x7c"  # ObjectStreamConstants.TC_STRING and TC_LONGSTRING


def mask_function(mask: ColumnMask) -> Mask:
    """Return the function that masks a value."""
    if mask.algorithm:
        return _hash(mask)
    if mask.truncates:
        return _truncation(mask.length)
    stars = b"*" * mask.length
    return lambda _: stars


def _hash(mask: ColumnMask) -> Mask:
    salted = hashlib.new(mask.algorithm, mask.salt.encode(), usedforsecurity=False)

    def hashed(data: bytes) -> bytes:
        digest = salted.copy()
        digest.update(data)
        return digest.hexdigest().encode()

    if mask.version == 2:
        return hashed
    return lambda data: hashed(_serialized(data))


def _truncation(length: int) -> Mask:
    def truncated(data: bytes) -> bytes:
        if len(data) <= length:  # no text has more characters than bytes
            return data
        # Half of a pair at the end, which Java would leave there, has no UTF-8.
        units = data.decode(errors="replace").encode("utf-16-le")[: 2 * length]
        return units.decode("utf-16-le", errors="ignore").encode()

    return truncated


def _serialized(data: bytes) -> bytes:
    """Return what Java's ObjectOutputStream writes of a String."""
    text = _modified_utf8(data.decode(errors="replace"))
    if len(text) < 1 << 16:
        return _JAVA_STREAM + _SHORT_STRING + len(text).to_bytes(2, "big") + text
    return _JAVA_STREAM + _LONG_STRING + len(text).to_bytes(8, "big") + text


def _modified_utf8(text: str) -> bytes:
    """Encode text as Java's DataOutput does: NUL in two bytes, and each half of a pair in three."""
    if "\0" not in text and max(text, default="") < "\U00010000":
        return text.encode()
    units = text.encode("utf-16-be")
    halves = (chr(int.from_bytes(units[index : index + 2], "big")) for index in range(0, len(units), 2))
    return b"".join(b"\xc0\x80" if half == "\0" else half.encode(errors="surrogatepass") for half in halves)
