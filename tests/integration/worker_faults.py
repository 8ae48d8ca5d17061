"""What happens to a worker, its processes, its host, and its way to Kafka while it publishes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bench import processes
from bench.relay import Relay
from integration.pipeline import Command, Pipeline
from patience import PATIENCE_S, eventually

from helenus_stack.stack import Stack

TASK_POINTS = (
    "connector.before-transaction",
    "connector.after-transaction",
    "connector.after-flush",
    "connector.after-mark",
)
"""Where one of Spark's Python workers is killed; its driver has the batch done again."""
DRIVER_POINTS = ("connector.before-commit",)
"""Where the driver is killed, and with it the worker."""


class WorkerFaults:
    """Faults of the worker of a pipeline, whose brokers are behind a relay. `chance` says how long each lasts. What a
    fault ended is started again.
    """

    def __init__(self, stack: Stack, relay: Relay, pipeline: Pipeline, chance: random.Random) -> None:
        self._stack, self._relay, self._pipeline, self._chance = stack, relay, pipeline, chance
        self._points = 0
        self.happened: list[str] = []
        """The faults until now, in order, for who looks into a failure."""
        self.kinds: tuple[Callable[[], None], ...] = (
            self.kill,
            self.kill_in_task,
            self.kill_in_driver,
            self.stop_for_a_while,
            self.kill_python_workers,
            self.cut_connections,
            self.lose_answers,
            self.kill_broker,
            self.stop_broker,
            self.pause_broker,
            self.lose_disks,
        )

    @property
    def worker(self) -> Command:
        return self._pipeline.connector

    def happen(self, fault: Callable[[], None]) -> None:
        """Have a fault happen, and what it ended run again."""
        self.happened.append(fault.__name__)
        fault()
        self.revive()

    def revive(self) -> None:
        """Start the worker if it has ended, as a supervisor does."""
        assert self.worker.process is not None
        if (status := self.worker.process.poll()) is not None:
            if status != -signal.SIGKILL:
                self.happened.append(f"ended with {status}")
            self.worker.start()

    def wait_ready(self) -> None:
        """Wait until the worker is."""

        def is_ready() -> bool:
            self.revive()
            return self.worker.health()[0] == 200

        eventually(is_ready, lambda: f"{self}; the worker's log ends:\n{self.worker.tail()}")

    def kill(self) -> None:
        self.worker.kill()
        time.sleep(self._chance.uniform(0, 2))

    def kill_in_task(self) -> None:
        self._kill_at(self._chance.choice(TASK_POINTS))

    def kill_in_driver(self) -> None:
        self._kill_at(self._chance.choice(DRIVER_POINTS))

    def kill_at_each_point(self) -> None:
        """Start it anew, and have each point kill once: of tasks one process each, and in the end the driver."""
        visits = {point: 2 + index for index, point in enumerate(TASK_POINTS)}
        visits |= dict.fromkeys(DRIVER_POINTS, 12)
        self._kill_at(*visits, visits=visits)

    def _kill_at(self, *points: str, visits: dict[str, int] | None = None) -> None:
        """Start it anew, and wait until it was killed at these points; one that is not reached in time was not."""
        self.worker.kill()
        self._points += 1
        killed = {point: self._pipeline.directory / f"killed-{self._points}-{point}" for point in points}
        visit = {point: self._chance.randint(1, 4) for point in points} | (visits or {})
        named = ",".join(f"{point}:{visit[point]}@{file}" for point, file in killed.items())
        self.happened.append(named.replace(f"{self._pipeline.directory}/", ""))
        self.worker.start(HELENUS_FAILPOINT=named)
        assert self.worker.process is not None
        waiting, deadline = set(points), time.monotonic() + PATIENCE_S
        while waiting and time.monotonic() < deadline:
            if self.worker.process.poll() is not None:
                self.worker.start(HELENUS_FAILPOINT=named)
            time.sleep(0.1)
            if reached := {point for point in waiting if killed[point].exists()}:
                waiting -= reached
                deadline = time.monotonic() + PATIENCE_S  # each kill has a start of processes follow
        self.happened += [f"not reached: {point}" for point in points if point in waiting]

    def stop_for_a_while(self) -> None:
        """All its processes, as of a virtual machine that is moved."""
        assert self.worker.process is not None
        pids = [int(path.name) for path in processes.family(self.worker.process.pid)]
        _signal(pids, signal.SIGSTOP)
        time.sleep(self._chance.uniform(1, 8))
        _signal(pids, signal.SIGCONT)

    def kill_python_workers(self) -> None:
        """Some of them, or all, and now and then what Spark's are forked from."""
        assert self.worker.process is not None
        members = processes.python_workers(self.worker.process.pid)
        if members:
            _signal(self._chance.sample(members, self._chance.randint(1, len(members))), signal.SIGKILL)
        time.sleep(1)

    def cut_connections(self) -> None:
        for _ in range(self._chance.randint(1, 4)):
            self._relay.cut()
            time.sleep(self._chance.uniform(0, 0.5))

    def lose_answers(self) -> None:
        """Kafka does what it is asked, and the worker does not know."""
        with self._relay.losing_answers():
            time.sleep(self._chance.uniform(0.2, 5))

    def kill_broker(self) -> None:
        self._stack.kill("kafka")
        time.sleep(self._chance.uniform(0, 3))
        self._stack.start("kafka")

    def stop_broker(self) -> None:
        self._stack.stop("kafka")
        self._stack.start("kafka")

    def pause_broker(self) -> None:
        self._stack.pause("kafka")
        time.sleep(self._chance.uniform(1, 8))
        self._stack.resume("kafka")

    def lose_disks(self) -> None:
        """The worker's host is gone, all processes at once; another one has its files of properties alone."""
        assert self.worker.process is not None
        family = processes.family(self.worker.process.pid)
        _signal([int(path.name) for path in family], signal.SIGKILL)
        self.worker.kill()
        # An ended process that nobody has waited for has no command line.
        eventually(lambda: not any(processes.contents(path, "cmdline") for path in family), "its processes have ended")
        shutil.rmtree(self.checkpoint)

    @property
    def checkpoint(self) -> Path:
        return self._pipeline.directory / "checkpoint"

    def __str__(self) -> str:
        return f"faults until now: {'; '.join(self.happened)}"


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
