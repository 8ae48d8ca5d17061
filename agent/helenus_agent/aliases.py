"""Keys of DataStax's agent, and what they are here.

Each is taken as one of ours, or is not needed, and a warning says which. DataStax's agent takes `name=value` arguments,
or variables `CDC_*`: write the arguments as lines of a properties file, as they are.
"""

from __future__ import annotations

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


def _pem(use: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        if value.lower().endswith((".jks", ".p12", ".pfx")):
            raise ValueError(f"a Java trust store is not read: export its certificates as PEM, name that file in {use}")
        return value

    return check


def _token(value: str) -> str:
    kind, _, token = value.partition(":")
    if kind == "file":
        try:
            return Path(token.removeprefix("//")).read_text().strip()
        except OSError as error:
            raise ValueError(f"cannot read the token: {error.strerror}") from None
    if kind != "token" or not token:
        raise ValueError("neither token:TOKEN nor file:///PATH: a token is the only way to log in")
    return token


def _pkcs12(value: str) -> str:
    if value.lower().endswith(".jks"):
        raise ValueError("a JKS key store is not read: convert it with keytool -importkeystore to PKCS12")
    return value


def _kafka(setting: str, why: str = "", convert: Convert = str) -> Alias:
    """Return an alias for a setting of every client of Kafka, over which one of the producer's takes precedence."""
    return Alias(f"kafka.{setting}", why, convert, unless=f"producer.{setting}")


_LIVE = "segments are read while they are written; poll.interval.ms says how often"
_ONE_THREAD = "one thread reads the commit log, in its order"
_QUEUE_LIMIT = "producer.queue.buffering.max.messages and .max.kbytes limit what waits for the broker"
_REPROCESS = "what cannot be read is quarantined: helenus-agent reprocess reads it again"
_QUEUE = "batches leave as they fill, and 32 MB at most wait for the broker"
_TLS = "set kafka.security.protocol=SSL and kafka.ssl.*, whose files are PEM or PKCS12"

# Name, variable, what becomes of it.
_DATASTAX: tuple[tuple[str, str, str | Alias], ...] = (
    ("topicPrefix", "CDC_TOPIC_PREFIX", "topic.prefix"),
    ("cdcWorkingDir", "CDC_WORKING_DIR", "state.dir"),
    ("cdcPollIntervalMs", "CDC_DIR_POLL_INTERVAL_MS", Alias(why=_LIVE)),
    ("errorCommitLogReprocessEnabled", "CDC_ERROR_COMMITLOG_REPROCESS_ENABLED", Alias(why=_REPROCESS)),
    ("cdcConcurrentProcessors", "CDC_CONCURRENT_PROCESSORS", Alias(why=_ONE_THREAD)),
    ("maxInflightMessagesPerTask", "CDC_MAX_INFLIGHT_MESSAGES_PER_TASK", Alias(why=_QUEUE_LIMIT)),
    ("messagingProvider", "CDC_MESSAGING_PROVIDER", Alias("log", convert=str.lower)),
    ("kafkaBootstrapServers", "CDC_KAFKA_BOOTSTRAP_SERVERS", "bootstrap.servers"),
    ("kafkaAcks", "CDC_KAFKA_ACKS", Alias(why="always all: with less, changes are lost")),
    ("kafkaCompressionType", "CDC_KAFKA_COMPRESSION_TYPE", "producer.compression.type"),
    ("kafkaBatchSize", "CDC_KAFKA_BATCH_SIZE", "producer.batch.size"),
    ("kafkaLingerMs", "CDC_KAFKA_LINGER_MS", "producer.linger.ms"),
    (
        "kafkaMaxInFlightRequests",
        "CDC_KAFKA_MAX_IN_FLIGHT_REQUESTS",
        "producer.max.in.flight.requests.per.connection",
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
        _kafka("ssl.ca.location", _TLS, _pem("kafka.ssl.ca.location")),
    ),
    ("sslTruststorePassword", "CDC_SSL_TRUSTSTORE_PASSWORD", Alias(why="a file of certificates needs none")),
    ("sslTruststoreType", "CDC_SSL_TRUSTSTORE_TYPE", Alias(why="certificates are PEM")),
    ("sslKeystorePath", "CDC_SSL_KEYSTORE_PATH", _kafka("ssl.keystore.location", _TLS, _pkcs12)),
    ("sslKeystorePassword", "CDC_SSL_KEYSTORE_PASSWORD", _kafka("ssl.keystore.password")),
    ("sslKeystoreType", "CDC_SSL_KEYSTORE_TYPE", Alias(why="a key store is PKCS12")),
    ("sslCipherSuites", "CDC_SSL_CIPHER_SUITES", Alias(why="OpenSSL's names: set kafka.ssl.cipher.suites")),
    ("sslEnabledProtocols", "CDC_SSL_ENABLED_PROTOCOLS", Alias(why="OpenSSL takes the newest that both sides know")),
    (
        "sslAllowInsecureConnection",
        "CDC_SSL_ALLOW_INSECURE_CONNECTION",
        _kafka("enable.ssl.certificate.verification", convert=_when("false", "true")),
    ),
    (
        "sslHostnameVerificationEnable",
        "CDC_SSL_HOSTNAME_VERIFICATION_ENABLE",
        _kafka("ssl.endpoint.identification.algorithm", convert=_when("https", "none")),
    ),
    (
        "tlsTrustCertsFilePath",
        "CDC_TLS_TRUST_CERTS_FILE_PATH",
        "pulsar.tls.cafile",
    ),
    ("useKeyStoreTls", "CDC_USE_KEYSTORE_TLS", Alias(why=_TLS)),
)

ALIASES: Mapping[str, str | Alias] = {name: alias for name, _, alias in _DATASTAX}
_PULSAR_TLS = "TLS is on with pulsar.service.url=pulsar+ssl://, and its authorities are in pulsar.tls.cafile"
_NO_CLIENT_CERTIFICATE = "a token is the only way to log in to Pulsar"
ON_PULSAR: Mapping[str, str | Alias] = {
    "sslTruststorePath": Alias("pulsar.tls.cafile", _PULSAR_TLS, _pem("pulsar.tls.cafile")),
    "sslHostnameVerificationEnable": "pulsar.tls.check.hostname",
    "sslAllowInsecureConnection": Alias(why="certificates of Pulsar's brokers are always verified"),
    **dict.fromkeys(("sslProvider", "useKeyStoreTls"), Alias(why=_PULSAR_TLS)),
    **dict.fromkeys(("sslKeystorePath", "sslKeystorePassword", "sslKeystoreType"), Alias(why=_NO_CLIENT_CERTIFICATE)),
    "sslCipherSuites": Alias(why="OpenSSL takes the best that both sides know"),
}
"""Those of `ALIASES` that mean something else where events go to Pulsar."""
ENVIRONMENT: Mapping[str, str] = {variable: name for name, variable, _ in _DATASTAX if variable}
"""Variable of DataStax's agent -> its argument."""


def names_pulsar(properties: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Return whether a file, or variables, of DataStax's agent have events go to Pulsar: with
    `messagingProvider=pulsar`; or without it, as before their agent knew another, with Pulsar's address and no brokers
    of Kafka.
    """
    arguments = {**{ENVIRONMENT[variable]: text for variable, text in environment.items()}, **properties}
    if chosen := arguments.get("log", arguments.get("messagingProvider")):
        return chosen.strip().lower() == "pulsar"
    brokers = ("bootstrap.servers", "kafka.bootstrap.servers", "kafkaBootstrapServers")
    return "pulsarServiceUrl" in arguments and not any(key in arguments for key in brokers)
