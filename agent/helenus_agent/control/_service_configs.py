"""The rows of the table `configs`, and the settings that they make with the agent's own.

A row has a service's name and its keys: `cdc`, what is published, and `kafka` or `pulsar`, where to. The keys are those
of an agent's file that concern no single node; the agent's own file takes precedence over them. A row of CEP-44's
Sidecar is accepted where its keys have a counterpart, or need none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from helenus_agent.agent_run import check_pulsar
from helenus_agent.config import AgentSettings, check
from helenus_agent.control._row_keys import (
    CDC_ENABLED,
    is_used,
    key_problems,
    property_name,
    setting_name,
    source_name,
)
from helenus_agent.own_properties import OwnProperties
from helenus_schemas.errors import HelenusError
from helenus_schemas.settings import masking
from helenus_schemas.settings.properties import ConfigError, Problem

Rows = Mapping[str, Mapping[str, str]]
"""By service, its keys and values."""
BrokerService = Literal["kafka", "pulsar"]

_ALL_ROWS = "configs"
_ADDRESSES: dict[BrokerService, str] = {"kafka": "bootstrap.servers", "pulsar": "pulsar.service.url"}
_PLACEHOLDERS: dict[BrokerService, str] = {"kafka": "unconfigured:1", "pulsar": "pulsar://unconfigured:1"}
_LOGINS: dict[BrokerService, tuple[str, ...]] = {
    "kafka": ("sasl.username", "sasl.password", "sasl.oauthbearer."),
    "pulsar": ("pulsar.auth.token",),
}
_DESTINATIONS: dict[BrokerService, frozenset[str]] = {
    "kafka": frozenset(
        "bootstrap.servers security.protocol sasl.mechanism enable.ssl.certificate.verification "
        "ssl.endpoint.identification.algorithm ssl.ca.pem ssl.cipher.suites".split()
    ),
    "pulsar": frozenset("pulsar.service.url pulsar.admin.url pulsar.tls.check.hostname".split()),
}
"""Settings that decide who receives a login, and how."""
_MISSING = "required property is missing"
_FOREIGN_LOGIN = "it decides who receives the login in the agent's own file or environment: set it there too"


@dataclass(frozen=True)
class EffectiveConfig:
    """What an agent is to do: publish with `settings`, or, if they are None, nothing, for the `reason`.

    `is_known` is False while that is because nobody knows what the table has.
    """

    settings: AgentSettings | None
    reason: str = ""
    is_known: bool = True


@dataclass(frozen=True)
class _Entry:
    """A key of a row, and its value as it is written."""

    service: str
    key: str
    text: str


def effective_config(own: OwnProperties, rows: Rows) -> EffectiveConfig:
    """Return what an agent is to do with its own properties and the rows. Raises ConfigError, which names the services
    and keys of all that is wrong, and nothing else: CQL may have written anything.
    """
    # First: whoever disables publishing succeeds, whatever else is wrong.
    if "cdc" not in rows:
        return EffectiveConfig(None, "publishing is disabled: service cdc is not configured")
    if not _is_enabled(rows["cdc"]):
        return EffectiveConfig(None, "publishing is disabled: service cdc has cdc_enabled=false")
    with _errors_of_rows():
        problems = [problem for service, config in rows.items() for problem in key_problems(service, config)]
        if problems:
            raise ConfigError(problems)
        broker = _chosen_broker(own, rows)
        if not _has_address(own, rows, broker):
            return EffectiveConfig(None, f"publishing is disabled: service {broker} is not configured")
        return EffectiveConfig(_make_settings(own, rows, broker))


def check_service(own: OwnProperties, rows: Rows, service: str, config: Mapping[str, str]) -> None:
    """Raise ConfigError for what is wrong with a service's new keys, and for what they make wrong together with the
    other rows and the agent's own properties. What is wrong without them is not reported: rows are corrected one by
    one.
    """
    with _errors_of_rows():
        if problems := list(key_problems(service, config)):
            raise ConfigError(problems)
        if service == "cdc" and not _is_enabled(config):
            return
        others = {name: row for name, row in rows.items() if name != service and not any(key_problems(name, row))}
        changed = {**others, service: config}
        if service in _ADDRESSES:
            # The row is checked though the other broker may be the chosen one.
            broker: BrokerService = "pulsar" if service == "pulsar" else "kafka"
            if not _has_address(own, changed, broker):
                raise ConfigError([Problem(source_name(service), _ADDRESSES[broker], None, _MISSING)])
        else:
            broker = _chosen_broker(own, changed)
        before = set(_combined_problems(own, others, broker if service in _ADDRESSES else _chosen_broker(own, others)))
        before = {problem for problem in before if problem.source != source_name(service)}
        problems = [problem for problem in _combined_problems(own, changed, broker) if problem not in before]
        if before and not problems:  # which hide what is wrong with the new row
            before.update(_combined_problems(own, {}, "kafka"))
            problems = [p for p in _combined_problems(own, {service: config}, broker) if p not in before]
        if problems:
            raise ConfigError(problems)


def _combined_problems(own: OwnProperties, rows: Rows, broker: BrokerService) -> tuple[Problem, ...]:
    """Return what is wrong with rows together. An address that is yet to come is not."""
    if not _has_address(own, rows, broker):
        rows = {**rows, broker: {**rows.get(broker, {}), _ADDRESSES[broker]: _PLACEHOLDERS[broker]}}
    try:
        _make_settings(own, rows, broker)
    except ConfigError as error:
        return error.problems
    return ()


@contextlib.contextmanager
def _errors_of_rows() -> Iterator[None]:
    """Turn every error into a ConfigError, without its text: one that nobody foresaw must end no agent."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        reason = f"the rows can't be used: {type(error).__name__} while they were checked"
        raise ConfigError([Problem(_ALL_ROWS, "", None, reason)]) from None


def _is_enabled(config: Mapping[str, str]) -> bool:
    return config.get(CDC_ENABLED, "true").strip().lower() != "false"


def _chosen_broker(own: OwnProperties, rows: Rows) -> BrokerService:
    """Return where events go: as `log` says, of the agent's own or of service cdc, or else to the one there is."""
    chosen = {AgentSettings.key_of(key): text for key, text in own.properties.items()}.get("log")
    chosen = (chosen or rows.get("cdc", {}).get("log", "")).strip().lower()
    if chosen == "pulsar" or (not chosen and "pulsar" in rows and not _has_address(own, rows, "kafka")):
        return "pulsar"
    return "kafka"


def _has_address(own: OwnProperties, rows: Rows, broker: BrokerService) -> bool:
    keys = {AgentSettings.key_of(key) for key in own.properties}
    keys |= {property_name(broker, key) for key in rows.get(broker, {})}
    return _ADDRESSES[broker] in keys


def _make_settings(own: OwnProperties, rows: Rows, broker: BrokerService) -> AgentSettings:
    """Return the settings that the rows and the agent's own properties make together. Raises ConfigError."""
    entries = _merge_rows(own, rows, broker)
    allowed = _allowed_references(own)
    try:
        settings = AgentSettings.from_properties(
            {
                **{name: entry.text for name, entry in entries.items()},
                **own.properties,
                "log": broker,
                "config.store": "cassandra",
            },
            _ALL_ROWS,
            allowed=allowed,
            trusted=own.properties,
        )
        settings.check_files(_ALL_ROWS)
        check(settings, _ALL_ROWS)
        check_pulsar(settings)
    except ConfigError as error:
        raise ConfigError([_explained(own, entries, allowed, problem) for problem in error.problems]) from None
    except HelenusError as error:
        raise ConfigError([Problem(source_name(broker), "", None, str(error))]) from None
    return settings


def _merge_rows(own: OwnProperties, rows: Rows, broker: BrokerService) -> dict[str, _Entry]:
    """Return what the rows set, by the agent's key: without what the agent's own file sets by any name. Raises
    ConfigError.
    """
    own_settings = {setting_name(AgentSettings.key_of(key)) for key in own.properties}
    has_login = any(setting.startswith(_LOGINS[broker]) for setting in own_settings)
    entries: dict[str, _Entry] = {}
    problems = []
    for service in ("cdc", broker):
        for key, text in rows.get(service, {}).items():
            name = property_name(service, key)
            setting = setting_name(name)
            if not is_used(service, key) or setting in own_settings:
                continue
            if has_login and setting in _DESTINATIONS[broker]:
                problems.append(Problem(source_name(service), key, None, _FOREIGN_LOGIN))
            first = entries.setdefault(name, _Entry(service, key, text))
            if first.text != text:
                reason = f"{source_name(first.service)} has it too, with another value: leave one of them out"
                problems.append(Problem(source_name(service), key, None, reason))
    if problems:
        raise ConfigError(problems)
    return entries


def _explained(
    own: OwnProperties, entries: Mapping[str, _Entry], allowed: masking.Allowed, problem: Problem
) -> Problem:
    """Return a problem with the service and the key where it is written. Nothing is shown of a value that a reference
    leads to: it may be a secret.
    """
    own_texts = {AgentSettings.key_of(key): text for key, text in own.properties.items()}
    name = AgentSettings.present_name(problem.key)
    source, key, text = problem.source, problem.key, own_texts.get(name, "")
    entry = entries.get(name)
    if entry is not None:
        source, key, text = source_name(entry.service), entry.key, entry.text
    elif text:
        source = own.source
    elif not key or key.endswith("*"):  # librdkafka's words, about no setting that they name
        texts = [*own_texts.values(), *(entry.text for entry in entries.values())]
        reason = "these settings of librdkafka do not go together" if any(map(masking.refers, texts)) else ""
        return Problem(source, key, None, reason or problem.reason)
    if masking.refers(text) and _is_resolvable(text, allowed if entry else None):
        return Problem(source, key, masking.shown(text, secret=False), "what it refers to is no value that it can have")
    return Problem(source, key, problem.value, problem.reason)


def _is_resolvable(text: str, allowed: masking.Allowed | None) -> bool:
    """Return whether a reference leads to a value: if it does not, the problem is the reference."""
    try:
        masking.resolve(text, allowed)
    except ValueError:
        return False
    return True


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
