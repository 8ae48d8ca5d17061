"""The producer's settings: our defaults, and which of an operator's settings librdkafka refuses, of any client."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping

from confluent_kafka import Consumer, KafkaException, Producer

from helenus_schemas.settings import masking
from helenus_sinks.kafka.errors import text_of

DEFAULTS: dict[str, object] = {
    "enable.idempotence": "true",
    "acks": "all",
    # Of the codecs that shrink records to a fraction, gzip takes three to five times the CPU; kafkajs reads no other
    # without a further package. docs/sinks.md has the figures.
    "compression.type": "lz4",
    "linger.ms": "5",
    "log_level": "0",
    # `create` makes topics, with the right settings. Brokers that create topics by themselves use other settings.
    "allow.auto.create.topics": "false",
    # Success needs no call: `flush` counts the records that are left, and `_on_delivery_error` is called on errors.
    "delivery.report.only.error": True,
    # The queue while the broker is away; each record takes about 250 bytes in addition to its own.
    "queue.buffering.max.messages": "50000",
    "queue.buffering.max.kbytes": "32768",
}
_NO_KERBEROS = (
    "set sasl.mechanism to PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER: its default is Kerberos (GSSAPI), which "
    "this build of librdkafka does not have"
)
_NO_TRANSACTIONS = "transactions have ids of their own here: leave it out"
_PRETENDS = "it is for librdkafka's own tests: records go to no broker, and are lost. Leave it out"
_LOSES_ORDER = "without it, a record that is sent again may come before an older one: leave it out"
_COMMITTED = "read_committed"  # which is librdkafka's default
_READS_ABORTED = "records of transactions that were aborted would count as what was published: leave it out"
_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
# What is used with some values of security.protocol alone, and which to advise.
_PROTOCOL_DEPENDENT = (
    (re.compile(r"sasl\.(mechanisms?|username|password)"), ("sasl_ssl", "sasl_plaintext"), "SASL_SSL: sasl.*"),
    (re.compile(r"ssl\.(ca|certificate|key|keystore)\.(location|pem)"), ("sasl_ssl", "ssl"), "SSL or SASL_SSL: ssl.*"),
)
_FILES = re.compile(r"ssl\.(ca|crl|certificate|key|keystore)\.location")
_NO_FILE = "there is no such file, or it may not be read"
_UNKNOWN = "No such configuration property"
_CONFLICT = "Failed to create"  # begins librdkafka's message about settings that do not go together


def is_client(key: str) -> bool:
    """True for settings of the connection, which every kind of client takes."""
    return key.startswith(("bootstrap.", "security.", "sasl.", "ssl.", "enable.ssl.", "client.", "broker.", "socket."))


def client_settings(config: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the connection alone, for a client that is not the producer that `config` is for."""
    return {"log_level": "0", **{key: text for key, text in config.items() if is_client(key)}}


def shown(key: str, name: str, config: Mapping[str, str], reason: str) -> str | None:
    """Return the value of a setting that is wrong, as an error may show it under its `key`; None for one that is not
    there, and for one that librdkafka does not know: a secret whose name has a slip in it.
    """
    if name not in config or reason.startswith(_UNKNOWN):
        return None
    return masking.shown(config[name], masking.is_secret(key, config[name]))


def wrong_settings(config: Mapping[str, str], checked: Collection[str], consumer: bool = False) -> dict[str, str]:
    """Return the settings of a producer, or of a `consumer`, that librdkafka refuses before it connects, or that give
    up a promise: a reason for each wrong one of those that are `checked`, and under "" a reason that names none of
    them. Under security.protocol, which may be missing, also that others are not used.
    """
    refuse = _consumer_refusal if consumer else _refusal
    reasons = _broken_promises(config, checked)
    if unused := _unused_reason(config):
        reasons["security.protocol"] = unused
    if not refuse({key: value for key, value in config.items() if key not in reasons}):
        return reasons
    for key in set(checked) - set(reasons):
        reason = refuse({"bootstrap.servers": "none:1", key: config[key]})
        if reason and not reason.startswith(_CONFLICT):
            reasons[key] = reason
    # What is left is refused in combination: each refusal names a setting, which is left out of the next try.
    remaining = {key: value for key, value in config.items() if key not in reasons}
    while (reason := refuse(remaining)) and "" not in reasons:
        named = (
            key for key in checked if key in remaining and re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", reason)
        )
        key = next(named, "")
        reasons[key] = reason
        remaining.pop(key, None)
    return {key: _NO_KERBEROS if "mechanism GSSAPI: recompile" in reason else reason for key, reason in reasons.items()}


def _broken_promises(config: Mapping[str, str], checked: Collection[str]) -> dict[str, str]:
    """Return the settings that librdkafka accepts, and that lose order or records, begin transactions, read those that
    were aborted, or name missing files.
    """
    reasons = {key: _NO_TRANSACTIONS for key in checked if key == "transactional.id"}
    reasons |= {key: _LOSES_ORDER for key in checked if key == "enable.idempotence" and config[key].lower() == "false"}
    reasons |= {key: _READS_ABORTED for key in checked if key == "isolation.level" and config[key] != _COMMITTED}
    reasons |= {key: _PRETENDS for key in checked if key.startswith("test.")}
    reasons |= {key: _NO_FILE for key in checked if _FILES.fullmatch(key) and _is_missing(config[key])}
    return reasons


def _unused_reason(config: Mapping[str, str]) -> str | None:
    """Return why security.protocol is wrong where a login or certificates are given, and it uses none."""
    protocol = config.get("security.protocol", "plaintext").lower()
    for keys, used_with, advice in _PROTOCOL_DEPENDENT:
        if protocol in _PROTOCOLS and protocol not in used_with and any(keys.fullmatch(key) for key in config):
            return f"set it to {advice} is not used without it"
    return None


def _is_missing(path: str) -> bool:
    return path != "probe" and not os.access(path, os.R_OK)  # librdkafka looks in the usual places then


def _refusal(config: Mapping[str, str]) -> str:
    try:
        Producer({**DEFAULTS, **config, "log_level": "0"})
    except KafkaException as failure:
        return text_of(failure.args[0])
    return ""


def _consumer_refusal(config: Mapping[str, str]) -> str:
    try:
        Consumer({**config, "group.id": "none", "log_level": "0"}).close()
    except KafkaException as failure:
        return text_of(failure.args[0])
    return ""
