"""Files with the names that keys had before agent and worker shared them: they load as they did."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from helenus_agent.config import AgentSettings
from helenus_agent.config import check as check_agent
from helenus_connector.config.files import check_kafka
from helenus_connector.config.worker import WorkerSettings
from helenus_schemas.settings.model import Settings
from helenus_schemas.settings.properties import ConfigError

AGENT = {"state.dir": "/s", "cdc.raw.dir": "/raw"}
WORKER = {"checkpoint.dir": "/c"}
SECRET = "hunter2-and-more"
# The example agent.properties of before, with every line that was commented out, as it stood.
OLD_AGENT = """
cassandra.config=/etc/cassandra/cassandra.yaml
cassandra.contact.points=127.0.0.1
cassandra.local.dc=dc1
cassandra.username=helenus_agent
cassandra.password=${env:OLDER_NAMES_SECRET}
cassandra.ssl.enabled=true
cassandra.ssl.cafile=/etc/helenus/ca.pem
kafka.bootstrap.servers=kafka1:9092,kafka2:9092,kafka3:9092
topic.partitions=12
topic.retention.ms=604800000
topic.creation.default.replication.factor=3
topic.config.min.insync.replicas=2
kafka.producer.security.protocol=SASL_SSL
kafka.producer.ssl.ca.location=/etc/helenus/ca.pem
kafka.producer.sasl.mechanisms=SCRAM-SHA-512
kafka.producer.sasl.username=helenus-agent
kafka.producer.sasl.password=${env:OLDER_NAMES_SECRET}
table.include.list=shop\\\\..*
table.exclude.list=shop\\\\.sessions
state.dir=/var/lib/helenus/agent
startup.timeout.ms=300000
http.host=127.0.0.1
http.port=9400
log.format=json
"""


def values(settings: Settings) -> dict[str, object]:
    """What is set, without the older keys that say the same."""
    return {name: value for name, value in settings.model_dump().items() if name not in ("http_host", "http_port")}


def test_the_example_of_before_loads_as_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLDER_NAMES_SECRET", SECRET)
    old, new = tmp_path / "old.properties", tmp_path / "new.properties"
    old.write_text(OLD_AGENT)
    address = OLD_AGENT.replace("http.host=127.0.0.1\nhttp.port=9400", "listeners=http://127.0.0.1:9400")
    new.write_text(address.replace("kafka.bootstrap", "bootstrap").replace("kafka.producer.", "producer."))
    with capture_logs() as logs:
        before, now = AgentSettings.load(old), AgentSettings.load(new)
    assert logs == []
    assert before.bootstrap_servers == "kafka1:9092,kafka2:9092,kafka3:9092"
    assert before.producer == {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "/etc/helenus/ca.pem",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "helenus-agent",
        "sasl.password": SECRET,
    }
    assert (before.listener, before.kafka) == (("127.0.0.1", 9400), {})
    assert before.listener == now.listener
    assert values(before) | {"listeners": now.listeners} == values(now)
    assert SECRET not in repr(before)


@pytest.mark.parametrize(
    ("more", "listener"),
    [
        ({}, ("127.0.0.1", 0)),
        ({"http.port": "0"}, ("127.0.0.1", 0)),
        ({"http.host": "0.0.0.0"}, ("0.0.0.0", 0)),
        ({"http.port": "9400"}, ("127.0.0.1", 9400)),
        ({"http.host": "::1", "http.port": "9400"}, ("::1", 9400)),
        ({"listeners": "http://[::1]:9400"}, ("::1", 9400)),
        ({"listeners": "http://h:9400", "http.host": "h", "http.port": "9400"}, ("h", 9400)),
        ({"listeners": "http://h:9400", "http.host": "h"}, ("h", 9400)),
    ],
)
def test_where_the_agent_listens(more: dict[str, str], listener: tuple[str, int]) -> None:
    assert AgentSettings.from_properties({**AGENT, "bootstrap.servers": "k:1", **more}, "f").listener == listener


@pytest.mark.parametrize("listeners", ["h:9400", "http://h", "https://h", "http://h:0", "http://h:1,http://h:2"])
def test_no_listener_of_the_agent_s(listeners: str) -> None:
    with pytest.raises(ConfigError, match=r"listeners=.*: give one address as http://host:port"):
        AgentSettings.from_properties({**AGENT, "bootstrap.servers": "k:1", "listeners": listeners}, "f")


@pytest.mark.parametrize(("model", "least"), [(AgentSettings, AGENT), (WorkerSettings, WORKER)])
def test_both_take_both_names(model: type[AgentSettings | WorkerSettings], least: dict[str, str]) -> None:
    now = {"bootstrap.servers": "k:1", "kafka.security.protocol": "SSL", "producer.linger.ms": "7"}
    before = {"kafka.bootstrap.servers": "k:1", "kafka.security.protocol": "SSL", "kafka.producer.linger.ms": "7"}
    for properties in (now, before, {**now, **before}, {**before, **now}):
        settings = model.from_properties({**least, **properties}, "f")
        assert (settings.bootstrap_servers, settings.kafka, settings.producer) == (
            "k:1",
            {"security.protocol": "SSL"},
            {"linger.ms": "7"},
        )


@pytest.mark.parametrize(
    ("model", "least", "older", "key", "texts"),
    [
        (AgentSettings, AGENT, "kafka.bootstrap.servers", "bootstrap.servers", ("k:1", "k:2")),
        (AgentSettings, AGENT, "kafka.producer.sasl.password", "producer.sasl.password", (SECRET, f"{SECRET}2")),
        (AgentSettings, AGENT, "http.port", "listeners", ("9400", "http://127.0.0.1:9401")),
        (AgentSettings, AGENT, "http.host", "listeners", ("0.0.0.0", "http://127.0.0.1:9401")),
        (WorkerSettings, WORKER, "kafka.bootstrap.servers", "bootstrap.servers", ("k:1", "k:2")),
        (WorkerSettings, WORKER, "kafka.consumer.linger.ms", "consumer.linger.ms", ("1", "2")),
    ],
)
def test_two_names_with_two_values_are_both_named(
    model: type[Settings], least: dict[str, str], older: str, key: str, texts: tuple[str, str]
) -> None:
    for pairs in ([(older, texts[0]), (key, texts[1])], [(key, texts[1]), (older, texts[0])]):
        with pytest.raises(ConfigError) as error:
            model.from_properties({"bootstrap.servers": "k:2", **least, **dict(pairs)}, "f")
        [problem] = error.value.problems
        assert problem.key == key
        assert problem.reason.startswith(f"{older} is an older ")
        assert SECRET not in str(error.value)


def test_errors_name_the_key_that_the_file_has() -> None:
    with pytest.raises(ConfigError) as error:
        AgentSettings.from_properties({**AGENT, "kafka.bootstrap.servers": "http://k"}, "f")
    assert str(error.value.problems[0]).startswith("kafka.bootstrap.servers=http://k: give Kafka's brokers")
    properties = {"kafka.bootstrap.servers": "k:1", "kafka.producer.bootstrap.servers": "l:1"}
    for model, least in ((AgentSettings, AGENT), (WorkerSettings, WORKER)):
        with pytest.raises(ConfigError) as error:
            model.from_properties({**least, **properties}, "f")
        assert str(error.value.problems[0]) == (
            "kafka.producer.bootstrap.servers=l:1: leave it out: bootstrap.servers names the brokers"
        )


def test_what_librdkafka_refuses_has_the_key_that_the_file_has(tmp_path: Path) -> None:
    for before, prefix in (("kafka.producer.", "kafka.producer."), ("producer.", "producer."), ("kafka.", "kafka.")):
        properties = {"bootstrap.servers": "k:1", f"{before}no.such": SECRET, f"{before}sasl.username": "u"}
        agent = AgentSettings.from_properties({**AGENT, **properties}, "f")
        with pytest.raises(ConfigError) as error:
            check_agent(agent, "f")
        assert {p.key for p in error.value.problems} == {f"{prefix}no.such", f"{prefix}security.protocol"}
        assert SECRET not in str(error.value)
        with pytest.raises(ConfigError) as error:
            check_kafka(WorkerSettings.from_properties({**WORKER, **properties}, "f"), tmp_path)
        assert f"{prefix}no.such" in {p.key for p in error.value.problems}


def test_datastax_s_certificates_count_unless_ours_are_there() -> None:
    theirs = {"sslTruststorePath": "/theirs.jks", "bootstrap.servers": "k:1"}
    with pytest.raises(ConfigError, match="sslTruststorePath"):
        AgentSettings.from_properties({**AGENT, **theirs}, "f")
    for key in ("kafka.producer.ssl.ca.location", "producer.ssl.ca.location", "kafka.ssl.ca.location"):
        settings = AgentSettings.from_properties({**AGENT, **theirs, key: "/ours.pem"}, "f")
        assert {**settings.kafka, **settings.producer} == {"ssl.ca.location": "/ours.pem"}


def test_our_keys_in_a_file_of_debezium_s_win_by_either_name() -> None:
    theirs = {
        "topic.prefix": "p",
        "cassandra.config": "/etc/cassandra.yaml",
        "offset.backing.store.dir": "/o",
        "kafka.producer.bootstrap.servers": "theirs:1",
        "kafka.producer.linger.ms": "1",
        "kafka.producer.ssl.ca.location": "/theirs.pem",
        "http.port": "8000",
    }
    for before in ("kafka.producer.", "producer."):
        ours = {
            "bootstrap.servers": "ours:1",
            f"{before}linger.ms": "9",
            f"{before}ssl.ca.location": "/ours.pem",
        }
        agent = AgentSettings.from_properties(
            {**theirs, **{f"helenus.agent.{key}": text for key, text in ours.items()}}, "f"
        )
        worker = WorkerSettings.from_properties(
            {**theirs, **{f"helenus.connector.{key}": text for key, text in ours.items()}}, "f"
        )
        assert (agent.bootstrap_servers, worker.bootstrap_servers) == ("ours:1", "ours:1")
        for settings in (agent, worker):
            assert {**settings.kafka, **settings.producer} == {"linger.ms": "9", "ssl.ca.location": "/ours.pem"}
    assert AgentSettings.from_properties(theirs, "f").listener == ("127.0.0.1", 8000)
    own = {**theirs, "helenus.agent.listeners": "http://0.0.0.0:9400"}
    assert AgentSettings.from_properties(own, "f").listener == ("0.0.0.0", 9400)
