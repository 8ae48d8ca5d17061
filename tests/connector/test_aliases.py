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
    "datastax-java-driver.basic.request.timeout": "1 s",
}


def test_a_datastax_file_loads(capsys: pytest.CaptureFixture[str]) -> None:
    found = WorkerSettings.of(WORKER, "worker").model.of(THEIRS, "theirs")
    assert found.events == "events-db1.t1"
    assert found.cassandra_contact_points == ("10.0.0.1", "10.0.0.2")
    assert (found.cassandra_port, found.cassandra_local_dc, found.cassandra_username) == (9043, "dc1", "u")
    assert (found.query_concurrency, found.max_batch_size, found.cassandra_request_timeout_ms) == (10, 200, 30_000)
    assert (found.cassandra_ssl_enabled, found.cassandra_ssl_check_hostname) == (True, False)
    assert str(found.cassandra_ssl_cafile) == "/etc/ca.pem"
    assert (str(found.cassandra_ssl_certfile), str(found.cassandra_ssl_keyfile)) == ("/etc/cert.pem", "/etc/key.pem")
    output = capsys.readouterr().out
    assert [key for key in THEIRS if (f"key={key} " in output) == (key in SAME)] == []
    assert "pw0rd" not in output


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("ssl.truststore.path", "/etc/trust.jks", "a Java trust store is not read"),
        ("queryExecutionTimeout", "30s", "give whole seconds, from 1"),
        ("cloud.secureConnectBundle", "/x.zip", "a bundle of Astra's is not read"),
        ("auth.provider", "GSSAPI", "give a role of Cassandra's own in cassandra.username"),
        ("auth.gssapi.keyTab", "/k.keytab", "give a role of Cassandra's own in cassandra.username"),
        ("ssl.keystore.path", "/etc/key.jks", "export its certificate and key as PEM"),
    ],
)
def test_settings_without_counterpart_are_refused(key: str, value: str, reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        ConnectorSettings.of({"name": "n", "keyspace": "k", "table": "t", "output.format": "json", key: value}, "f")
    (problem,) = error.value.problems
    assert problem.key == key
    assert reason in problem.reason
