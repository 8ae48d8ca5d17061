"""Settings that Kafka's Java producer has and librdkafka has not: which of them means what there, and which nothing.

Source: `ProducerConfig`, `SslConfigs` and `SaslConfigs` of Kafka 4.3, and CONFIGURATION.md of librdkafka 2.
"""

from __future__ import annotations

from collections.abc import Mapping

RENAMED: Mapping[str, str] = {
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
}
"""Of numbers that librdkafka has under another name. -1, the system's own size, is 0 there."""
SECURITY: Mapping[str, str] = {
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "sasl.oauthbearer.assertion.template.file": "sasl.oauthbearer.assertion.jwt.template.file",
}
"""Of certificates and keys that are in the file itself, and of logins: every client needs them."""
_CLASS = "it names a Java class, and none is run"
_METRICS = "metrics are at /metrics"
_PARTITIONER = "a row's partition is that of its event, so that its records stay in order"
_LOGIN = "librdkafka renews logins by itself"
_TLS = "OpenSSL takes the newest version that both sides know"
_BROKERS = "it is the brokers' concern"
UNUSED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "key.serializer",
            "value.serializer",
            "partitioner.class",
            "interceptor.classes",
            "security.providers",
            "config.providers",
            "ssl.engine.factory.class",
            "sasl.client.callback.handler.class",
            "sasl.login.callback.handler.class",
            "sasl.login.class",
            "sasl.oauthbearer.jwt.retriever.class",
            "sasl.oauthbearer.jwt.validator.class",
        ),
        _CLASS,
    ),
    **dict.fromkeys(
        (
            "metric.reporters",
            "metrics.num.samples",
            "metrics.recording.level",
            "metrics.sample.window.ms",
            "auto.include.jmx.reporter",
        ),
        _METRICS,
    ),
    **dict.fromkeys(
        (
            "partitioner.adaptive.partitioning.enable",
            "partitioner.availability.timeout.ms",
            "partitioner.ignore.keys",
            "partitioner.rack.aware",
        ),
        _PARTITIONER,
    ),
    **dict.fromkeys(
        (
            "sasl.kerberos.ticket.renew.jitter",
            "sasl.kerberos.ticket.renew.window.factor",
            "sasl.login.connect.timeout.ms",
            "sasl.login.read.timeout.ms",
            "sasl.login.refresh.buffer.seconds",
            "sasl.login.refresh.min.period.seconds",
            "sasl.login.refresh.window.factor",
            "sasl.login.refresh.window.jitter",
            "sasl.login.retry.backoff.max.ms",
            "sasl.login.retry.backoff.ms",
            "sasl.oauthbearer.header.urlencode",
        ),
        _LOGIN,
    ),
    **dict.fromkeys(
        (
            "sasl.oauthbearer.clock.skew.seconds",
            "sasl.oauthbearer.expected.audience",
            "sasl.oauthbearer.expected.issuer",
            "sasl.oauthbearer.jwks.endpoint.refresh.ms",
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
            "sasl.oauthbearer.jwks.endpoint.url",
            "sasl.oauthbearer.scope.claim.name",
        ),
        _BROKERS,
    ),
    **dict.fromkeys(
        (
            "ssl.enabled.protocols",
            "ssl.keymanager.algorithm",
            "ssl.protocol",
            "ssl.provider",
            "ssl.secure.random.implementation",
            "ssl.trustmanager.algorithm",
        ),
        _TLS,
    ),
    **dict.fromkeys(
        ("ssl.truststore.password", "ssl.truststore.type", "ssl.keystore.type"),
        "stores of certificates are files of PEM or PKCS12",
    ),
    **dict.fromkeys(
        ("compression.gzip.level", "compression.lz4.level", "compression.zstd.level"),
        "set compression.level, that of the compression.type",
    ),
    **dict.fromkeys(
        ("buffer.memory", "max.block.ms"), "32 MB at most wait for the broker, and segments wait for it in cdc_raw"
    ),
    "metadata.max.idle.ms": "librdkafka forgets topics that are not used by itself",
    "socket.connection.setup.timeout.max.ms": "librdkafka has the one of socket.connection.setup.timeout.ms",
    "transaction.two.phase.commit.enable": "there are no transactions here",
    "schema.registry": "the registry is that of the converters",
    "schema.registry.*": "the registry is that of the converters",
}
"""By name, why it means nothing here."""


def system_default(value: str) -> str:
    """Return a buffer's size as librdkafka has it."""
    return "0" if value.strip() == "-1" else value
