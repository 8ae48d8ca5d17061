"""A cluster of many nodes that is not there: its ring, its reports of changes, and a table's stage that reads from it.

The tokens are random, as `num_tokens` without `allocate_tokens_for_local_replication_factor` has them. A change is
reported by the replicas of its key, in any order. Replicas are those of the driver's own token map.
"""

from __future__ import annotations

import hashlib
import random
import struct
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cassandra.metadata import Murmur3Token, NetworkTopologyStrategy, TokenMap

from bench.stage import TABLE, Bytes
from bench.written import Ids, Nothing, T, insert
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate._ring import RingNode
from helenus_connector.interfaces.event import Event
from helenus_connector.pipeline import _table_version as version
from helenus_connector.pipeline.stage import Stage
from helenus_connector.testing.cassandra import Host
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.event import placement
from helenus_schemas.event.change import Change, Effect, column_bit
from helenus_schemas.event.wire import encode

PARTITIONS = 4
FACTOR = 3
RACKS = 3
TOPIC = "events-bench.single"
DIRECT = {"output.format": "debezium", "resolver": "none", "tombstones.on.delete": "false"}
"""Settings with which records are made of the events' cells."""


@dataclass(frozen=True)
class Size:
    """How large a cluster is. Each of its data centres has a replication factor of 3."""

    nodes: int
    tokens: int
    data_centers: int = 1

    def __str__(self) -> str:
        in_dcs = f" in {self.data_centers} data centres" if self.data_centers > 1 else ""
        return f"{self.nodes} nodes of {self.tokens} tokens{in_dcs}"


class LargeCluster:
    """The nodes of a cluster of this size, spread evenly over data centres, and over three racks in each."""

    def __init__(self, size: Size, seed: int = 1) -> None:
        numbers = random.Random(seed)
        self.size = size
        self.hosts = [
            Host(
                uuid.UUID(int=numbers.getrandbits(128)),
                f"dc{number % size.data_centers}",
                rack=f"rack{number // size.data_centers % RACKS}",
                tokens=[numbers.randrange(-(1 << 63), 1 << 63) for _ in range(size.tokens)],
            )
            for number in range(size.nodes)
        ]
        factors = {f"dc{number}": str(FACTOR) for number in range(size.data_centers)}
        self.strategy = NetworkTopologyStrategy(factors)

    @property
    def tokens(self) -> dict[RingNode, list[str]]:
        """The tokens of each node, as a ring has them."""
        return {
            RingNode(str(host.host_id), host.datacenter, host.rack): [str(token) for token in host.tokens]
            for host in self.hosts
        }

    @cached_property
    def owners(self) -> dict[Any, Host]:
        """The node of each token, as the driver has them."""
        return {Murmur3Token(token): host for host in self.hosts for token in host.tokens}

    def session(self) -> Bytes:
        """A session of the cluster, whose answers are rows; its driver knows the replicas of each key."""
        session = Bytes("unique")
        session.hosts = list(self.hosts)
        metadata = session.cluster.metadata
        metadata.keyspaces["bench"].replication_strategy = self.strategy
        token_map = TokenMap(Murmur3Token, self.owners, sorted(self.owners), metadata)
        metadata.get_replicas = lambda keyspace, key: token_map.get_replicas(keyspace, Murmur3Token.from_key(key))
        return session

    def events(self, changes: int, seed: int = 2) -> Iterator[list[Event]]:
        """Yield the reports of inserts of as many rows: one of each replica, in random order."""
        numbers, codec, session = random.Random(seed), KeyCodec(TABLE), self.session()
        effect = int(Effect.LIVE | Effect.ROW | column_bit("v") | column_bit("n"))
        for n in range(changes):
            raw = struct.pack(">i", n)
            key, token = codec.encode((raw,)), Murmur3Token.hash_fn(raw)
            digest = hashlib.md5(struct.pack(">q", n), usedforsecurity=False).hexdigest()
            cells = insert(TABLE, (raw, b"x" * 100))
            replicas = session.cluster.metadata.get_replicas("bench", raw)
            partition = placement.partition(token, PARTITIONS)
            yield [
                Event(
                    TOPIC,
                    partition,
                    len(replicas) * n + copy,
                    T // 1000,
                    key,
                    encode(
                        Change(
                            digest,
                            str(host.host_id),
                            segment=T // 1000,
                            position=100 * n,
                            write_time=T,
                            effect=effect,
                            cells=cells,
                        )
                    ),
                )
                for copy, host in enumerate(numbers.sample(replicas, len(replicas)))
            ]

    def stage(self, directory: Path, properties: dict[str, str]) -> tuple[Stage, Bytes]:
        """The stage of a table of the cluster, and the session by which it reads."""
        settings = {
            "name": TABLE.name,
            "keyspace": TABLE.keyspace,
            "table": TABLE.name,
            "value.converter.schema.registry.url": "http://127.0.0.1:1",
            "cassandra.local.dc": "dc0",
            **properties,
        }
        version.read_definition = lambda session, settings, schema_state=None, request=None: (
            None if schema_state else (1, TABLE)
        )  # type: ignore[assignment]
        session = self.session()
        connector = ConnectorSettings.from_properties(settings, "bench")
        return Stage(connector, session, Nothing(), directory, None, Ids()), session


def in_batches(changes: Sequence[Sequence[Event]], size: int) -> Iterator[list[Event]]:
    """Yield batches of all reports of `size` changes each, partition by partition, as a task reads them."""
    for start in range(0, len(changes), size):
        events = [event for reports in changes[start : start + size] for event in reports]
        yield sorted(events, key=lambda event: event.partition)
