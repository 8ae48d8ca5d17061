"""Statements that go to a node together: their frames, and what comes of answers that are not rows, or do not come."""

from __future__ import annotations

import io
import re
import struct
import threading
import time
import uuid
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cassandra.cluster
import pytest
from cassandra import ConsistencyLevel
from cassandra.connection import Connection
from cassandra.pool import NoConnectionsAvailable
from cassandra.protocol import ProtocolHandler
from cassandra.query import BoundStatement
from cassandra.segment import SegmentCodec

from helenus_connector.cassandra_rows import _concurrent_requests, _pipelined, _requests
from helenus_connector.cassandra_rows._pipelined import (
    NotPipelined,
    PipelineAttempts,
    PipelinedStatements,
    pipeline_attempts,
)
from helenus_connector.cassandra_rows.raw_rows import RawRow, RowPage
from helenus_connector.cassandra_rows.row_reader import RowReader
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.image import Image
from helenus_connector.testing.cassandra import Host, MemorySession
from helenus_schemas.codec.key import Key
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse

TABLE = Table(
    "ks",
    "t",
    uuid.uuid1(),
    (
        Column("p", parse("int"), "partition_key", 0),
        Column("q", parse("int"), "partition_key", 1),
        Column("v", parse("int")),
    ),
)
GIVEN = {"name": "n", "keyspace": "ks", "table": "t", "output.format": "json"}
SETTINGS = ConnectorSettings.from_properties(GIVEN, "test")
KEYS: list[Key] = [(struct.pack(">i", i), struct.pack(">i", i)) for i in range(100)]
_RESULT, _ERROR = 8, 0
Answered = tuple[int, int, bytes]
"""Flags, opcode and body."""


def rows(*raw_rows: tuple[bytes | None, ...], flags: int = 5) -> Answered:
    """A Rows result, by default of one table and without a description of its columns."""
    cells = (b"\xff\xff\xff\xff" if v is None else struct.pack(">i", len(v)) + v for row in raw_rows for v in row)
    return (
        0,
        _RESULT,
        struct.pack(">4i", 2, flags, len(raw_rows[0]) if raw_rows else 4, len(raw_rows)) + b"".join(cells),
    )


class Node:
    """A connection of the driver, its pool, and the node behind: `answer` is asked for the values of each statement,
    None for no answer.
    """

    def __init__(self, version: int, answer: Callable[[Key], Answered | None]) -> None:
        self.protocol_version, self.allow_beta_protocol_version = version, False
        self.is_defunct = self.is_closed = self.is_shutdown = False
        self._socket_writable = True
        self._is_checksumming_enabled = version >= 5
        self._segment_codec = SegmentCodec()
        self.lock = threading.Lock()
        self.in_flight, self.max_request_id = 0, 1000
        self.request_ids, self.highest = deque(range(300)), 300
        self._requests: dict[int, Any] = {}
        self.asked: list[Key] = []
        self.pushes = 0
        self._answer = answer

    get_request_id = Connection.get_request_id

    def borrow_connection(self, timeout: float) -> tuple[Node, int]:
        with self.lock:
            if self.in_flight >= self.max_request_id:
                raise NoConnectionsAvailable("All request IDs are currently in use")
            self.in_flight += 1
            return self, self.get_request_id()

    def return_connection(self, connection: Node) -> None:
        with self.lock:
            self.in_flight -= 1

    def push(self, data: bytes) -> None:
        self.pushes += 1
        segments = io.BytesIO(data)
        while self._is_checksumming_enabled and segments.tell() < len(data):
            header = self._segment_codec.decode_header(segments)
            payload = self._segment_codec.decode(segments, header).payload
            assert header.is_self_contained
            self._take(payload)
        if not self._is_checksumming_enabled:
            self._take(data)

    def _take(self, frames: bytes) -> None:
        position = 0
        while position < len(frames):
            version, _, stream, opcode, size = struct.unpack_from(">BBhBi", frames, position)
            body, position = frames[position + 9 : position + 9 + size], position + 9 + size
            assert (version, opcode) == (self.protocol_version, 0x0A)
            assert body[:4] == b"\0\2id"
            parameters = body[4:]
            if version >= 5:
                assert parameters[:4] == b"\0\2md"
                level, flags, count = struct.unpack_from(">HIH", parameters, 4)
                parameters = parameters[12:]
            else:
                level, flags, count = struct.unpack_from(">HBH", parameters)
                parameters = parameters[5:]
            assert (level, flags) == (ConsistencyLevel.LOCAL_QUORUM, 0x03)
            values = [value for size, value in struct.iter_unpack(">i4s", parameters) if size == 4]
            assert len(values) == count
            self.asked.append(tuple(values))
            answered = self._answer(tuple(values))
            if answered is not None:
                of_flags, of_opcode, of_body = answered
                called, decoded, metadata = self._requests.pop(stream)
                called(decoded(version, {}, stream, of_flags, of_opcode, of_body, zlib.decompress, metadata))
                self.request_ids.append(stream)


def live(key: Key) -> Answered:
    return rows((*key, b"\0\0\0\7", struct.pack(">q", 5)))


def even(key: Key) -> Answered:
    """Keys with an even number have a row."""
    return rows() if key[0] and key[0][3] % 2 else live(key)


def prepared() -> Any:
    nothing = dict.fromkeys("serial_consistency_level fetch_size custom_payload keyspace routing_key_indexes".split())
    return SimpleNamespace(
        query_string="", column_metadata=[], is_idempotent=True, query_id=b"id", result_metadata_id=b"md",
        consistency_level=None, retry_policy=None, result_metadata=[], **nothing,
    )  # fmt: skip


def session(node: Node) -> Any:
    plan = SimpleNamespace(make_query_plan=lambda *_: iter(["node"]))
    profile = SimpleNamespace(load_balancing_policy=plan, request_timeout=12.0)
    return SimpleNamespace(
        keyspace=None,
        _pools={"node": node},
        client_protocol_handler=ProtocolHandler,
        get_execution_profile=lambda _: profile,
    )


def sent(node: Node, keys: list[Key] = KEYS) -> PipelinedStatements:
    statements = []
    for key in keys:
        bound = BoundStatement(prepared(), consistency_level=ConsistencyLevel.LOCAL_QUORUM)
        bound.values = list(key)
        statements.append(bound)
    made = PipelinedStatements(len(keys))
    made.send(session(node), statements)
    return made


@pytest.mark.parametrize("version", [4, 5])
def test_each_is_answered(version: int) -> None:
    node = Node(version, even)
    page = sent(node).result().current_rows
    assert node.asked == KEYS
    assert node.pushes == 1
    assert [row[:2] for row in page] == KEYS[::2]
    assert {row[2:] for row in page} == {(b"\0\0\0\7", struct.pack(">q", 5))}
    assert (node.in_flight, node._requests, len(node.request_ids)) == (0, {}, 300)


@pytest.mark.parametrize(
    "odd",
    [
        (0, _ERROR, struct.pack(">ih", 0x2500, 0)),
        rows(flags=0),
        rows(flags=7),
        (2, _RESULT, rows()[2]),
        (0, _RESULT, b"\0\0\0\1"),
    ],
    ids=["error", "described", "paged", "traced", "void"],
)
@pytest.mark.parametrize("odd_keys", [KEYS[50:51], KEYS])
def test_what_is_not_rows_alone_is_asked_for_apart(odd: Answered, odd_keys: list[Key]) -> None:
    node = Node(5, lambda key: odd if key in odd_keys else live(key))
    with pytest.raises(NotPipelined):
        sent(node).result()
    assert (node.in_flight, node._requests) == (0, {})


@pytest.mark.parametrize("compressed", [0, 1])
def test_warnings_before_the_rows_are_skipped(compressed: int) -> None:
    """As of many tombstones."""

    def warned(key: Key) -> Answered:
        _, opcode, body = live(key)
        body = b"\0\2" + b"\0\5first" + b"\0\6second" + body
        return 8 | compressed, opcode, zlib.compress(body) if compressed else body

    page = sent(Node(4, warned), KEYS[:3]).result().current_rows
    assert [row[:2] for row in page] == KEYS[:3]


def test_answers_of_other_columns() -> None:
    """As of a node that knows another version of the table."""
    other = 0, _RESULT, struct.pack(">4i", 2, 5, 5, 0)
    with pytest.raises(NotPipelined):
        sent(Node(5, lambda key: other if key == KEYS[50] else live(key))).result()


@pytest.mark.parametrize("values", [[], [b"", b""], [b"ab", b"cd"], [b"a", b"bc", b""], [b"abc"]])
def test_each_value_goes_after_its_size(values: list[bytes]) -> None:
    expected = b"".join(struct.pack(">i", len(value)) + value for value in values)
    assert _pipelined._values(values) == expected


def test_an_answer_that_comes_while_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pipelined, "_WAIT_S", 30)
    node = Node(5, lambda _: None)
    made = sent(node, KEYS[:1])
    ((called, decoded, _),) = node._requests.values()
    later = threading.Timer(0.2, lambda: called(decoded(5, {}, 0, *live(KEYS[0]), bytes, None)))
    later.start()
    assert [row[:2] for row in made.result().current_rows] == KEYS[:1]
    later.join()


@pytest.mark.parametrize("odd", [(0, _ERROR, struct.pack(">ih", 0x2500, 0)), rows(flags=7), None])
def test_one_statement_that_is_not_answered_with_rows(monkeypatch: pytest.MonkeyPatch, odd: Answered | None) -> None:
    monkeypatch.setattr(_pipelined, "_WAIT_S", 0.05)
    with pytest.raises(NotPipelined):
        sent(Node(5, lambda _: odd), KEYS[:1]).result()


def test_one_statement_for_a_connection_that_is_closed() -> None:
    node = Node(5, live)
    node.is_closed = True
    with pytest.raises(NotPipelined):
        sent(node, KEYS[:1]).result()


def test_a_version_of_the_driver_that_it_was_not_tried_with(monkeypatch: pytest.MonkeyPatch) -> None:
    session = object.__new__(cassandra.cluster.Session)
    assert _pipelined.is_possible(session)
    assert not _pipelined.is_possible(object.__new__(MemorySession))
    monkeypatch.setattr(_pipelined, "driver", "3.31.0")
    assert not _pipelined.is_possible(session)


@pytest.mark.parametrize(("file", "sign"), [("pyproject.toml", ">="), ("constraints.txt", "==")])
def test_the_oldest_and_the_newest_driver_that_are_tested(
    monkeypatch: pytest.MonkeyPatch, file: str, sign: str
) -> None:
    text = (Path(__file__).parents[2] / file).read_text()
    (version,) = re.findall(rf'^ *"?cassandra-driver{sign}([\d.]+)', text, re.MULTILINE)
    monkeypatch.setattr(_pipelined, "driver", version)
    assert _pipelined.is_possible(object.__new__(cassandra.cluster.Session))


def test_a_request_timeout_of_less_than_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pipelined, "_WAIT_S", 30)
    node = Node(5, lambda _: None)
    driver_session = session(node)
    driver_session.get_execution_profile(None).request_timeout = 0.05
    made = PipelinedStatements(1)
    bound = BoundStatement(prepared(), consistency_level=ConsistencyLevel.LOCAL_QUORUM)
    bound.values = list(KEYS[0])
    made.send(driver_session, [bound])
    with pytest.raises(NotPipelined):
        made.result()


class Clock:
    """Takes the place of the module `time`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: Any) -> None:
        self.now = 1000.0
        for module in (_pipelined, *modules):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))


def pause(clock: Clock, attempts: PipelineAttempts) -> float:
    """How long none are made, to a tenth of a second; then one begins."""
    seconds = 0.0
    while not attempts.are_allowed:
        clock.now += 0.1
        seconds += 0.1
    attempts.note_sent()
    return round(seconds)


def test_after_a_pause_one_attempt_is_made_and_then_all(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    attempts = PipelineAttempts()
    before = clock.now
    attempts.note_sent()
    assert attempts.are_allowed
    clock.now += 1
    attempts.note_late(before)
    attempts.note_late(before)
    assert pause(clock, attempts) == 10, "what was sent with the first is no failure of its own"
    probe = clock.now
    assert not attempts.are_allowed, "until it was answered"
    attempts.note_answered(before)
    attempts.note_late(before)
    assert not attempts.are_allowed, "those were sent before the pause"
    clock.now += 0.5
    attempts.note_answered(probe)
    assert attempts.are_allowed
    attempts.note_late(before)
    attempts.note_sent()
    assert attempts.are_allowed


def test_an_attempt_that_nobody_waits_for_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    attempts = PipelineAttempts()
    attempts.note_late(clock.now)
    assert [pause(clock, attempts) for _ in range(3)] == [10, 10, 10]


def test_after_an_attempt_that_says_nothing_the_next_one_is_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    attempts = PipelineAttempts()
    before = clock.now
    attempts.note_undecided(before)
    assert attempts.are_allowed
    attempts.note_late(clock.now)
    attempts.note_undecided(before)
    assert pause(clock, attempts) == 10, "what was sent before the pause was not its attempt"
    assert not attempts.are_allowed
    attempts.note_undecided(clock.now)
    assert pause(clock, attempts) == 0
    assert not attempts.are_allowed, "until it was answered"


def test_the_pause_doubles_where_a_cluster_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    attempts = PipelineAttempts()
    attempts.note_late(clock.now)
    pauses = []
    for _ in range(9):
        pauses.append(pause(clock, attempts))
        clock.now += 1
        attempts.note_late(clock.now - 1)
    assert pauses == [10, 20, 40, 80, 160, 320, 600, 600, 600]


@pytest.mark.parametrize(("well", "pauses"), [(5, [10, 20, 40, 80]), (15, [10, 10, 10, 10]), (3600, [10, 10, 10, 10])])
def test_the_pause_is_short_again_after_all_went_well_for_longer(
    monkeypatch: pytest.MonkeyPatch, well: float, pauses: list[float]
) -> None:
    clock = Clock(monkeypatch)
    attempts = PipelineAttempts()
    pauses_made = []
    for _ in range(4):
        attempts.note_late(clock.now)
        pauses_made.append(pause(clock, attempts))
        attempts.note_answered(clock.now)
        clock.now += well
    assert pauses_made == pauses


@pytest.mark.parametrize("in_flight", [1, 32])
def test_a_cluster_that_is_slow_for_a_day_is_asked_twice_for_little(
    monkeypatch: pytest.MonkeyPatch, in_flight: int
) -> None:
    clock = Clock(monkeypatch)
    attempts = PipelineAttempts()
    tried = 0
    for _ in range(86_400):
        begun = 0
        while begun < in_flight and attempts.are_allowed:
            attempts.note_sent()
            begun += 1
        tried += begun
        clock.now += 1
        for _ in range(begun):
            attempts.note_late(clock.now - 1)
    assert 144 <= tried < 160 + in_flight


def test_a_cluster_whose_every_fifth_second_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause grows: what goes well for less time than the last one does not make it short again."""
    clock = Clock(monkeypatch)
    attempts = PipelineAttempts()
    failures = 0
    for second in range(86_400):
        if attempts.are_allowed:
            attempts.note_sent()
            sent, is_slow = clock.now, second % 5 == 0
            clock.now += 1
            if is_slow:
                attempts.note_late(sent)
                failures += 1
            else:
                attempts.note_answered(sent)
        else:
            clock.now += 1
    assert 0 < failures < 300


def test_a_late_answer_once_an_hour_costs_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    attempts = PipelineAttempts()
    for _ in range(24):
        attempts.note_late(clock.now)
        clock.now += 10.1
        assert attempts.are_allowed
        attempts.note_sent()
        attempts.note_answered(clock.now)
        clock.now += 3600


def test_readers_of_one_session_share_its_attempts() -> None:
    shared, other = MemorySession([Host(1)]), MemorySession([Host(1)])
    assert pipeline_attempts(shared) is pipeline_attempts(shared)
    assert pipeline_attempts(shared) is not pipeline_attempts(other)
    assert RowReader(shared, TABLE, SETTINGS)._attempts is RowReader(shared, NARROW, SETTINGS)._attempts
    assert not pipeline_attempts(shared).are_allowed, "it has no connections"


def test_a_node_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its streams stay taken: an answer may come yet."""
    monkeypatch.setattr(_pipelined, "_WAIT_S", 0.05)
    node = Node(5, lambda key: None if key in KEYS[:2] else live(key))
    made = sent(node)
    with pytest.raises(NotPipelined) as apart:
        made.result()
    assert apart.value.is_late
    assert made._answers is None, "those that came are not kept"
    assert (node.in_flight, len(node._requests)) == (2, 2)
    for called, _, _ in node._requests.values():
        called(ConnectionError("as the driver says it"))
    assert node.in_flight == 0


@pytest.mark.parametrize("away", ["is_shutdown", "is_closed", "is_defunct", "busy", "full", "blocked"])
def test_a_connection_that_is_not_to_be_had(away: str) -> None:
    node = Node(5, live)
    if away in ("busy", "full"):
        node.in_flight = 950 if away == "busy" else 1000
    elif away == "blocked":
        node._socket_writable = False
    else:
        setattr(node, away, True)
    before = node.in_flight
    with pytest.raises(NotPipelined) as apart:
        sent(node).result()
    assert not apart.value.is_late
    assert (node.in_flight, node.pushes, node._requests) == (before, 0, {})
    assert sorted(node.request_ids) == list(range(300))


def test_large_keys_take_several_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pipelined, "_MAX_SEGMENT_BYTES", 200)
    node = Node(5, live)
    assert len(sent(node).result().current_rows) == 100


class Rows(MemorySession):
    """Has a row for each key that is asked for alone; those asked for together go to a node."""

    def __init__(
        self,
        node: Node,
        monkeypatch: pytest.MonkeyPatch,
        row: Callable[[bytes], RawRow] | None = None,
        hosts: int = 1,
    ) -> None:
        super().__init__([Host(number) for number in range(hosts)])
        self.alone: list[Key] = []
        self._row = row
        send = PipelinedStatements.send
        monkeypatch.setattr(PipelinedStatements, "send", lambda made, _, bound: send(made, session(node), bound))

    def prepare(self, cql: str) -> Any:
        made = prepared()
        made.query_string = cql
        return made

    def answer(self, cql: str, values: list[Any], paging_state: bytes | None, page_size: int | None) -> Any:
        self.alone.append(tuple(values))
        if self._row is not None:
            return RowPage(map(self._row, dict.fromkeys(values))), None
        _, _, body = live(tuple(values))
        return _pipelined.parse(body[12:], 4), None


@pytest.mark.parametrize("fails", [False, True])
def test_keys_that_share_no_column_go_together(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """Where one of some is not answered so, these are asked for one by one, and for a while all are."""
    node = Node(5, lambda key: rows(flags=0) if fails and key == KEYS[40] else live(key))
    cassandra = Rows(node, monkeypatch)
    reader = RowReader(cassandra, TABLE, SETTINGS)
    reader._row_bytes, reader._attempts = 1.0, PipelineAttempts()
    for _ in range(2):
        images_by_key = dict(reader.read_rows(KEYS, ConsistencyLevel.LOCAL_QUORUM))
        assert {key for key, image in images_by_key.items() if isinstance(image, Image)} == set(KEYS)
    assert node.pushes < 20
    assert bool(cassandra.alone) is fails
    if fails:
        assert len(node.asked) < 100, "the second time none goes together"
        assert reader.statements > 200
    else:
        assert reader.statements == 200


@pytest.mark.parametrize("is_up", [True, False])
def test_keys_of_one_node_go_together_though_their_other_replicas_differ(
    monkeypatch: pytest.MonkeyPatch, is_up: bool
) -> None:
    """As in a cluster of hundreds of nodes, where hardly two keys of a batch have the same three. A node that is down
    is not the one that is asked.
    """
    node = Node(5, live)
    cassandra = Rows(node, monkeypatch, hosts=52)
    first, *others = cassandra.hosts
    first.is_up = is_up
    monkeypatch.setattr(
        cassandra.cluster.metadata,
        "get_replicas",
        lambda _, key: [first, others[0] if key[5] % 2 else others[50], others[key[5] // 2]],
    )
    reader = RowReader(cassandra, TABLE, SETTINGS)
    reader._row_bytes, reader._attempts = 1.0, PipelineAttempts()
    images_by_key = dict(reader.read_rows(KEYS, ConsistencyLevel.LOCAL_QUORUM))
    assert {key for key, image in images_by_key.items() if isinstance(image, Image)} == set(KEYS)
    assert (node.pushes, len(node.asked), cassandra.alone) == (7 if is_up else 8, 100, []), "at most 16 at a time"


NARROW = Table("ks", "t", uuid.uuid1(), (Column("p", parse("int"), "partition_key", 0), Column("v", parse("int"))))


@pytest.mark.parametrize("slow", [False, True])
def test_keys_of_one_statement_go_as_those_of_some(monkeypatch: pytest.MonkeyPatch, slow: bool) -> None:
    """A node that does not answer is waited for as long as one statement of them takes at most, not for each."""
    wait_s, statements = 2.0, 10
    monkeypatch.setattr(_pipelined, "_WAIT_S", wait_s)

    def answer(values: Key) -> Answered | None:
        return None if slow else rows(*[(p, b"\0\0\0\7", struct.pack(">q", 5)) for p in dict.fromkeys(values)])

    node = Node(5, answer)
    cassandra = Rows(node, monkeypatch, lambda p: (p, b"\0\0\0\7", struct.pack(">q", 5)))
    reader = RowReader(
        cassandra, NARROW, ConnectorSettings.from_properties({**GIVEN, "query.group.size": "10"}, "test")
    )
    reader._row_bytes, reader._attempts = 1.0, PipelineAttempts()
    keys: list[Key] = [(struct.pack(">i", i),) for i in range(100)]
    start = time.monotonic()
    images_by_key = dict(reader.read_rows(keys, ConsistencyLevel.LOCAL_QUORUM))
    assert {key for key, image in images_by_key.items() if isinstance(image, Image)} == set(keys)
    assert (node.pushes, len(cassandra.alone)) == (10, 10 if slow else 0)
    if slow:
        assert wait_s <= time.monotonic() - start < wait_s * statements


def test_a_node_that_is_slow_is_tried_again_while_a_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Late, apart for a pause, one attempt, and together again: though statements are in flight all the time."""
    clock = Clock(monkeypatch, _concurrent_requests, _requests)
    node = Node(5, lambda key: None if clock.now < 1002 else live(key))
    cassandra = Rows(node, monkeypatch)
    reader = RowReader(cassandra, TABLE, SETTINGS)
    reader._row_bytes, reader._attempts = 1.0, PipelineAttempts()
    keys: list[Key] = [(struct.pack(">i", i), struct.pack(">i", i)) for i in range(2000)]
    monkeypatch.setattr(_pipelined, "_WAIT_S", 0.0)
    images_by_key: dict[Key, Any] = {}
    seen = []
    for key, image in reader.read_rows(keys, ConsistencyLevel.LOCAL_QUORUM):
        images_by_key[key] = image
        clock.now += 0.02
        seen.append((len(cassandra.alone), node.pushes))
    assert len(images_by_key) == 2000
    assert seen[0][1] == 2, "both that fit in were late"
    alone = len(cassandra.alone)
    assert 500 < alone < 600, "those of 10 s"
    assert node.pushes > 80
    assert {others for others, _ in seen[-1000:]} == {alone}, "then all went together"


def test_odd_answer_after_a_pause_leaves_the_next_attempt_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch, _concurrent_requests, _requests)
    node = Node(5, lambda key: (0, _RESULT, struct.pack(">i", 1)))
    reader = RowReader(Rows(node, monkeypatch), TABLE, SETTINGS)
    reader._row_bytes, reader._attempts = 1.0, PipelineAttempts()
    reader._attempts.note_late(clock.now)
    clock.now += 10
    images_by_key = dict(reader.read_rows(KEYS[:5], ConsistencyLevel.LOCAL_QUORUM))
    assert (len(images_by_key), node.pushes) == (5, 1)
    assert reader._attempts.are_allowed, "not after another pause"
    assert not reader._sends_together(), "this table waits for 10 s"


@pytest.mark.parametrize(("concurrency", "pushes"), [(1, 100), (9, 25), (32, 7)])
def test_no_more_statements_at_once_than_are_allowed(
    monkeypatch: pytest.MonkeyPatch, concurrency: int, pushes: int
) -> None:
    node = Node(5, lambda _: None)
    together: list[int] = []
    monkeypatch.setattr(PipelinedStatements, "result", lambda _: together.append(node.in_flight) or answers())

    def answers() -> Any:
        """The next of those that are sent together are answered."""
        keys = node.asked[len(answered) : len(answered) + max(1, min(16, concurrency // 2))]
        answered.extend(keys)
        node.in_flight -= len(keys)
        _, _, body = rows(*[(*key, b"\0\0\0\7", struct.pack(">q", 5)) for key in keys])
        return _pipelined.Answer(_pipelined.parse(body[12:], 4))

    answered: list[Key] = []
    cassandra = Rows(node, monkeypatch)
    reader = RowReader(
        cassandra, TABLE, ConnectorSettings.from_properties({**GIVEN, "query.concurrency": str(concurrency)}, "test")
    )
    reader._row_bytes, reader._attempts = 1.0, PipelineAttempts()
    assert len(dict(reader.read_rows(KEYS, ConsistencyLevel.LOCAL_QUORUM))) == 100
    assert node.pushes == pushes
    assert max(together, default=0) <= concurrency
