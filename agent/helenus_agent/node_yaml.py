"""The node's cassandra.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from helenus_schemas.errors import HelenusError
from helenus_schemas.settings.properties import ConfigError, Problem


def node_address(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the node's address in its cassandra.yaml, as a property, if that says one."""
    try:
        address = read_yaml(Path(properties["cassandra.config"])).get("rpc_address")
    except (KeyError, HelenusError):
        return {}
    return {"cassandra.contact.points": str(address)} if address and address not in ("0.0.0.0", "::") else {}


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a cassandra.yaml. Raises ConfigError."""
    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except OSError as error:
        reason = f"cannot read it: {error.strerror}"
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        reason = f"not YAML: {' '.join(str(error).split())}"
    else:
        if isinstance(content, dict):
            return content
        reason = "not a cassandra.yaml"
    raise ConfigError([Problem(str(path), "cassandra.config", None, reason)])
