"""Keys of DataStax's agent and of Debezium's Cassandra connector, and what they are here.

A file of theirs loads: each key is taken as one of ours, or is not needed, and a warning says which. DataStax's agent
takes `name=value` arguments, or variables `CDC_*`: write the arguments as lines of a properties file, as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from helenus_schemas.settings.model import Alias

Convert = Callable[[str], "str | None"]


def _truth(value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise ValueError(f"neither true nor false: {value!r}")
    return value.strip().lower() == "true"


def _when(true: str | None, false: str | None) -> Convert:
    return lambda value: true if _truth(value) else false


def _pem(value: str) -> str:
    if value.lower().endswith((".jks", ".p12", ".pfx")):
        raise ValueError(
            "a Java trust store is not read: export its certificates as PEM, "
            "name that file in kafka.producer.ssl.ca.location"
        )
    return value


def _token(value: str) -> str:
    kind, _, rest = value.partition(":")
    if kind == "file":
        try:
            return Path(rest.removeprefix("//")).read_text().strip()
        except OSError as error:
            raise ValueError(f"cannot read the token: {error.strerror}") from None
    if kind != "token" or not rest:
        raise ValueError("neither token:TOKEN nor file:///PATH: a token is the only way to log in")
    return rest


def _pkcs12(value: str) -> str:
    if value.lower().endswith(".jks"):
        raise ValueError("a JKS key store is not read: convert it with keytool -importkeystore to PKCS12")
    return value


def _transfer(value: str) -> str:
    if value.endswith("BlackHoleCommitLogTransfer"):
        return "delete"
    raise ValueError(
        f"no Java class can be run: segment.transfer takes delete, archive or package.module:Name, {value}"
    )


_LIVE = "segments are read while they are written; poll.interval.ms says how often"
_ONE = "one thread reads the commit log, in its order"
_BOUND = "kafka.producer.queue.buffering.max.messages and .max.kbytes limit what waits for the broker"
_REPROCESS = "what cannot be read is quarantined: helenus-agent reprocess reads it again"
_QUEUE = "batches leave as they fill, and 32 MB at most wait for the broker"
_TLS = "set kafka.producer.security.protocol=SSL and kafka.producer.ssl.*, whose files are PEM or PKCS12"
_SAVED = "positions are saved at most four times a second, after the broker's acknowledgement"
_EVENTS_ONLY = "events name what changed and carry no rows; the connector makes the records"
_NO_SNAPSHOT = "the agent reads only the commit log; the connector takes snapshots, as its own snapshot.mode says"
_ASKED = "the agent asks the node for it"
_NAMED = "the node's host id names the agent"

# Name, variable, what becomes of it.
_DATASTAX: tuple[tuple[str, str, str | Alias], ...] = (
    ("topicPrefix", "CDC_TOPIC_PREFIX", "topic.prefix"),
    ("cdcWorkingDir", "CDC_WORKING_DIR", "state.dir"),
    ("cdcPollIntervalMs", "CDC_DIR_POLL_INTERVAL_MS", Alias(why=_LIVE)),
    ("errorCommitLogReprocessEnabled", "CDC_ERROR_COMMITLOG_REPROCESS_ENABLED", Alias(why=_REPROCESS)),
    ("cdcConcurrentProcessors", "CDC_CONCURRENT_PROCESSORS", Alias(why=_ONE)),
    ("maxInflightMessagesPerTask", "CDC_MAX_INFLIGHT_MESSAGES_PER_TASK", Alias(why=_BOUND)),
    ("messagingProvider", "CDC_MESSAGING_PROVIDER", Alias("log", convert=str.lower)),
    ("kafkaBootstrapServers", "CDC_KAFKA_BOOTSTRAP_SERVERS", "kafka.bootstrap.servers"),
    ("kafkaAcks", "CDC_KAFKA_ACKS", Alias(why="always all: with less, changes are lost")),
    ("kafkaCompressionType", "CDC_KAFKA_COMPRESSION_TYPE", "kafka.producer.compression.type"),
    ("kafkaBatchSize", "CDC_KAFKA_BATCH_SIZE", "kafka.producer.batch.size"),
    ("kafkaLingerMs", "CDC_KAFKA_LINGER_MS", "kafka.producer.linger.ms"),
    (
        "kafkaMaxInFlightRequests",
        "CDC_KAFKA_MAX_IN_FLIGHT_REQUESTS",
        "kafka.producer.max.in.flight.requests.per.connection",
    ),
    ("kafkaSchemaRegistryUrl", "CDC_KAFKA_SCHEMA_REGISTRY_URL", Alias(why="only the connector needs it")),
    ("pulsarServiceUrl", "CDC_PULSAR_SERVICE_URL", "pulsar.service.url"),
    ("pulsarBatchDelayInMs", "CDC_PULSAR_BATCH_DELAY_IN_MS", Alias(why=_QUEUE)),
    ("pulsarKeyBasedBatcher", "CDC_PULSAR_KEY_BASED_BATCHER", Alias(why=_QUEUE)),
    ("pulsarMaxPendingMessages", "CDC_PULSAR_MAX_PENDING_MESSAGES", Alias(why=_QUEUE)),
    ("pulsarMaxPendingMessagesAcrossPartitions", "", Alias(why=_QUEUE)),
    ("pulsarMemoryLimitBytes", "CDC_PULSAR_MEMORY_LIMIT_BYTES", Alias(why=_QUEUE)),
    ("pulsarAuthPluginClassName", "CDC_PULSAR_AUTH_PLUGIN_CLASS_NAME", Alias(why="a token is the only way to log in")),
    ("pulsarAuthParams", "CDC_PULSAR_AUTH_PARAMS", Alias("pulsar.auth.token", convert=_token)),
    ("sslProvider", "CDC_SSL_PROVIDER", Alias(why=_TLS)),
    (
        "sslTruststorePath",
        "CDC_SSL_TRUSTSTORE_PATH",
        Alias("kafka.producer.ssl.ca.location", _TLS, _pem),
    ),
    ("sslTruststorePassword", "CDC_SSL_TRUSTSTORE_PASSWORD", Alias(why="a file of certificates needs none")),
    ("sslTruststoreType", "CDC_SSL_TRUSTSTORE_TYPE", Alias(why="certificates are PEM")),
    ("sslKeystorePath", "CDC_SSL_KEYSTORE_PATH", Alias("kafka.producer.ssl.keystore.location", _TLS, _pkcs12)),
    ("sslKeystorePassword", "CDC_SSL_KEYSTORE_PASSWORD", "kafka.producer.ssl.keystore.password"),
    ("sslKeystoreType", "CDC_SSL_KEYSTORE_TYPE", Alias(why="a key store is PKCS12")),
    ("sslCipherSuites", "CDC_SSL_CIPHER_SUITES", Alias(why="OpenSSL's names: set kafka.producer.ssl.cipher.suites")),
    ("sslEnabledProtocols", "CDC_SSL_ENABLED_PROTOCOLS", Alias(why="OpenSSL takes the newest that both sides know")),
    (
        "sslAllowInsecureConnection",
        "CDC_SSL_ALLOW_INSECURE_CONNECTION",
        Alias("kafka.producer.enable.ssl.certificate.verification", convert=_when("false", "true")),
    ),
    (
        "sslHostnameVerificationEnable",
        "CDC_SSL_HOSTNAME_VERIFICATION_ENABLE",
        Alias("kafka.producer.ssl.endpoint.identification.algorithm", convert=_when("https", "none")),
    ),
    (
        "tlsTrustCertsFilePath",
        "CDC_TLS_TRUST_CERTS_FILE_PATH",
        "pulsar.tls.cafile",
    ),
    ("useKeyStoreTls", "CDC_USE_KEYSTORE_TLS", Alias(why=_TLS)),
)

_DEBEZIUM: Mapping[str, str | Alias] = {
    "connector.class": Alias(why="this is the agent"),
    "name": Alias(why=_NAMED),
    "connector.name": Alias(why=_NAMED),
    "cassandra.hosts": "cassandra.contact.points",
    "cassandra.ssl.config.path": Alias(
        why="a file of Java key stores: set cassandra.ssl.cafile, .certfile and .keyfile, with PEM files"
    ),
    # Theirs puts the dot between prefix and keyspace by itself.
    "kafka.topic.prefix": Alias("topic.prefix", convert=lambda value: f"{value}."),
    "kafka.consumer.*": Alias(why="the agent reads no topic"),
    "tasks.max": Alias(why=_ONE),
    "cassandra.node.id": Alias(why=_ASKED),
    "cassandra.cluster.name": Alias(why=_ASKED),
    "cassandra.driver.config.file": Alias(
        why="set cassandra.contact.points, cassandra.port, cassandra.username, cassandra.password and cassandra.ssl.*"
    ),
    "offset.backing.store.dir": "state.dir",
    "offset.flush.interval.ms": Alias(why=_SAVED),
    "max.offset.flush.size": Alias(why=_SAVED),
    "commit.log.relocation.dir": Alias(
        "segment.archive.dir", "only segment.transfer=archive uses it", lambda value: f"{value.rstrip('/')}/archive"
    ),
    "commit.log.post.processing.enabled": Alias("segment.transfer", convert=_when(None, "archive")),
    "commit.log.transfer.class": Alias("segment.transfer", convert=_transfer),
    "commit.log.transfer.*": Alias(why="they are settings of a Java class, and none is run"),
    "commit.log.real.time.processing.enabled": Alias(why=_LIVE),
    "commit.log.error.reprocessing.enabled": Alias(why=_REPROCESS),
    "commit.log.relocation.dir.poll.interval.ms": Alias(why=_LIVE),
    "commit.log.marked.complete.poll.interval.ms": Alias(why=_LIVE),
    "commit.log.processor.shutdown.timeout.seconds": Alias(why="it stops within ten seconds"),
    "cdc.dir.poll.interval.ms": Alias(why=_LIVE),
    "latest.commit.log.only": Alias(why="every segment is read"),
    "num.of.change.event.queues": Alias(why=_ONE),
    "event.order.guarantee.mode": Alias(why=_ONE),
    "max.queue.size": Alias(why=_BOUND),
    "max.batch.size": Alias(why=_BOUND),
    "kafka.producer.bootstrap.servers": "kafka.bootstrap.servers",
    "kafka.producer.key.serializer": Alias(why="it names a Java class, and none is run"),
    "kafka.producer.value.serializer": Alias(why="it names a Java class, and none is run"),
    "kafka.producer.buffer.memory": Alias(why=_BOUND),
    "key.converter": Alias(why=_EVENTS_ONLY),
    "key.converter.*": Alias(why=_EVENTS_ONLY),
    "value.converter": Alias(why=_EVENTS_ONLY),
    "value.converter.*": Alias(why=_EVENTS_ONLY),
    **dict.fromkeys(
        ("field.exclude.list", "column.exclude.list", "field.blacklist", "column.blacklist"),
        Alias(why=f"{_EVENTS_ONLY}, and its property columns leaves some out"),
    ),
    "skipped.operations": Alias(why="every change is published, a TRUNCATE too"),
    "max.queue.size.in.bytes": Alias(why=_BOUND),
    "errors.max.retries": Alias(why="errors that may pass are tried again without end"),
    "custom.metric.tags": Alias(why="metrics are at /metrics of http.port, and have Prometheus's labels"),
    **dict.fromkeys(
        ("topic.naming.strategy", "topic.delimiter", "topic.cache.size"),
        Alias(why="topics are named by topic.prefix, keyspace and table"),
    ),
    **dict.fromkeys(
        ("topic.heartbeat.prefix", "heartbeat.interval.ms"),
        Alias(why="there is no heartbeat topic: /health/ready of http.port says whether the agent works"),
    ),
    **dict.fromkeys(
        ("schema.name.adjustment.mode", "field.name.adjustment.mode"),
        Alias(why="names that Avro forbids are always replaced"),
    ),
    "tombstones.on.delete": Alias(why=_EVENTS_ONLY),
    "decimal.handling.mode": Alias(why=_EVENTS_ONLY),
    "varint.handling.mode": Alias(why=_EVENTS_ONLY),
    "snapshot.*": Alias(why=_NO_SNAPSHOT),
    "schema.refresh.interval.ms": Alias(why="the commit log itself shows when the schema changes"),
    "tracing.enabled": Alias(why="there is no tracing"),
}

ALIASES: Mapping[str, str | Alias] = {**{name: what for name, _, what in _DATASTAX}, **_DEBEZIUM}
ENVIRONMENT: Mapping[str, str] = {variable: name for name, variable, _ in _DATASTAX if variable}
"""Variable of DataStax's agent -> its argument."""


def topic_advice(properties: Mapping[str, str]) -> str | None:
    """What to say of a `topic.prefix` that was Debezium's, which appends a dot; None if it isn't."""
    prefix = properties.get("topic.prefix", "")
    if prefix and re.search(r"\w$", prefix) and not _DEBEZIUM.keys().isdisjoint(properties):
        return f"topics are named {prefix}keyspace.table: end it in a dot to have Debezium's names"
    return None
