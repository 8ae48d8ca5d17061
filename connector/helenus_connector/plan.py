"""What the driver tells its planner and workers: which topics belong to which connector, and where shared files lie."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from pathlib import Path

from helenus_connector.config import ConnectorSettings, WorkerSettings


@dataclass(frozen=True)
class Plan:
    """One streaming query: connectors by events topic. `directory` is the run's own, made on each host."""

    worker: WorkerSettings
    connectors: dict[str, ConnectorSettings]
    directory: str

    @property
    def consumer(self) -> dict[str, str]:
        """librdkafka's settings of every consumer."""
        return self.worker.consumer_config

    @property
    def group(self) -> str:
        """The consumer group that shows the lag."""
        return "helenus-" + "+".join(sorted(c.name for c in self.connectors.values()))

    @property
    def max_batch_size(self) -> int:
        """Events in a batch, of all connectors."""
        return sum(c.max_batch_size for c in self.connectors.values())

    @property
    def due_file(self) -> str:
        """Holds when the next key is to be read again, s since the epoch: from the driver, for the planner."""
        return f"{self.directory}/due"

    @property
    def pending_file(self) -> Path:
        """Holds the keys that wait for long, and when the last batch ended: it lasts as the checkpoint does."""
        return self.worker.checkpoint_dir / "pending"

    @property
    def file(self) -> Path:
        """Where the driver leaves the plan for its planner: the source's options are no place for secrets."""
        return Path(self.directory) / "plan"

    def save(self) -> None:
        """Write the plan to `file`, for this user alone."""
        with open(os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
            pickle.dump(self, out)

    @staticmethod
    def load(path: str) -> Plan:
        """The plan in a file that this process's own driver wrote."""
        plan = pickle.loads(Path(path).read_bytes())
        assert isinstance(plan, Plan)
        return plan
