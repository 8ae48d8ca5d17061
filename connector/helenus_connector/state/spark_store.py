"""The `Store` of an operator on Spark: the map state of `transformWithStateInPandas`, in RocksDB.

Spark's Python client asks for one key at a time and waits for each answer. The server answers in order, so this writes
many requests and then reads as many answers: measured 2.5 to 4 times as fast. That needs private members of Spark's
client. Where they are not as in 4.1 to 4.3, the plain calls are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

STATE = "rows"
"""The map's name: of keys and values, bytes each, which are its columns `key` and `value`."""
_AT_ONCE = 128  # requests: what fits into the sockets' buffers, or both sides would wait for each other
_MOST_BYTES = 32_768
_OK = 0


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
        found = (self._state.getValue((key,)) for key in keys) if self._client is None else self._client.get(keys)
        return [None if row is None else bytes(row[0]) for row in found]

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
    """Asks for many keys before it reads the answers."""

    def __init__(self, state: Any) -> None:
        from pyspark.sql.streaming.proto import StateMessage_pb2 as messages

        self._messages = messages
        self._name = state._stateName
        maps = state._mapStateClient
        self._key_schema, self._value_schema = maps.user_key_schema, maps.value_schema
        api = self._api = maps._stateful_processor_api_client
        self._serialize, self._deserialize = api._serialize_to_bytes, api._deserialize_from_bytes
        self._receive, self._file = api._receive_proto_message, api.sockfile
        self._version = 0

    def get(self, keys: Sequence[bytes]) -> Iterator[Any]:
        calls = ({"getValue": self._messages.GetValue(userKey=self._key(key))} for key in keys)
        for answer in self._answers(calls):
            yield self._deserialize(answer) if answer else None

    def put(self, values: Iterable[tuple[bytes, bytes]]) -> None:
        update, schema = self._messages.UpdateValue, self._value_schema
        for _ in self._answers(
            {"updateValue": update(userKey=self._key(key), value=self._serialize(schema, (value,)))}
            for key, value in values
        ):
            pass

    def remove(self, keys: Iterable[bytes]) -> None:
        for _ in self._answers({"removeKey": self._messages.RemoveKey(userKey=self._key(key))} for key in keys):
            pass

    def _key(self, key: bytes) -> Any:
        return self._serialize(self._key_schema, (key,))

    def _answers(self, calls: Iterable[dict[str, Any]]) -> Iterator[bytes]:
        m = self._messages
        made = iter(calls)
        while some := list(islice(made, _AT_ONCE)):
            requests = []
            for call in some:
                of_map = m.MapStateCall(stateName=self._name, **call)
                request = m.StateRequest(stateVariableRequest=m.StateVariableRequest(mapStateCall=of_map))
                requests.append(request.SerializeToString())
            yield from self._asked(requests)

    def _asked(self, requests: Sequence[bytes]) -> Iterator[bytes]:
        """Write requests, and read their answers once there are enough bytes of them."""
        sent, size = 0, 0
        for request in requests:
            if size and size + len(request) > _MOST_BYTES:
                yield from self._read(sent)
                sent = size = 0
            self._write(request)
            sent, size = sent + 1, size + len(request)
        yield from self._read(sent)

    def _write(self, request: bytes) -> None:
        # As `_send_proto_message`, which would flush each of them: a version, the length, the bytes.
        self._file.write(self._version.to_bytes(4, "big") + len(request).to_bytes(4, "big") + request)

    def _read(self, count: int) -> Iterator[bytes]:
        self._file.flush()
        for _ in range(count):
            status, message, value = self._receive()
            if status != _OK:
                raise RuntimeError(f"Spark's state store: {message}")
            yield value


def _client(state: Any) -> _Pipelined | None:
    try:
        return _Pipelined(state)
    except (AttributeError, ImportError):
        return None
