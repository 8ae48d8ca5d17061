"""The file `connectors.json`: the configurations, wanted states and files of connectors, by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import durable


def save(file: Path, connectors: Mapping[str, Mapping[str, Any]]) -> None:
    """Save configuration and wanted state of all connectors. Raises HelenusError(STATE)."""
    durable.make_directory(file.parent)
    # A configuration may hold passwords.
    text = json.dumps(connectors, indent=1)
    durable.write(file, text, "the connectors", "connectors.after-write", 0o600)


def read(file: Path) -> dict[str, dict[str, Any]]:
    """Return what `save` wrote; nothing if there is no file. Raises HelenusError(STATE)."""
    try:
        return dict(json.loads(file.read_text()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        problem = f"cannot read the connectors: {error}. Restore the file; or delete it, and make them over REST again"
        raise HelenusError(Kind.STATE, problem, str(file)) from None
