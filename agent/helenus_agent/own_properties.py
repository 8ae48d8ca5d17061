"""What the operator of one node set for its agent: a properties file, or variables of the environment in its place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from helenus_agent.aliases import ENVIRONMENT
from helenus_agent.config import AgentSettings
from helenus_schemas.settings import masking
from helenus_schemas.settings.properties import read_properties

_PREFIX = "HELENUS_"
_NO_SETTINGS = ("HELENUS_FAILPOINT",)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class OwnProperties:
    """The keys and values as they are written, from `source`, a file's name or "the environment".

    `files` are the file itself, and those that it names or refers to.
    """

    source: str
    properties: Mapping[str, str]
    files: frozenset[Path] = frozenset()

    @classmethod
    def load(cls, path: Path | None) -> OwnProperties:
        """Read a file, with the variables of DataStax's agent that it does not override; without one, the variables
        `HELENUS_…`. Raises ConfigError.
        """
        if path is None:
            variables = _read_variables(os.environ)
            return cls("the environment", variables, _secret_files(variables))
        properties = read_properties(path)
        variables = {key: os.environ[name] for name, key in ENVIRONMENT.items() if name in os.environ}
        own_keys = {AgentSettings.key_of(name) for name in properties}
        added = {key: text for key, text in variables.items() if AgentSettings.key_of(key) not in own_keys}
        files = frozenset({masking.absolute(path)}) | _secret_files({**added, **properties})
        return cls(str(path), {**added, **properties}, files)


def _secret_files(properties: Mapping[str, str]) -> frozenset[Path]:
    """Return the files that properties name, such as certificates, and those that they refer to."""
    named = {text for key, text in properties.items() if AgentSettings.key_of(key).endswith(("file", "location"))}
    return frozenset({*map(masking.absolute, named), *masking.files(properties.values())})


def load_settings(path: Path | None) -> AgentSettings:
    """Return an agent's own settings, from a file, or from the environment if none is given. Raises ConfigError."""
    if path is not None:
        return AgentSettings.load(path)
    own = OwnProperties.load(None)
    return AgentSettings.from_properties(own.properties, own.source)


def _read_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the keys that variables set: `HELENUS_STATE_DIR` is `state.dir`, `HELENUS_KAFKA_SASL_USERNAME`
    `kafka.sasl.username`.
    """
    fields = {name.upper(): field.alias or name for name, field in AgentSettings.model_fields.items()}
    prefixes = AgentSettings.prefixes()
    properties = {}
    for variable, text in environment.items():
        if not variable.startswith(_PREFIX) or variable in _NO_SETTINGS:
            continue
        key = variable.removeprefix(_PREFIX).lower().replace("_", ".")
        if variable.removeprefix(_PREFIX) in fields or key.startswith(tuple(prefixes)):
            properties[key] = text
        else:
            _log.warning("config.ignored", source="the environment", key=variable, why=AgentSettings.unknown(key))
    return properties
