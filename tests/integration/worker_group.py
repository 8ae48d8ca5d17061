"""Workers of one group, each with a checkpoint.dir of its own, as on hosts that share nothing."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from integration.group_offsets import end_offsets
from integration.pipeline import Command, Pipeline, free_port, write_properties
from integration.test_exactly_once import wait_worker_quiet
from integration.test_many_connectors import Rest
from patience import eventually

from helenus_schemas.settings.properties import read_properties

CLASS = {"connector.class": "helenus.CassandraSource"}


class WorkerGroup:
    """Workers, made from the files of a pipeline's connector, each with `more` properties of the worker. None is
    started.
    """

    def __init__(self, pipeline: Pipeline, name: str, count: int, more: Mapping[str, object]) -> None:
        self.pipeline, self.name = pipeline, name
        self.workers: list[Command] = []
        _, worker, *self._files = pipeline.connector.arguments
        for number in range(count):
            port, directory = free_port(), pipeline.directory / f"worker-{number}"
            directory.mkdir()
            own = {
                "group.id": name,
                "listeners": f"http://127.0.0.1:{port}",
                "checkpoint.dir": directory / "checkpoint",
                **more,
            }
            file = write_properties(directory / "worker.properties", {**read_properties(Path(worker)), **own})
            command = ["helenus-connector", str(file), *self._files]
            self.workers.append(Command(command, directory / "worker.log", port))

    def start(self) -> WorkerGroup:
        for worker in self.workers:
            worker.start()
        return self

    def stop(self) -> None:
        for worker in self.workers:
            if worker.process is not None and worker.process.poll() is None:
                worker.process.send_signal(signal.SIGTERM)
        for worker in self.workers:
            if worker.process is not None:
                worker.process.wait(60)

    def checkpoint(self, worker: Command) -> Path:
        return worker.log.parent / "checkpoint"

    def lose_disks(self, worker: Command) -> None:
        worker.kill()
        shutil.rmtree(self.checkpoint(worker))

    def health(self, worker: Command) -> str:
        """What /health says; empty while the worker does not answer."""
        try:
            return str(self.ask(worker, "GET", "/health")["message"])
        except (OSError, ValueError):
            return ""

    def leader(self, among: Collection[Command] = ()) -> Command | None:
        """The one that runs the connectors now, of those that answer."""
        return next((w for w in among or self.workers if _is_running(self.health(w))), None)

    def await_leader(self, among: Sequence[Command] = ()) -> Command:
        """Wait until one of them leads and runs, and return it."""
        candidates = among or self.workers

        def leads() -> Command | None:
            leader = self.leader(candidates)
            return leader if leader is not None and leader.health()[0] == 200 else None

        leader: Command = eventually(leads, lambda: "\n\n".join(worker.tail() for worker in candidates), every=0.2)
        return leader

    def others(self, leader: Command) -> list[Command]:
        return [worker for worker in self.workers if worker is not leader]

    def await_standby(self, worker: Command) -> None:
        """Wait until a worker stands by."""
        eventually(lambda: self.health(worker).startswith("standby: "), worker.tail, every=0.2)

    def ask(self, worker: Command, method: str, path: str, body: object = None) -> Any:
        """What a worker answers over REST. Raises OSError."""
        return Rest(worker.port)(method, path, body)

    def wait_quiet(self, tables: Sequence[str]) -> None:
        """Wait until the group of each table's connector is at the end of its events, and nothing waits."""
        wait_worker_quiet(
            self.pipeline, tables, self.leader, lambda: "\n\n".join(worker.tail() for worker in self.workers)
        )


def _is_running(message: str) -> bool:
    return bool(message) and not message.startswith(("standby: ", "starting: "))


def await_record(pipeline: Pipeline, table: str) -> None:
    """Wait until the table's data topic gets a record."""
    brokers, topic = str(pipeline.status.bootstrap_servers), f"data-{table}"
    ends = end_offsets(brokers, topic)
    eventually(lambda: end_offsets(brokers, topic) != ends, f"a record in {topic}", every=0.1)
