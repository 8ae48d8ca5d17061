"""A worker's file and its connectors' files, read at once: one worker file, one file per connector, as with
connect-standalone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.model import Model
from helenus_connector.config.worker import WorkerSettings
from helenus_schemas.settings.properties import ConfigError, Problem, read_properties, together


def load(worker: Path, connectors: Sequence[Path]) -> tuple[WorkerSettings, list[ConnectorSettings]]:
    """What a worker's file and its connectors' files say. Raises one ConfigError with all that is wrong in any."""
    model = Model(ConnectorSettings)

    def load_worker() -> WorkerSettings | ConnectorSettings:
        nonlocal model
        settings = WorkerSettings.load(worker)
        model = settings.model
        return settings

    def load_connector(path: Path) -> WorkerSettings | ConnectorSettings:
        properties = read_properties(path)
        return model.of(properties, str(path), properties)

    found = together(load_worker, *(partial(load_connector, path) for path in connectors))
    loaded = [settings for settings in found if isinstance(settings, ConnectorSettings)]
    by_name: dict[str, Path] = {}
    problems = []
    for path, settings in zip(connectors, loaded, strict=True):
        if settings.name in by_name:
            problems.append(Problem(str(path), "name", settings.name, f"{by_name[settings.name]} has the same"))
        by_name.setdefault(settings.name, path)
    if problems:
        raise ConfigError(problems)
    assert isinstance(found[0], WorkerSettings)
    return found[0], loaded
