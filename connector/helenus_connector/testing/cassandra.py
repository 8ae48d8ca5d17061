"""Cassandra in memory: a session as the driver's, and a reader of rows that are in a dict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from cassandra.metadata import SimpleStrategy

from helenus_connector.cassandra_rows.row_reader import KeyRefused
from helenus_connector.interfaces.image import Image
from helenus_schemas.codec.key import Key
from helenus_schemas.cql.table import Table
from helenus_schemas.event.change import Scope

_OF_A_STATEMENT = (
    "consistency_level serial_consistency_level fetch_size custom_payload keyspace result_metadata routing_key_indexes"
    " retry_policy"
).split()
Answer = tuple[Iterable[Any], "bytes | None"]
"""A page of rows, and the state that the next page is asked for with."""


@dataclass(eq=False)
class Host:
    """A node, as the driver describes it, and its tokens on the ring; without any it has one of its own."""

    host_id: Any
    datacenter: str = "dc"
    is_up: bool = True
    rack: str = "rack"
    tokens: Sequence[int] = ()
    release_version: str | None = None


class MemorySession:
    """A session with the nodes in `hosts`, which may be changed, and the keyspaces' replication: SimpleStrategy, unless
    a strategy is given instead of its factor.

    `answer` is asked for every page: `answer(cql, values, paging_state, page_size)` returns an Answer, or raises.
    """

    def __init__(
        self,
        hosts: list[Any],
        keyspaces: Mapping[str, object] | None = None,
        answer: Callable[[str, list[Any], bytes | None, int | None], Answer] | None = None,
    ) -> None:
        self.hosts = hosts
        self.is_closed = False
        strategies = {
            name: SimpleStrategy({"replication_factor": str(factor)}) if isinstance(factor, int) else factor
            for name, factor in (keyspaces or {}).items()
        }
        metadata = SimpleNamespace(
            all_hosts=lambda: self.hosts,
            keyspaces={name: SimpleNamespace(replication_strategy=s) for name, s in strategies.items()},
            get_replicas=lambda keyspace, key: self.hosts,  # noqa: ARG005
        )
        self.cluster = SimpleNamespace(
            metadata=metadata,
            shutdown=self._shutdown,
            refresh_nodes=lambda force_token_rebuild=False: None,  # noqa: ARG005
        )
        self._answer = answer

    def prepare(self, cql: str) -> Any:
        nothing = dict.fromkeys(_OF_A_STATEMENT)
        return SimpleNamespace(query_string=cql, column_metadata=[], is_idempotent=True, **nothing)

    def execute(self, statement: Any, timeout: float = 10.0, host: Any = None) -> Any:  # noqa: ARG002
        """A read of the ring: of the node that answers, which is the first, or of all others.

        A `host` is a ring that was read from it before.
        """
        ring = self.ring() if host is None else host
        rows = [
            SimpleNamespace(
                host_id=node.host_id,
                data_center=node.datacenter,
                rack=node.rack,
                partitioner="org.apache.cassandra.dht.Murmur3Partitioner",
                tokens=[str(token) for token in node.tokens or [number << 32]],
            )
            for number, node in enumerate(ring)
        ]
        answer = _Rows(rows[:1] if "system.local" in statement.query_string else rows[1:])
        answer.response_future = SimpleNamespace(coordinator_host=ring)
        return answer

    def ring(self) -> list[Any]:
        """The nodes as the one that is asked for the ring has them."""
        return self.hosts

    def execute_async(
        self,
        bound: Any,
        paging_state: bytes | None = None,
        host: object = None,  # noqa: ARG002
        timeout: float = 10.0,  # noqa: ARG002
    ) -> Any:
        cql, values = bound.prepared_statement.query_string, list(bound.values)
        page: Answer = ((), None)
        failed: Exception | None = None
        try:
            page = self.answer(cql, values, paging_state, bound.fetch_size)
        except Exception as error:
            failed = error

        def result() -> Any:
            if failed is not None:
                raise failed
            return SimpleNamespace(current_rows=page[0], paging_state=page[1])

        return SimpleNamespace(result=result, coordinator_host=None)

    def answer(self, cql: str, values: list[Any], paging_state: bytes | None, page_size: int | None) -> Answer:
        """As the function that was given, or no rows."""
        return self._answer(cql, values, paging_state, page_size) if self._answer else ((), None)

    def _shutdown(self) -> None:
        self.is_closed = True


class _Rows(list[Any]):
    """The rows of an answer to a plain statement."""

    response_future: Any = None

    def one(self) -> Any:
        return self[0] if self else None


class MemoryReader:
    """Stands for `RowReader`: the rows are those of `live`, whatever the level. Every scope has all of them,
    and no statics.
    """

    shows_all_times = True

    def __init__(self, live: dict[Key, Image], table: Table) -> None:
        self.live, self.table, self.statements, self.seconds = live, table, 0, 0.0
        self.asks_ttl = self.saw_ttl = False

    def read_rows(self, keys: Iterable[Key], consistency: int) -> Iterator[tuple[Key, Any]]:  # noqa: ARG002
        yield from ((key, self.live.get(key)) for key in keys)

    def read_row_lists(self, keys: Iterable[Key], consistency: int) -> Iterator[list[tuple[Key, Any]]]:
        for answer in self.read_rows(keys, consistency):
            yield [answer]

    read_along_ring = read_row_lists

    def read_statics(self, key: Key, consistency: int) -> Image | None:  # noqa: ARG002
        return None

    def read_range(self, key: Key, bounds: object, consistency: int) -> Iterator[tuple[Key, Image]]:  # noqa: ARG002
        yield from self.live.items()

    def read_scopes(self, scopes: Sequence[tuple[Scope, Key, Any]], consistency: int) -> Iterator[tuple[int, Any]]:
        for index, (_, key, bounds) in enumerate(scopes):
            try:
                yield index, (self.read_statics(key, consistency), self.read_range(key, bounds, consistency))
            except KeyRefused as refusal:
                yield index, refusal

    def read_topic_partition(
        self,
        partition: int,  # noqa: ARG002
        parts: int,  # noqa: ARG002
        consistency: int,  # noqa: ARG002
        first: int = 0,  # noqa: ARG002
    ) -> Iterator[tuple[Key, Image]]:
        yield from self.live.items()
