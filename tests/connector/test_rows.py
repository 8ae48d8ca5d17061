"""Rows of a native-protocol result as bytes: by the driver's compiled parser, and by ours where there is none."""

from __future__ import annotations

import io
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra.cluster import ResponseFuture
from cassandra.protocol import ProtocolHandler, ResultMessage
from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.cassandra_rows import raw_rows, row_images
from helenus_connector.cassandra_rows.raw_rows import RawProtocolHandler, RawRow, RowPage, parse, row_factory

values = st.none() | st.binary(max_size=6)
results = st.integers(1, 5).flatmap(
    lambda columns: st.tuples(st.just(columns), st.lists(st.tuples(*[values] * columns)))
)


def body(sent_rows: list[RawRow]) -> bytes:
    cells = (struct.pack(">i", -1) if v is None else struct.pack(">i", len(v)) + v for row in sent_rows for v in row)
    return struct.pack(">i", len(sent_rows)) + b"".join(cells)


@given(results)
def test_both_parsers_give_the_bytes_that_were_sent(result: tuple[int, list[RawRow]]) -> None:
    columns, sent_rows = result
    data = body(sent_rows)
    for page in (parse(data, columns), raw_rows._parse(data, columns)):
        assert (list(page), page.size) == (sent_rows, len(data))


def test_a_result_that_ends_early_is_an_error() -> None:
    data = body([(b"abc", b"d")])[:-1]
    for read in (parse, raw_rows._parse):
        with pytest.raises((EOFError, ValueError, struct.error)):
            read(data, 2)


@pytest.mark.parametrize("keyspace", ["systems", "system_orders", "ks", "system", "system_schema"])
def test_only_cassandras_own_tables_are_read_as_values(keyspace: str) -> None:
    names = b"".join(struct.pack(">H", len(name)) + name for name in (keyspace.encode(), b"t", b"a"))
    an_int = 9
    data = struct.pack(">ii", 1, 1) + names + struct.pack(">H", an_int) + body([(b"\0\0\0\7",)])
    result = raw_rows.RawProtocolHandler.message_types_by_opcode[ResultMessage.opcode](2)
    result.recv_results_rows(io.BytesIO(data), 4, {}, None, None)
    own = keyspace in {"system", "system_schema"}
    assert list(result.parsed_rows) == [(7,) if own else (b"\0\0\0\7",)]


CLASSES = "org.apache.cassandra.db.marshal."
NAMES = st.one_of(
    st.sampled_from(
        [
            "address",
            "street",
            "user",
            "price",
            "data",
            "test",
            "size",
            "123",
            "größe",
            "名前",
            'a"b',
            "a:b",
            "a=>b",
            " ",
        ]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6),
)


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">H", len(data)) + data


def custom(keyspace: str, udt: str, fields: list[str]) -> bytes:
    """A vector of a user-defined type, as Cassandra spells it: names of types and fields in hexadecimal."""
    inner = ",".join(f"{field.encode().hex()}:{CLASSES}Int32Type" for field in fields)
    type_name = f"{CLASSES}UserType({keyspace},{udt.encode().hex()},{inner})"
    return struct.pack(">H", 0) + string(f"{CLASSES}VectorType({CLASSES}FrozenType({type_name}) , 2)")


def plain_type(keyspace: str, udt: str, fields: list[str]) -> bytes:
    """A map of an int to a list of a tuple of a user-defined type, as the protocol has them."""
    inner = b"".join(string(field) + struct.pack(">H", 9) for field in fields)
    udt_type = struct.pack(">H", 0x30) + string(keyspace) + string(udt) + struct.pack(">H", len(fields)) + inner
    return struct.pack(">HHHHH", 0x21, 9, 0x20, 0x31, 1) + udt_type


def decode(data: bytes) -> Any:
    return raw_rows.RawProtocolHandler.decode_message(4, {}, 1, 0, ResultMessage.opcode, data, None, None)


@pytest.mark.parametrize("spelled", [custom, plain_type])
@given(keyspace=NAMES, udt=NAMES, fields=st.lists(NAMES, min_size=1, max_size=3, unique=True))
def test_types_of_any_names_are_read_past(spelled: Any, keyspace: str, udt: str, fields: list[str]) -> None:
    """In the answers to a read, and to what prepares it: no value needs its type."""
    made = spelled(keyspace, udt, fields)
    columns = string("a") + made + string("b") + struct.pack(">H", 9)
    table = string(f"{keyspace}s") + string("t")
    sent_rows: list[RawRow] = [(b"any", bytes(4)), (None, b"x")]
    answer = decode(struct.pack(">iii", 2, 1, 2) + table + columns + body(sent_rows))
    assert list(answer.parsed_rows) == sent_rows
    assert answer.column_names == ["a", "b"]
    bound = struct.pack(">iiiH", 1, 1, 1, 0) + table + string("a") + made
    prepared = decode(struct.pack(">i", 4) + string("id") + bound + struct.pack(">ii", 1, 2) + table + columns)
    assert [column.name for column in prepared.bind_metadata] == ["a"]
    assert [column[2] for column in prepared.column_metadata] == ["a", "b"]


def test_the_driver_itself_takes_some_names_for_numbers() -> None:
    """Where it no longer does, what reads past them may go."""
    with pytest.raises(Exception, match=r"type string|int"):
        ResultMessage.read_type(io.BytesIO(custom("ks", "test", ["x"])), {})


@pytest.mark.parametrize("cut", [5, 8, 20])
def test_an_answer_that_cannot_be_decoded_is_an_error_of_its_own(cut: int) -> None:
    """The driver would close the connection, with the reads of other tables on it."""
    whole = (
        struct.pack(">iii", 2, 1, 1) + string("ks") + string("t") + string("a") + struct.pack(">H", 9) + body([(b"x",)])
    )
    answer = decode(whole[:cut])
    assert isinstance(answer, raw_rows.UnreadableAnswer)
    assert "cannot be decoded" in str(answer)


def test_rows_of_user_tables_stay_as_they_are() -> None:
    page = RowPage([(b"a",)])
    assert row_factory(["a"], page) is page
    assert row_factory(["a"], [(1,)])[0].a == 1


@pytest.mark.parametrize(
    ("times", "newest"),
    [([], None), ([None], None), ([5, None, 70], 70), ([-5, 3], 3), ([-5, -1], -1), ([-5, -5], -5), ([0], 0)],
)
def test_the_newest_of_write_times(times: list[int | None], newest: int | None) -> None:
    assert row_images.newest_write_time(tuple([None if t is None else struct.pack(">q", t) for t in times])) == newest


def test_other_sessions_of_the_process_prepare_as_the_driver_does() -> None:
    """A statement that they prepare is bound to Python's values."""

    def handler_of(handler: Any) -> Any:
        future = ResponseFuture.__new__(ResponseFuture)
        future.session = SimpleNamespace(client_protocol_handler=handler)
        return future._protocol_handler

    assert handler_of(RawProtocolHandler) is RawProtocolHandler
    assert handler_of(ProtocolHandler) is ProtocolHandler
    future = ResponseFuture.__new__(ResponseFuture)
    future._protocol_handler = RawProtocolHandler  # as the driver sets it for all but PREPARE
    assert future._protocol_handler is RawProtocolHandler
