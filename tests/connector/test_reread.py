"""Reads that time out: asked for in parts, a bounded number of times, and left out where only a proof is wanted."""

from __future__ import annotations

import math
import struct
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra import ConsistencyLevel, InvalidRequest, OperationTimedOut, ReadTimeout, Unavailable
from cassandra.cluster import NoHostAvailable
from cassandra.protocol import OverloadedErrorMessage

from helenus_connector.cassandra_rows.raw_rows import RowPage
from helenus_connector.cassandra_rows.row_reader import KeyRefused, RowReader, UnreadReason
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.resolver import SchemaChanged
from helenus_connector.testing.cassandra import Answer, Host, MemorySession
from helenus_schemas.codec.key import Key
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.errors import HelenusError, Kind

TABLE = Table("ks", "t", uuid.uuid1(), (Column("k", parse("int"), "partition_key", 0), Column("v", parse("int"))))
SETTINGS = ConnectorSettings.from_properties(
    {"name": "n", "keyspace": "ks", "table": "t", "output.format": "json", "query.group.size": "64"}, "test"
)
KEYS: list[Key] = [(struct.pack(">i", i),) for i in range(100)]


class Rows(MemorySession):
    """Has a row for every key; reads of keys that `fails` names an error for end with it. `asked`: sizes of reads."""

    def __init__(self, fails: Callable[[Sequence[bytes]], Exception | None]) -> None:
        super().__init__([Host(1)])
        self.fails = fails
        self.asked: list[int] = []
        self.prepared: set[int] = set()

    def prepare(self, cql: str) -> Any:
        self.prepared.add(cql.count("?"))
        return super().prepare(cql)

    def answer(self, cql: str, values: list[Any], paging_state: bytes | None, page_size: int | None) -> Answer:
        assert cql.count("?") == len(values)
        keys = list(dict.fromkeys(values))
        self.asked.append(len(keys))
        if error := self.fails(keys):
            raise error
        return RowPage((k, k, None) for k in keys), None


def read(session: Rows, until: float = math.inf) -> set[Key]:
    reader = RowReader(session, TABLE, SETTINGS)
    reader.retry_deadline = until
    reader._row_bytes = 1.0  # groups are as large as is allowed
    return {key for key, image in reader.read_rows(KEYS, ConsistencyLevel.ALL) if isinstance(image, Image)}


def unread(session: Rows) -> dict[Key, UnreadReason]:
    reader = RowReader(session, TABLE, SETTINGS)
    reader._row_bytes = 1.0
    return {
        key: image for key, image in reader.read_rows(KEYS, ConsistencyLevel.ALL) if isinstance(image, UnreadReason)
    }


def slow(_: Sequence[bytes]) -> Exception:
    return ReadTimeout("as the server says it", consistency=5, required_responses=3, received_responses=2)


def test_groups_are_split_until_they_are_read() -> None:
    session = Rows(lambda keys: slow(keys) if len(keys) > 3 else None)
    assert read(session) == set(KEYS)
    assert {size for size in session.asked if size <= 3} <= {1, 2, 3}
    assert max(session.asked) > 3


def test_a_group_is_asked_for_by_the_bytes_of_its_keys_and_few_statements() -> None:
    session = Rows(lambda _: None)
    assert read(session) == set(KEYS)
    assert session.asked == [64, 36]
    assert session.prepared == {64}, "the second list is filled up"


def test_a_group_that_the_server_refuses_is_split() -> None:
    session = Rows(lambda keys: InvalidRequest("guardrail: 5 keys in an IN") if len(keys) > 5 else None)
    assert read(session) == set(KEYS)


def test_the_limit_of_a_guardrail_is_learned() -> None:
    message = "Guardrail partition_keys_in_select violated: Aborting query for table ks.t, too many"
    session = Rows(lambda keys: InvalidRequest(message) if len(keys) > 20 else None)
    reader = RowReader(session, TABLE, SETTINGS)
    reader._row_bytes = 1.0
    for _ in range(2):
        session.asked.clear()
        assert {key for key, image in reader.read_rows(KEYS, ConsistencyLevel.ALL) if image} == set(KEYS)
    assert session.asked == [16] * 6 + [4]


def test_a_guardrail_on_the_level_makes_no_statement_smaller() -> None:
    """Where ALL is not allowed, keys wait for their proof; others are read as ever."""
    message = "Guardrail read_consistency_levels violated: Provided values [ALL] are not allowed"
    session = Rows(lambda keys: InvalidRequest(message))
    reader = RowReader(session, TABLE, SETTINGS)
    reader._row_bytes = 1.0
    with pytest.raises(SchemaChanged):
        list(reader.read_rows(KEYS, ConsistencyLevel.ALL))
    with pytest.raises(SchemaChanged):
        list(reader.read_range(KEYS[0], (None, None), ConsistencyLevel.ALL))
    assert (reader.group_size, reader._page_rows) == (64, 500)


@pytest.mark.parametrize("until", [math.inf, 60.0])
def test_unavailable_replicas_delay_no_other_keys(until: float) -> None:
    away = Unavailable("all of these", consistency=5, required_replicas=3, alive_replicas=2)
    session = Rows(lambda keys: away if KEYS[0][0] in keys else None)
    assert read(session, until=time.monotonic() + until) == set(KEYS[64:])
    errors_by_key = unread(session)
    assert errors_by_key.keys() == set(KEYS[:64])
    assert {(unread_error.is_away, unread_error.error.kind) for unread_error in errors_by_key.values()} == {
        (True, Kind.CASSANDRA_READ)
    }


def test_nodes_that_are_overloaded_are_asked_for_less() -> None:
    errors = {"10.0.0.1": OverloadedErrorMessage(code=0x1001, message="timed out before it could start", info=None)}
    session = Rows(lambda keys: NoHostAvailable("none could", errors) if len(keys) > 20 else None)
    assert read(session) == set(KEYS)


def test_a_key_that_was_not_asked_for_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A masked key would be a row that is not there, for each that is."""
    session = Rows(lambda _: None)
    ask = session.execute_async

    def masked(*arguments: Any, **more: Any) -> Any:
        answer = ask(*arguments, **more).result()
        rows = RowPage((b"\0\0\0\0" * 2, value, time) for _, value, time in answer.current_rows)
        return SimpleNamespace(result=lambda: SimpleNamespace(current_rows=rows, paging_state=None))

    monkeypatch.setattr(session, "execute_async", masked)
    with pytest.raises(HelenusError, match="UNMASK") as error:
        read(session)
    assert error.value.kind is Kind.CASSANDRA_AUTH


def test_pages_are_as_small_as_a_guardrail_wants_them() -> None:
    session = Rows(lambda _: None)
    page_sizes: list[int] = []

    def execute(bound: Any, paging_state: bytes | None, host: object = None) -> Any:
        page_sizes.append(bound.fetch_size)
        rows = SimpleNamespace(current_rows=RowPage([(KEYS[0][0], None, None)]), paging_state=None)

        def result() -> Any:
            if bound.fetch_size > 100:
                raise InvalidRequest("Guardrail page_size violated: Query for table ks.t with page size 500")
            return rows

        return SimpleNamespace(result=result, coordinator_host=None)

    session.execute_async = execute  # type: ignore[method-assign]
    reader = RowReader(session, TABLE, SETTINGS)
    reader._row_bytes = 1.0
    for _ in range(2):
        assert [key for key, _ in reader.read_range(KEYS[0], (None, None), ConsistencyLevel.ONE)] == [KEYS[0]]
    assert page_sizes == [500, 250, 125, 62, 62]


def test_partition_keys_that_compare_equal_are_never_in_one_statement() -> None:
    """1, 1.0 and 1.00 are three partitions, and one to Cassandra where they are in one IN."""
    table = replace(TABLE, columns=(Column("k", parse("decimal"), "partition_key", 0), TABLE.columns[1]))
    keys: list[Key] = [(struct.pack(">ih", scale, n * 10**scale),) for n in range(1, 9) for scale in range(3)]
    session = Rows(lambda _: None)
    reader = RowReader(session, table, SETTINGS)
    reader._row_bytes = 1.0
    assert {key for key, image in reader.read_rows(keys, ConsistencyLevel.ALL) if image} == set(keys)
    assert session.asked == [8, 8, 8]


def test_a_key_that_the_server_refuses_may_be_of_another_schema() -> None:
    session = Rows(lambda keys: InvalidRequest("unknown column") if KEYS[50][0] in keys else None)
    with pytest.raises(SchemaChanged):
        read(session)


def test_a_key_that_the_server_refuses_and_that_no_other_schema_explains() -> None:
    session = Rows(lambda keys: InvalidRequest("Key may not be empty") if KEYS[50][0] in keys else None)
    reader = RowReader(session, TABLE, SETTINGS)
    reader.is_current = True
    images_by_key = dict(reader.read_rows(KEYS, ConsistencyLevel.ALL))
    assert {key for key, image in images_by_key.items() if isinstance(image, KeyRefused)} == {KEYS[50]}
    assert images_by_key.keys() == set(KEYS)
    with pytest.raises(KeyRefused):
        list(reader.read_range(KEYS[50], (None, None), ConsistencyLevel.ALL))


def test_a_server_that_refuses_every_key_refuses_the_statement() -> None:
    """A guardrail of its own against the level, say."""
    session = Rows(lambda _: InvalidRequest("this level is disallowed"))
    reader = RowReader(session, TABLE, SETTINGS)
    reader.is_current = True
    with pytest.raises(SchemaChanged):
        list(reader.read_rows(KEYS, ConsistencyLevel.ALL))


def test_a_node_that_does_not_know_a_column_refuses_no_key() -> None:
    """It lags behind the ALTER: a comparison without the key names the columns too."""
    lagging = "the node that lags"
    session = Rows(lambda keys: InvalidRequest("Undefined column name v") if KEYS[50][0] in keys else None)
    hosts_asked: list[object] = []

    def elsewhere(bound: Any, paging_state: Any, host: object = None) -> Any:
        hosts_asked.append(host)
        if host == lagging:
            assert "v" in bound.prepared_statement.query_string.split("WHERE")[0]
            session.fails = lambda _: InvalidRequest("Undefined column name v")
        answer = Rows.execute_async(session, bound, paging_state)
        answer.coordinator_host = lagging
        return answer

    session.execute_async = elsewhere  # type: ignore[method-assign]
    reader = RowReader(session, TABLE, SETTINGS)
    reader.is_current = True
    with pytest.raises(SchemaChanged):
        list(reader.read_rows(KEYS, ConsistencyLevel.ALL))
    assert hosts_asked[-1] == lagging


def test_a_column_of_many_cells_has_a_time_too() -> None:
    columns = (*TABLE.columns, Column("l", parse("list<int>")))
    reader = RowReader(Rows(lambda _: None), replace(TABLE, columns=columns), SETTINGS)
    assert (reader.shows_all_times, len(reader._images.timed)) == (True, 2)


@pytest.mark.parametrize("until", [math.inf, 60.0])
def test_a_key_that_always_times_out_is_left_out_soon(until: float) -> None:
    session = Rows(lambda keys: slow(keys) if KEYS[50][0] in keys else None)
    assert read(session, until=time.monotonic() + until) == {*KEYS} - {KEYS[50]}
    assert len(session.asked) < 30
    session.asked.clear()
    ((key, unread_error),) = unread(session).items()
    assert (key, unread_error.is_away) == (KEYS[50], False)


def test_many_keys_that_time_out_are_an_error_of_the_cluster() -> None:
    session = Rows(lambda keys: slow(keys) if {*keys} & {key for (key,) in KEYS[::4]} else None)
    with pytest.raises(HelenusError) as error:
        read(session)
    assert error.value.kind is Kind.CASSANDRA_READ
    assert len(session.asked) < 200


def test_a_proof_read_that_times_out_too_late_is_not_repeated() -> None:
    session = Rows(slow)
    with pytest.raises(HelenusError):
        read(session, until=time.monotonic() - 1)
    assert len(session.asked) == math.ceil(len(KEYS) / SETTINGS.query_group_size)


def test_a_node_that_hangs_is_not_asked_for_each_key() -> None:
    session = Rows(lambda keys: OperationTimedOut())
    with pytest.raises(HelenusError):
        read(session)
    assert len(session.asked) < 10
