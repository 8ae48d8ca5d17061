"""Workers of one group, each with a checkpoint.dir of its own, as on hosts that share nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import processes
from integration.group_offsets import end_offsets, group_offsets
from integration.pipeline import Command, Pipeline, free_port, write_properties
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
        request = urllib.request.Request(
            f"http://127.0.0.1:{worker.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def lines(self, worker: Command, event: str) -> list[str]:
        return [line for line in worker.log.read_text(errors="replace").splitlines() if event in line]

    def wait_quiet(self, tables: Sequence[str]) -> None:
        """Wait until the group of each table's connector is at the end of its events, and nothing waits."""
        brokers = str(self.pipeline.status.bootstrap_servers)
        seen: dict[str, dict[int, int]] = {}

        def is_quiet() -> bool:
            nonlocal seen
            leader = self.leader()
            ends = {table: end_offsets(brokers, f"events-{table}") for table in tables}
            before, seen = seen, ends
            if ends != before or leader is None or leader.health()[0] != 200:
                return False
            metrics = ("helenus_connector_keys_unconfirmed", "helenus_connector_gate_waiting_events")
            waiting = sum(leader.total(metric) for metric in metrics)
            groups = {table: f"helenus-{table.replace('.', '-')}" for table in tables}
            return not waiting and all(group_offsets(brokers, groups[t], f"events-{t}") == ends[t] for t in tables)

        eventually(is_quiet, lambda: "\n\n".join(worker.tail() for worker in self.workers), every=2)


def _is_running(message: str) -> bool:
    return bool(message) and not message.startswith(("standby: ", "starting: "))


@contextmanager
def stopped(worker: Command) -> Iterator[None]:
    """All of a worker's processes are stopped, and go on after."""
    assert worker.process is not None
    members = [int(path.name) for path in processes.family(worker.process.pid)]
    for pid in members:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def await_record(pipeline: Pipeline, table: str) -> None:
    """Wait until the table's data topic gets a record."""
    brokers, topic = str(pipeline.status.bootstrap_servers), f"data-{table}"
    ends = end_offsets(brokers, topic)
    eventually(lambda: end_offsets(brokers, topic) != ends, f"a record in {topic}", every=0.1)
