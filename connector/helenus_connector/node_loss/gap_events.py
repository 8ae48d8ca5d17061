"""Gaps for what a lost node may not have sent, in the events topics: as agents report gaps of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import structlog

from helenus_connector.cassandra_rows.table_definition import read_definition
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.log.choice import event_schemas, events_log
from helenus_connector.node_loss.loss import NodeLoss, shown_time
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event import datastax
from helenus_schemas.event.change import Bound, Change, Scope
from helenus_schemas.event.placement import LEAST_TOKEN, MOST_TOKEN
from helenus_schemas.event.wire import encode
from helenus_schemas.service.cassandra import connect
from helenus_sinks.log import Log

_FLUSH_TIMEOUT_S = 60.0
_MAX_RANGES = 64
"""With more of them one gap has no bounds, and concerns all tokens: a node of 256 tokens has some 700 ranges, for each
of which every partition of every table would get an event.
"""
_SHOWN_RANGES = 10
_ADVICE = "publish what is missing with lost-node --repair, or re-snapshot the table"
_log = structlog.get_logger(__name__)


def append_gaps(worker: WorkerSettings, tables: Sequence[ConnectorSettings], losses: Sequence[NodeLoss]) -> None:
    """Append the gaps of losses to the events topics of these tables, and log each loss. A table that was dropped, or
    has no events topic yet, has no gap.

    Raises HelenusError as Cassandra, before any is appended, and the broker.
    """
    by_table = {table.table: table for table in tables}
    settings_and_losses = [(by_table[loss.table], loss) for loss in losses]
    definitions = _read_definitions([settings for settings, _ in settings_and_losses])
    with closing(events_log(worker)) as log:
        partitions = log.topics()
        for settings, loss in settings_and_losses:
            _log_loss(loss, settings)
            if settings.table in definitions and settings.events in partitions:
                _append(log, definitions[settings.table], settings.events, partitions[settings.events], loss)
        log.flush(_FLUSH_TIMEOUT_S)


def _read_definitions(tables: Sequence[ConnectorSettings]) -> dict[str, Table]:
    """Return the definitions of these tables, all of one connector, as far as they exist."""
    definitions: dict[str, Table] = {}
    session: Any = connect(tables[0], metadata=True)
    try:
        for settings in tables:
            try:
                definition = read_definition(session, settings)
            except HelenusError as error:
                if error.kind is not Kind.TABLE_MISSING:
                    raise
                continue
            if definition is not None:
                definitions[settings.table] = definition[1]
    finally:
        session.cluster.shutdown()
    return definitions


def _append(log: Log, table: Table, topic: str, partitions: int, loss: NodeLoss) -> None:
    if log.keeps_schemas:
        log.declare(topic, event_schemas(table))
    for partition in range(partitions):
        for change in _gaps(table, loss, partition, partitions):
            value = encode(change)
            log.append(topic, partition, None, datastax.sorted_value(value) if log.keeps_schemas else value)


def _gaps(table: Table, loss: NodeLoss, partition: int, partitions: int) -> Iterator[Change]:
    """Yield a gap for each range of tokens. Its bounds are tokens, as CQL's bigint has them."""
    name = table.id.bytes + loss.node.encode() + str(loss.until).encode()
    digest = hashlib.md5(name, usedforsecurity=False).hexdigest()
    gap = Change(digest, loss.node, Scope.GAP, partition, partitions, write_time=loss.until)
    if loss.token_ranges == ((LEAST_TOKEN, MOST_TOKEN),) or len(loss.token_ranges) > _MAX_RANGES:
        yield gap
        return
    for after, until in loss.token_ranges:
        yield gap._replace(start=Bound(False, (_bigint(after),)), end=Bound(True, (_bigint(until),)))


def _bigint(token: int) -> bytes:
    return token.to_bytes(8, "big", signed=True)


def _log_loss(loss: NodeLoss, settings: ConnectorSettings) -> None:
    ranges = [f"{after}:{until}" for after, until in loss.token_ranges[:_SHOWN_RANGES]]
    _log.warning(
        "node.lost",
        connector=loss.connector,
        table=f"{settings.keyspace}.{loss.table}",
        node=loss.node,
        written_since=None if loss.since is None else shown_time(loss.since),
        written_until=shown_time(loss.until),
        token_ranges=ranges,
        further_ranges=max(0, len(loss.token_ranges) - _SHOWN_RANGES),
        advice=_ADVICE,
    )
