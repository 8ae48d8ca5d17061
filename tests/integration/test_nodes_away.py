"""One of three nodes hangs or dies while rows are read, and a cluster that times out: late, never lost, never for ever.

The stage runs in this process; `test_three_nodes.py` has agents and Spark before it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra import ConsistencyLevel, ReadTimeout
from cassandra.cluster import Cluster
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.query import BoundStatement, SimpleStatement
from integration.staged import Staged
from patience import eventually

from helenus_connector.cassandra_rows._pipelined import PipelineAttempts
from helenus_connector.interfaces.event import Event
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.unconfirmed.unconfirmed_key import UnconfirmedKey
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Change, Effect, Scope
from helenus_schemas.event.wire import encode
from helenus_stack.stack import Stack

pytestmark = [pytest.mark.integration, pytest.mark.cluster, pytest.mark.timeout(900)]

REQUEST_S = 60
"""Seconds that a request is waited for: long, to see that none is."""
TABLES = {
    "grouped": ("k int, v text, PRIMARY KEY (k)", "k", 1000),  # read in groups of one replica set
    "pairs": ("k int, l int, v text, PRIMARY KEY ((k, l))", "k, l", 1000),  # with nothing in common: a read for each
    "wide": ("k int, c int, v text, PRIMARY KEY (k, c)", "k, c", 40),  # markers: the partition, then its rows
    "heavy": ("k int, v text, PRIMARY KEY (k)", "k", 60),  # of 50 kB
}
"""Columns, key and rows."""


class Away(Staged):
    """The stage of one of `TABLES`."""

    def __init__(self, three: Stack, directory: Path, table: str) -> None:
        super().__init__(three.status(), directory, f"away.{table}", cassandra_request_timeout_ms=REQUEST_S * 1000)
        self.keys = [i.to_bytes(4, "big") for i in range(TABLES[table][2])]

    def events(self) -> list[Event]:
        """An event of each key, reported by an unknown node: a read at ALL alone can prove it."""
        if self.settings.table == "wide":
            gone = int(Effect.GONE)  # what lives was written after it
            return [self.event(key, None, scope=Scope.PARTITION, write_time=0, effect=gone) for key in self.keys]
        return [self.event(*([key, key] if self.settings.table == "pairs" else [key])) for key in self.keys]

    def run_until_done(self, events: Sequence[Event], due_keys: Sequence[UnconfirmedKey] = ()) -> BatchOutcome:
        """Do a batch, again if Cassandra does not answer in time, and see that no request to it was waited for."""
        start = time.monotonic()
        while (outcome := attempt(self, events, due_keys)) is None:
            pass
        assert time.monotonic() - start < REQUEST_S / 2
        return outcome

    @property
    def statements(self) -> int:
        return self.stage._resolver.reader.statements

    def all_answer(self) -> None:
        """Wait until all nodes serve this session."""
        everyone = SimpleStatement("SELECT k FROM away.grouped", consistency_level=ConsistencyLevel.ALL)

        def answer() -> bool:
            try:
                self.session.execute(everyone, timeout=5)
            except Exception:
                return False
            return all(host.is_up for host in self.session.cluster.metadata.all_hosts())

        eventually(answer, "all nodes answer")


@pytest.fixture(scope="module")
def filled(three: Stack) -> None:
    status = three.status()
    cluster = Cluster(status.contact_points[:1], port=status.cql_port)
    session = cluster.connect()
    session.execute("CREATE KEYSPACE away WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 3}")
    for table, (columns, key, rows) in TABLES.items():
        session.execute(f"CREATE TABLE away.{table} ({columns})")
        value = "v" * (50_000 if table == "heavy" else 1)
        columns_of_key = key.count(",") + 1
        insert = session.prepare(
            f"INSERT INTO away.{table} ({key}, v) VALUES (?{', ?' * columns_of_key}) USING TIMESTAMP 1"
        )
        insert.consistency_level = ConsistencyLevel.ALL
        unwritten = [(*[i] * columns_of_key, value) for i in range(rows)]
        while unwritten:  # a machine that is busy makes some of them time out
            results = execute_concurrent_with_args(
                session, insert, unwritten, concurrency=10, raise_on_first_error=False
            )
            unwritten = [row for row, (success, _) in zip(unwritten, results, strict=True) if not success]
    session.execute("CREATE KEYSPACE two WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 2}")
    session.execute("CREATE TABLE two.t (k int PRIMARY KEY, v text)")
    cluster.shutdown()


@pytest.fixture
def staged(three: Stack, filled: None, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Away]:
    staged = Away(three, tmp_path, getattr(request, "param", "grouped"))
    staged.all_answer()
    staged.run([])  # its statements are prepared
    yield staged
    staged.close()


@contextmanager
def hanging(three: Stack, staged: Away, node: str) -> Iterator[None]:
    three.pause(node)
    try:
        yield
    finally:
        three.resume(node)
    staged.all_answer()


@pytest.mark.parametrize("staged", ["grouped", "pairs"], indirect=True)
def test_a_node_that_hangs_is_not_waited_for(three: Stack, staged: Away) -> None:
    with hanging(three, staged, "cassandra2"):
        assert [staged.run_until_done(staged.events()).published for _ in range(4)] == [1000] * 4


@pytest.mark.parametrize("staged", ["grouped", "wide"], indirect=True)
def test_a_proof_that_no_read_can_give_keeps_no_batch_waiting(three: Stack, staged: Away) -> None:
    """Level ALL is asked for the proof alone: keys wait on, other keys do not."""
    waiting = staged.run(staged.events()).waiting
    assert len(waiting) == len(staged.keys)
    with hanging(three, staged, "cassandra3"):
        outcome = staged.run_until_done(staged.events()[:1], waiting[1:])
    assert (outcome.published, outcome.done) == (1, [])
    assert {p.key for p in outcome.waiting} == {p.key for p in waiting}
    records = len(staged.records())

    def all_are_proven() -> bool:
        nonlocal waiting
        waiting = staged.run_until_done([], waiting).waiting
        return not waiting

    eventually(all_are_proven, "all are there again")
    assert len(staged.records()) == records, "and nothing has changed"


@pytest.mark.parametrize("staged", ["pairs"], indirect=True)
def test_a_node_that_dies_while_rows_are_read(three: Stack, staged: Away) -> None:
    killer = threading.Timer(0.2, three.kill, ["cassandra3"])
    killer.start()
    try:
        published = [staged.run_until_done(staged.events()).published for _ in range(3)]
    finally:
        killer.join()
        three.start("cassandra3")
    assert published == [1000] * 3


def test_keys_whose_replicas_are_all_up_go_on(three: Stack, filled: None, tmp_path: Path) -> None:
    """RF 2, one node away: a LOCAL_QUORUM of the keys that it holds can't be had. They wait, each alone."""
    staged = Staged(three.status(), tmp_path, "two.t")
    keys = [i.to_bytes(4, "big") for i in range(300)]
    metadata = staged.session.cluster.metadata
    (down,) = [host for host in metadata.all_hosts() if host.address == three.status().contact_points[2]]
    keys_on_down_node = {key for key in keys if down in metadata.get_replicas("two", key)}
    assert 100 < len(keys_on_down_node) < 300
    staged.run([])
    three.kill("cassandra3")
    try:
        eventually(lambda: not down.is_up, "the driver knows that the node is down")
        outcome = None
        while outcome is None:  # the other nodes hear of it later: until then reads time out
            outcome = attempt(staged, [staged.event(key) for key in keys])
        assert {staged.codec.decode(p.key)[0] for p in outcome.waiting if p.unread} == keys_on_down_node
        assert (outcome.published, outcome.unread) == (len(keys) - len(keys_on_down_node), len(keys_on_down_node))
        assert "not enough replicas" in str(outcome.error).lower() or "alive_replicas" in str(outcome.error)
        published = {json.loads(r.key())["k"].to_bytes(4, "big") for r in staged.records()}
        assert published == {*keys} - keys_on_down_node
    finally:
        three.start("cassandra3")
    waiting = outcome.waiting

    def all_are_read() -> bool:
        nonlocal waiting
        outcome_of_retry = attempt(staged, [], waiting)
        waiting = outcome_of_retry.waiting if outcome_of_retry else waiting
        return not any(p.unread for p in waiting)

    eventually(all_are_read, "the node is there again")
    assert {json.loads(r.key())["k"] for r in staged.records()} == set(range(300))
    staged.close()


def test_groups_that_time_out_are_split(staged: Away, monkeypatch: pytest.MonkeyPatch) -> None:
    group_sizes: list[int] = []

    def is_too_much(read: BoundStatement) -> bool:
        several = " IN " in read.prepared_statement.query_string
        group_sizes.append(int.from_bytes(read.values[0][:4], "big") if several else 1)
        return group_sizes[-1] > 4

    timing_out(staged, monkeypatch, is_too_much)
    outcome = staged.run(staged.events())
    assert outcome.published == outcome.records == 1000
    assert max(group_sizes) > 4


def test_keys_that_are_never_read_in_time_end_the_batch(staged: Away, monkeypatch: pytest.MonkeyPatch) -> None:
    events = staged.events()
    with monkeypatch.context() as patch:
        timing_out(staged, patch, lambda read: True)
        before = staged.statements
        with pytest.raises(HelenusError) as error:
            staged.run(events)
    assert error.value.kind is Kind.CASSANDRA_READ
    assert staged.statements - before < 200
    assert staged.run(events).published == 1000, "nothing of it was taken as done"


@pytest.mark.parametrize("staged", ["pairs"], indirect=True)
def test_a_key_that_is_never_proven_delays_no_other(staged: Away, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose partition is too much for level ALL, say."""
    waiting = staged.run(staged.events()).waiting
    timing_out(staged, monkeypatch, lambda read: read.values[0] == staged.keys[10])

    def one_is_left() -> bool:
        nonlocal waiting
        waiting = staged.run_until_done([], waiting).waiting
        return len(waiting) == 1

    eventually(one_is_left, "all others are proven")
    assert staged.codec.decode(waiting[0].key)[0] == staged.keys[10]


def timing_out(staged: Away, monkeypatch: pytest.MonkeyPatch, which: Callable[[BoundStatement], bool]) -> None:
    """Have some reads of rows answered as by a server that timed out."""
    execute = staged.session.execute_async

    def refusing(statement: Any, *args: Any, **more: Any) -> Any:
        if isinstance(statement, BoundStatement) and which(statement):
            return SimpleNamespace(result=_timed_out)
        return execute(statement, *args, **more)

    monkeypatch.setattr(staged.session, "execute_async", refusing)
    reader = staged.stage._resolver.reader
    monkeypatch.setattr(
        reader, "_attempts", PipelineAttempts(possible=False)
    )  # which ask without the driver's requests
    monkeypatch.setattr(reader, "budget", None)  # it would slow down for a minute


def _timed_out() -> None:
    raise ReadTimeout("as the server says it", consistency=6, required_responses=2, received_responses=1)


@pytest.mark.parametrize("staged", ["heavy"], indirect=True)
def test_a_cluster_that_times_out(three: Stack, staged: Away, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own limit is of milliseconds: what it answers in time is published, and the rest later."""
    events = staged.events()
    timed_out = counted(staged, monkeypatch)
    before = staged.statements
    outcome = None
    attempts = 0
    try:
        for limit in (20, 8, 4, 2, 1):
            read_timeout(three, limit)
            until = time.monotonic() + 3
            while outcome is None and time.monotonic() < until:
                attempts += 1
                outcome = attempt(staged, events)
            if timed_out:
                break
            outcome = None
            events = staged.events()
    finally:
        read_timeout(three, 5000)
    assert timed_out, "the cluster is too fast to time out"
    assert staged.statements - before < attempts * 5000, "split down to single keys at most"
    outcome = outcome or staged.run(events)
    assert outcome.published == len(staged.keys)
    assert {json.loads(r.key())["k"] for r in staged.records()} == set(range(len(staged.keys)))


def attempt(staged: Away, events: Sequence[Event], due_keys: Sequence[UnconfirmedKey] = ()) -> BatchOutcome | None:
    try:
        return staged.run(events, due_keys)
    except HelenusError as error:
        if error.kind is not Kind.CASSANDRA_READ:
            raise
        staged.log.close()
        return None


def counted(staged: Away, monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """The errors of reads, as they come from the cluster."""
    errors: list[Exception] = []
    execute = staged.session.execute_async

    def counting(statement: Any, *args: Any, **more: Any) -> Any:
        future = execute(statement, *args, **more)
        if isinstance(statement, BoundStatement):
            future.add_errback(errors.append)
        return future

    monkeypatch.setattr(staged.session, "execute_async", counting)
    return errors


def read_timeout(three: Stack, ms: int) -> None:
    """Set the server's timeout of reads on all nodes."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda node: three.nodetool("settimeout", "read", str(ms), node=node), (1, 2, 3)))


def test_a_read_that_comes_before_the_memtable_has_the_row(staged: Away) -> None:
    """All three nodes have reported it, and no replica shows it yet: seen, not proven."""
    key, now = (5000).to_bytes(4, "big"), time.time_ns() // 1000
    nodes = [str(host.host_id) for host in staged.session.cluster.metadata.all_hosts()]
    values = [encode(Change("f" * 32, node, Scope.ROW, write_time=now)) for node in nodes]
    name = staged.codec.encode((key,))
    events = [Event(staged.settings.events, 0, i, now // 1000, name, value) for i, value in enumerate(values)]
    outcome = staged.run(events)
    assert (outcome.published, staged.records()[-1].value()) == (3, None)
    (waiting,) = outcome.waiting
    staged.session.execute(f"INSERT INTO away.grouped (k, v) VALUES (5000, 'shown') USING TIMESTAMP {now}")
    outcome = staged.run([], [waiting])
    assert (outcome.records, outcome.done) == (1, [waiting])
    assert b"shown" in (staged.records()[-1].value() or b"")
    assert staged.run(events).confirmed == 3
