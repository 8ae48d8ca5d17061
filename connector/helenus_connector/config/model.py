"""Connectors' properties as settings, wherever they come from: files, REST, and what a worker kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from helenus_connector.config.connector import ConnectorSettings, PulsarConnectorSettings
from helenus_schemas.settings import masking
from helenus_schemas.settings.properties import ConfigError, Problem

_CLASS_KEY = re.compile(
    r"(transforms|predicates)\..+\.type|transforms\..+\.converter|(key|value)\.converter|schema\.store", re.DOTALL
)
"""The keys that may name a class of a user's own, which is imported."""
_REGISTRY = "value.converter.schema.registry."
SERVERS = frozenset(
    {f"cassandra.{key}" for key in ("contact.points", "port", "ssl.enabled", "ssl.cafile", "ssl.check.hostname")}
    | {f"{_REGISTRY}url", f"{_REGISTRY}ssl.cafile", "key.converter.schema.registry.url"}
)
"""The keys that say which servers get a connector's secrets, and how they are verified."""


@dataclass(frozen=True)
class Model:
    """How connectors' properties are read: into which settings, and where on Pulsar their topics are.

    A place is `persistent://tenant/namespace/`, empty on Kafka, and None while the worker's file is wrong.
    `allowed` says which references properties that come over REST may have, and `packages` whose classes they may name.
    `group` is the `group.id` of the worker: then another worker is to go on where this one was.
    """

    settings: type[ConnectorSettings]
    events: str | None = None
    data: str | None = None
    allowed: masking.Allowed = masking.NONE
    packages: tuple[str, ...] = ()
    group: str = ""

    def __post_init__(self) -> None:
        self.settings.model_rebuild()  # before threads of REST, which may all be the first, validate

    def read_settings(
        self, properties: Mapping[str, str], source: str, file: Mapping[str, str] | None = None
    ) -> ConnectorSettings:
        """Read settings as `Settings.from_properties`. Properties that `file`, the connector's own file, has as well
        may refer to any secret, if the servers are those of the file.
        """
        if foreign_keys := self.foreign_classes(properties, file or {}):
            problem = "classes of this package are not imported for connectors made over REST: "
            problem += "name it in plugin.packages of the worker's file"
            raise ConfigError([Problem(source, key, properties[key], problem) for key in foreign_keys])
        if self.group:
            properties = _of_group(properties, source, self.group, self.settings is PulsarConnectorSettings)
        context = {"events": self.events, "data": self.data}
        trusted = file if file and self.names_servers_of(file, properties) else None
        return self.settings.from_properties(properties, source, context=context, allowed=self.allowed, trusted=trusted)

    def foreign_classes(self, properties: Mapping[str, str], file: Mapping[str, str]) -> list[str]:
        """Return the keys that name a class of a user's own which only a connector's own `file` may name: to import it
        runs code.
        """
        named = {key: text.strip() for key, text in properties.items() if _CLASS_KEY.fullmatch(key) and ":" in text}
        return [
            key
            for key, name in named.items()
            if properties[key] != file.get(key)
            and not any(f"{name.partition(':')[0]}.".startswith(f"{package}.") for package in self.packages)
        ]

    def names_servers_of(self, file: Mapping[str, str], properties: Mapping[str, str]) -> bool:
        """Return whether properties have the same values as the connector's own `file` for the servers that get its
        secrets, and for how they are verified.
        """
        return self._servers(properties) == self._servers(file)

    def _servers(self, properties: Mapping[str, str]) -> dict[str, str]:
        return {key: text for key, text in properties.items() if self.settings.key_of(key) in SERVERS}


def _of_group(properties: Mapping[str, str], source: str, group: str, is_on_pulsar: bool) -> Mapping[str, str]:
    """Return the properties of a connector whose positions and waiting changes are with the brokers: another worker of
    the group finds them there. On Kafka it publishes exactly once. Raises ConfigError.
    """
    key = "exactly.once.support"
    if f"helenus-{properties.get('name', '')}" == group:
        problem = "the consumer group of its positions would be that of the workers (group.id): give it another name"
        raise ConfigError([Problem(source, "name", properties["name"], problem)])
    if not is_on_pulsar and properties.get(key, "required").strip() == "disabled":
        problem = "workers of a group (group.id) publish exactly once: leave it out"
        raise ConfigError([Problem(source, key, "disabled", problem)])
    return properties if is_on_pulsar else {**properties, key: "required"}
