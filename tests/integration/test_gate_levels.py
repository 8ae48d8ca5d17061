"""The gate's level on three real nodes: what too few replicas reported waits, and what becomes of it.

Nodes that the others take for down get no writes, while their agents go on. What they miss comes by hints, by a read's
repair, or never.
"""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.chaos.new_node import start_new_node
from cassandra.metadata import NetworkTopologyStrategy
from integration.pipeline import write_properties
from integration.test_spark_cluster import SparkCluster
from integration.test_three_nodes import Three, no_hints, session, unheard, up  # noqa: F401
from patience import eventually

from helenus_connector.gate._ring import Ring, RingNode
from helenus_schemas.codec.avro_long import whole_long
from helenus_schemas.event.wire import decode
from helenus_stack.records import Record
from helenus_stack.stack import Stack

pytestmark = [pytest.mark.integration, pytest.mark.cluster, pytest.mark.timeout(900)]

VERIFY, RELEASE, DROP, HINTS = "gated.verified", "gated.released", "gated.dropped", "gated.hinted"
MOVED = "moved.orders"
"""Of two replicas each: so a node that moves changes who they are."""
TORN = "torn.orders"
"""Its tombstones may be purged five seconds after they were written."""
CELLS = "gated.cells"
"""What is published of it is what changes say, without a read."""
EXPIRED = {VERIFY: "verify", RELEASE: "release", DROP: "drop", HINTS: "drop", CELLS: "release"}
"""Those whose rows are on all three nodes."""
TIMEOUT_S = 15.0


@pytest.fixture(scope="module")
def pipeline(three: Stack, session: Any, directory: Path) -> Iterator[Three]:  # noqa: F811
    """Five tables at LOCAL_QUORUM: four with a short time each, and one whose changes wait for long."""
    pipeline = Three(three.status(), directory)
    session.execute("CREATE KEYSPACE gated WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 3}")
    session.execute("CREATE KEYSPACE moved WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 2}")
    session.execute("CREATE KEYSPACE torn WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 3}")
    for table in (*EXPIRED, MOVED):
        session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int) WITH cdc = true")
    session.execute(f"CREATE TABLE {TORN} (k int PRIMARY KEY, v int, w int) WITH cdc = true AND gc_grace_seconds = 5")
    try:
        for agent in pipeline.agents:
            with Path(agent.arguments[1]).open("a") as file:
                file.write(f"cells.include.list={CELLS}\n")
            agent.start()
        for agent in pipeline.agents:
            agent.ready()
        pipeline.connect(*EXPIRED, MOVED, TORN, gate="local_quorum", **{"gate.expired": "drop"})
        write_properties(directory / f"{TORN}.properties", pipeline.connector_properties(TORN))
        for table, expired in EXPIRED.items():
            more: dict[str, object] = {"gate": "local_quorum", "gate.expired": expired}
            # Of the last, what waits is in a file soon, as a restart hardly steps back.
            more |= {"settle.replay.ms": 1000} if table == HINTS else {"gate.timeout.ms": int(TIMEOUT_S * 1000)}
            if table == CELLS:
                more |= {"resolver": "none", "output.format": "debezium"}
            write_properties(directory / f"{table}.properties", {**pipeline.connector_properties(table), **more})
        pipeline.connector.start().ready()
        yield pipeline
    finally:
        pipeline.stop()


def insert(session: Any, table: str, first: int, count: int) -> None:  # noqa: F811
    for k in range(first, first + count):
        session.execute(f"INSERT INTO {table} (k, v) VALUES ({k}, {k})")


def waiting(pipeline: Three, table: str) -> float:
    return pipeline.count(table, "gate_waiting_changes")


def outcomes(pipeline: Three, table: str) -> dict[str, float]:
    names = ("completed", "verified", "released", "dropped")
    return {name: pipeline.count(table, "gate_changes_total", outcome=name) for name in names}


def published(pipeline: Three, table: str, first: int, count: int) -> list[Record]:
    """The records of keys that show their row."""
    keys = range(first, first + count)
    return [r for r in pipeline.records(table) if r.key["k"] in keys and shown(r) == r.key["k"]]


def shown(record: Record) -> int | None:
    """The value of `v`, of a row or in an envelope."""
    row = record.value and record.value.get("after", record.value)
    return row and row["v"]


def keys_of(records: list[Record]) -> set[int]:
    return {record.key["k"] for record in records}


def test_with_one_replica_away_changes_go_on(pipeline: Three, three: Stack, session: Any) -> None:  # noqa: F811
    """Two of three are enough, at once; the third one's copies, which hints bring, are dropped."""
    with unheard(three, 3):
        for table in EXPIRED:
            insert(session, table, 0, 50)
        for table in EXPIRED:
            eventually(lambda table=table: len(published(pipeline, table, 0, 50)) == 50, f"{table} is published")  # type: ignore[misc]
        assert [waiting(pipeline, table) for table in EXPIRED] == [0] * len(EXPIRED)
    eventually(lambda: len(pipeline.events(VERIFY)) >= 150, "hints are reported")
    pipeline.wait_confirmed(VERIFY, session)
    assert len(pipeline.records(VERIFY)) == 50
    counts = outcomes(pipeline, VERIFY)
    assert (counts["verified"], counts["released"], counts["dropped"]) == (0, 0, 0)


def test_with_two_replicas_away_changes_wait(
    pipeline: Three,
    three: Stack,
    session: Any,  # noqa: F811
    no_hints: None,  # noqa: F811
) -> None:
    """Written to one replica alone, which no hint mends: each setting does what it says, and a repair publishes all."""
    tables = (VERIFY, RELEASE, DROP, CELLS)
    with unheard(three, 2, 3):
        start = time.monotonic()
        for table in tables:
            insert(session, table, 100, 40)
        for table in tables:
            eventually(lambda table=table: waiting(pipeline, table) == 40, f"changes of {table} wait", every=0.2)  # type: ignore[misc]
        assert time.monotonic() - start < TIMEOUT_S
        assert [len(published(pipeline, table, 100, 40)) for table in tables] == [0, 0, 0, 0]
        eventually(lambda: outcomes(pipeline, DROP)["dropped"] == 40, "they are dropped")
        for table in (RELEASE, CELLS):
            eventually(lambda table=table: outcomes(pipeline, table)["released"] == 40, "they are released")  # type: ignore[misc]
        assert time.monotonic() - start >= TIMEOUT_S
    eventually(lambda: waiting(pipeline, VERIFY) == 0, "they are verified")
    counts = outcomes(pipeline, VERIFY)
    # Such a read repairs a replica, which reports that in a change of its own: that waits, and is verified, too.
    assert counts["verified"] + counts["dropped"] >= 40
    assert counts["released"] == 0
    seen = len(keys_of(published(pipeline, VERIFY, 100, 40)))
    assert seen + counts["dropped"] >= 40, "those are published whose read met the one replica"
    for table in (RELEASE, CELLS):
        eventually(lambda table=table: len(keys_of(published(pipeline, table, 100, 40))) == 40, f"{table} is published")  # type: ignore[misc]
    assert pipeline.count(CELLS, "keys_read_total") == 0
    released = [r.headers.get("gate") for r in pipeline.records(RELEASE) if r.key["k"] >= 100]
    assert released.count(b"released") == 40
    assert published(pipeline, DROP, 100, 40) == []
    # A read at ALL repairs both replicas with the same mutation: two nodes report it.
    for table in tables:
        assert len(session.at_all.execute(f"SELECT k FROM {table}").all()) == 90
    for table in tables:
        eventually(lambda table=table: len(keys_of(published(pipeline, table, 100, 40))) == 40, f"{table} has them")  # type: ignore[misc]
        pipeline.adds_up(table.replace(".", "-"))


def test_what_waits_survives_a_kill_until_hints_come(
    pipeline: Three,
    three: Stack,
    session: Any,  # noqa: F811
) -> None:
    with unheard(three, 2, 3):
        insert(session, HINTS, 200, 40)
        eventually(lambda: waiting(pipeline, HINTS) == 40, "they wait", every=0.2)
        time.sleep(3)  # longer than a start steps back: what waits is in the file
        pipeline.connector.kill()
        pipeline.connector.start().ready()
        eventually(lambda: waiting(pipeline, HINTS) == 40, "they wait again", every=0.2)
        assert published(pipeline, HINTS, 200, 40) == []
    eventually(lambda: len(keys_of(published(pipeline, HINTS, 200, 40))) == 40, "hints complete them")
    assert outcomes(pipeline, HINTS) == {"completed": 40, "verified": 0, "released": 0, "dropped": 0}
    assert waiting(pipeline, HINTS) == 0
    pipeline.adds_up(HINTS.replace(".", "-"))  # with those that the run before had read


def test_executors_of_a_spark_cluster_killed(
    pipeline: Three,
    three: Stack,
    session: Any,  # noqa: F811
    directory: Path,
) -> None:
    """What waits is with the driver: an executor takes none of it with it, and its successor lets nothing go early."""
    worker = directory / "worker.properties"
    alone = worker.read_text()
    with SparkCluster(directory / "spark") as spark:

        def kill(executors: list[int]) -> None:
            for pid in executors:
                os.kill(pid, signal.SIGKILL)
            eventually(lambda: len(set(spark.executors()) - set(executors)) == 2, "two executors are there")

        pipeline.connector.stop()
        spark.serve(worker)
        pipeline.connector.start().ready()
        with unheard(three, 2, 3):
            insert(session, HINTS, 600, 40)
            eventually(lambda: waiting(pipeline, HINTS) == 40, "they wait", every=0.2)
            kill(spark.executors())
            time.sleep(3)  # batches go on meanwhile
            assert waiting(pipeline, HINTS) == 40
            assert published(pipeline, HINTS, 600, 40) == []
        for number in range(4):
            insert(session, CELLS, 600 + 20 * number, 20)
            kill(spark.executors()[:1])
        eventually(lambda: len(keys_of(published(pipeline, HINTS, 600, 40))) == 40, "hints complete them")
        eventually(lambda: len(keys_of(published(pipeline, CELLS, 600, 80))) == 80, "what was written meanwhile comes")
        assert not [r for r in pipeline.records(CELLS) if r.key["k"] >= 600 and "gate" in r.headers], "none came early"
        pipeline.connector.stop()
    worker.write_text(alone)
    pipeline.connector.start().ready()


def test_read_repair_of_a_single_node_is_verified(
    pipeline: Three,
    three: Stack,
    session: Any,  # noqa: F811
    no_hints: None,  # noqa: F811
) -> None:
    """A deletion that one replica missed: its repair is logged by that node alone, in words of its own."""
    insert(session, VERIFY, 300, 20)
    eventually(lambda: len(published(pipeline, VERIFY, 300, 20)) == 20, "the rows are published")
    with unheard(three, 3):
        for k in range(300, 320):
            session.execute(f"DELETE FROM {VERIFY} WHERE k = {k}")
        gone = lambda: {r.key["k"] for r in pipeline.records(VERIFY) if r.key["k"] >= 300 and r.value is None}  # noqa: E731
        eventually(lambda: gone() == set(range(300, 320)), "two of three report the deletions")
    before = outcomes(pipeline, VERIFY)["verified"]
    session.at_all.execute(f"SELECT k FROM {VERIFY}")
    eventually(lambda: outcomes(pipeline, VERIFY)["verified"] > before, "what was repaired is verified")
    pipeline.wait_confirmed(VERIFY, session)


def test_what_nodetool_repairs_is_verified(
    pipeline: Three,
    three: Stack,
    session: Any,  # noqa: F811
    no_hints: None,  # noqa: F811
) -> None:
    """Written to one replica alone: a read at the level may miss it, and drop it. Repair has the others report it."""
    with unheard(three, 2, 3):
        insert(session, VERIFY, 320, 40)
        eventually(lambda: waiting(pipeline, VERIFY) == 40, "they wait", every=0.2)
    eventually(lambda: waiting(pipeline, VERIFY) == 0, "they are verified, or dropped")
    before = len(pipeline.events(VERIFY))
    three.nodetool("repair", "--full", *VERIFY.split("."), node=1)
    eventually(lambda: len(keys_of(published(pipeline, VERIFY, 320, 40))) == 40, "all are published")
    eventually(lambda: len(pipeline.events(VERIFY)) > before, "other nodes report them")
    eventually(lambda: waiting(pipeline, VERIFY) == 0, "none waits")
    pipeline.wait_confirmed(VERIFY, session)


def test_a_node_that_moves(pipeline: Three, three: Stack, session: Any) -> None:  # noqa: F811
    """It stays up, and the driver's own token map does not notice. Of two replicas a quorum is both."""
    insert_at_all(session, 0, 60)
    eventually(lambda: len(published(pipeline, MOVED, 0, 60)) == 60, "all are published")
    before = replicas_of(session, range(1000, 1060))
    # Behind the third one: half of the keys have other replicas then.
    three.nodetool("move", "--", str(middle_of_last_range(session)), node=2)
    eventually(lambda: replicas_of(session, range(1000, 1060)) != before, "the ring is another")
    insert_at_all(session, 1000, 60)
    eventually(lambda: len(published(pipeline, MOVED, 1000, 60)) == 60, "all are published, far before their timeout")
    # What waits is what was streamed: one node logs it, in words of its own, and its rows are published already.
    assert waiting(pipeline, MOVED) < 60
    counts = outcomes(pipeline, MOVED)
    assert (counts["verified"], counts["released"], counts["dropped"]) == (0, 0, 0)
    pipeline.wait_confirmed(MOVED, session)


def test_reads_of_a_replica_whose_tombstones_are_past_their_grace(
    pipeline: Three,
    three: Stack,
    session: Any,  # noqa: F811
    no_hints: None,  # noqa: F811
) -> None:
    """A replica missed deletions, and they may be purged: each read brings the old cells back to the others, which log
    that, and hide it behind a tombstone that is not compacted yet.
    """
    for k in range(3):
        session.at_all.execute(f"INSERT INTO {TORN} (k, v, w) VALUES ({k}, 1, 1)")
    pipeline.wait_confirmed(TORN, session)
    pipeline.call_rest("PUT", "torn-orders/pause")  # its reads would repair the replica while there is time
    time.sleep(3)  # the batch that is under way ends
    with unheard(three, 3):
        for k in range(3):
            session.execute(f"DELETE v FROM {TORN} WHERE k = {k}")
    time.sleep(10)  # past their grace
    pipeline.call_rest("PUT", "torn-orders/resume")
    before = len(pipeline.events(TORN))
    for n in range(5):
        for k in range(3):
            session.at_all.execute(f"INSERT INTO {TORN} (k, w) VALUES ({k}, {n})")
    eventually(lambda: pipeline.count(TORN, "events_repeated_total") > 0, "a replica logs the same again and again")
    seen = len(pipeline.events(TORN)), len(pipeline.records(TORN))
    time.sleep(40)
    more = len(pipeline.events(TORN)) - seen[0], len(pipeline.records(TORN)) - seen[1]
    # Ten a second and key without pauses. With them a key's pauses are of 2, 4, 8 … seconds, and what each read repairs
    # is logged by two replicas at most.
    assert max(more) <= 3 * 2 * 8, (before, seen, more)
    assert "changes.repeated" in pipeline.connector.tail(2000)
    for node in (1, 2, 3):
        three.nodetool("flush", "torn", node=node)
        three.nodetool("compact", "torn", node=node)
    three.nodetool("repair", "--full", "torn", "orders", node=1)
    pipeline.wait_confirmed(TORN, session)


def insert_at_all(session: Any, first: int, count: int) -> None:  # noqa: F811
    for k in range(first, first + count):
        session.at_all.execute(f"INSERT INTO {MOVED} (k, v) VALUES ({k}, {k})")


def ring_of(session: Any) -> Ring:  # noqa: F811
    rows = [
        *session.execute("SELECT host_id, data_center, rack, tokens FROM system.local"),
        *session.execute("SELECT host_id, data_center, rack, tokens FROM system.peers_v2"),
    ]
    nodes = {RingNode(str(row.host_id), row.data_center, row.rack): row.tokens for row in rows}
    assert len(nodes) == 3
    return Ring("Murmur3Partitioner", nodes)


def replicas_of(session: Any, keys: range) -> list[set[str]]:  # noqa: F811
    ring, strategy = ring_of(session), NetworkTopologyStrategy({"datacenter1": "2"})
    return [{node.host_id for node in ring.replicas(strategy, struct.pack(">i", k))} for k in keys]


def middle_of_last_range(session: Any) -> int:  # noqa: F811
    """A token between the last one of the ring and the end of it."""
    tokens = ring_of(session)._tokens
    return int(tokens[-1] + (2**63 - 1 - tokens[-1]) // 2)


def test_a_node_that_is_replaced(pipeline: Three, three: Stack, session: Any, directory: Path) -> None:  # noqa: F811
    """What the lost node had reported counts no longer; the one in its place, at another address, counts."""
    first, second, third = pipeline.agents
    twice = waiting(pipeline, HINTS)  # of hints that a node got once more, as it alone reports
    assert (first.stop(), second.stop()) == (0, 0)
    insert(session, HINTS, 400, 20)
    eventually(lambda: waiting(pipeline, HINTS) == twice + 20, "one of three has reported them")
    third.stop()
    replace(three, "cassandra3", "127.0.0.3", "127.0.0.4")
    time.sleep(15)  # the driver asks within ten seconds who the nodes are
    first.start().ready()
    eventually(lambda: reporters(pipeline, 400, 20) == [2] * 20 and pipeline.is_quiet(HINTS), "another one does")
    assert waiting(pipeline, HINTS) == twice + 20, "one of them is gone"
    assert published(pipeline, HINTS, 400, 20) == []
    second.start().ready()
    eventually(lambda: len(keys_of(published(pipeline, HINTS, 400, 20))) == 20, "two of three that are there")
    eventually(lambda: waiting(pipeline, HINTS) <= twice, "none of them waits")
    file = Path(third.arguments[1])  # a new node has a new agent
    file.write_text(file.read_text().replace("state-cassandra3", "state-replaced").replace("127.0.0.3", "127.0.0.4"))
    third.start().ready()
    with unheard(three, 2):
        insert(session, HINTS, 500, 20)
        eventually(lambda: len(published(pipeline, HINTS, 500, 20)) == 20, "the new one's reports complete them")
    third.stop()
    replace(three, "cassandra3", "127.0.0.4", "127.0.0.3")  # where the tests that follow look for it


def reporters(pipeline: Three, first: int, count: int) -> list[int]:
    """By how many nodes the changes of keys were reported."""
    nodes_of_key: dict[int, set[str | None]] = {}
    for message in pipeline.events(HINTS):
        change = decode(message.value())
        nodes_of_key.setdefault(whole_long(message.key()), set()).add(change.node)
    return [len(nodes_of_key.get(k, ())) for k in range(first, first + count)]


def replace(three: Stack, name: str, lost: str, address: str) -> None:
    """A node is lost: a new one at another address takes over its part of the ring. (At the same one it would take over
    the host id too.) The stack's settings stay as they are.
    """
    (server,) = three.select([name])
    three.kill(name)
    eventually(lambda: up(three) == 2, "it is down")
    yaml = {"listen_address": address, "rpc_address": address}
    start_new_node(three, server, yaml, {}, f"-Dcassandra.replace_address_first_boot={lost}")
    eventually(lambda: up(three) == 3, lambda: f"it is there again\n{server.log.read_text()[-3000:]}")
