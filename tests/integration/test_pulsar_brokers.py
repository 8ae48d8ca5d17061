"""The whole path on a Pulsar of two brokers, of which one is stopped and one killed under writes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from integration.pipeline import Pipeline
from integration.pulsar_cluster import BROKERS, NAMESPACE, PulsarCluster
from integration.test_broker_versions import MODES, create_tables
from integration.test_state import write as write_rows
from integration.test_verify import command as verify
from integration.workload import Workload
from patience import eventually

from helenus_schemas.event.wire import decode
from helenus_sinks.pulsar._admin import Admin
from helenus_sinks.pulsar.connection import Access
from helenus_stack.status import Status

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1200)]

KEYSPACE = "two_brokers"
COUNTED = f"{KEYSPACE}.counted"
PARTITIONS = 4


class Counting(Workload):
    """Writes that number a key's versions, of a few keys."""

    def write_statement(self) -> None:
        number = self.statements + self.failed
        self.session.execute(f"INSERT INTO {self.table} (k, v) VALUES ({number % 20}, {number})")
        self.statements += 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarCluster]:
    with PulsarCluster(tmp_path_factory.mktemp("pulsar")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def pipeline(
    cluster: PulsarCluster, status: Status, session: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    servers = replace(status.only("pulsar"), pulsar_url=cluster.service_url, pulsar_admin_url=cluster.admin_url())
    pipeline = Pipeline(servers, tmp_path_factory.mktemp("pipeline"))
    try:
        create_tables(session, KEYSPACE)
        session.execute(f"CREATE TABLE {COUNTED} (k int PRIMARY KEY, v int) WITH cdc = true")
        with (pipeline.directory / "agent.properties").open("a") as file:
            file.write(f"cells.include.list={KEYSPACE}\\.merged\ntable.include.list={KEYSPACE}\\..*\n")
            file.write(f"topic.partitions={PARTITIONS}\n")
        pipeline.agent.start().ready()
        pipeline.connect().start().ready()
        with pipeline.connected({**{f"{KEYSPACE}.{table}": more for table, more in MODES.items()}, COUNTED: {}}):
            yield pipeline
        assert (pipeline.connector.stop(), pipeline.agent.stop()) == (0, 0)
    finally:
        pipeline.stop()


def spread(cluster: PulsarCluster) -> None:
    """Have both brokers own partitions of the topics of one table."""
    for kind in ("events", "data"):
        cluster.spread(f"{kind}-{COUNTED}", PARTITIONS)

    def is_spread() -> bool:
        topics = [f"{kind}-{COUNTED}-partition-{n}" for kind in ("events", "data") for n in range(PARTITIONS)]
        return {cluster.owner(topic, BROKERS[0]) for topic in topics} == set(BROKERS)

    eventually(is_spread, "both brokers have partitions")


def test_a_topic_without_partitions_that_the_other_broker_has(cluster: PulsarCluster) -> None:
    """The broker at pulsar.admin.url sends requests about it to the one that has it."""
    first, second = BROKERS
    topic = f"{NAMESPACE}/single"
    cluster.ask(first, f"admin/v2/persistent/{topic}", "PUT")
    cluster.move("single", second)
    eventually(lambda: cluster.owner("single", first) == second, "it has moved")
    admin = Admin(cluster.admin_url(first), Access())
    admin.create(topic, 1, {"retention.ms": "120000", "cleanup.policy": "delete"})
    policy = f"persistent/{topic}/retention"
    eventually(lambda: (admin.ask("GET", policy) or {}).get("retentionTimeInMinutes") == 2, "it has its retention")


def published(pipeline: Pipeline) -> float:
    return pipeline.connector.total("helenus_connector_records_total", connector=COUNTED.replace(".", "-"))


def test_topics_move_to_the_other_broker(cluster: PulsarCluster, pipeline: Pipeline, session: Any) -> None:
    """Nothing is lost, and each key's records stay in order: a broker stops, is there again, the other one is killed,
    and a table is altered while each is away.
    """
    kinds, types, live, merged = (f"{KEYSPACE}.{table}" for table in MODES)
    first, second = BROKERS
    Workload(session, kinds, seed=1).run(100)
    pipeline.converges(kinds)
    spread(cluster)
    with Workload(session, kinds, seed=2, rate=10), Counting(session, COUNTED, seed=3, rate=30) as counting:
        for remaining, away, leave in ((first, second, cluster.stop), (second, first, cluster.kill)):
            leave(away)
            session.execute(f"ALTER TABLE {types} ADD without_{away} text")
            session.execute(f"UPDATE {types} SET without_{away} = 'x' WHERE k = 3")
            for seed, table in enumerate((live, merged), 4):
                write_rows(session, table, 50, seed)
            eventually(lambda: cluster.live_brokers(remaining) == {remaining}, f"{away} is gone")  # noqa: B023
            records = published(pipeline)
            eventually(lambda: published(pipeline) > records, f"records come without {away}")  # noqa: B023
            cluster.start(away)
            cluster.wait_ready(away)
            spread(cluster)
    assert counting.failed == 0
    for table in (kinds, types, COUNTED):
        pipeline.converges(table)
    for table in (live, merged):
        exit_status, report, errors = verify(pipeline, table, "--patience", "60")
        assert exit_status == 0, f"{report}\n{errors}\n{pipeline.connector.tail()}"
    assert_events_in_order(pipeline, counting.statements)
    assert_records_in_order(pipeline)


def assert_events_in_order(pipeline: Pipeline, statements: int) -> None:
    """Each change of a key has its event; it may be there again, but none comes first after one of a later change."""
    positions: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for message in pipeline.reader.messages(f"events-{COUNTED}"):
        change = decode(message.value() or b"")
        position = (change.segment or 0, change.position or 0)
        if position not in positions[message.key() or b""]:
            positions[message.key() or b""].append(position)
    assert sum(map(len, positions.values())) == statements
    assert {key: seen for key, seen in positions.items() if seen != sorted(seen)} == {}


def assert_records_in_order(pipeline: Pipeline) -> None:
    versions: dict[int, list[int]] = defaultdict(list)
    for record in pipeline.records(COUNTED):
        assert record.value is not None
        versions[record.key["k"]].append(record.value["v"])
    assert {key: seen for key, seen in versions.items() if seen != sorted(seen)} == {}
