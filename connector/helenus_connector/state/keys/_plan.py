"""What the driver gives the planner, the tasks and the operator that follow a connector's data topics."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.run_directory import replace
from helenus_connector.config.state import DIRECTORY
from helenus_connector.config.worker import WorkerSettings
from helenus_schemas.cql.table import Table
from helenus_schemas.service.logs import Setup, follow, setup
from helenus_sinks.kafka.owners import RecordsOwner


@dataclass(frozen=True)
class FollowedTopic:
    """A table whose data topic is followed: `settings` are of it alone, `table` is its definition. With `markers` it is
    the topic of its delete markers instead.
    """

    settings: ConnectorSettings
    table: Table
    markers: bool = False


@dataclass(frozen=True)
class KeysPlan:
    """The followed topics of one connector. `directory` is the run's own, made on each host. Topics of delete markers
    come first: their end offsets are read before those of the data topics. With an `owner`, whose producers append,
    reads are requested exactly once. The state is in the `home` of a group's leader, if there is one.
    """

    worker: WorkerSettings
    name: str
    directory: str
    tables: Mapping[str, FollowedTopic]
    owner: RecordsOwner | None = None
    home: Path | None = None
    logging: Setup = field(default_factory=setup)

    @property
    def file(self) -> Path:
        """Path where the driver saves this for its planner: the source's options are no place for secrets."""
        return Path(self.directory) / f"{_file_name(self.name)}.following"

    @property
    def group(self) -> str:
        """Name of the query among those that write."""
        return query_group(self.name)

    @property
    def due_file(self) -> Path:
        """Path of the time at which a partition is due, s since the epoch: from the driver, for the planner."""
        return Path(self.directory) / f"{_file_name(self.name)}.state-due"

    @property
    def checkpoint(self) -> Path:
        """Directory where Spark keeps the query's offsets and its state."""
        return self.home or state_directory(self.worker, self.name)

    def save(self) -> None:
        """Write the plan to `file`, for this user alone."""
        replace(self.file, pickle.dumps(self))

    @staticmethod
    def loads(data: bytes) -> KeysPlan:
        """Load a plan that this process's own driver saved. The process logs as the driver does from now on."""
        plan = pickle.loads(data)
        assert isinstance(plan, KeysPlan)
        follow(plan.logging)
        return plan


def query_group(name: str) -> str:
    """Return what names the query of a connector's state among those that write."""
    return f"state.{_file_name(name)}"  # with a dot, which no query.group has


def state_directory(worker: WorkerSettings, name: str) -> Path:
    """Return the directory of a connector's state."""
    return worker.checkpoint_dir.absolute() / DIRECTORY / _file_name(name)


def _file_name(name: str) -> str:
    """Return a file name for a connector's name, which may have slashes in it, or be dots."""
    return quote(name, safe="").replace(".", "%2E", 1) if name.startswith(".") else quote(name, safe="")
