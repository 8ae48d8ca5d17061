"""Files of Debezium's connector for Cassandra: the agent and the worker both read one as it is."""

from __future__ import annotations

import itertools
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from schemas.java import Program
from structlog.testing import capture_logs

from helenus_agent.config import AgentSettings
from helenus_agent.config import check as check_agent
from helenus_connector.cli import main
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.files import check_kafka, load, properties_of
from helenus_connector.config.worker import WorkerSettings
from helenus_schemas.settings import _java_producer, debezium
from helenus_schemas.settings.properties import ConfigError

ROOT = Path(__file__).parents[1]
# What a file of theirs has at the least.
LEAST = {
    "topic.prefix": "p",
    "cassandra.config": "/etc/cassandra.yaml",
    "kafka.producer.bootstrap.servers": "k:9092",
    "commit.log.relocation.dir": "/var/relocation/",
    "offset.backing.store.dir": "/var/offsets",
    "key.converter": "io.confluent.connect.avro.AvroConverter",
    "key.converter.schema.registry.url": "http://r:8081",
    "value.converter": "io.confluent.connect.avro.AvroConverter",
    "value.converter.schema.registry.url": "http://r:8081",
}
# The example of the documentation of 1.x, and that of 3.x, which names its prefix otherwise.
EXAMPLE = """
connector.name=test_connector
commit.log.relocation.dir=/Users/test_user/debezium-connector-cassandra/test_dir/relocation/
http.port=8000

cassandra.config=/usr/local/etc/cassandra/cassandra.yaml
cassandra.hosts=127.0.0.1
cassandra.port=9042

kafka.producer.bootstrap.servers=127.0.0.1:9092
kafka.producer.retries=3
kafka.producer.retry.backoff.ms=1000
PREFIX=test_prefix

key.converter=io.confluent.connect.avro.AvroConverter
key.converter.schema.registry.url: http://localhost:8081
value.converter=io.confluent.connect.avro.AvroConverter
value.converter.schema.registry.url: http://localhost:8081

offset.backing.store.dir=/Users/test_user/debezium-connector-cassandra/test_dir/

snapshot.consistency=ONE
snapshot.mode=ALWAYS

latest.commit.log.only=true
"""
NOTHING: dict[str, Any] = {}
# Key, a documented value; what the agent, the worker and the connector have of it.
DOCUMENTED: list[tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("decimal.handling.mode", "STRING", {}, {}, {"decimal_handling_mode": "string"}),
    ("varint.handling.mode", "Precise", {}, {}, {"varint_handling_mode": "precise"}),
    ("snapshot.mode", "INITIAL", {}, {}, {"snapshot_mode": "initial"}),
    ("snapshot.mode", "always", {}, {}, {"snapshot_mode": "initial"}),
    ("snapshot.mode", "NEVER", {}, {}, {"snapshot_mode": "never"}),
    ("snapshot.consistency", "ALL", {}, {}, {"snapshot_consistency": "ALL"}),
    ("snapshot.consistency", "ONE", {}, {}, {"snapshot_consistency": "LOCAL_ONE"}),
    ("snapshot.consistency", "local_quorum", {}, {}, {"snapshot_consistency": "LOCAL_QUORUM"}),
    ("snapshot.scan.interval.ms", "7000", {}, {}, {"table_refresh_interval_ms": 7000}),
    ("snapshot.fetch.size", "10", {}, {}, {}),
    ("http.port", "8000", {"http_port": 8000}, {}, {}),
    ("cassandra.config", "/c.yaml", {"cassandra_config": Path("/c.yaml")}, {}, {}),
    (
        "cassandra.hosts",
        "10.0.0.1",
        {"cassandra_contact_points": ("10.0.0.1",)},
        {},
        {"cassandra_contact_points": ("10.0.0.1",)},
    ),
    (
        "cassandra.hosts",
        "a,b",
        {"cassandra_contact_points": ("127.0.0.1",)},
        {},
        {"cassandra_contact_points": ("a", "b")},
    ),
    ("cassandra.port", "9043", {"cassandra_port": 9043}, {}, {"cassandra_port": 9043}),
    ("cassandra.ssl.enabled", "true", {"cassandra_ssl_enabled": True}, {}, {"cassandra_ssl_enabled": True}),
    # Of connections without TLS it is not read.
    ("cassandra.ssl.config.path", "/s.properties", {"cassandra_ssl_cafile": None}, {}, {"cassandra_ssl_cafile": None}),
    ("cassandra.node.id", "node1", {}, {}, {}),
    ("cassandra.cluster.name", "Test Cluster", {}, {}, {}),
    ("commit.log.real.time.processing.enabled", "true", {}, {}, {}),
    ("commit.log.marked.complete.poll.interval.ms", "10000", {}, {}, {}),
    ("commit.log.relocation.dir", "/r/", {"segment_archive_dir": Path("/r/archive")}, {}, {}),
    ("commit.log.post.processing.enabled", "true", {"segment_transfer": "delete"}, {}, {}),
    ("commit.log.post.processing.enabled", "false", {"segment_transfer": "archive"}, {}, {}),
    ("commit.log.relocation.dir.poll.interval.ms", "10000", {}, {}, {}),
    (
        "commit.log.transfer.class",
        "io.debezium.connector.cassandra.BlackHoleCommitLogTransfer",
        {"segment_transfer": "delete"},
        {},
        {},
    ),
    ("commit.log.transfer.bucket", "b", {}, {}, {}),
    ("commit.log.error.reprocessing.enabled", "false", {}, {}, {}),
    ("commit.log.processor.shutdown.timeout.seconds", "5", {}, {}, {}),
    ("converters", "isbn", {}, {}, {}),
    ("offset.backing.store.dir", "/o/", {"state_dir": Path("/o")}, {"checkpoint_dir": Path("/o/connector")}, {}),
    ("offset.flush.interval.ms", "0", {}, {}, {}),
    ("max.offset.flush.size", "100", {}, {}, {}),
    ("max.queue.size", "8192", {}, {}, {}),
    ("max.batch.size", "2048", {}, {}, {"max_batch_size": 150_000}),
    ("max.queue.size.in.bytes", "0", {}, {}, {}),
    ("poll.interval.ms", "5000", {"poll_interval_ms": 20}, {}, {}),
    ("schema.refresh.interval.ms", "10000", {}, {}, {}),
    ("cdc.dir.poll.interval.ms", "10000", {}, {}, {}),
    ("tombstones.on.delete", "true", {}, {}, {"tombstones_on_delete": True}),
    ("tombstones.on.delete", "false", {}, {}, {"tombstones_on_delete": False}),
    *(
        (key, "ks.t.c", {}, {}, {"column_exclude_list": ("ks.t.c",)})
        for key in ("field.exclude.list", "column.exclude.list", "field.blacklist", "column.blacklist")
    ),
    ("num.of.change.event.queues", "1", {}, {}, {}),
    ("event.order.guarantee.mode", "commitlog_file", {}, {}, {}),
    ("skipped.operations", "t", {}, {}, {}),
    ("topic.naming.strategy", "io.debezium.schema.SchemaTopicNamingStrategy", {}, {}, {}),
    ("topic.delimiter", ".", {}, {}, {"data_topic": "p.${keyspace}.${table}"}),
    (
        "topic.prefix",
        "q",
        {"topic_prefix": "events-q."},
        {},
        {"name": "q", "events_topic": "events-q.${keyspace}.${table}", "data_topic": "q.${keyspace}.${table}"},
    ),
    (
        "kafka.topic.prefix",
        "q",
        {"topic_prefix": "events-q."},
        {},
        {"name": "q", "events_topic": "events-q.${keyspace}.${table}", "data_topic": "q.${keyspace}.${table}"},
    ),
    ("topic.cache.size", "10000", {}, {}, {}),
    ("topic.heartbeat.prefix", "__debezium-heartbeat", {}, {}, {}),
    ("heartbeat.interval.ms", "0", {}, {}, {}),
    ("varint.handling.mode", "string", {}, {}, {"varint_handling_mode": "string"}),
    ("decimal.handling.mode", "double", {}, {}, {"decimal_handling_mode": "double"}),
    ("schema.name.adjustment.mode", "none", {}, {}, {}),
    ("field.name.adjustment.mode", "avro", {}, {}, {}),
    ("sourceinfo.struct.maker", "io.debezium.connector.cassandra.CassandraSourceInfoStructMaker", {}, {}, {}),
    ("custom.metric.tags", "k1=v1", {}, {}, {}),
    ("errors.max.retries", "-1", {}, {}, {}),
    ("retriable.restart.connector.wait.ms", "10000", {}, {}, {}),
    ("tracing.enabled", "false", {}, {}, {}),
    ("latest.commit.log.only", "true", {}, {}, {}),
    ("connector.name", "n", {}, {}, {"name": "n"}),
    ("name", "n", {}, {}, {"name": "n"}),
    ("connector.class", "io.debezium.connector.cassandra.Cassandra5Connector", {}, {}, {}),
    ("tasks.max", "1", {}, {}, {"tasks_max": 1}),
    ("key.converter", "io.confluent.connect.avro.AvroConverter", {}, {}, {"is_avro": True}),
    ("value.converter", "io.confluent.connect.avro.AvroConverter", {}, {}, {"is_avro": True}),
    (
        "value.converter.schema.registry.url",
        "http://r:8081",
        {},
        {},
        {"value_converter_schema_registry_url": "http://r:8081"},
    ),
    (
        "kafka.producer.bootstrap.servers",
        "b:1",
        {"bootstrap_servers": "b:1"},
        {"bootstrap_servers": "b:1", "kafka": {}, "producer": {}},
        {},
    ),
    (
        "kafka.producer.retries",
        "3",
        {"producer": {"retries": "3"}},
        {"producer": {"retries": "3"}, "kafka": {}},
        {},
    ),
    (
        "kafka.producer.security.protocol",
        "SSL",
        {"kafka": {"security.protocol": "SSL"}},
        {"kafka": {"security.protocol": "SSL"}, "producer": {}},
        {},
    ),
    (
        "kafka.producer.sasl.mechanism",
        "PLAIN",
        {"kafka": {"sasl.mechanism": "PLAIN"}},
        {"kafka": {"sasl.mechanism": "PLAIN"}},
        {},
    ),
    (
        "kafka.producer.sasl.jaas.config",
        """org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p w";""",
        {"kafka": {"sasl.username": "u", "sasl.password": "p w"}},
        {"kafka": {"sasl.username": "u", "sasl.password": "p w"}},
        {},
    ),
    (
        "kafka.producer.ssl.truststore.location",
        "/ca.pem",
        {"kafka": {"ssl.ca.location": "/ca.pem"}},
        {"kafka": {"ssl.ca.location": "/ca.pem"}},
        {},
    ),
    (
        "kafka.producer.ssl.keystore.location",
        "/k.p12",
        {"kafka": {"ssl.keystore.location": "/k.p12"}},
        {"kafka": {"ssl.keystore.location": "/k.p12"}},
        {},
    ),
    (
        "kafka.producer.ssl.key.password",
        "s3cret",
        {"kafka": {"ssl.key.password": "s3cret"}},
        {"kafka": {"ssl.key.password": "s3cret"}},
        {},
    ),
    (
        "kafka.producer.ssl.keystore.password",
        "s3cret",
        {"kafka": {"ssl.keystore.password": "s3cret"}},
        {"kafka": {"ssl.keystore.password": "s3cret"}},
        {},
    ),
    *(
        (f"kafka.producer.{key}", "x", {"kafka": {}, "producer": {}}, {"kafka": {}, "producer": {}}, {})
        for key in ("acks", "enable.idempotence", *(k.replace("*", "url") for k in _java_producer.UNUSED))
    ),
    *(
        (
            f"kafka.producer.{size}.buffer.bytes",
            value,
            {"producer": {f"socket.{size}.buffer.bytes": use}},
            {"producer": {f"socket.{size}.buffer.bytes": use}, "kafka": {}},
            {},
        )
        for size, value, use in (("send", "65536", "65536"), ("receive", "-1", "0"))
    ),
    *(
        (
            f"kafka.producer.{key}",
            "PEM",
            {"kafka": {use: "PEM"}, "producer": {}},
            {"kafka": {use: "PEM"}, "producer": {}},
            {},
        )
        for key, use in _java_producer.SECURITY.items()
    ),
    (
        "kafka.producer.max.request.size",
        "2000000",
        {"producer": {"message.max.bytes": "2000000"}},
        {"producer": {"message.max.bytes": "2000000"}},
        {},
    ),
    ("kafka.consumer.security.protocol", "SSL", {"kafka": {}, "producer": {}}, {"kafka": {}, "consumer": {}}, {}),
    ("kafka.consumer.ssl.keystore.location", "/k.jks", {"producer": {}}, {"consumer": {}}, {}),
]
LOGIN = {"cassandra.username": "u", "cassandra.password": "p"}


def written(directory: Path, properties: dict[str, str]) -> Path:
    path = directory / "debezium.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return path


def read(path: Path) -> tuple[AgentSettings, WorkerSettings, ConnectorSettings]:
    worker, (connector,) = load(path, [])
    return AgentSettings.load(path), worker, connector


@pytest.mark.parametrize(("key", "value", "agent", "worker", "connector"), DOCUMENTED)
def test_a_documented_key(
    key: str, value: str, agent: dict[str, Any], worker: dict[str, Any], connector: dict[str, Any], tmp_path: Path
) -> None:
    """Each is what its own side makes of it, or is named once for each process as one that means nothing."""
    properties = {**LEAST, key: value}
    if key == "kafka.topic.prefix":
        del properties["topic.prefix"]
    path = written(tmp_path, properties)
    with capture_logs() as logs:
        loaded = read(path)
    for settings, expected in zip(loaded, (agent, worker, connector), strict=True):
        assert {name: getattr(settings, name) for name in expected} == expected
    means_nothing = not any((agent, worker, connector)) or key in debezium.unused(properties)
    assert [entry["event"] for entry in logs] == ["config.debezium", "config.debezium"]
    assert all((key in entry.get("ignored", "").split()) == means_nothing for entry in logs)


def refused(check: Callable[..., None], *arguments: Any) -> str:
    """What a check says is wrong; nothing if nothing is."""
    try:
        check(*arguments)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.integration
def test_no_setting_of_their_producer_stops_a_file(tmp_path: Path) -> None:
    """What librdkafka has no such setting of is translated, or named as one that means nothing."""
    names = Program(tmp_path, Path(__file__).with_name("ProducerKeys.java"), "kafka", "avro").run().split()
    assert len(names) > 80
    for name in sorted({*names, "schema.registry", "schema.registry.url"} - {"bootstrap.servers", "sasl.jaas.config"}):
        path = written(tmp_path, {**LEAST, f"kafka.producer.{name}": "1"})
        agent, worker, _ = read(path)
        for reasons in (refused(check_agent, agent, "agent"), refused(check_kafka, worker, path)):
            assert "No such configuration property" not in reasons, name


def test_the_table_has_every_key() -> None:
    tried = {key for key, *_ in DOCUMENTED} | LOGIN.keys() | {"cassandra.driver.config.file"}
    exact = {key for key in debezium.KEYS if not key.endswith(".*")}
    assert exact - tried == set()


STORES = {
    "keyStore.location=/k.jks\nkeyStore.password=p": "Java key stores are not read",
    "trustStore.location=/t.p12": "Java key stores are not read",
    "trustStore.location=/ca.pem\nkeyStore.location=/k.p12": "Java key stores are not read",
    None: "No such file",
}


@pytest.mark.parametrize("content", STORES)
def test_tls_files_of_java_are_refused_unless_ours_are_named(tmp_path: Path, content: str | None) -> None:
    tls, authority = tmp_path / "ssl.properties", tmp_path / "ca.pem"
    if content is not None:
        tls.write_text(content)
    theirs = {**LEAST, "cassandra.ssl.enabled": "true", "cassandra.ssl.config.path": str(tls)}
    path = written(tmp_path, theirs)
    for reading in (AgentSettings.load, lambda path: load(path, [])):
        with pytest.raises(ConfigError) as error:
            reading(path)
        assert f"cassandra.ssl.config.path={tls}: " in str(error.value)
        assert STORES[content] in str(error.value)
    named = {f"helenus.{side}.cassandra.ssl.cafile": str(authority) for side in ("agent", "connector")}
    agent, _, connector = read(written(tmp_path, {**theirs, **named}))
    assert (agent.cassandra_ssl_cafile, connector.cassandra_ssl_cafile) == (authority, authority)
    agent, _, _ = read(written(tmp_path, {**theirs, "cassandra.ssl.enabled": "false"}))
    assert agent.cassandra_ssl_cafile is None


def test_trust_store_in_pem_counts(tmp_path: Path) -> None:
    tls = tmp_path / "ssl.properties"
    tls.write_text("trustStore.location=/etc/ca.pem\ntrustStore.type=PEM\n")
    theirs = {"cassandra.ssl.enabled": "true", "cassandra.ssl.config.path": str(tls)}
    agent, _, connector = read(written(tmp_path, {**LEAST, **theirs}))
    assert (agent.cassandra_ssl_cafile, connector.cassandra_ssl_cafile) == (Path("/etc/ca.pem"), Path("/etc/ca.pem"))


def test_a_login(tmp_path: Path) -> None:
    agent, _, connector = read(written(tmp_path, {**LEAST, **LOGIN}))
    for settings in (agent, connector):
        assert settings.cassandra_username == "u"
        assert settings.cassandra_password
        assert settings.cassandra_password.get_secret_value() == "p"


@pytest.mark.parametrize("prefix", ["kafka.topic.prefix", "topic.prefix"])
def test_the_example_of_the_documentation(prefix: str, tmp_path: Path) -> None:
    path = tmp_path / "debezium.properties"
    path.write_text(EXAMPLE.replace("PREFIX", prefix))
    agent, worker, connector = read(path)
    home = "/Users/test_user/debezium-connector-cassandra/test_dir"
    assert (agent.state_dir, worker.checkpoint_dir) == (Path(home), Path(home, "connector"))
    assert (agent.bootstrap_servers, worker.bootstrap_servers) == ("127.0.0.1:9092", "127.0.0.1:9092")
    assert agent.producer == worker.producer == {"retries": "3", "retry.backoff.ms": "1000"}
    assert (agent.http_port, agent.cells_include_list) == (8000, (".*",))
    assert (connector.name, connector.keyspace, connector.table) == ("test_connector", ".*", ".*")
    assert (connector.resolver, connector.output_format) == ("none", "debezium-cassandra")
    assert (connector.tombstones_on_delete, connector.decimal_handling_mode) == (False, "double")
    assert (connector.snapshot_mode, connector.snapshot_consistency) == ("initial", "LOCAL_ONE")
    # What the agent writes is what the connector reads; what that writes has Debezium's name.
    of_table = connector.model_copy(update={"keyspace": "shop", "table": "orders"})
    assert of_table.events == f"{agent.topic_prefix}shop.orders" == "events-test_prefix.shop.orders"
    assert of_table.data == "test_prefix.shop.orders"


def test_keys_of_ours_in_their_file(tmp_path: Path) -> None:
    """Each side takes those of its name; a wrong one is refused by the name that the file has."""
    ours = {
        "helenus.agent.topic.partitions": "1",
        "helenus.connector.listeners": "http://127.0.0.1:8099",
        "helenus.connector.keyspace": "shop",
        "helenus.connector.table": "orders",
        "helenus.connector.kafka.client.id": "me",
        "helenus.connector.tombstones.on.delete": "true",
    }
    agent, worker, connector = read(written(tmp_path, {**LEAST, **ours}))
    assert (agent.topic_partitions, worker.listeners, worker.kafka["client.id"]) == (1, "http://127.0.0.1:8099", "me")
    assert (connector.keyspace, connector.tables, connector.tombstones_on_delete) == ("shop", ["orders"], True)

    path = written(tmp_path, {**LEAST, "helenus.connector.gate": "some", "helenus.agent.topic.partitions": "no"})
    with pytest.raises(ConfigError, match=r"helenus\.connector\.gate=some"):
        load(path, [])
    with pytest.raises(ConfigError, match=r"helenus\.agent\.topic\.partitions=no"):
        AgentSettings.load(path)


@pytest.mark.parametrize(
    ("key", "value", "agent", "connector"),
    [
        ("snapshot.mod", "NEVER", "snapshot.mod: unknown property", "snapshot.mod: unknown property"),
        ("helenus.agent.topic.partitins", "1", "helenus.agent.topic.partitins: unknown property", ""),
        ("helenus.connector.gat", "one", "", "helenus.connector.gat: unknown property, did you mean gate?"),
        ("snapshot.mode", "WHENEVER", "", "snapshot.mode=WHENEVER: INITIAL, ALWAYS or NEVER"),
        ("snapshot.consistency", "SERIAL", "", "snapshot.consistency=SERIAL: "),
        ("http.port", "no", "http.port=no", ""),
        ("offset.backing.store.dir", "", "offset.backing.store.dir", ""),
        ("commit.log.transfer.class", "com.acme.Mine", "commit.log.transfer.class=com.acme.Mine: no Java class", ""),
        ("topic.delimiter", "_", "", "topic.delimiter=_: topics are named prefix.keyspace.table"),
        ("topic.prefix", "a b", "topic.prefix", "topic.prefix"),
        ("field.exclude.list", "ks.c", "", "field.exclude.list=ks.c: ks.c is not keyspace.table.column"),
        ("field.exclude.list", "ks.t.c.d", "", "whole columns can be left out"),
        ("kafka.producer.ssl.truststore.location", "/t.jks", "export its certificates as PEM", "export its"),
        ("kafka.producer.ssl.keystore.location", "/k.jks", "convert it with keytool", "convert it with keytool"),
        ("kafka.producer.sasl.jaas.config", "x required;", "names no username", "names no username"),
        ("value.converter", "org.example.Converter", "", "value.converter"),
    ],
)
def test_what_has_no_counterpart_is_one_clear_error(
    key: str, value: str, agent: str, connector: str, tmp_path: Path
) -> None:
    path = written(tmp_path, {**LEAST, key: value})
    for expected, reading in ((agent, AgentSettings.load), (connector, lambda path: load(path, []))):
        if expected:
            with pytest.raises(ConfigError) as error:
                reading(path)
            assert expected in str(error.value)
        else:
            reading(path)


def test_a_file_without_a_prefix(tmp_path: Path) -> None:
    path = written(tmp_path, {key: value for key, value in LEAST.items() if key != "topic.prefix"})
    with pytest.raises(ConfigError, match=r"topic\.prefix: required"):
        AgentSettings.load(path)
    with pytest.raises(ConfigError, match=r"topic\.prefix: required"):
        load(path, [])


def test_a_prefix_without_a_letter(tmp_path: Path) -> None:
    for key in ("topic.prefix", "kafka.topic.prefix"):
        path = written(tmp_path, {**{k: v for k, v in LEAST.items() if k != "topic.prefix"}, key: ""})
        for reading in (AgentSettings.load, lambda path: load(path, [])):
            with pytest.raises(ConfigError, match=r"topic\.prefix: required"):
                reading(path)


def test_columns_that_are_left_out_by_several_names(tmp_path: Path) -> None:
    for first, second in itertools.permutations(("field.exclude.list", "column.exclude.list", "field.blacklist"), 2):
        _, _, connector = read(written(tmp_path, {**LEAST, first: "ks.t.a", second: "ks.t.b"}))
        assert connector.column_exclude_list == ("ks.t.a", "ks.t.b")


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    jaas = 'x required user="u" password="hunter2";'
    path = written(tmp_path, {**LEAST, "kafka.producer.sasl.jaas.config": jaas, "cassandra.pasword": "hunter2"})
    with pytest.raises(ConfigError) as error:
        AgentSettings.load(path)
    assert "hunter2" not in str(error.value)
    result = CliRunner().invoke(main, ["validate", str(path)])
    assert result.exit_code == 2
    assert "hunter2" not in result.output


def test_custom_converters_are_named_and_their_settings_too(tmp_path: Path) -> None:
    theirs = {
        **LEAST,
        "converters": "isbn,other",
        "isbn.type": "io.debezium.test.IsbnConverter",
        "isbn.schema.name": "x",
    }
    assert debezium.unused(theirs) == ["converters", "isbn.type", "isbn.schema.name"]
    read(written(tmp_path, theirs))


def test_json_converters_add_schemas_as_theirs_do(tmp_path: Path) -> None:
    """By default; `schemas.enable=false` has plain JSON."""
    converter = "org.apache.kafka.connect.json.JsonConverter"
    theirs = {key: value for key, value in LEAST.items() if "registry" not in key}
    theirs |= {"key.converter": converter, "value.converter": converter}
    assert read(written(tmp_path, theirs))[2].json_schemas == (True, True)
    theirs |= {"key.converter.schemas.enable": "false", "value.converter.schemas.enable": "false"}
    assert read(written(tmp_path, theirs))[2].json_schemas == (False, False)


def test_the_agent_asks_its_own_node_where_the_file_names_several(tmp_path: Path) -> None:
    yaml = tmp_path / "cassandra.yaml"
    theirs = {**LEAST, "cassandra.hosts": "10.0.0.1,10.0.0.2", "cassandra.config": str(yaml)}
    for address, contact_point in (("10.0.0.2", "10.0.0.2"), ("0.0.0.0", "127.0.0.1"), ("", "127.0.0.1")):
        yaml.write_text(f"rpc_address: {address}\n")
        assert AgentSettings.load(written(tmp_path, theirs)).cassandra_contact_points == (contact_point,)


def test_with_a_worker_s_own_file(tmp_path: Path) -> None:
    """The connector's part of their file counts, also next to other connectors."""
    worker = tmp_path / "worker.properties"
    own = f"bootstrap.servers=mine:9092\ncheckpoint.dir={tmp_path / 'mine'}\nlisteners=http://127.0.0.1:0\n"
    worker.write_text(own)
    other = tmp_path / "other.properties"
    other.write_text("name=other\nkeyspace=ks\ntable=t\noutput.format=json\n")
    theirs = written(tmp_path, {**LEAST, "helenus.connector.checkpoint.dir": "/theirs"})
    settings, connectors = load(worker, [other, theirs])
    assert (settings.bootstrap_servers, settings.checkpoint_dir) == ("mine:9092", tmp_path / "mine")
    assert [connector.name for connector in connectors] == ["other", "p"]
    assert [properties["name"] for properties in properties_of(worker, [other, theirs])] == ["other", "p"]
    result = CliRunner().invoke(main, ["validate", str(worker), str(other), str(theirs)])
    assert result.exit_code == 0, result.output


def test_what_a_file_of_ours_may_have_is_not_theirs() -> None:
    """`topic.prefix` and others mean something else in files of ours."""
    assert not debezium.is_theirs({"topic.prefix": "events-", "name": "n", "http.port": "1", "snapshot.mode": "never"})
    assert not debezium.is_theirs({"connector.name": "shop", "cdc.raw.dir": "/var/lib/cassandra/cdc_raw"})
    assert debezium.is_theirs({"connector.class": "io.debezium.connector.cassandra.Cassandra4Connector"})


@pytest.mark.parametrize(
    ("left_out", "columns", "published"),
    [
        ("", ".*", {"a", "ab", "b"}),
        ("shop.orders.a", ".*", {"ab", "b"}),
        ("shop.orders.a, shop.orders.b", ".*", {"ab"}),
        (r"shop\.orders\.a.*", ".*", {"b"}),
        (".*.orders.a|b", ".*", {"ab"}),
        ("shop.other.a,other.orders.a,shop.order.a", ".*", {"a", "ab", "b"}),
        ("shop.orders.a", "(?i)A.*", {"ab"}),
        ("shop.orders.x", "a", {"a"}),
    ],
)
def test_columns_that_are_left_out(left_out: str, columns: str, published: set[str]) -> None:
    import re

    properties = {"name": "n", "keyspace": "shop", "table": "orders", "output.format": "json", "columns": columns}
    settings = ConnectorSettings.from_properties({**properties, "column.exclude.list": left_out}, "n")
    assert {name for name in ("a", "ab", "b") if re.fullmatch(settings.published, name)} == published


def test_the_page_says_what_becomes_of_each_key() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "reference.py"))["debezium_keys"]()
    assert page in (ROOT / "docs" / "debezium.md").read_text(), "run `make reference`"


DRIVER = """datastax-java-driver {
  basic { contact-points = ["10.0.0.1:9043", "10.0.0.2:9043"], load-balancing-policy.local-datacenter = "dc1" }
  advanced.auth-provider { class = PlainTextAuthProvider, username = u, password = "p w" }
  advanced.ssl-engine-factory { class = DefaultSslEngineFactory, hostname-validation = false
    truststore-path = /path/to/client.truststore, truststore-password = password123 }
}"""


def test_the_java_driver_s_file(tmp_path: Path) -> None:
    """Cassandra's addresses, data centre, login and TLS; what the properties themselves say counts more."""
    yaml, driver = tmp_path / "cassandra.yaml", tmp_path / "application.conf"
    yaml.write_text("rpc_address: 10.0.0.2\n")
    driver.write_text(DRIVER)
    theirs = {key: value for key, value in LEAST.items() if key != "cassandra.hosts"}
    theirs |= {"cassandra.driver.config.file": str(driver), "cassandra.config": str(yaml)}
    agent, _, connector = read(written(tmp_path, theirs))
    assert (agent.cassandra_contact_points, agent.cassandra_local_dc) == (("10.0.0.2",), None)
    assert (connector.cassandra_contact_points, connector.cassandra_local_dc) == (("10.0.0.1", "10.0.0.2"), "dc1")
    for settings in (agent, connector):
        assert (settings.cassandra_port, settings.cassandra_username) == (9043, "u")
        assert settings.cassandra_password is not None
        assert settings.cassandra_password.get_secret_value() == "p w"
        assert (settings.cassandra_ssl_enabled, settings.cassandra_ssl_check_hostname) == (True, False)
    _, _, connector = read(written(tmp_path, {**theirs, "cassandra.hosts": "h", "cassandra.port": "9044"}))
    assert (connector.cassandra_contact_points, connector.cassandra_port) == (("h",), 9044)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "it can't be read: No such file"),
        ("datastax-java-driver {", "line 1: the end of the file was not expected"),
        ("datastax-java-driver.basic.contact-points = x", "basic.contact-points: give a list"),
        ('datastax-java-driver.basic.contact-points = ["a:b"]', "basic.contact-points: give each as host:port"),
        ('datastax-java-driver.basic.contact-points = ["a:1", "b:2"]', "their ports differ"),
        ("datastax-java-driver.advanced.auth-provider.class = Krb", "PlainTextAuthProvider is the only way"),
    ],
)
def test_a_driver_s_file_that_is_wrong(content: str | None, message: str, tmp_path: Path) -> None:
    driver = tmp_path / "application.conf"
    if content is not None:
        driver.write_text(content)
    path = written(tmp_path, {**LEAST, "cassandra.driver.config.file": str(driver)})
    for reading in (AgentSettings.load, lambda path: load(path, [])):
        with pytest.raises(ConfigError) as error:
            reading(path)
        assert f"cassandra.driver.config.file={driver}: " in str(error.value)
        assert message in str(error.value)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    """Values without a counterpart, wrong values, unknown keys, and what is missing: each once, by its own name."""
    theirs = {key: value for key, value in LEAST.items() if key not in ("topic.prefix", "offset.backing.store.dir")}
    wrong = {
        "commit.log.relocation.dir": "/relocated",
        "commit.log.transfer.class": "com.acme.Mine",
        "topic.delimiter": "_",
        "snapshot.mode": "WHENEVER",
        "snapshot.consistency": "SERIAL",
        "kafka.producer.sasl.jaas.config": "x required;",
        "http.port": "no",
        "snapshot.mod": "NEVER",
        "helenus.connector.gate": "some",
        "helenus.agent.topic.partitions": "0",
    }
    path = written(tmp_path, {**theirs, **wrong})
    with pytest.raises(ConfigError) as error:
        AgentSettings.load(path)
    keys = [problem.key for problem in error.value.problems]
    assert sorted(keys) == [
        "commit.log.transfer.class",
        "helenus.agent.topic.partitions",
        "http.port",
        "kafka.producer.sasl.jaas.config",
        "snapshot.mod",
        "state.dir",
        "topic.prefix",
    ]
    with pytest.raises(ConfigError) as error:
        load(path, [])
    keys = [problem.key for problem in error.value.problems]
    assert sorted(keys) == [
        "checkpoint.dir",
        "helenus.connector.gate",
        "kafka.producer.sasl.jaas.config",
        "snapshot.consistency",
        "snapshot.mod",
        "snapshot.mode",
        "topic.delimiter",
        "topic.prefix",
    ]
