"""Three Kafka brokers, each a stack of its own, that are one cluster."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from helenus_stack.stack import Stack

_OFFSETS = (5_000, 5_100, 5_200)
"""Of their ports: each must know the others' before any of them starts."""
_COORDINATORS = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
_IN_SYNC = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    **{f"{topic}.replication.factor": "3" for topic in _COORDINATORS},
    **{f"{topic}.min.isr": "2" for topic in _COORDINATORS[1:]},
    # A broker that was killed is out of sync soon, and its leaders are others.
    "broker.session.timeout.ms": "6000",
    "replica.lag.time.max.ms": "6000",
}


class ThreeBrokers:
    """Topics have three replicas, of which two must be in sync. It runs while it is entered."""

    def __init__(self, directory: Path) -> None:
        voters = ",".join(f"{number}@127.0.0.1:{9093 + offset}" for number, offset in enumerate(_OFFSETS, 1))
        self.stacks = [
            Stack(
                directory / f"broker{number}",
                only=["kafka"],
                port_offset=offset,
                heap="256m",
                kafka_properties={**_IN_SYNC, "node.id": str(number), "controller.quorum.voters": voters},
            )
            for number, offset in enumerate(_OFFSETS, 1)
        ]
        self._running = ExitStack()

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect."""
        return ",".join(str(stack.status().bootstrap_servers) for stack in self.stacks)

    def kill(self, number: int) -> None:
        """Kill a broker, 0 to 2."""
        self.stacks[number].kill("kafka")

    def start(self, number: int) -> None:
        """Start a broker again."""
        self.stacks[number].start("kafka")

    def __enter__(self) -> ThreeBrokers:
        # None is ready before there are two.
        with ThreadPoolExecutor(len(self.stacks)) as pool:
            for stack in pool.map(self._enter, self.stacks):
                self._running.push(stack)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

    @staticmethod
    def _enter(stack: Stack) -> Stack:
        return stack.__enter__()
