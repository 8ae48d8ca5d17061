"""`helenus-agent validate --connect`: what the node and the message broker would refuse at a start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from helenus_agent.config import CDC_OFF, AgentSettings, check_places
from helenus_agent.node import identity
from helenus_agent.node.cassandra import Cassandra
from helenus_agent.node.tables import Tables
from helenus_schemas import names
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.log import Log


def refusals(settings: AgentSettings, directory: Path, log: Log) -> Iterator[HelenusError]:
    """What speaks against a start. It changes nothing: a topic that is missing is made at the start, if it can be.

    `directory` is cdc_raw.
    """
    followed: list[Table] = []
    try:
        with closing(Cassandra(settings)) as cassandra:
            node, schema = cassandra.node(), cassandra.schema()
        identity.check(node, settings, directory)
        check_places(settings, directory, node.settings)
        if node.has_cdc is False:
            yield HelenusError(Kind.CDC_DISABLED, "the node runs with cdc_enabled: false", str(node.host_id), CDC_OFF)
        tables = Tables(settings.table_include_list, settings.table_exclude_list, cells=settings.cells_include_list)
        report = tables.update(schema.tables, schema.views, 0, schema.stamps)
        for table, why in report.refused:
            yield HelenusError(Kind.TABLE_UNSUPPORTED, f"its changes can't be published: {why}", table.full_name)
        followed = tables.followed_now
    except HelenusError as error:
        yield error
    try:
        there = log.topics()
    except HelenusError as error:
        yield error
        return
    if settings.log == "pulsar" and not settings.pulsar_admin_url:
        topics = (names.topic(settings.topic_prefix, table.keyspace, table.name) for table in followed)
        for topic in sorted(set(topics) - there.keys()):
            advice = "set pulsar.admin.url to have it made, or make it, with partitions"
            yield HelenusError(Kind.BROKER_REFUSED, "the topic is missing", topic, advice)
