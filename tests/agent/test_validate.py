"""`helenus-agent validate`: all that is wrong with the file, at once, and what has to be on the agent's machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from helenus_agent.cli import main
from helenus_agent.config import AgentSettings
from helenus_schemas.config import ConfigError

LEAST = {"state.dir": "/tmp/x", "cdc.raw.dir": "/tmp/raw"}
PULSAR = {**LEAST, "log": "pulsar", "pulsar.service.url": "pulsar://b"}
KAFKA = {**LEAST, "kafka.bootstrap.servers": "k:9092"}


@pytest.mark.parametrize(
    ("given", "wrong"),
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
        ({**KAFKA, "topic.prefix": "a b/"}, "topic.prefix"),
        ({**KAFKA, "state.dir": "file:///var/lib/helenus"}, "state.dir"),
        ({**KAFKA, "segment.archive.dir": "s3a://bucket/segments"}, "segment.archive.dir"),
        ({**KAFKA, "cassandra.config": ""}, "cassandra.config"),
    ],
)
def test_what_no_agent_can_use(given: dict[str, str], wrong: str) -> None:
    with pytest.raises(ConfigError) as error:
        AgentSettings.of(given, "agent.properties")
    assert [problem.key for problem in error.value.problems] == [wrong]


def test_certificates_have_to_be_there_as_cdc_raw_has(tmp_path: Path) -> None:
    file, there = tmp_path / "agent.properties", tmp_path / "ca.pem"
    given = {
        **KAFKA,
        "cdc.raw.dir": str(tmp_path),
        "pulsar.tls.cafile": str(there),
        "cassandra.ssl.cafile": "/no/ca.pem",
    }
    file.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    done = CliRunner().invoke(main.commands["validate"], [str(file)])
    assert done.exit_code == 2
    assert "cassandra.ssl.cafile=/no/ca.pem: there is no such file" in done.stderr
    assert f"pulsar.tls.cafile={there}: there is no such file" in done.stderr
    there.touch()
    file.write_text(file.read_text().replace("/no/ca.pem", str(there)))
    done = CliRunner().invoke(main.commands["validate"], [str(file)])
    assert (done.exit_code, done.stdout) == (0, f"{file} is valid\n")
