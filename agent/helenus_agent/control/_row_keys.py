"""Which keys a row of the table `configs` may have: an allow-list, since whoever may write to a table in Cassandra gets
no right on the agents' machines by it. Nothing in it names a file, a directory or code of a node.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping

from helenus_agent.config import AgentSettings
from helenus_schemas.settings import masking
from helenus_schemas.settings.properties import Problem

SERVICES = ("cdc", "kafka", "pulsar")
CDC_ENABLED = "cdc_enabled"
MAX_KEYS, MAX_CHARACTERS = 500, 10_000
"""Of a row, and of a key or a value: more than any setting has, so that no row becomes a large partition."""

ROW_KEYS = frozenset(
    "log topic.prefix headers topic.partitions topic.creation.default.replication.factor topic.retention.ms "
    "table.include.list table.exclude.list cells.include.list errors.large.event transactional.tables read.mode "
    "poll.interval.ms log.level otel.traces.sampler.arg metrics.other.products bootstrap.servers pulsar.service.url "
    "pulsar.admin.url pulsar.tenant pulsar.namespace pulsar.auth.token pulsar.tls.check.hostname".split()
)
"""Keys of an agent's file that a row may have: those that are the same on all nodes."""
ROW_SETTINGS = frozenset(
    "security.protocol sasl.mechanism sasl.mechanisms sasl.username sasl.password ssl.ca.pem ssl.certificate.pem "
    "ssl.key.pem ssl.key.password ssl.cipher.suites ssl.curves.list ssl.sigalgs.list "
    "ssl.endpoint.identification.algorithm enable.ssl.certificate.verification client.id client.dns.lookup acks "
    "request.required.acks enable.idempotence compression.type compression.codec compression.level linger.ms "
    "queue.buffering.max.ms queue.buffering.max.messages queue.buffering.max.kbytes batch.size batch.num.messages "
    "message.max.bytes message.timeout.ms delivery.timeout.ms request.timeout.ms retries message.send.max.retries "
    "retry.backoff.ms retry.backoff.max.ms max.in.flight max.in.flight.requests.per.connection socket.timeout.ms "
    "socket.connection.setup.timeout.ms socket.keepalive.enable socket.nagle.disable socket.send.buffer.bytes "
    "socket.receive.buffer.bytes connections.max.idle.ms reconnect.backoff.ms reconnect.backoff.max.ms "
    "broker.address.family broker.address.ttl metadata.max.age.ms topic.metadata.refresh.interval.ms".split()
)
"""Settings of librdkafka that a row may have, below `kafka.` or `producer.`. What is not here may read a file, load a
library, run a command, or publish to a broker that librdkafka only pretends to have.
"""
_SYNONYMS = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanisms": "sasl.mechanism",
    "request.required.acks": "acks",
    "compression.codec": "compression.type",
    "queue.buffering.max.ms": "linger.ms",
    "delivery.timeout.ms": "message.timeout.ms",
    "retries": "message.send.max.retries",
    "max.in.flight": "max.in.flight.requests.per.connection",
}
"""Settings of librdkafka that are another name of one."""
_PATTERN_KEYS = ("table.include.list", "table.exclude.list", "cells.include.list")
_MAX_PATTERN, _MAX_REPETITIONS = 1000, 2
_NODE_ONLY = "set it in the agent's own file or environment"
_NODE_ONLY_REASON = f"it concerns a single node: {_NODE_ONLY}"
_NO_STATE = "each agent keeps its own positions, by node"
_UNUSED: dict[str, dict[str, str]] = {
    "cdc": {
        "env": "events have no environment",
        "jobid": _NO_STATE,
        "persist_state": _NO_STATE,
        "persist_delay_millis": _NO_STATE,
        "watermark_seconds": "no change is dropped for its age",
        "max_watermarker_size": "no copies wait in the agent: gate=local_quorum of a connector counts them",
        "micro_batch_delay_millis": "segments are read while they are written",
        "max_commit_logs": "segments are read one after the other",
        "fail_kafka_errors": "nothing counts as sent until it is acknowledged",
        "fail_kafka_too_large_errors": "errors.large.event says what becomes of one",
    },
    "kafka": dict.fromkeys(("key.serializer", "value.serializer"), "it names a Java class, and none is run"),
}
"""Keys of the Sidecar's rows that are not needed here, and why."""
_REFUSED = {
    "topic": "events of ks.table go to the topic of topic.prefix followed by ks.table: leave it out",
    "topic_format_type": "events of ks.table go to the topic of topic.prefix followed by ks.table: leave it out",
    "datacenter": "each agent publishes its own node's log: leave it out, and start agents in that data centre alone",
    "log_only": "events go to the message broker: leave it out",
}


def source_name(service: str) -> str:
    """Return how messages name a row."""
    return f"service {service}"


def property_name(service: str, key: str) -> str:
    """Return the agent's key for a row's. The service `kafka` may also have settings of a producer by themselves."""
    name = AgentSettings.present_name(key)
    return f"producer.{key}" if service == "kafka" and not AgentSettings.knows(name) else name


def setting_name(name: str) -> str:
    """Return one name for an agent's key, whether it is below `kafka.` or `producer.`, and whichever of librdkafka's
    names it has.
    """
    setting = name.removeprefix("producer.") if name.startswith("producer.") else name.removeprefix("kafka.")
    return _SYNONYMS.get(setting, setting)


def is_used(service: str, key: str) -> bool:
    """Return whether a key of a row becomes a setting."""
    return key != CDC_ENABLED and key not in _UNUSED.get(service, {})


def key_problems(service: str, config: Mapping[str, str]) -> Iterator[Problem]:
    """Yield what is wrong with keys by themselves: those that a row may not have, and secrets in clear."""
    source = source_name(service)
    if service not in SERVICES:
        return  # rows of other programs may be there too
    if len(config) > MAX_KEYS:
        yield Problem(source, "", None, f"it has {len(config)} keys: {MAX_KEYS} are the most")
        return
    for key, value in config.items():
        name = property_name(service, key)
        if len(key) > MAX_CHARACTERS or len(value) > MAX_CHARACTERS:
            yield Problem(source, key[:100], None, f"a key or a value has {MAX_CHARACTERS} characters at most")
        elif reason := _key_refusal(service, key, name):
            yield Problem(source, key, None, reason)
        elif key == CDC_ENABLED and value.strip().lower() not in ("true", "false"):
            yield Problem(source, key, value, "give true or false")
        elif name == "log" and value.strip() not in ("kafka", "pulsar"):
            yield Problem(source, key, value, "give kafka or pulsar")
        elif name in _PATTERN_KEYS and (reason := _pattern_refusal(value)):
            yield Problem(source, key, value, reason)
        elif _is_in_clear(key, value):
            reason = "a secret is not stored in clear: give a reference, ${env:NAME} or ${file:PATH:KEY}"
            yield Problem(source, key, masking.STARS, reason)


def shown_config(config: Mapping[str, str]) -> dict[str, str]:
    """Return keys and values as they may be shown. A row that was written by CQL may have secrets in it."""
    return {key: masking.shown(value, AgentSettings.hides(key, value)) for key, value in config.items()}


def _key_refusal(service: str, key: str, name: str) -> str:
    """Return why a row of a service may not have a key, empty if it may."""
    if key in _UNUSED.get(service, {}) or (service == "cdc" and key == CDC_ENABLED):
        return ""
    if service == "cdc" and key in _REFUSED:
        return _REFUSED[key]
    if name.startswith("topic.config.") or name in ROW_KEYS:
        return ""
    if name.startswith(("kafka.", "producer.")):
        setting = name.partition(".")[2]
        if setting in ROW_SETTINGS:
            return ""
        similar = next(iter(difflib.get_close_matches(setting, sorted(ROW_SETTINGS), 1)), None)
        hint = f"did you mean {similar}? Otherwise " if similar else ""
        return f"it is not among librdkafka's settings that a row may have: {hint}{_NODE_ONLY}"
    return _NODE_ONLY_REASON if AgentSettings.knows(name) else AgentSettings.unknown(key)


def _pattern_refusal(value: str) -> str:
    """Return why a row may not have this list of regular expressions, empty if it may. Matching one takes a time that
    grows with the square of a name's length at most: a group that repeats, or many repetitions, may take for ever.
    """
    if masking.refers(value):
        return "give the names themselves: a row's list of tables is checked before it is stored"
    for pattern in value.split(","):
        if len(pattern) > _MAX_PATTERN:
            return f"an expression in a row has {_MAX_PATTERN} characters at most"
        if re.search(r"[(){}|]", pattern):
            return "an expression in a row has no ( ) { } |: give several, with commas between them"
        if len(re.findall(r"[*+?]", pattern)) > _MAX_REPETITIONS:
            return f"an expression in a row has {_MAX_REPETITIONS} of * + ? at most"
    return ""


def _is_in_clear(key: str, value: str) -> bool:
    """Return whether a value has a secret in it that is no reference: a password, or the login in an address."""
    return masking.shown(value, AgentSettings.hides(key, value)) != value
