"""The `Store` of an operator on Spark: the map state of `transformWithStateInPandas`, in RocksDB.

Spark's Python client asks for one key at a time and waits for each answer. The server answers in order, so this writes
many requests and then reads as many answers: measured 2.5 to 4 times as fast. That needs private members of Spark's
client. Where they are not as in 4.1 to 4.3, the plain calls are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pickle import loads
from typing import Any

STATE = "rows"
"""The map's name: of keys and values, bytes each, which are its columns `key` and `value`."""
_AT_ONCE = 128  # requests: what fits into the sockets' buffers, or both sides would wait for each other
_MOST_BYTES = 32_768
_OK = 0
_VERSION = bytes(4)
_SHORT = [bytes((size,)) for size in range(0x80)]
_LEARNED = 16
"""A value of more bytes is one that is found only once in its row."""


class SparkStore:
    """The store of the place whose rows an operator's `handleInputRows` has just been given. `opened` makes it, once in
    each `init`.
    """

    def __init__(self, state: Any) -> None:
        self._state = state
        self._client = _client(state)

    @classmethod
    def opened(cls, handle: Any) -> SparkStore:
        """Of a `StatefulProcessorHandle`."""
        return cls(handle.getMapState(STATE, "key binary", "value binary"))

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if self._client is not None:
            return list(self._client.get(keys))
        return [None if row is None else bytes(row[0]) for row in (self._state.getValue((key,)) for key in keys)]

    def put_many(self, values: Mapping[bytes, bytes]) -> None:
        if self._client is None:
            for key, value in values.items():
                self._state.updateValue((key,), (value,))
        else:
            self._client.put(values.items())

    def remove_many(self, keys: Iterable[bytes]) -> None:
        if self._client is None:
            for key in keys:
                self._state.removeKey((key,))
        else:
            self._client.remove(keys)

    def all_keys(self) -> Iterator[bytes]:
        """All keys of the place, in an order that stays the same for as long as they do."""
        if self._state.exists():
            for (key,) in self._state.keys():  # noqa: SIM118
                yield bytes(key)


class _Pipelined:
    """Asks for many keys before it reads the answers. Requests are written, and answers read, without the objects of
    Protocol Buffers and pickle in between, which take ten times as long.
    """

    def __init__(self, state: Any) -> None:
        from pyspark.sql.streaming.proto import StateMessage_pb2 as messages

        self._messages = messages
        maps = state._mapStateClient
        api = maps._stateful_processor_api_client
        self._deserialize, self._file = api._deserialize_from_bytes, api.sockfile
        name = _field(messages.MapStateCall, "stateName", state._stateName.encode())
        self._get = _Call(messages, name, "getValue", "GetValue", ("userKey",))
        self._put = _Call(messages, name, "updateValue", "UpdateValue", ("userKey", "value"))
        self._remove = _Call(messages, name, "removeKey", "RemoveKey", ("userKey",))
        self._value = _tag(messages.StateResponse, "value")[0]
        self._before = self._after = b""

    def get(self, keys: Sequence[bytes]) -> Iterator[bytes | None]:
        for answer in self._asked(map(self._get.one, keys)):
            yield self._row(answer) if answer else None

    def put(self, values: Iterable[tuple[bytes, bytes]]) -> None:
        for _ in self._asked(self._put.two(key, value) for key, value in values):
            pass

    def remove(self, keys: Iterable[bytes]) -> None:
        for _ in self._asked(map(self._remove.one, keys)):
            pass

    def _row(self, data: bytes) -> bytes:
        """The column of a pickled row. All rows have the same bytes before and after it, which are learned from the
        first: Java's pickle has bytes as text of as many characters.
        """
        before, at = self._before, len(self._before)
        if before and data.startswith(before) and data.endswith(self._after):
            end = at + 4 + int.from_bytes(data[at : at + 4], "little")
            if end + len(self._after) == len(data):
                return data[at + 4 : end].decode().encode("latin-1")
        found = bytes(self._deserialize(data)[0])
        text = found.decode("latin-1").encode()
        sized = len(text).to_bytes(4, "little") + text
        if data.count(sized) == 1 and len(found) > _LEARNED:
            at = data.index(sized)
            self._before, self._after = data[:at], data[at + len(sized) :]
        return found

    def _asked(self, requests: Iterable[bytes]) -> Iterator[bytes]:
        """Write requests, and read their answers once there are enough of them."""
        some: list[bytes] = []
        size = 0
        for request in requests:
            if some and (len(some) == _AT_ONCE or size + len(request) > _MOST_BYTES):
                yield from self._answers(some)
                some, size = [], 0
            some.append(request)
            size += len(request)
        if some:
            yield from self._answers(some)

    def _answers(self, requests: Sequence[bytes]) -> Iterator[bytes]:
        # As `_send_proto_message` and `_receive_proto_message`, which would flush each of them: the length, the bytes.
        file = self._file
        file.write(b"".join(requests))
        file.flush()
        for _ in requests:
            data = file.read(int.from_bytes(file.read(4), "big"))
            if not data:
                yield data
                continue
            if data[0] == self._value:
                size, at = _varint(data, 1)
                if at + size == len(data):
                    yield data[at:]
                    continue
            answer = self._messages.StateResponse()
            answer.ParseFromString(data)
            if answer.statusCode != _OK:
                raise RuntimeError(f"Spark's state store: {answer.errorMessage}")
            yield answer.value


class _Call:
    """Makes the bytes of one kind of request, of one key or of a key and a value. Raises ImportError if they are not as
    Protocol Buffers has them.
    """

    def __init__(self, messages: Any, name: bytes, call: str, of: str, fields: Sequence[str]) -> None:
        self._tags = [_tag(getattr(messages, of), field) for field in fields]
        self._name = name
        self._of_call = _tag(messages.MapStateCall, call)
        self._of_map = _tag(messages.StateVariableRequest, "mapStateCall")
        self._of_variable = _tag(messages.StateRequest, "stateVariableRequest")
        for size in (1, 100, 20_000):  # lengths of one, two and three bytes
            sample = b"x" * size
            values = {field: _pickled(sample) for field in fields}
            inner = getattr(messages, of)(**values)
            request = messages.StateRequest(
                stateVariableRequest=messages.StateVariableRequest(
                    mapStateCall=messages.MapStateCall(stateName=_text_of(name), **{call: inner})
                )
            ).SerializeToString()
            made = self.one(sample) if len(fields) == 1 else self.two(sample, sample)
            if made != _framed(request) or loads(_pickled(sample)) != (sample,):
                raise ImportError("requests of another form")

    def one(self, key: bytes) -> bytes:
        return self._request(self._tags[0] + _sized(_pickled(key)))

    def two(self, key: bytes, value: bytes) -> bytes:
        first, second = self._tags
        return self._request(first + _sized(_pickled(key)) + second + _sized(_pickled(value)))

    def _request(self, inner: bytes) -> bytes:
        call = self._name + self._of_call + _sized(inner)
        return _framed(self._of_variable + _sized(self._of_map + _sized(call)))


def _tag(message: Any, field: str) -> bytes:
    """What comes before the length of a field of bytes, text or a message."""
    return bytes((message.DESCRIPTOR.fields_by_name[field].number << 3 | 2,))


def _field(message: Any, field: str, value: bytes) -> bytes:
    return _tag(message, field) + _sized(value)


def _text_of(field: bytes) -> str:
    return field[2:].decode()


def _framed(request: bytes) -> bytes:
    """A request as Spark's client writes it: a version, the length, the bytes."""
    return _VERSION + len(request).to_bytes(4, "big") + request


def _pickled(data: bytes) -> bytes:
    """A row of one column of bytes: `pickle.dumps((data,), 3)`."""
    return b"\x80\x03B" + len(data).to_bytes(4, "little") + data + b"\x85."


def _sized(data: bytes) -> bytes:
    """Bytes after their length, as a varint."""
    size = len(data)
    if size < 0x80:
        return _SHORT[size] + data
    if size < 0x4000:
        return bytes((size & 0x7F | 0x80, size >> 7)) + data
    out = bytearray()
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out) + data


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found, at
        shift += 7


def _client(state: Any) -> _Pipelined | None:
    try:
        return _Pipelined(state)
    except (AttributeError, ImportError, KeyError):
        return None
