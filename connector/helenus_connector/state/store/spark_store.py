"""The `Store` of an operator on Spark: the map state of `transformWithStateInPandas`, in RocksDB.

Spark's Python client requests one key at a time and waits for each answer. The server answers in order, so this writes
many requests and then reads as many answers: measured 2.5 to 4 times as fast. That needs private members of Spark's
client. Where these are not known, or not as in Spark 4.1 to 4.3, the public calls are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pickle import loads
from typing import Any

from pyspark.sql.types import BinaryType, StructField, StructType

from helenus_connector.query.internals import is_known_version

STATE = "rows"
"""The map state's name. Its columns `key` and `value` are bytes."""
_MAX_REQUESTS = 128  # requests: what fits into the sockets' buffers, or both sides would wait for each other
_MAX_REQUEST_BYTES = 32_768
_OK = 0
_VERSION = bytes(4)
_SHORT_LENGTHS = [bytes((size,)) for size in range(0x80)]
_MIN_SAMPLE_BYTES = 16
"""A value of more bytes than this does not occur by chance elsewhere in its pickled row."""


class SparkStore:
    """The store of the place whose rows an operator's `handleInputRows` was called with. Each `init` opens it once."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self._client = _pipelined_client(state)

    @classmethod
    def open(cls, handle: Any) -> SparkStore:
        """Open the store of a `StatefulProcessorHandle`."""
        # As types: each text of a type Java is asked to parse, in every task, four times in all.
        key_type, value_type = (StructType([StructField(name, BinaryType())]) for name in ("key", "value"))
        return cls(handle.getMapState(STATE, key_type, value_type))

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of these keys, as `Store` does."""
        if self._client is not None:
            return list(self._client.get(keys))
        return [None if row is None else bytes(row[0]) for row in (self._state.getValue((key,)) for key in keys)]

    def put_many(self, values: Mapping[bytes, bytes]) -> None:
        """Put these values, as `Store` does."""
        if self._client is None:
            for key, value in values.items():
                self._state.updateValue((key,), (value,))
        else:
            self._client.put(values.items())

    def remove_many(self, keys: Iterable[bytes]) -> None:
        """Remove these keys, as `Store` does."""
        if self._client is None:
            for key in keys:
                self._state.removeKey((key,))
        else:
            self._client.remove(keys)

    def all_keys(self) -> Iterator[bytes]:
        """Return all keys of the place, in an order that stays the same for as long as they do."""
        if self._state.exists():
            for (key,) in self._state.keys():  # noqa: SIM118
                yield bytes(key)


class _PipelinedClient:
    """Sends many requests before it reads the answers. It encodes requests and decodes answers without the objects of
    Protocol Buffers and pickle, which take ten times as long.
    """

    def __init__(self, state: Any) -> None:
        from pyspark.sql.streaming.proto import StateMessage_pb2 as messages

        self._messages = messages
        maps = state._mapStateClient
        api = maps._stateful_processor_api_client
        self._deserialize, self._file = api._deserialize_from_bytes, api.sockfile
        name = _encode_field(messages.MapStateCall, "stateName", state._stateName.encode())
        self._get = _RequestEncoder(messages, name, "getValue", "GetValue", ("userKey",))
        self._put = _RequestEncoder(messages, name, "updateValue", "UpdateValue", ("userKey", "value"))
        self._remove = _RequestEncoder(messages, name, "removeKey", "RemoveKey", ("userKey",))
        self._value = _field_tag(messages.StateResponse, "value")[0]
        self._row_prefix = self._row_suffix = b""

    def get(self, keys: Sequence[bytes]) -> Iterator[bytes | None]:
        """Return the values of these keys, in order."""
        for answer in self._send_all(map(self._get.encode_key, keys)):
            yield self._unpickle_row(answer) if answer else None

    def put(self, values: Iterable[tuple[bytes, bytes]]) -> None:
        """Put these values."""
        for _ in self._send_all(self._put.encode_key_value(key, value) for key, value in values):
            pass

    def remove(self, keys: Iterable[bytes]) -> None:
        """Remove these keys."""
        for _ in self._send_all(map(self._remove.encode_key, keys)):
            pass

    def _unpickle_row(self, data: bytes) -> bytes:
        """Return the column of a pickled row. All rows have the same bytes before and after it, which are learned from
        the first: Java's pickle has bytes as text of as many characters.
        """
        prefix, offset = self._row_prefix, len(self._row_prefix)
        if prefix and data.startswith(prefix) and data.endswith(self._row_suffix):
            end = offset + 4 + int.from_bytes(data[offset : offset + 4], "little")
            if end + len(self._row_suffix) == len(data):
                return data[offset + 4 : end].decode().encode("latin-1")
        column = bytes(self._deserialize(data)[0])
        text = column.decode("latin-1").encode()
        sized = len(text).to_bytes(4, "little") + text
        if data.count(sized) == 1 and len(column) > _MIN_SAMPLE_BYTES:
            offset = data.index(sized)
            self._row_prefix, self._row_suffix = data[:offset], data[offset + len(sized) :]
        return column

    def _send_all(self, requests: Iterable[bytes]) -> Iterator[bytes]:
        """Send requests, and return their answers, so many at a time as fit."""
        pending: list[bytes] = []
        size = 0
        for request in requests:
            if pending and (len(pending) == _MAX_REQUESTS or size + len(request) > _MAX_REQUEST_BYTES):
                yield from self._exchange(pending)
                pending, size = [], 0
            pending.append(request)
            size += len(request)
        if pending:
            yield from self._exchange(pending)

    def _exchange(self, requests: Sequence[bytes]) -> Iterator[bytes]:
        # As `_send_proto_message` and `_receive_proto_message`, which would flush each of them: the length, the bytes.
        """Write these requests, and read as many answers."""
        file = self._file
        file.write(b"".join(requests))
        file.flush()
        for _ in requests:
            data = file.read(int.from_bytes(file.read(4), "big"))
            if not data:
                yield data
                continue
            if data[0] == self._value:
                size, offset = _read_varint(data, 1)
                if offset + size == len(data):
                    yield data[offset:]
                    continue
            answer = self._messages.StateResponse()
            answer.ParseFromString(data)
            if answer.statusCode != _OK:
                raise RuntimeError(f"Spark's state store: {answer.errorMessage}")
            yield answer.value


class _RequestEncoder:
    """Encodes one kind of request, of one key or of a key and a value. Raises ImportError if the bytes are not as
    Protocol Buffers has them.
    """

    def __init__(self, messages: Any, name: bytes, call: str, message_name: str, fields: Sequence[str]) -> None:
        self._tags = [_field_tag(getattr(messages, message_name), field) for field in fields]
        self._name = name
        self._call_tag = _field_tag(messages.MapStateCall, call)
        self._map_tag = _field_tag(messages.StateVariableRequest, "mapStateCall")
        self._variable_tag = _field_tag(messages.StateRequest, "stateVariableRequest")
        for size in (1, 100, 20_000):  # lengths of one, two and three bytes
            sample = b"x" * size
            values = {field: _pickle_row(sample) for field in fields}
            inner = getattr(messages, message_name)(**values)
            request = messages.StateRequest(
                stateVariableRequest=messages.StateVariableRequest(
                    mapStateCall=messages.MapStateCall(stateName=_field_text(name), **{call: inner})
                )
            ).SerializeToString()
            encoded = self.encode_key(sample) if len(fields) == 1 else self.encode_key_value(sample, sample)
            if encoded != _with_frame(request) or loads(_pickle_row(sample)) != (sample,):
                raise ImportError("requests of another form")

    def encode_key(self, key: bytes) -> bytes:
        """Encode a request of one key."""
        return self._request(self._tags[0] + _with_length(_pickle_row(key)))

    def encode_key_value(self, key: bytes, value: bytes) -> bytes:
        """Encode a request of a key and a value."""
        first, second = self._tags
        return self._request(first + _with_length(_pickle_row(key)) + second + _with_length(_pickle_row(value)))

    def _request(self, inner: bytes) -> bytes:
        call = self._name + self._call_tag + _with_length(inner)
        return _with_frame(self._variable_tag + _with_length(self._map_tag + _with_length(call)))


def _field_tag(message: Any, field: str) -> bytes:
    """Return the byte before the length of a field of bytes, text or a message."""
    return bytes((message.DESCRIPTOR.fields_by_name[field].number << 3 | 2,))


def _encode_field(message: Any, field: str, value: bytes) -> bytes:
    return _field_tag(message, field) + _with_length(value)


def _field_text(field: bytes) -> str:
    return field[2:].decode()


def _with_frame(request: bytes) -> bytes:
    """Return a request as Spark's client writes it: a version, the length, the bytes."""
    return _VERSION + len(request).to_bytes(4, "big") + request


def _pickle_row(data: bytes) -> bytes:
    """Pickle a row of one column of bytes: `pickle.dumps((data,), 3)`."""
    return b"\x80\x03B" + len(data).to_bytes(4, "little") + data + b"\x85."


def _with_length(data: bytes) -> bytes:
    """Return bytes after their length, as a varint."""
    size = len(data)
    if size < 0x80:
        return _SHORT_LENGTHS[size] + data
    if size < 0x4000:
        return bytes((size & 0x7F | 0x80, size >> 7)) + data
    out = bytearray()
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out) + data


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
        shift += 7


def _pipelined_client(state: Any) -> _PipelinedClient | None:
    """Return a pipelined client; None where Spark's private members are not known, or not as expected."""
    if not is_known_version():
        return None
    try:
        return _PipelinedClient(state)
    except (AttributeError, ImportError, KeyError):
        return None
