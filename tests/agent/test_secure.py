"""The agent on TLS and passwords: Cassandra and Kafka accept it, and every mistake gives one clear message."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from patience import eventually, wait_for_error

from helenus_agent.config import AgentSettings
from helenus_agent.control._config_store import ConfigStore
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.cassandra import connect
from helenus_schemas.settings.shared import CassandraSettings
from helenus_stack.secure import AGENT, STRANGER
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = [
    pytest.mark.integration,
    # The driver's event loop is ended by its own thread, which leaves warnings of no interest.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

MAIN = "from helenus_agent.cli import main; main()"
TOPIC = "events-guarded.t"
WRONG = "n0t-the-passw0rd"
KEYS = {
    "cassandra.ssl.enabled": "true",
    "cassandra.ssl.cafile": "{cafile}",
    "cassandra.username": "agent",
    "cassandra.password": "${{file:{passwords}:agent}}",
    "kafka.producer.security.protocol": "SASL_SSL",
    "kafka.producer.ssl.ca.location": "{cafile}",
    "kafka.producer.sasl.mechanisms": "SCRAM-SHA-512",
    "kafka.producer.sasl.username": "agent",
    "kafka.producer.sasl.password": "${{env:KAFKA_PASSWORD}}",
}
"""The settings that docs/security.md prescribes."""
AS_STRANGER = {
    "kafka.producer.sasl.username": STRANGER,
    "kafka.producer.sasl.password": "${{file:{passwords}:stranger}}",
}


@pytest.fixture(scope="module")
def status(secure: Stack) -> Status:
    return secure.status()


@pytest.fixture(scope="module")
def session(status: Status) -> Iterator[Any]:
    session = connect(CassandraSettings.from_properties(status.cassandra(), "status"))
    session.execute("CREATE KEYSPACE guarded WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    session.execute("CREATE TABLE guarded.t (a int PRIMARY KEY, v text) WITH cdc = true")
    yield session
    session.execute("DROP KEYSPACE guarded")
    session.cluster.shutdown()


def properties(status: Status, folder: Path, changes: Mapping[str, str | None] | None = None) -> Path:
    """An agent's properties file for the stack; a change to None leaves the key out."""
    assert status.security
    own = {key: value.format(**vars(status.security)) for key, value in KEYS.items()}
    keys = {
        "cassandra.config": None if "cdc.raw.dir" in (changes or {}) else status.nodes[0].cassandra_yaml,
        "cassandra.contact.points": status.nodes[0].address,
        "cassandra.port": str(status.cql_port),
        "kafka.bootstrap.servers": status.bootstrap_servers,
        "state.dir": str(folder / "state"),
        "log.level": "debug",
        **own,
        **(changes or {}),
    }
    path = folder / "agent.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in keys.items() if value is not None))
    return path


def start(status: Status, path: Path) -> subprocess.Popen[str]:
    assert status.security
    environment = {**os.environ, "KAFKA_PASSWORD": status.security.password(AGENT)}
    return subprocess.Popen([sys.executable, "-c", MAIN, str(path)], stderr=subprocess.PIPE, text=True, env=environment)


def run_to_end(status: Status, path: Path) -> tuple[int, str]:
    """Exit code and last words of an agent that has to end by itself; without a secret among all its words."""
    with start(status, path) as agent:
        try:
            words = agent.communicate(timeout=60)[1]
        finally:
            agent.kill()
    assert status.security
    assert "Traceback" not in words
    assert WRONG not in words
    assert status.security.password(AGENT) not in words
    *_, last = words.splitlines()
    assert last.startswith("helenus-agent: ")
    assert words.count("helenus-agent: ") == 1
    return agent.returncode, last


def test_validate_names_the_rights_that_a_login_lacks(status: Status, session: Any, tmp_path: Path) -> None:
    """Of topics that are there, and that are to be made: the brokers only check that, and make none."""
    assert status.security
    stranger = {key: value.format(**vars(status.security)) for key, value in AS_STRANGER.items()}
    admin = AdminClient(status.kafka())
    binding = AclBinding(
        ResourceType.TOPIC,
        "described-",
        ResourcePatternType.PREFIXED,
        f"User:{STRANGER}",
        "*",
        AclOperation.DESCRIBE,
        AclPermissionType.ALLOW,
    )
    admin.create_acls([binding])[binding].result(20)
    for changes, code, pattern in (
        ({}, 0, "the servers refuse nothing; not asked: whether topics that are missing may be"),
        (stranger, 1, rf"lacks the right to WRITE \(.*, topic {TOPIC}\): grant it.*security"),
        (
            {**stranger, "topic.prefix": "described-"},
            1,
            r"lacks the right to CREATE \(.*, topic described-guarded\.t\)",
        ),
        ({"topic.prefix": "never-"}, 1, r"lacks the right to WRITE \(.*, topic never-guarded\.t\)"),
    ):
        path = properties(status, tmp_path, changes)
        environment = {**os.environ, "KAFKA_PASSWORD": status.security.password(AGENT)}
        command = [sys.executable, "-c", MAIN, "validate", str(path), "--connect"]
        process = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
        assert (process.returncode, bool(re.search(pattern, process.stdout + process.stderr))) == (code, True), process
    assert not [topic for topic in admin.list_topics(timeout=10).topics if topic.startswith(("described", "never"))]


def test_events_arrive_and_no_secret_is_seen(status: Status, session: Any, tmp_path: Path) -> None:
    for number in range(100):
        session.execute("INSERT INTO guarded.t (a, v) VALUES (%s, 'x')", (number,))
    assert status.security
    passwords = [status.security.password(user) for user in (AGENT, STRANGER, "connector", "admin")]
    agent = start(status, properties(status, tmp_path))
    try:
        eventually(lambda: agent.poll() is not None or events(status) >= 100)
        assert agent.poll() is None
        listed = b"".join(path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
    finally:
        agent.send_signal(signal.SIGTERM)
        words = agent.communicate(timeout=30)[1]
    assert agent.returncode == 0
    assert "agent.started" in words
    assert "refused" not in words
    assert not [password for password in passwords if password in words]
    assert not [password for password in passwords if password.encode() in listed]


def test_without_its_one_grant_it_warns(status: Status, session: Any, tmp_path: Path) -> None:
    login = {"cassandra.username": STRANGER, "cassandra.password": "${{file:{passwords}:stranger}}"}
    secrets = vars(status.security)
    with start(status, properties(status, tmp_path, {k: v.format(**secrets) for k, v in login.items()})) as agent:
        try:
            words = wait_for_error(agent, "agent.started")
        finally:
            agent.terminate()
            agent.communicate(timeout=30)
    assert "GRANT SELECT ON system_views.settings" in words
    assert agent.returncode == 0


def events(status: Status) -> int:
    """How many events are there: none while the topic has no leader yet."""
    consumer = Consumer({**status.kafka(), "group.id": "test"})
    try:
        topic = consumer.list_topics(timeout=10).topics.get(TOPIC)
        ends = [consumer.get_watermark_offsets(TopicPartition(TOPIC, n)) for n in topic.partitions] if topic else []
        return sum(end for _, end in ends)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
            raise
        return 0
    finally:
        consumer.close()


MISTAKES: list[tuple[dict[str, str | None], int, list[str]]] = [
    ({"cassandra.password": WRONG}, 1, ["refused the login", "cassandra.password", "[cassandra-auth]"]),
    ({"cassandra.username": None}, 2, ["cassandra.username", "[config]"]),
    ({"cassandra.ssl.cafile": "{other}"}, 1, ["certificate verify failed", "cassandra.ssl", "[cassandra-auth]"]),
    ({"cassandra.ssl.cafile": None}, 1, ["certificate verify failed", "cassandra.ssl", "[cassandra-auth]"]),
    ({"cassandra.ssl.cafile": "/no/such.pem"}, 2, ["/no/such.pem", "[config]"]),
    ({"cassandra.ssl.enabled": "false"}, 1, ["cassandra.ssl.enabled=true", "[cassandra-unreachable]"]),
    ({"kafka.producer.sasl.password": WRONG}, 1, ["invalid credentials", "sasl.*", "[broker-refused]"]),
    ({"kafka.producer.sasl.mechanisms": "PLAIN"}, 1, ["mechanisms: SCRAM-SHA-512", "[broker-refused]"]),
    ({"kafka.producer.sasl.mechanim": "PLAIN"}, 2, ["sasl.mechanim", "[config]"]),
    ({"kafka.producer.ssl.ca.location": "{other}"}, 1, ["certificate verify failed", "[broker-refused]"]),
    ({"kafka.producer.ssl.ca.location": "/no/such.pem"}, 2, ["ssl.ca.location", "[config]"]),
    (
        {"kafka.producer.security.protocol": "SASL_PLAINTEXT"},
        2,
        ["security.protocol", "is not used without it", "[config]"],
    ),
    ({"kafka.producer.security.protocol": None}, 2, ["security.protocol", "is not used without it", "[config]"]),
    ({"kafka.producer.security.protocol": "SSL"}, 2, ["security.protocol", "is not used without it", "[config]"]),
    ({"kafka.producer.security.protocol": "TLS"}, 2, ["security.protocol", "[config]"]),
    ({"kafka.producer.lingr.ms": "5"}, 2, ["lingr.ms", "[config]"]),
    (AS_STRANGER, 1, ["Authorization failed", TOPIC, "ACLs", "[broker-refused]"]),
]


@pytest.mark.parametrize("code", [1, pytest.param(2, marks=pytest.mark.long)])  # no server sees the others
def test_every_mistake_is_one_clear_message(status: Status, session: Any, tmp_path: Path, code: int) -> None:
    """All of them, some at a time: what most do is wait."""
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))

    def wrong(number: int) -> str | None:
        changes, _, words = MISTAKES[number]
        folder = tmp_path / str(number)
        folder.mkdir()
        properties_given = {
            key: value and value.format(**vars(status.security), other=other) for key, value in changes.items()
        }
        if changes is not AS_STRANGER:  # that one meets its mistake when it writes; one agent reads a cdc_raw
            (folder / "raw").mkdir()
            properties_given["cdc.raw.dir"] = str(folder / "raw")
        ended, last = run_to_end(status, properties(status, folder, properties_given))
        if ended == code and all(word in last for word in words):
            return None
        return f"{changes}: {ended}, {last}"

    chosen = [number for number, mistake in enumerate(MISTAKES) if mistake[1] == code]
    with ThreadPoolExecutor(4) as pool:
        faults_found = "\n".join(filter(None, pool.map(wrong, chosen)))
    assert not faults_found, faults_found


def test_a_user_who_may_see_the_topic_but_not_write(status: Status, session: Any, tmp_path: Path) -> None:
    topic, only = "events-guarded.only", {"table.include.list": "guarded.only"}
    session.execute("CREATE TABLE guarded.only (a int PRIMARY KEY) WITH cdc = true")
    admin = AdminClient(status.kafka())
    admin.create_topics([NewTopic(topic, 1)])[topic].result(20)
    session.execute("INSERT INTO guarded.only (a) VALUES (1)")
    stranger = {key: value.format(**vars(status.security)) for key, value in AS_STRANGER.items()}
    for user, changes, acl in (
        (STRANGER, stranger, (AclOperation.DESCRIBE, AclPermissionType.ALLOW)),
        (AGENT, {}, (AclOperation.WRITE, AclPermissionType.DENY)),
        (AGENT, {}, (AclOperation.DESCRIBE, AclPermissionType.ALLOW)),  # or it would not even see the topic
    ):
        rule = AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{user}", "*", *acl)
        admin.create_acls([rule])[rule].result(20)
        if acl[1] == AclPermissionType.DENY:
            continue
        code, last = run_to_end(status, properties(status, tmp_path, {**changes, **only}))
        assert code == 1
        assert "uthorization failed" in last
        # A user who may write to no topic at all gets no producer ID either: the message is of what is refused first.
        assert topic in last or (user == STRANGER and "idempotence PID" in last)
        assert last.endswith("[broker-refused]")


def test_a_topic_without_write_permission_does_not_affect_other_tables(
    status: Status, session: Any, tmp_path: Path
) -> None:
    topic = "events-guarded.denied"
    session.execute("CREATE TABLE guarded.denied (a int PRIMARY KEY) WITH cdc = true")
    admin = AdminClient(status.kafka())
    admin.create_topics([NewTopic(topic, 1)])[topic].result(20)
    on = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{AGENT}", "*")
    sees = AclBinding(*on, AclOperation.DESCRIBE, AclPermissionType.ALLOW)
    denied = AclBinding(*on, AclOperation.WRITE, AclPermissionType.DENY)
    for rule, acl_future in admin.create_acls([sees, denied]).items():
        assert acl_future.result(20) is None, rule
    session.execute("INSERT INTO guarded.denied (a) VALUES (1)")
    agent = start(status, properties(status, tmp_path, {"table.include.list": r"guarded\.(t|denied)"}))

    lines: list[str] = []
    assert agent.stderr
    reading = threading.Thread(target=lines.extend, args=(agent.stderr,))
    reading.start()

    def says(word: str) -> str:
        eventually(lambda: any(word in line for line in lines), lambda: "".join(lines))
        return next(line for line in lines if word in line)

    try:
        log_line = says("table.refused")
        assert "guarded.denied" in log_line
        assert "uthorization failed" in log_line
        events_before = events(status)
        session.execute("INSERT INTO guarded.t (a, v) VALUES (-1, 'x')")
        eventually(lambda: events(status) > events_before)
        allowed = AclBindingFilter(*on, AclOperation.WRITE, AclPermissionType.DENY)
        admin.delete_acls([allowed])[allowed].result(20)
        assert "guarded.denied" in says("table.resumed")
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.wait(30)
        reading.join()
        agent.stderr.close()
    assert agent.returncode == 0


def test_a_role_that_may_not_make_the_tables_of_the_control_plane(
    status: Status, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the statements; once another role has executed them, the agent's goes on."""
    assert status.security
    monkeypatch.setenv("KAFKA_PASSWORD", status.security.password(AGENT))
    stored = {"config.store": "cassandra", "config.store.keyspace": "rights"}
    stored["config.store.replication"] = "{'class': 'NetworkTopologyStrategy', 'datacenter1': 1}"
    settings = AgentSettings.load(properties(status, tmp_path, stored))
    with closing(ConfigStore(settings)) as store:
        with pytest.raises(HelenusError, match="may not make what config") as error:
            store.read()
        assert error.value.kind is Kind.CASSANDRA_AUTH
        statements = error.value.advice.removeprefix("execute as another role: ").removesuffix(";").split("; ")
        assert [statement.split(" (")[0].split(" WITH")[0] for statement in statements] == [
            "CREATE KEYSPACE IF NOT EXISTS rights",
            "CREATE TABLE IF NOT EXISTS rights.configs",
            "CREATE TABLE IF NOT EXISTS rights.agents",
        ]
        for statement in statements:
            session.execute(statement)
        with pytest.raises(HelenusError, match="GRANT SELECT, MODIFY ON KEYSPACE rights"):
            store.read()
        session.execute("GRANT SELECT ON KEYSPACE rights TO agent")
        session.execute("GRANT MODIFY ON KEYSPACE rights TO agent")

        def is_written() -> bool:
            with suppress(HelenusError):  # Cassandra keeps for a while what a role may do
                store.write("cdc", {"headers": "none"})
                return True
            return False

        eventually(is_written)
        assert store.read() == {"cdc": {"headers": "none"}}
    session.execute("DROP KEYSPACE rights")
