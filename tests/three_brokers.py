"""Three Kafka brokers, each a stack of its own and behind a relay, that are one cluster."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from bench.relay import Relay

from helenus_stack import kafka
from helenus_stack.errors import StackError
from helenus_stack.settings import Settings
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
        self.relays = [Relay(_relayed_port(offset)) for offset in _OFFSETS]
        voters = ",".join(f"{number}@127.0.0.1:{9093 + offset}" for number, offset in enumerate(_OFFSETS, 1))
        self.stacks = [
            Stack(
                directory / f"broker{number}",
                only=["kafka"],
                port_offset=offset,
                heap="256m",
                kafka_properties={
                    **_IN_SYNC,
                    **relayed_listeners(
                        kafka.configuration(Settings(port_offset=offset), directory), _relayed_port(offset), relay.port
                    ),
                    "node.id": str(number),
                    "controller.quorum.voters": voters,
                },
            )
            for number, (offset, relay) in enumerate(zip(_OFFSETS, self.relays, strict=True), 1)
        ]
        self._running = ExitStack()

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect."""
        return ",".join(str(stack.status().bootstrap_servers) for stack in self.stacks)

    @property
    def relayed_servers(self) -> str:
        """Where clients connect that have all their connections go through the relays."""
        return ",".join(f"127.0.0.1:{relay.port}" for relay in self.relays)

    def __enter__(self) -> ThreeBrokers:
        for relay in self.relays:
            self._running.enter_context(relay)
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
        try:
            return stack.__enter__()
        except StackError:  # a busy machine took too long for all three
            return stack.__enter__()


def _relayed_port(offset: int) -> int:
    return 9094 + offset


def relayed_listeners(configured: Mapping[str, str], port: int, relay_port: int) -> dict[str, str]:
    """The properties of a broker, so `configured`, with a listener more at `port` that advertises a relay's."""
    return {
        "listeners": f"{configured['listeners']},RELAYED://127.0.0.1:{port}",
        "advertised.listeners": f"{configured['advertised.listeners']},RELAYED://127.0.0.1:{relay_port}",
        "listener.security.protocol.map": f"{configured['listener.security.protocol.map']},RELAYED:PLAINTEXT",
    }
