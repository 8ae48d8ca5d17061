r"""The messages of a batch, as an entry of Pulsar's holds them: each is the size of its metadata, that, and its value.
Source: SingleMessageMetadata in PulsarApi.proto of Pulsar 4.0.

    batch([(b"k", b"v", ())], False) == b"\0\0\0\x0a" b"\x12\4aw==" b"\x18\1" b"\x30\1" b"v"

It runs as it is, and compiled by Cython with the types of `_entries.pxd`: the results are the same. Either way takes a
fraction of the time that protobuf takes. A message that is alone has `keyed` in `wire`.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Sequence

from helenus_sinks.log import Headers

COMPILED = not __file__.endswith(".py")
Record = tuple["bytes | None", "bytes | None", Headers]
"""Key, value and headers."""
_NO_KEY = b"\x50\x01"
_NO_VALUE = b"\x48\x01"
_SMALL = tuple(bytes([n]) for n in range(128))
_SIZES = tuple(n.to_bytes(4, "big") for n in range(512))
_names: dict[str, bytes] = {}  # of properties, as they begin
_MAX_CACHED_NAMES = 1000


def size_of(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return about how many bytes a record has: headers that are no ASCII have more. What its message needs in addition
    is not in it.
    """
    size = len(key) * 4 // 3 if key else 0
    if value:
        size += len(value)
    for name, content in headers:
        size += len(name) + len(content)
    return size


def batch(records: Sequence[Record], text_key: bool) -> bytes:
    """Return the messages of records. Keys are text, or else in base64."""
    return b"".join([message(key, value, headers, text_key) for key, value, headers in records])


def message(key: bytes | None, value: bytes | None, headers: Headers, text_key: bool) -> bytes:
    """Return one message of a batch."""
    data = b""
    for name, content in headers:
        data += _property(name, content)
    size = _varint(len(value) if value else 0)
    null = b"" if value is not None else _NO_VALUE
    if key is None:
        data = b"".join((data, b"\x18", size, null, _NO_KEY))
    elif text_key:
        data = b"".join((data, b"\x12", _varint(len(key)), key, b"\x18", size, null))
    else:
        encoded = b2a_base64(key, newline=False)
        data = b"".join((data, b"\x12", _varint(len(encoded)), encoded, b"\x18", size, b"\x30\x01", null))
    count = len(data)
    return b"".join((_SIZES[count] if count < 512 else count.to_bytes(4, "big"), data, value or b""))


def text_of(content: bytes) -> str:
    """Return a header's content as a property, which is text; in base64 if it is not UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return b2a_base64(content, newline=False).decode()


def _property(name: str, content: bytes) -> bytes:
    start = _names.get(name)
    if start is None:
        encoded = name.encode()
        start = b"".join((b"\x0a", _varint(len(encoded)), encoded, b"\x12"))
        if len(_names) < _MAX_CACHED_NAMES:
            _names[name] = start
    if not content.isascii():
        content = text_of(content).encode()
    size = _varint(len(content))
    return b"".join((b"\x0a", _varint(len(start) + len(size) + len(content)), start, size, content))


def _varint(number: int) -> bytes:
    """Return a number that is not negative: seven bits a byte, the low ones first."""
    if number < 128:
        return _SMALL[number]
    encoded = b""
    while number > 127:
        encoded += bytes((number & 127 | 128,))
        number >>= 7
    return encoded + _SMALL[number]
