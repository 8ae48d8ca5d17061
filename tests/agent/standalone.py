"""The agent's command without a Cassandra: a node that is made up, with the table ks.t; all else is real.

HELENUS_TEST_LOG names a file that stands for the broker: one line of JSON per flush, with the keys that it
acknowledges. Without it the broker is Kafka. HELENUS_TEST_LATE is how often each of the two is not there at first.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from agent.fakes import FakeCassandra, FakeLog
from agent.writer import table_of

from helenus_agent import agent_run, cli
from helenus_connector.testing.log import MemoryRecord
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.errors import HelenusError, Kind

TABLE = table_of("t", "pk int pk, v int")
LATE = int(os.environ.get("HELENUS_TEST_LATE", 0))


def number(record: MemoryRecord) -> int:
    """The key of a record of ks.t."""
    assert record.key is not None
    return int.from_bytes(KeyCodec(TABLE).decode(record.key)[0] or b"", "big")


class Node(FakeCassandra):
    """Knows one table."""

    late = LATE

    def __init__(self, settings: object) -> None:
        if Node.late:
            Node.late -= 1
            raise HelenusError(Kind.CASSANDRA_UNREACHABLE, "away", "fake")
        super().__init__(TABLE)
        self.settings = {"cdc_total_space": "64MiB"}

    def close(self) -> None:
        """There is nothing to close."""


class FileLog(FakeLog):
    """Acknowledged is what is in the file."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self._path = Path(os.environ["HELENUS_TEST_LOG"])
        self.refuse_create = LATE

    def start(self) -> None:
        """It is there."""

    def hurry(self, seconds: float) -> None:
        """It never waits."""

    def flush(self, timeout: float) -> None:
        if self.waiting:
            with open(self._path, "a") as file:
                file.write(json.dumps([number(record) for record in self.waiting if record.key is not None]) + "\n")
        super().flush(timeout)


def acknowledged(path: Path) -> list[int]:
    """All keys in a FileLog's file."""
    if not path.exists():
        return []
    return [key for line in path.read_text().splitlines() for key in json.loads(line)]


if __name__ == "__main__":
    agent_run.Cassandra = Node  # type: ignore[assignment,misc]
    if "HELENUS_TEST_LOG" in os.environ:
        agent_run.KafkaLog = FileLog  # type: ignore[assignment,misc]
    cli.main()
