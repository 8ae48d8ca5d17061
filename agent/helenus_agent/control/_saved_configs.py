"""The last rows of `configs` that were right, on the agent's disk: a restart goes by them while the table can't be
read, or while it has wrong ones. Secrets are in them as references, as in the table.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from helenus_agent.control._service_configs import Rows
from helenus_schemas.errors import HelenusError
from helenus_schemas.service import durable

_FILE = "configs.json"
_VERSION = 1
_log = structlog.get_logger(__name__)


def load(state_dir: Path) -> dict[str, dict[str, str]] | None:
    """Return the rows that were saved last, None if there are none. A file that is damaged is logged, and is none."""
    path = state_dir / _FILE
    try:
        content = durable.load(path, _VERSION)
        return {service: dict(config) for service, config in content.items()}
    except FileNotFoundError:
        return None
    except (durable.Damaged, HelenusError, AttributeError, ValueError, TypeError) as error:
        _log.warning("configs.damaged", file=str(path), error=str(error), then="the table is read")
        return None


def save(state_dir: Path, rows: Rows) -> None:
    """Replace what is saved. Raises HelenusError(STATE)."""
    durable.make_directory(state_dir)
    content = {service: dict(config) for service, config in rows.items()}
    durable.save(state_dir / _FILE, content, _VERSION, "the configuration", "agent.configs-written")
