"""The agent with a real Cassandra and a real Pulsar. What is as on Kafka is in test_pulsar_same_live.py."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar as client
import pytest
from agent.test_live import Live

from helenus_schemas.event import datastax, wire
from helenus_schemas.event.placement import partition
from helenus_sinks.log import DeclaredSchemas
from helenus_sinks.pulsar._admin import Admin
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.log import PulsarLog

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class OnPulsar(Live):
    """The same, reading and writing there."""

    def __init__(self, stack: Any, directory: Path) -> None:
        super().__init__(stack, directory)
        self.log = "pulsar"
        self.broker = {"log": "pulsar", **self.status.pulsar()}
        self.quiet = client.FileLogger(client.LoggerLevel.Error, "/dev/null")

    def messages(self, topic: str, partition: int) -> list[Any]:
        talking = client.Client(self.status.pulsar_url, logger=self.quiet)
        try:
            name = f"persistent://public/default/{topic}-partition-{partition}"
            reader = talking.create_reader(name, client.MessageId.earliest)
            messages_read = []
            while reader.has_message_available():
                messages_read.append(reader.read_next(20_000))
            return messages_read
        except client.PulsarException:
            return []  # not there yet, or the broker is not there again; who waits asks again
        finally:
            talking.close()

    def events(self, topic: str) -> list[tuple[bytes, bytes]]:
        """All there is in a topic, as on Kafka."""
        return [
            (b64decode(message.partition_key()), datastax.unsorted_value(message.data()))
            for partition in range(4)
            for message in self.messages(topic, partition)
        ]


@pytest.fixture(scope="module")
def servers(only_pulsar: Any) -> Iterator[Any]:
    """With its Cassandra, which no other file of the group needs."""
    only_pulsar.start("cassandra")
    yield only_pulsar
    only_pulsar.stop("cassandra")


@pytest.fixture
def live(servers: Any, tmp_path: Path) -> Iterator[OnPulsar]:
    live = OnPulsar(servers, tmp_path)
    yield live
    for process in live.agents:
        if process.poll() is None:
            process.kill()
            process.wait()
    live.cluster.shutdown()


def test_events_have_their_schema_and_place(live: OnPulsar) -> None:
    """As DataStax's agents write them: by token, with one version, and further properties if asked."""
    live.table("placed")
    agent = live.start(headers="datastax")
    live.insert("placed", 0, 500)
    live.wait(lambda: len(live.keys("placed")) == 500)
    tokens = {row.a: row.t for row in live.session.execute("SELECT a, token(a) AS t FROM live.placed")}
    seen = 0
    for number in range(4):
        for message in live.messages("events-live.placed", number):
            key = b64decode(message.partition_key())
            assert message.data()[:3] == b"\0\2@"
            assert message._message.int_schema_version() == 0
            sent = message.properties()
            token = int(sent["token"])
            assert token in tokens.values()
            assert partition(token, 4) == number
            assert sent.keys() == {"segpos", "token", "writetime"}
            assert len(key) in (1, 2)
            seen += 1
    assert seen == 500
    schema = admin(live).ask("GET", "schemas/public/default/events-live.placed/schema")
    assert (schema["version"], schema["type"]) == (0, "KEY_VALUE")
    assert live.stop(agent) == 0


def test_topics_are_unloaded_under_way(live: OnPulsar) -> None:
    live.table("unloaded")
    agent = live.start()
    for part in range(6):
        live.insert("unloaded", part * 500, part * 500 + 500)
        admin(live).ask("PUT", "namespaces/public/default/unload")
    live.wait(lambda: len(live.keys("unloaded")) >= 3000)
    assert live.keys("unloaded") == dict.fromkeys(range(3000), 1)
    assert live.stop(agent) == 0


def test_a_topic_that_refuses_a_tables_schema(live: OnPulsar) -> None:
    """It was made before, for another key, and its schemas must fit each other: the other table goes on, through a
    restart too, and this one goes on after a gap when they need not fit any more."""
    odd, other = "events-live.odd", '{"type": "record", "name": "odd", "fields": [{"name": "a", "type": "string"}]}'
    log = PulsarLog(PulsarConfig(live.status.pulsar_url, live.status.pulsar_admin_url))
    log.create(odd, 4, {})
    log.declare(odd, DeclaredSchemas(other, datastax.VALUE, value_properties=datastax.VALUE_PROPERTIES))
    log.close()
    live.table("odd")
    live.table("even")
    only = {"table_include_list": r"live\.(odd|even)"}

    def scopes() -> list[str]:
        values = [message.data() for number in range(4) for message in live.messages(odd, number)]
        return sorted(wire.decode(datastax.unsorted_value(value)).scope.name for value in values)

    for part in range(2):
        agent = live.start(**only)
        live.insert("odd", part * 10, part * 10 + 10)
        live.insert("even", part * 10, part * 10 + 10)
        live.wait(lambda part=part: len(live.keys("even")) == part * 10 + 10)
        if part == 0:
            assert live.stop(agent) == 0
    assert scopes() == []
    admin(live).ask("PUT", f"persistent/public/default/{odd}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    live.wait(lambda: scopes() == ["GAP"] * 4)
    live.insert("odd", 20, 30)
    live.wait(lambda: len(scopes()) == 14)
    assert scopes() == ["GAP"] * 4 + ["ROW"] * 10
    assert live.keys("even") == dict.fromkeys(range(20), 1)
    assert live.stop(agent) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pulsar_namespace": "nothing"}, ["amespace", "broker-refused"]),
        ({"pulsar_tenant": "nobody"}, ["broker-refused"]),
        ({"pulsar_service_url": "pulsar://127.0.0.1:1"}, ["127.0.0.1:1", "broker-unreachable"]),
        ({"pulsar_service_url": "127.0.0.1:1"}, ["pulsar.service.url", "config"]),
        ({"pulsar_admin_url": "http://127.0.0.1:1"}, ["127.0.0.1:1", "broker-unreachable"]),
        (
            {"pulsar_tls_cafile": "/no/such.pem", "pulsar_service_url": "pulsar+ssl://127.0.0.1:1"},
            ["such.pem", "config"],
        ),
    ],
)
def test_every_mistake_is_one_clear_message(live: OnPulsar, change: dict[str, str], words: list[str]) -> None:
    live.table("mistaken")
    agent = live.start(topic_prefix="mistake-", **change)
    assert agent.wait(30) in (1, 2)
    *_, last = live.out.read_text().splitlines()
    assert last.startswith("helenus-agent: ")
    assert all(word in last for word in words), last
    assert "Traceback" not in live.out.read_text()


def admin(live: OnPulsar) -> Admin:
    return Admin(live.status.pulsar_admin_url, PulsarConfig("pulsar://x").access)
