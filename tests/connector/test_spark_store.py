"""The store on Spark's state, over a server that answers as Spark 4.3's does."""

from __future__ import annotations

import io
import pickle
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.proto import StateMessage_pb2 as messages

from helenus_connector.state.store.spark_store import SparkStore

ROW = (
    b"\x80\x02cpyspark.sql.types\n_create_row_inbound_converter\nq\0cpyspark.sql.types\n_parse_datatype_json_string\n"
    b'X[\0\0\0{"type":"struct","fields":[{"name":"value","type":"binary","nullable":true,"metadata":{}}]}q\1\x85'
    b"q\2R\x85q\3R(c__builtin__\nbytes\nc__builtin__\nbytearray\nX%sX\7\0\0\0latin-1q\5\x86q\6R\x85q\7Rtq\x08R."
)
"""A row of Spark's state as it answers with it, with the length and the text of its bytes in the middle."""


class Server:
    """Spark's end of the socket: reads requests by Protocol Buffers, and keeps what it is given."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self._written, self._answers = b"", io.BytesIO()
        self.requests = 0
        self.fails = False

    def write(self, data: bytes) -> None:
        self._written += data

    def flush(self) -> None:
        answers = b""
        while self._written:
            assert self._written[:4] == bytes(4)
            size = int.from_bytes(self._written[4:8], "big")
            request = messages.StateRequest()
            request.ParseFromString(self._written[8 : 8 + size])
            self._written = self._written[8 + size :]
            answer = self._answer(request.stateVariableRequest.mapStateCall).SerializeToString()
            answers += len(answer).to_bytes(4, "big") + answer
            self.requests += 1
        self._answers = io.BytesIO(answers)

    def read(self, size: int) -> bytes:
        return self._answers.read(size)

    def _answer(self, call: Any) -> Any:
        assert call.stateName == "rows"
        if self.fails:
            return messages.StateResponse(statusCode=1, errorMessage="the disk is full")
        kind = call.WhichOneof("method")
        (key,) = pickle.loads(getattr(call, kind).userKey)
        if kind == "getValue" and key in self.values:
            text = self.values[key].decode("latin-1").encode()
            return messages.StateResponse(value=ROW.replace(b"%s", len(text).to_bytes(4, "little") + text))
        if kind == "updateValue":
            (self.values[key],) = pickle.loads(call.updateValue.value)
        if kind == "removeKey":
            self.values.pop(key, None)
        return messages.StateResponse()


def store_of(server: Server) -> SparkStore:
    def row(data: bytes) -> Any:
        # The same by the function that pyspark's converters end in, which need a running Spark.
        size = int.from_bytes(data[(offset := ROW.index(b"%s")) : offset + 4], "little")
        return (bytearray(data[offset + 4 : offset + 4 + size].decode().encode("latin-1")),)

    api = SimpleNamespace(sockfile=server, _deserialize_from_bytes=row)
    maps = SimpleNamespace(_stateful_processor_api_client=api)
    return SparkStore(SimpleNamespace(_stateName="rows", _mapStateClient=maps))


KEYS = st.binary(min_size=1, max_size=40)
VALUES = st.binary(min_size=1, max_size=300) | st.binary(min_size=1, max_size=4).map(
    lambda few_bytes: few_bytes * 9_000
)


@given(st.dictionaries(KEYS, VALUES, max_size=300), st.lists(KEYS, max_size=20))
def test_values_come_back_as_they_were(values: dict[bytes, bytes], others: list[bytes]) -> None:
    server = Server()
    store = store_of(server)
    assert store._client is not None, "requests are pipelined"
    store.put_many(values)
    assert server.values == values
    keys = [*values, *others]
    for _ in range(2):
        assert store.get_many(keys) == [values.get(key) for key in keys]
    store.remove_many(others)
    assert server.values == {key: value for key, value in values.items() if key not in others}


def test_an_error_of_the_store_ends_the_batch() -> None:
    server = Server()
    server.fails = True
    with pytest.raises(RuntimeError, match="the disk is full"):
        store_of(server).put_many({b"a": b"b"})


def test_without_these_members_the_plain_calls_are_used() -> None:
    assert SparkStore(SimpleNamespace())._client is None


def test_of_an_unknown_version_the_plain_calls_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.4.0")
    assert store_of(Server())._client is None
