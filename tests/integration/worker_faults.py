"""What happens to workers, their processes, their hosts, Kafka's brokers and the way to these while they publish."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from bench import processes
from bench.relay import Relay
from integration.pipeline import Command
from patience import PATIENCE_S, eventually

from helenus_stack.errors import StackError
from helenus_stack.stack import Stack

TASK_POINTS = (
    "connector.before-transaction",
    "connector.after-transaction",
    "connector.after-flush",
    "connector.after-mark",
)
"""Where one of Spark's Python workers is killed; its driver has the batch done again."""
CHUNK_POINTS = ("connector.between-chunks", "connector.after-chunks", "connector.before-transaction-of-large")
"""Where one of Spark's Python workers is killed that writes a record in chunks: before some of them, before the record,
and before the commit of both.
"""
DRIVER_POINTS = ("connector.before-commit",)
"""Where the driver is killed, and with it the worker."""
STATE_POINTS = ("state.before-store-commit",)
"""The same, of a query with `state=rows`: a batch of few events is published, and the state is that of before."""


class WorkerFaults:
    """Faults of workers, one or those of a group, whose brokers, a stack each, are behind a relay each. `chance` says
    whom each hits, and how long it lasts. What a fault ended is started again.
    """

    def __init__(
        self, stacks: Sequence[Stack], relays: Sequence[Relay], workers: Sequence[Command], chance: random.Random
    ) -> None:
        self._stacks, self._relays, self._workers, self._chance = stacks, relays, workers, chance
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

    def choose_worker(self) -> Command:
        """One of the workers: mostly the one that leads, if there is one."""
        if self._chance.random() < 0.75 and (leader := self.leader()) is not None:
            return leader
        return self._chance.choice(self._workers)

    def leader(self) -> Command | None:
        """The one that runs the connectors, and is ready."""
        for worker in self._workers:
            code, message = worker.health()
            if code == 200 and not message.startswith("standby: "):
                return worker
        return None

    def happen(self, fault: Callable[[], None]) -> None:
        """Have a fault happen, and what it ended run again."""
        self.happened.append(fault.__name__)
        fault()
        self.revive()

    def revive(self) -> None:
        """Start the workers that have ended, as a supervisor does."""
        for worker in self._workers:
            assert worker.process is not None
            if (status := worker.process.poll()) is not None:
                if status != -signal.SIGKILL:
                    self.happened.append(f"ended with {status}")
                worker.start()

    def wait_ready(self) -> None:
        """Wait until one of the workers is."""

        def is_ready() -> bool:
            self.revive()
            return self.leader() is not None

        eventually(is_ready, lambda: f"{self}; the workers' logs end:\n{self.tails()}")

    def tails(self) -> str:
        """What the workers' logs end with."""
        return "\n\n".join(worker.tail() for worker in self._workers)

    def kill(self) -> None:
        self.choose_worker().kill()
        time.sleep(self._chance.uniform(0, 2))

    def kill_in_task(self) -> None:
        self._kill_at(self._chance.choice(TASK_POINTS))

    def kill_in_driver(self) -> None:
        self._kill_at(self._chance.choice(DRIVER_POINTS))

    def kill_at_each_point(self) -> None:
        """Start it anew, and have each point kill once: of tasks one process each, and in the end the driver."""
        visits = {point: 2 + index for index, point in enumerate(TASK_POINTS)}
        visits |= dict.fromkeys((*DRIVER_POINTS, *STATE_POINTS), 12)
        self._kill_at(*visits, visits=visits)

    def kill_around_chunks(self) -> None:
        """Start it anew, and have one process killed at each of the points of chunks."""
        self._kill_at(*CHUNK_POINTS, visits=dict.fromkeys(CHUNK_POINTS, 1) | {CHUNK_POINTS[0]: 2})

    def _kill_at(self, *points: str, visits: dict[str, int] | None = None) -> None:
        """Start them anew, and wait until one was killed at these points; one that is not reached in time was not."""
        self._points += 1
        directory = self._workers[0].log.parent
        killed = {point: directory / f"killed-{self._points}-{point}" for point in points}
        visit = {point: self._chance.randint(1, 4) for point in points} | (visits or {})
        named = ",".join(f"{point}:{visit[point]}@{file}" for point, file in killed.items())
        self.happened.append(named.replace(f"{directory}/", ""))
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.start(HELENUS_FAILPOINT=named)
        waiting, deadline = set(points), time.monotonic() + PATIENCE_S
        while waiting and time.monotonic() < deadline:
            for worker in self._workers:
                assert worker.process is not None
                if worker.process.poll() is not None:
                    worker.start(HELENUS_FAILPOINT=named)
            time.sleep(0.1)
            if reached := {point for point in waiting if killed[point].exists()}:
                waiting -= reached
                deadline = time.monotonic() + PATIENCE_S  # each kill has a start of processes follow
        self.happened += [f"not reached: {point}" for point in points if point in waiting]

    def stop_for_a_while(self) -> None:
        """All its processes, as of a virtual machine that is moved."""
        pids = [int(path.name) for path in _family(self.choose_worker())]
        _signal(pids, signal.SIGSTOP)
        time.sleep(self._chance.uniform(1, 8))
        _signal(pids, signal.SIGCONT)

    def kill_python_workers(self) -> None:
        """Some of them, or all, and now and then what Spark's are forked from."""
        worker = self.choose_worker()
        assert worker.process is not None
        members = processes.python_workers(worker.process.pid)
        if members:
            _signal(self._chance.sample(members, self._chance.randint(1, len(members))), signal.SIGKILL)
        time.sleep(1)

    def cut_connections(self) -> None:
        for _ in range(self._chance.randint(1, 4)):
            for relay in self._some_relays():
                relay.cut()
            time.sleep(self._chance.uniform(0, 0.5))

    def lose_answers(self) -> None:
        """Kafka does what it is asked, and the workers do not know."""
        with ExitStack() as losing:
            for relay in self._some_relays():
                losing.enter_context(relay.losing_answers())
            time.sleep(self._chance.uniform(0.2, 5))

    def _some_relays(self) -> list[Relay]:
        return self._chance.sample(self._relays, self._chance.randint(1, len(self._relays)))

    def kill_broker(self) -> None:
        stack = self._chance.choice(self._stacks)
        stack.kill("kafka")
        time.sleep(self._chance.uniform(0, 3))
        start_broker(stack)

    def stop_broker(self) -> None:
        stack = self._chance.choice(self._stacks)
        stack.stop("kafka")
        start_broker(stack)

    def pause_broker(self) -> None:
        stack = self._chance.choice(self._stacks)
        stack.pause("kafka")
        time.sleep(self._chance.uniform(1, 8))
        stack.resume("kafka")

    def lose_disks(self) -> None:
        """The worker's host is gone, all processes at once; another one has its files of properties alone."""
        worker = self.choose_worker()
        family = _family(worker)
        _signal([int(path.name) for path in family], signal.SIGKILL)
        worker.kill()
        # An ended process that nobody has waited for has no command line.
        eventually(lambda: not any(processes.contents(path, "cmdline") for path in family), "its processes have ended")
        shutil.rmtree(worker.log.parent / "checkpoint", ignore_errors=True)

    def __str__(self) -> str:
        return f"faults until now: {'; '.join(self.happened)}"


def start_broker(stack: Stack) -> None:
    """Start a broker, once more if a busy machine takes too long for it."""
    try:
        stack.start("kafka")
    except StackError:
        stack.start("kafka")


def _family(worker: Command) -> list[Path]:
    assert worker.process is not None
    return processes.family(worker.process.pid)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
