"""`helenus-agent validate`: all that is wrong with the file, at once, and what has to be on the agent's machine."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
import trustme
from agent.fakes import FakeCassandra, FakeLog
from agent.writer import table_of
from click.testing import CliRunner

from helenus_agent import cli, validate_command
from helenus_agent.cli import main
from helenus_agent.config import AgentSettings
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings.properties import ConfigError

LEAST = {"state.dir": "/tmp/x", "cdc.raw.dir": "/tmp/raw"}
PULSAR = {**LEAST, "log": "pulsar", "pulsar.service.url": "pulsar://b"}
KAFKA = {**LEAST, "kafka.bootstrap.servers": "k:9092"}


@pytest.mark.parametrize(
    ("properties", "wrong"),
    [
        ({**PULSAR, "pulsar.service.url": ""}, "pulsar.service.url"),
        ({**PULSAR, "pulsar.service.url": "http://broker:8080"}, "pulsar.service.url"),
        ({**PULSAR, "pulsar.service.url": "pulsar://127.0.0.1:665000"}, "pulsar.service.url"),
        ({**PULSAR, "pulsar.admin.url": "broker"}, "pulsar.admin.url"),
        ({**PULSAR, "pulsar.namespace": "public/default"}, "pulsar.namespace"),
        ({**KAFKA, "kafka.bootstrap.servers": "k:99999"}, "kafka.bootstrap.servers"),
        ({**KAFKA, "cassandra.contact.points": ""}, "cassandra.contact.points"),
        ({**KAFKA, "cassandra.contact.points": "a..b"}, "cassandra.contact.points"),
        ({**KAFKA, "cassandra.username": "u"}, "cassandra.password"),
        ({**KAFKA, "cassandra.password": "p"}, "cassandra.username"),
        ({**KAFKA, "kafka.bootstrap.servers": "http://k:9092"}, "kafka.bootstrap.servers"),
        ({**KAFKA, "topic.creation.default.replication.factor": "0"}, "topic.creation.default.replication.factor"),
        ({**KAFKA, "topic.prefix": "a b/"}, "topic.prefix"),
        ({**KAFKA, "state.dir": "file:///var/lib/helenus"}, "state.dir"),
        ({**KAFKA, "segment.archive.dir": "s3a://bucket/segments"}, "segment.archive.dir"),
        ({**KAFKA, "cassandra.config": ""}, "cassandra.config"),
    ],
)
def test_settings_that_no_agent_can_use(properties: dict[str, str], wrong: str) -> None:
    with pytest.raises(ConfigError) as error:
        AgentSettings.from_properties(properties, "agent.properties")
    assert [problem.key for problem in error.value.problems] == [wrong]


def test_certificates_have_to_be_there_as_cdc_raw_has(tmp_path: Path) -> None:
    file, there = tmp_path / "agent.properties", tmp_path / "ca.pem"
    properties = {
        **KAFKA,
        "cdc.raw.dir": str(tmp_path),
        "pulsar.tls.cafile": str(there),
        "cassandra.ssl.enabled": "true",
        "cassandra.ssl.cafile": "/no/ca.pem",
    }
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    result = CliRunner().invoke(main.commands["validate"], [str(file)])
    assert result.exit_code == 2
    assert "cassandra.ssl.cafile=/no/ca.pem: there is no such file" in result.stderr
    assert f"pulsar.tls.cafile={there}: there is no such file" in result.stderr
    there.touch()
    file.write_text(file.read_text().replace("/no/ca.pem", str(there)))
    result = CliRunner().invoke(main.commands["validate"], [str(file)])
    assert f"cassandra.ssl.cafile={there}: it holds no certificates in PEM" in result.stderr
    trustme.CA().cert_pem.write_to_path(there)
    result = CliRunner().invoke(main.commands["validate"], [str(file)])
    assert (result.exit_code, result.stdout) == (0, f"{file} is valid\n")


def test_protocols_that_librdkafka_takes_before_a_host() -> None:
    for servers in ("PLAINTEXT://k:9092,SASL_SSL://l:9093", "ssl://k:9092"):
        assert (
            AgentSettings.from_properties({**KAFKA, "kafka.bootstrap.servers": servers}, "f").bootstrap_servers
            == servers
        )


WRONG = {
    "foo": ("1", 'No such configuration property: "foo"'),
    "linger.ms": ("many", "Invalid value"),
    "ssl.truststore.location": ("/etc/store.jks", "Java TrustStores are not supported, use `ssl.ca.location`"),
    "sasl.jaas.config": ("user=u password=hunter2", "Java JAAS configuration is not supported"),
    "acks": ("1", "`acks` must be set to `all`"),
}


def test_settings_of_librdkafka_by_file_and_full_key(tmp_path: Path) -> None:
    """All of them, by `validate` and by the run."""
    file = tmp_path / "agent.properties"
    properties = {**KAFKA, "cdc.raw.dir": str(tmp_path), "kafka.producer.compression.type": "zstd"}
    properties["kafka.producer.security.protocol"] = "SASL_SSL"
    properties |= {"kafka.producer.sasl.username": "u", "kafka.producer.sasl.password": "p"}
    properties["kafka.producer.sasl.mechanisms"] = "PLAIN"
    properties.update({f"kafka.producer.{key}": value for key, (value, _) in WRONG.items()})
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    for command in ("validate", "run"):
        result = CliRunner().invoke(main.commands[command], [str(file)])
        assert result.exit_code == 2
        for key, (_, reason) in WRONG.items():
            assert re.search(rf"{file}: kafka\.producer\.{re.escape(key)}(=.*)?: {re.escape(reason)}", result.stderr), (
                result.stderr
            )
        assert "compression" not in result.stderr
        assert "security.protocol" not in result.stderr, "it only needs further settings"
        assert "hunter2" not in result.stderr


def test_a_key_that_is_given_twice(tmp_path: Path) -> None:
    file = tmp_path / "agent.properties"
    properties = {**KAFKA, "cdc.raw.dir": str(tmp_path)}
    file.write_text(
        "".join(f"{key}={value}\n" for key, value in properties.items()) + "topic.partitions=1\n" * 2 + "x=1\n"
    )
    result = CliRunner().invoke(main.commands["validate"], [str(file)])
    assert result.exit_code == 2
    assert f"{file}: topic.partitions: it is given more than once" in result.stderr
    assert f"{file}: x: unknown property" in result.stderr
    file.write_text(file.read_text().replace("x=1\n", ""))
    assert AgentSettings.load(file).topic_partitions == 1


ORDERS = table_of("orders", "pk int pk, v int")


def test_what_the_servers_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it at once; the file alone is valid."""
    file, log, cassandra = tmp_path / "agent.properties", FakeLog(), FakeCassandra(ORDERS)
    properties = {**PULSAR, "cdc.raw.dir": str(tmp_path / "raw"), "state.dir": str(tmp_path / "state")}
    (tmp_path / "raw").mkdir()
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    monkeypatch.setattr(cli, "open_log", lambda _: log)
    monkeypatch.setattr(validate_command, "Cassandra", lambda _: cassandra)

    def validate() -> tuple[int, list[str]]:
        result = CliRunner().invoke(main.commands["validate"], [str(file), "--connect"])
        assert result.stdout.startswith(f"{file} is valid\n")
        return result.exit_code, [*result.stderr.splitlines(), *result.stdout.splitlines()[1:]]

    missing = f"helenus-agent: the topic is missing (events-{ORDERS.full_name}): set pulsar.admin.url"
    code, (line,) = validate()
    assert (code, line.startswith(missing)) == (1, True)
    log.counts[f"events-{ORDERS.full_name}"] = 4
    unasked = "whether this login may produce to Pulsar's topics, or make them"
    assert validate() == (0, [f"the servers refuse nothing; not asked: {unasked}"])
    file.write_text(file.read_text() + "table.exclude.list=ks\\\\.ordres\n")
    code, (line,) = validate()
    assert code == 2
    said_of_it = (
        r"helenus-agent: table.exclude.list=ks\.ordres: no table matches it: did you mean ks.orders? correct it"
    )
    assert line.startswith(said_of_it)
    file.write_text(file.read_text().replace("ordres", "orders|x.*"))
    cassandra.settings["cdc_enabled"] = "false"
    code, (line,) = validate()
    assert (code, "the node runs with cdc_enabled: false" in line) == (2, True)
    cassandra.away = 1
    away = HelenusError(Kind.BROKER_UNREACHABLE, "no answer", "b:6650")

    def topics() -> dict[str, int]:
        raise away

    monkeypatch.setattr(log, "topics", topics)
    code, lines = validate()
    assert (code, lines[0].startswith("helenus-agent: away (fake)"), lines[1]) == (1, True, f"helenus-agent: {away}")
    assert not (tmp_path / "state").exists()


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """A warning: it may be that of this agent, which runs."""
    file = tmp_path / "agent.properties"
    (tmp_path / "raw").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        properties = {
            **KAFKA,
            "cdc.raw.dir": str(tmp_path / "raw"),
            "state.dir": str(tmp_path / "state"),
            "http.port": port,
        }
        file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        result = CliRunner().invoke(main.commands["validate"], [str(file)])
    assert (result.exit_code, result.stdout) == (0, f"{file} is valid\n")
    assert f"warning: http.port={port}: Address already in use: it is this agent's own if one runs" in result.stderr
