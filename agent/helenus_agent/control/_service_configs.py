"""The rows of the table `configs`, and the settings that they make with the agent's own.

A row has a service's name and its keys: `cdc`, what is published, and `kafka` or `pulsar`, where to. The keys are those
of an agent's file that concern no single node; the agent's own file takes precedence over them. A row of CEP-44's
Sidecar is accepted where its keys have a counterpart, or need none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from helenus_agent.config import AgentSettings, check
from helenus_agent.own_properties import OwnProperties
from helenus_schemas.settings import masking
from helenus_schemas.settings.properties import ConfigError, Problem

Rows = Mapping[str, Mapping[str, str]]
"""By service, its keys and values."""
BrokerService = Literal["kafka", "pulsar"]
SERVICES = ("cdc", "kafka", "pulsar")
MAX_KEYS, MAX_CHARACTERS = 500, 10_000
"""Of a row, and of a key or a value: more than any setting has, so that no row becomes a large partition."""

_CDC_ENABLED = "cdc_enabled"
_ADDRESSES: dict[BrokerService, str] = {"kafka": "bootstrap.servers", "pulsar": "pulsar.service.url"}
_PLACEHOLDERS: dict[BrokerService, str] = {"kafka": "unconfigured:1", "pulsar": "pulsar://unconfigured:1"}
SHARED = frozenset(
    "log topic.prefix headers topic.partitions topic.creation.default.replication.factor topic.retention.ms "
    "table.include.list table.exclude.list cells.include.list errors.large.event transactional.tables read.mode "
    "poll.interval.ms log.level metrics.other.products bootstrap.servers pulsar.service.url pulsar.admin.url "
    "pulsar.tenant pulsar.namespace pulsar.auth.token pulsar.tls.cafile pulsar.tls.check.hostname".split()
)
"""Keys that a row may have: those that are the same on all nodes, and name no code and no directory of a node."""
_SHARED_PREFIXES = ("topic.config.", "kafka.", "producer.")
_CODE = ("plugin.library.paths", "ssl.engine.location", "ssl.engine.id", "ssl.providers", "sasl.kerberos.kinit.cmd")
"""Settings of librdkafka that name code: only the operator of a node may have it run there."""
_OF_A_NODE = "it concerns a single node: set it in the agent's own file or environment"
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


@dataclass(frozen=True)
class EffectiveConfig:
    """What an agent is to do: publish with `settings`, or, if they are None, nothing, for the `reason`."""

    settings: AgentSettings | None
    reason: str = ""


def effective_config(own: OwnProperties, rows: Rows) -> EffectiveConfig:
    """Return what an agent is to do with its own properties and the rows. Raises ConfigError, which names the services
    and keys of all that is wrong.
    """
    # First: whoever disables publishing succeeds, whatever else is wrong.
    if "cdc" not in rows:
        return EffectiveConfig(None, "publishing is disabled: service cdc is not configured")
    if not _is_enabled(rows["cdc"]):
        return EffectiveConfig(None, "publishing is disabled: service cdc has cdc_enabled=false")
    problems = [problem for service, config in rows.items() for problem in _key_problems(service, config)]
    if problems:
        raise ConfigError(problems)
    broker = _chosen_broker(own, rows)
    if not _has_address(own, rows, broker):
        return EffectiveConfig(None, f"publishing is disabled: service {broker} is not configured")
    return EffectiveConfig(_make_settings(own, rows, broker))


def check_service(own: OwnProperties, rows: Rows, service: str, config: Mapping[str, str]) -> None:
    """Raise ConfigError for what is wrong with a service's new keys, together with the other rows and the agent's own
    properties.
    """
    problems = list(_key_problems(service, config))
    if problems:
        raise ConfigError(problems)
    changed = {name: row for name, row in rows.items() if not any(_key_problems(name, row))} | {service: config}
    if service in _ADDRESSES:
        # The row is checked though the other broker may be the chosen one.
        broker: BrokerService = "pulsar" if service == "pulsar" else "kafka"
        if not _has_address(own, changed, broker):
            raise ConfigError([Problem(_source(service), _ADDRESSES[broker], None, "required property is missing")])
    else:
        broker = _chosen_broker(own, changed)
        if not _has_address(own, changed, broker):
            changed = {**changed, broker: {_ADDRESSES[broker]: _PLACEHOLDERS[broker]}}  # it is yet to come
    _make_settings(own, changed, broker)


def shown_config(config: Mapping[str, str]) -> dict[str, str]:
    """Return keys and values as they may be shown. A row that was written by CQL may have secrets in it."""
    return {key: masking.shown(value, AgentSettings.hides(key, value)) for key, value in config.items()}


def _key_problems(service: str, config: Mapping[str, str]) -> Iterator[Problem]:
    """Yield what is wrong with keys by themselves: those that a row may not have, and secrets in clear."""
    source = _source(service)
    if service not in SERVICES:
        return  # rows of other programs may be there too
    if len(config) > MAX_KEYS:
        yield Problem(source, "", None, f"it has {len(config)} keys: {MAX_KEYS} are the most")
        return
    for key, value in config.items():
        if len(key) > MAX_CHARACTERS or len(value) > MAX_CHARACTERS:
            yield Problem(source, key[:100], None, f"a key or a value has {MAX_CHARACTERS} characters at most")
        elif reason := _refusal(service, key):
            yield Problem(source, key, None, reason)
        elif key == _CDC_ENABLED and value.strip().lower() not in ("true", "false"):
            yield Problem(source, key, value, "give true or false")
        elif _is_in_clear(key, value):
            reason = "a secret is not stored in clear: give a reference, ${env:NAME} or ${file:PATH:KEY}"
            yield Problem(source, key, masking.STARS, reason)


def _refusal(service: str, key: str) -> str:
    """Return why a row of a service may not have a key, empty if it may."""
    if key in _UNUSED.get(service, {}) or (service == "cdc" and key == _CDC_ENABLED):
        return ""
    if service == "cdc" and key in _REFUSED:
        return _REFUSED[key]
    name = _property_name(service, key)
    if name.startswith(_SHARED_PREFIXES):
        setting = name.removeprefix("producer.").removeprefix("kafka.")
        return "it names code that runs: " + _OF_A_NODE if setting in _CODE else ""
    if name in SHARED:
        return ""
    return _OF_A_NODE if AgentSettings.knows(name) else AgentSettings.unknown(key)


def _is_in_clear(key: str, value: str) -> bool:
    """Return whether a value has a secret in it that is no reference: a password, or the login in an address."""
    return masking.shown(value, AgentSettings.hides(key, value)) != value


def _property_name(service: str, key: str) -> str:
    """Return the agent's key for a row's. The service `kafka` may also have settings of a producer by themselves."""
    name = AgentSettings.present_name(key)
    return f"producer.{key}" if service == "kafka" and not AgentSettings.knows(name) else name


def _is_enabled(config: Mapping[str, str]) -> bool:
    return config.get(_CDC_ENABLED, "true").strip().lower() != "false"


def _chosen_broker(own: OwnProperties, rows: Rows) -> BrokerService:
    """Return where events go: as `log` says, of the agent's own or of service cdc, or else to the one there is."""
    chosen = {AgentSettings.key_of(key): text for key, text in own.properties.items()}.get("log")
    chosen = (chosen or rows.get("cdc", {}).get("log", "")).strip().lower()
    if chosen == "pulsar" or (not chosen and "pulsar" in rows and not _has_address(own, rows, "kafka")):
        return "pulsar"
    return "kafka"


def _has_address(own: OwnProperties, rows: Rows, broker: BrokerService) -> bool:
    keys = {AgentSettings.key_of(key) for key in own.properties}
    keys |= {_property_name(broker, key) for key in rows.get(broker, {})}
    return _ADDRESSES[broker] in keys


def _make_settings(own: OwnProperties, rows: Rows, broker: BrokerService) -> AgentSettings:
    """Return the settings that the rows and the agent's own properties make together. Raises ConfigError."""
    own_keys = {AgentSettings.key_of(key) for key in own.properties}
    shared: dict[str, str] = {}
    sources: dict[str, str] = {}
    problems = []
    for service in ("cdc", broker):
        for key, value in rows.get(service, {}).items():
            name = _property_name(service, key)
            if key in _UNUSED.get(service, {}) or key == _CDC_ENABLED or name in own_keys:
                continue
            if shared.setdefault(name, value) != value:
                reason = f"{sources[name]} has it too, with another value: leave one of them out"
                problems.append(Problem(_source(service), key, None, reason))
            sources.setdefault(name, _source(service))
    if problems:
        raise ConfigError(problems)
    settings = AgentSettings.from_properties(
        {**shared, **own.properties, "log": broker, "config.store": "cassandra"},
        "configs",
        allowed=_allowed_references(own),
        trusted=own.properties,
    )
    settings.check_files("configs")
    check(settings, "configs")
    return settings


def _allowed_references(own: OwnProperties) -> masking.Allowed:
    """Return which references rows may have: those that the agent's own file allows."""
    keys = {AgentSettings.key_of(key): text for key, text in own.properties.items()}
    folders = keys.get("config.providers.file.param.allowed.paths", "")
    return masking.Allowed(
        tuple(Path(folder.strip()) for folder in folders.split(",") if folder.strip()),
        keys.get("config.providers.env.param.allowlist.pattern", ""),
        own.files,
        "a row of configs",
        "the agent",
    )


def _source(service: str) -> str:
    return f"service {service}"
