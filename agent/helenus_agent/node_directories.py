"""The node's cdc_raw and commit log: where they are, whether they can be read, and that none of the agent's directories
lies in them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from helenus_agent.config import AgentSettings
from helenus_agent.node_yaml import read_yaml
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings.properties import ConfigError, Problem

_COMMITLOG = "it is the node's commitlog_directory, in which nothing may be deleted: name its cdc_raw_directory"
_IN_RAW = "it lies in cdc_raw ({}), where all counts against cdc_total_space: name a directory elsewhere"
_IN_LOG = "it lies in the node's commitlog_directory ({}), where the node reads and deletes: name a directory elsewhere"


def check_places(settings: AgentSettings, raw: Path, node: Mapping[str, str], source: str = "") -> None:
    """Raise ConfigError for a directory of the agent's that is, or lies below, cdc_raw (`raw`), or the directory of
    the commit log that cassandra.yaml names, or the `node` by its settings; `source` is the properties file's name.
    """
    ours = {"state.dir": settings.state_dir}
    if settings.segment_transfer == "archive" and settings.segment_archive_dir is not None:
        ours["segment.archive.dir"] = settings.segment_archive_dir
    forbidden_places = {raw: _IN_RAW}
    if (log := _commit_log(settings.cassandra_config, node)) is not None:
        forbidden_places[log] = _IN_LOG
    problems = [
        Problem(source, key, str(directory), reason.format(forbidden))
        for key, directory in ours.items()
        for forbidden, reason in forbidden_places.items()
        if directory.resolve().is_relative_to(forbidden.resolve())
    ]
    if problems:
        raise ConfigError(problems)


CDC_OFF = "set cdc_enabled: true in the node's cassandra.yaml and restart the node"


def raw_directory(settings: AgentSettings, offline: bool = False) -> Path:
    """Return the cdc_raw directory, which can be read and deleted in. Raises HelenusError: CDC is off, or it can't.

    `offline`: its node is dead, and may have had CDC switched off for the start that it did not make.
    """
    directory = settings.cdc_raw_dir
    if settings.cassandra_config is not None:
        node = read_yaml(settings.cassandra_config)
        if node.get("cdc_enabled") is not True and not offline:
            raise HelenusError(Kind.CDC_DISABLED, "cdc_enabled is not true", str(settings.cassandra_config), CDC_OFF)
        encryption = node.get("transparent_data_encryption_options")
        if isinstance(encryption, dict) and encryption.get("enabled") is True:
            raise HelenusError(Kind.CDC_ENCRYPTED, "the commit log is encrypted", str(settings.cassandra_config))
        if directory is not None and is_same_directory(directory, node.get("commitlog_directory")):
            raise HelenusError(Kind.CONFIG, f"cdc.raw.dir: {_COMMITLOG}", str(directory))
        if directory is None:
            named = node.get("cdc_raw_directory")
            if not named:
                message = "cdc.raw.dir: set it, because cassandra.yaml names no cdc_raw_directory"
                raise HelenusError(Kind.CONFIG, message, str(settings.cassandra_config))
            directory = Path(named)
    if directory is None:
        raise HelenusError(Kind.CONFIG, "cdc.raw.dir is not set, and the node does not answer where it is")
    if not os.access(directory, os.F_OK) or not directory.is_dir():  # which raises an error where it may not be seen
        raise HelenusError(Kind.CDC_DIRECTORY, "cdc_raw is not a directory, or may not be seen", str(directory))
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        raise HelenusError(Kind.CDC_DIRECTORY, "cdc_raw may not be read and deleted in", str(directory))
    return directory


def commit_log_directory(config: Path | None, raw: Path, node: Mapping[str, str]) -> Path | None:
    """Return the directory that the node writes its commit log to, None if that can't be seen from here.

    Its cassandra.yaml names it (`config`), or the `node` by its settings; links into cdc_raw, `raw`, want both on one
    file system.
    """
    directory = _commit_log(config, node)
    if directory is None:
        return None
    try:
        is_there = directory.stat().st_dev == raw.stat().st_dev
    except OSError:
        return None
    return directory if is_there and os.access(directory, os.R_OK | os.X_OK) else None


def _commit_log(config: Path | None, node: Mapping[str, str]) -> Path | None:
    directory = None
    if config is not None:
        with contextlib.suppress(HelenusError):  # somebody edits it
            directory = read_yaml(config).get("commitlog_directory")
    directory = directory or node.get("commitlog_directory")
    return Path(str(directory)) if directory else None


def is_same_directory(directory: Path, path: object) -> bool:
    """Return whether another path names this directory too."""
    return isinstance(path, str) and bool(path) and Path(path).resolve() == directory.resolve()
