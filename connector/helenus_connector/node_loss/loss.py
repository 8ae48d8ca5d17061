"""Which changes of a connector's tables may be missing since a node was lost with its disk.

    node 3 of 3, RF 3, its last event of 9:03  →  all tokens, written from 9:02 to now

Its agent sends nothing any more. What other replicas logged, too, their agents send: of a write at QUORUM at least one
has it. What may be missing is what the lost node alone had logged and handed on by streaming, which is not logged.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal, NamedTuple
from uuid import UUID

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.gate.replicas import Replicas
from helenus_connector.log.choice import planner
from helenus_connector.node_loss._last_report import NodeReport, find_last_report
from helenus_connector.verify.options import verify_obstacle
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.placement import LEAST_TOKEN, MOST_TOKEN
from helenus_schemas.service.cassandra import connect

_MARGIN_US = 60_000_000
"""An agent has events in flight for 20 s at most, and reads up to 10 s behind the log (`commitlog_sync_period`)."""
_ALIVE_S = 20.0
"""A node that reported later than this is none that was lost."""
_CLOCK_US = 60_000_000
"""Two machines' clocks may differ by so much."""
_EARLIEST_US = 946_684_800_000_000
_HOSTS = "nodetool status shows the host ids"
_WHOLE_RING = ((LEAST_TOKEN, MOST_TOKEN),)


@dataclass(frozen=True)
class LossQuery:
    """A lost `node`, by its host id, or by its address while it is in the ring. `replaced_by` is the node that has its
    tokens since. `since` and `until`, µs since the epoch, are when it stopped sending, if that is known, and when it
    was lost; now by default.
    """

    node: str
    replaced_by: str | None = None
    since: int | None = None
    until: int | None = None

    @classmethod
    def from_words(cls, words: Mapping[str, Any]) -> LossQuery:
        """Parse a query from JSON: `node`, `replaced_by`, and the times `since` and `until` as ISO 8601 has them, in
        UTC unless they say otherwise. Raises ValueError.
        """
        names = {"node", "replaced_by", "since", "until"}
        if unknown := words.keys() - names:
            raise ValueError(f"{min(unknown)} is not known: there are {', '.join(sorted(names))}")
        texts: dict[str, str] = {}
        for name, word in words.items():
            if word is not None:
                if not isinstance(word, str) or not word.strip():
                    raise ValueError(f"{name}: a text is expected")
                texts[name] = word.strip()
        if "node" not in texts:
            raise ValueError("node: name the lost node by its host id")
        times = {name: _parse_time(name, texts[name]) for name in ("since", "until") if name in texts}
        return cls(texts["node"], texts.get("replaced_by"), **times)


@dataclass(frozen=True)
class NodeLoss:
    """Changes of a table that may be missing: those of these `token_ranges` (above the first, up to the second) that
    were written from `since` to `until`, µs since the epoch. `since` is None if the topics have no event of the node,
    and nobody said it. `is_ring_known`: else it is not known which tokens the node had, and all may be missing.

    `last_event_at`: when its last event was appended, ms since the epoch. `repair` is the command that publishes what
    is missing: `verify`, or `snapshot` for records that can't be verified.
    """

    connector: str
    table: str
    node: str
    data_center: str | None
    last_event_at: int | None
    since: int | None
    until: int
    token_ranges: tuple[tuple[int, int], ...]
    is_ring_known: bool
    repair: Literal["verify", "snapshot"]

    def shown(self) -> dict[str, Any]:
        """Return it as the REST API shows it."""
        return {
            "table": self.table,
            "node": self.node,
            "data_center": self.data_center,
            "last_event": None if self.last_event_at is None else shown_time(self.last_event_at * 1000),
            "since": None if self.since is None else shown_time(self.since),
            "until": shown_time(self.until),
            "ring_known": self.is_ring_known,
            "token_ranges": [f"{after}:{until}" for after, until in self.token_ranges],
            "share": round(sum(until - after for after, until in self.token_ranges) / (MOST_TOKEN - LEAST_TOKEN), 4),
            "repair": self.repair,
        }


def shown_time(microseconds: int) -> str:
    """Return a time in µs since the epoch as `2026-11-29T09:02:11Z`."""
    return datetime.fromtimestamp(microseconds // 1_000_000, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def find_losses(worker: WorkerSettings, tables: Sequence[ConnectorSettings], query: LossQuery) -> list[NodeLoss]:
    """Return the loss of each table of a connector, by the settings of each. A table of which the node has no replica
    has none.

    Raises HelenusError CONFIG for a node that still reports or is not known, and as the brokers and Cassandra.
    """
    settings, until = tables[0], query.until or time.time_ns() // 1000
    lost = _find_node(settings, query)
    report = _last_report(worker, tables, lost.host_id, until // 1000)
    if report is None and not lost.is_member and query.since is None:
        problem = f"no node {lost.host_id} is in the ring, nor has one sent events that are still there"
        raise HelenusError(Kind.CONFIG, problem, settings.name, f"correct it, or give --since: {_HOSTS}")
    if report is not None and query.until is None and (seconds := time.time() - report.timestamp / 1000) < _ALIVE_S:
        raise _not_lost(lost.host_id, f"its agent sent an event {max(0.0, seconds):.0f} s ago", settings.name)
    since = query.since if query.since is not None else _unsent_since(report)
    if since is not None and since >= until:
        sent, gone = shown_time(since), shown_time(until)
        problem = f"node {lost.host_id} sent until {sent}, and was lost at {gone}: nothing is missing"
        raise HelenusError(Kind.CONFIG, problem, settings.name, "correct the times")
    return [
        NodeLoss(
            connector=table.name,
            table=table.table,
            node=lost.host_id,
            data_center=lost.data_center,
            last_event_at=None if report is None else report.timestamp,
            since=since,
            until=until,
            token_ranges=lost.token_ranges,
            is_ring_known=lost.is_ring_known,
            repair="snapshot" if verify_obstacle(table) else "verify",
        )
        for table in tables
        if lost.token_ranges
    ]


class _LostNode(NamedTuple):
    """A lost node: whether it is still a member of the ring, and the tokens that it, or its successor, has there. All
    tokens, unless `is_ring_known`.
    """

    host_id: str
    is_member: bool
    data_center: str | None
    token_ranges: tuple[tuple[int, int], ...]
    is_ring_known: bool


def _find_node(settings: ConnectorSettings, query: LossQuery) -> _LostNode:
    """Return the node that a query names, by the ring as it is. Raises CONFIG for one that is up, and for a successor
    that is not in the ring.
    """
    session = connect(settings, metadata=True)
    try:
        replicas = Replicas(session, settings)
        hosts = session.cluster.metadata.all_hosts()
        node = _host_id(hosts, query.node, settings.name)
        if query.until is None and any(host.is_up and str(host.host_id) == node for host in hosts):
            raise _not_lost(node, "it is up", settings.name)
        owner = node if query.replaced_by is None else _host_id(hosts, query.replaced_by, settings.name)
        members = {host_id: dc for dc, host_ids in replicas.by_dc().items() for host_id in host_ids}
        if query.replaced_by is not None and owner not in members:
            problem = f"node {owner}, which is to have replaced {node}, is not in the ring"
            raise HelenusError(Kind.CONFIG, problem, settings.name, _HOSTS)
        is_known = owner in members
        ranges = tuple(replicas.token_ranges(owner)) if is_known else _WHOLE_RING
        return _LostNode(node, node in members, members.get(owner), ranges, is_known)
    finally:
        session.cluster.shutdown()


def _last_report(
    worker: WorkerSettings, tables: Sequence[ConnectorSettings], node: str, until: int
) -> NodeReport | None:
    topics = [table.events for table in tables]
    with closing(planner(worker)) as broker:
        partitions = {topic: count for topic, count in broker.partitions(topics).items() if count}
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(find_last_report, worker, partitions, node, until).result()


def _unsent_since(report: NodeReport | None) -> int | None:
    """Return the time from which on a node's agent may not have sent what was written, µs since the epoch; None if
    nothing says it. An agent of another program may be hours behind.
    """
    if report is None or report.segment < 0:
        return None
    sent_at = report.timestamp * 1000
    # An agent that lags sends what was written long before. A client may also write with times of its own.
    written_at = sent_at if report.write_time is None else min(sent_at, report.write_time)
    return max(0, written_at - _MARGIN_US)


def _not_lost(node: str, reason: str, where: str) -> HelenusError:
    advice = "name the lost one; or say with --until when it was lost"
    return HelenusError(Kind.CONFIG, f"node {node} is not lost: {reason}", where, advice)


def _host_id(hosts: Iterable[Any], node: str, where: str) -> str:
    """Return the host id of a node in the ring, or the given one of a node that has left. Raises CONFIG."""
    named = {
        str(host.host_id)
        for host in hosts
        if node.lower() == str(host.host_id)
        or node in (host.address, host.broadcast_address, host.listen_address, str(host.endpoint))
    }
    if len(named) == 1:
        return named.pop()
    try:
        return str(UUID(node))
    except ValueError:
        problem = f"{len(named) or 'no'} nodes have the address {node[:80]}"
        raise HelenusError(Kind.CONFIG, problem, where, f"name it by its host id: {_HOSTS}") from None


def _parse_time(name: str, text: str) -> int:
    try:
        # Python 3.10 knows no Z.
        time_ = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text.strip()))
        if time_.tzinfo is None:
            time_ = time_.replace(tzinfo=timezone.utc)
        microseconds = int(time_.timestamp() * 1_000_000)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{name}: {text[:40]} is no time: give it as 2026-11-29T09:02:11Z") from None
    if not _EARLIEST_US < microseconds < time.time_ns() // 1000 + _CLOCK_US:
        raise ValueError(f"{name}: {text[:40]} is before 2000, or still to come")
    return microseconds
