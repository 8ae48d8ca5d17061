"""A configuration of DataStax's source connector: it loads, and each key of theirs is logged."""

from __future__ import annotations

import pytest

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_schemas.settings.properties import ConfigError

WORKER = {
    "log": "pulsar",
    "pulsar.service.url": "pulsar://b",
    "checkpoint.dir": "/tmp/none",
}
SAME = {"name", "keyspace", "table", "events.topic", "columns", "key.converter", "value.converter"}
SAME |= {"cache.max.capacity", "cache.expire.after.ms"}
# Every key of theirs; those that no connection here can have, Astra's bundle, Kerberos and Java key stores, are empty.
THEIRS = {
    "name": "n",
    "keyspace": "db1",
    "table": "t1",
    "events.topic": "persistent://public/default/events-db1.t1",
    "columns": ".*",
    "events.subscription.name": "sub",
    "events.subscription.type": "Key_Shared",
    "batch.size": "200",
    "query.executors": "10",
    "query.maxMobileAvgLatency": "100",
    "query.minMobileAvgLatency": "10",
    "query.backoffInMs": "100",
    "query.maxBackoffInSec": "3600",
    "cache.max.digest": "3",
    "cache.max.capacity": "32767",
    "cache.expire.after.ms": "60000",
    "cache.only_if_coordinator_match": "true",
    "key.converter": "com.datastax.oss.pulsar.source.converters.NativeAvroConverter",
    "value.converter": "com.datastax.oss.pulsar.source.converters.NativeAvroConverter",
    "outputFormat": "key-value-avro",
    "contactPoints": "10.0.0.1,10.0.0.2",
    "port": "9043",
    "loadBalancing.localDc": "dc1",
    "maxConcurrentRequests": "500",
    "queryExecutionTimeout": "30",
    "connectionPoolLocalSize": "4",
    "compression": "None",
    "jmx": "true",
    "jmxConnectorDomain": "com.datastax.oss.cdc",
    "metricsHighestLatency": "35",
    "ignoreErrors": "None",
    "cloud.secureConnectBundle": "",
    "auth.provider": "PLAIN",
    "auth.gssapi.keyTab": "",
    "auth.gssapi.principal": "",
    "auth.gssapi.service": "dse",
    "auth.username": "u",
    "auth.password": "pw0rd",
    "ssl.provider": "JDK",
    "ssl.hostnameValidation": "false",
    "ssl.truststore.path": "/etc/ca.pem",
    "ssl.truststore.password": "pw0rd",
    "ssl.keystore.path": "",
    "ssl.keystore.password": "",
    "ssl.cipherSuites": "x",
    "ssl.openssl.keyCertChain": "/etc/cert.pem",
    "ssl.openssl.privateKey": "/etc/key.pem",
    "datastax-java-driver.basic.request.consistency": "ALL",
}


def test_a_datastax_file_loads(capsys: pytest.CaptureFixture[str]) -> None:
    settings = WorkerSettings.from_properties(WORKER, "worker").model.read_settings(THEIRS, "theirs")
    assert settings.events == "events-db1.t1"
    assert settings.cassandra_contact_points == ("10.0.0.1", "10.0.0.2")
    assert (settings.cassandra_port, settings.cassandra_local_dc, settings.cassandra_username) == (9043, "dc1", "u")
    assert (settings.query_concurrency, settings.max_batch_size, settings.cassandra_request_timeout_ms) == (
        10,
        200,
        30_000,
    )
    assert (settings.cassandra_ssl_enabled, settings.cassandra_ssl_check_hostname) == (True, False)
    assert str(settings.cassandra_ssl_cafile) == "/etc/ca.pem"
    assert (str(settings.cassandra_ssl_certfile), str(settings.cassandra_ssl_keyfile)) == (
        "/etc/cert.pem",
        "/etc/key.pem",
    )
    output = capsys.readouterr().out
    assert [key for key in THEIRS if (f"key={key} " in output) == (key in SAME)] == []
    assert "pw0rd" not in output


BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
# As their documentation has it, of the branch `feat/kafka_support`, and what the merged source has besides.
THEIRS_ON_CONNECT = {
    "connector.class": "com.datastax.oss.kafka.sink.CassandraSinkConnector",
    "tasks.max": "1",
    "topics": "events-ks1.table1",
    "key.converter": BYTES,
    "value.converter": BYTES,
    "keyspace": "ks1",
    "table": "table1",
    "contactPoints": "cassandra-host",
    "port": "9042",
    "loadBalancing.localDc": "datacenter1",
    "kafka.bootstrap.servers": "broker:9092",
    "data.topic.prefix": "changed-",
    "outputFormat": "key-value-avro",
}
THEIR_SOURCE = {
    "connector.class": "com.datastax.oss.kafka.source.KafkaCassandraSourceConnector",
    "output.topic": "rows",
    "heartbeat.topic": "beats",
    "internal.consumer.bootstrap.servers": "broker:9092",
    "schema.registry.url": "http://registry:8081",
    "schema.registry.autoRegisterSchemas": "false",
    "batch.maxWaitMs": "10",
    "query.maxTasksInQueue": "200",
}


def test_datastax_files_of_kafka_connect_load() -> None:
    sink = {"name": "n", **THEIRS_ON_CONNECT, "kafka.schema.registry.url": "http://registry:8081"}
    settings = ConnectorSettings.from_properties(sink, "f")
    assert (settings.events, settings.data) == ("events-ks1.table1", "changed-ks1.table1")
    assert (settings.output_format, settings.is_avro) == ("key-value-avro", True)
    source = {key: value for key, value in THEIRS_ON_CONNECT.items() if key not in ("topics", "data.topic.prefix")}
    settings = ConnectorSettings.from_properties({"name": "n", **source, **THEIR_SOURCE}, "f")
    assert (settings.events, settings.data) == ("events-ks1.table1", "rows")
    assert settings.value_converter_schema_registry_url == "http://registry:8081"
    assert not settings.value_converter_auto_register_schemas


def test_datastax_file_without_registry_says_that_avro_needs_one() -> None:
    with pytest.raises(ConfigError) as error:
        ConnectorSettings.from_properties({"name": "n", **THEIRS_ON_CONNECT}, "f")
    (problem,) = error.value.problems
    assert problem.key == "value.converter.schema.registry.url"


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("topics", "events-k.t,events-k.u", "name one topic"),
        ("ssl.truststore.path", "/etc/trust.jks", "a Java trust store is not read"),
        ("queryExecutionTimeout", "30s", "give whole seconds, from 1"),
        ("cloud.secureConnectBundle", "/x.zip", "a bundle of Astra's is not read"),
        ("auth.provider", "GSSAPI", "give a role of Cassandra's own in cassandra.username"),
        ("auth.gssapi.keyTab", "/k.keytab", "give a role of Cassandra's own in cassandra.username"),
        ("ssl.keystore.path", "/etc/key.jks", "export its certificate and key as PEM"),
        (
            "datastax-java-driver.basic.contact-points",
            "a:9043,b:9043",
            "set cassandra.contact.points=a,b, and cassandra.port",
        ),
        ("datastax-java-driver.basic.contact-points", "a:b", "port"),
        ("datastax-java-driver.basic.request.timeout", "soon", "in milliseconds"),
        ("datastax-java-driver.basic.cloud.secure-connect-bundle", "/x.zip", "a bundle of Astra's is not read"),
        (
            "datastax-java-driver.advanced.ssl-engine-factory.truststore-path",
            "/t.jks",
            "a Java trust store is not read",
        ),
        ("datastax-java-driver.advanced.ssl-engine-factory.keystore-path", "/k.jks", "export its certificate"),
    ],
)
def test_settings_without_counterpart_are_refused(key: str, value: str, reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        ConnectorSettings.from_properties(
            {"name": "n", "keyspace": "k", "table": "t", "output.format": "json", key: value}, "f"
        )
    (problem,) = error.value.problems
    assert problem.key == key
    assert reason in problem.reason


def test_the_java_driver_s_own_settings_may_be_the_only_place() -> None:
    driver = {
        "basic.contact-points": "10.0.0.1:9042, 10.0.0.2:9042",
        "basic.load-balancing-policy.local-datacenter": "dc1",
        "basic.request.timeout": "30 seconds",
        "advanced.auth-provider.username": "u",
        "advanced.auth-provider.password": "pw0rd",
        "advanced.ssl-engine-factory.class": "DefaultSslEngineFactory",
        "advanced.ssl-engine-factory.hostname-validation": "false",
        "advanced.ssl-engine-factory.truststore-path": "/ca.pem",
    }
    properties = {f"datastax-java-driver.{path}": value for path, value in driver.items()}
    settings = ConnectorSettings.from_properties(
        {"name": "n", "keyspace": "k", "table": "t", "output.format": "json", **properties}, "f"
    )
    assert settings.cassandra_contact_points == ("10.0.0.1", "10.0.0.2")
    assert (settings.cassandra_local_dc, settings.cassandra_request_timeout_ms) == ("dc1", 30_000)
    assert (settings.cassandra_username, settings.cassandra_ssl_enabled, settings.cassandra_ssl_check_hostname) == (
        "u",
        True,
        False,
    )
    assert settings.cassandra_password
    assert str(settings.cassandra_ssl_cafile) == "/ca.pem"


OF_CONVERTERS = {
    # As the documentation of Confluent's AvroConverter, Apicurio's, and Kafka's own have them.
    "schema.registry.url": "http://r:8081",
    "enhanced.avro.schema.support": "true",
    "connect.meta.data": "false",
    "schemas.cache.config": "500",
    "schemas.cache.size": "1000",
    "normalize.schemas": "true",
    "use.latest.version": "true",
    "latest.compatibility.strict": "false",
    "value.subject.name.strategy": "io.confluent.kafka.serializers.subject.TopicNameStrategy",
    "key.subject.name.strategy": "io.confluent.kafka.serializers.subject.TopicNameStrategy",
    "scrub.invalid.names": "true",
    "allow.optional.map.keys": "true",
    "auto.register.schemas": "true",
    "use.schema.id": "-1",
    "replace.null.with.default": "true",
    "decimal.format": "BASE64",
    "basic.auth.credentials.source": "USER_INFO",
    "basic.auth.user.info": "u:pw0rd",
    "schema.registry.ssl.truststore.location": "/ca.pem",
    "schema.registry.ssl.truststore.password": "pw0rd",
    "schema.registry.ssl.truststore.type": "PEM",
    "schema.registry.ssl.endpoint.identification.algorithm": "https",
    "http.connect.timeout.ms": "60000",
    "apicurio.registry.find-latest": "true",
    "apicurio.registry.headers.enabled": "false",
    "apicurio.registry.as-confluent": "true",
    "apicurio.registry.use-id": "contentId",
}
AVRO = {"name": "n", "keyspace": "k", "table": "t"}


def test_keys_of_converters_load(capsys: pytest.CaptureFixture[str]) -> None:
    of_both = {f"{side}.converter.{key}": value for side in ("key", "value") for key, value in OF_CONVERTERS.items()}
    settings = ConnectorSettings.from_properties({**AVRO, **of_both}, "f")
    assert settings.is_avro
    assert (settings.value_converter_schema_registry_url, settings.value_converter_normalize_schemas) == (
        "http://r:8081",
        True,
    )
    assert str(settings.value_converter_schema_registry_ssl_cafile) == "/ca.pem"
    assert settings.value_converter_schema_registry_basic_auth_user_info
    output = capsys.readouterr().out
    same = {"key.converter.schema.registry.url"}
    same |= {f"{side}.converter.{side}.subject.name.strategy" for side in ("key", "value")}
    same |= {f"value.converter.{key}" for key in ("schema.registry.url", "normalize.schemas", "auto.register.schemas")}
    same |= {"value.converter.latest.compatibility.strict"}
    same |= {f"{side}.converter.use.latest.version" for side in ("key", "value")}
    assert [key for key in of_both if (f"key={key} " in output) == (key in same)] == []
    assert "pw0rd" not in output


@pytest.mark.parametrize(
    ("address", "use"),
    [
        ("http://r:8080/apis/registry/v3", "http://r:8080/apis/ccompat/v7"),
        ("https://r/x/apis/registry/v3/", "https://r/x/apis/ccompat/v7"),
        (
            "http://a:1/apis/registry/v3,http://b:1/apis/registry/v3",
            "http://a:1/apis/ccompat/v7,http://b:1/apis/ccompat/v7",
        ),
    ],
)
def test_apicurio_s_address_is_that_of_its_form_of_confluent_s(address: str, use: str) -> None:
    settings = ConnectorSettings.from_properties({**AVRO, "value.converter.apicurio.registry.url": address}, "f")
    assert settings.value_converter_schema_registry_url == use


@pytest.mark.parametrize("side", ["key", "value"])
@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (
            "subject.name.strategy",
            "io.confluent.kafka.serializers.subject.TopicRecordNameStrategy",
            "TopicNameStrategy",
        ),
        ("use.schema.id", "7", "own"),
        ("decimal.format", "NUMERIC", "decimal.handling.mode"),
        ("rule.executors", "encrypt", "rules of data contracts"),
        ("bearer.auth.token", "pw0rd", "basic.auth.user.info"),
        ("schema.registry.ssl.truststore.location", "/trust.jks", "a Java trust store is not read"),
        ("schema.registry.ssl.keystore.location", "/key.jks", "ssl.certfile"),
        ("schema.registry.ssl.endpoint.identification.algorithm", "none", "always checked"),
        ("apicurio.registry.url", "http://r:8080/apis/registry/v2", "url=http://r:8080/apis/ccompat/v7"),
        ("apicurio.registry.headers.enabled", "true", "in front of a record"),
        ("apicurio.registry.as-confluent", "false", "4 bytes"),
        ("apicurio.registry.use-id", "globalId", "contents"),
        ("apicurio.registry.auth.username", "u", "basic.auth.user.info"),
        ("apicurio.registry.artifact.group-id", "mine", "default group"),
    ],
)
def test_what_would_be_published_otherwise_is_refused(side: str, key: str, value: str, reason: str) -> None:
    properties = {**AVRO, f"{side}.converter.{key}": value}
    if key != "apicurio.registry.url":
        properties["value.converter.schema.registry.url"] = "http://r"
    with pytest.raises(ConfigError) as error:
        ConnectorSettings.from_properties(properties, "f")
    problem = error.value.problems[0]
    assert problem.key == f"{side}.converter.{key}"
    assert reason in problem.reason
    assert "pw0rd" not in str(error.value)
