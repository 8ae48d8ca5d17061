"""`helenus-agent validate --connect`: what the node and the message broker would refuse at a start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from helenus_agent.config import AgentSettings
from helenus_agent.node import identity
from helenus_agent.node.cassandra import Cassandra
from helenus_agent.node.tables import KnownTables
from helenus_agent.node_directories import CDC_OFF, check_places
from helenus_schemas import names
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.log import KafkaLog
from helenus_sinks.kafka.rights import UNASKED, TopicUse
from helenus_sinks.log import Log


def refusals(settings: AgentSettings, directory: Path, log: Log) -> Iterator[HelenusError]:
    """Yield what speaks against a start. It changes nothing: a topic that is missing is made at the start, if it can
    be.

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
        tables = KnownTables(
            settings.table_include_list, settings.table_exclude_list, cells=settings.cells_include_list
        )
        report = tables.update(schema.tables, schema.views, 0, schema.stamps)
        for table, why in report.refused:
            yield HelenusError(Kind.TABLE_UNSUPPORTED, f"its changes can't be published: {why}", table.full_name)
        for key, pattern, near in tables.unmatched_patterns():
            advice = f"did you mean {near}? " if near else ""
            advice += "correct it, or take it out; an agent that runs warns, and takes such a table when it is created"
            yield HelenusError(Kind.CONFIG, f"{key}={pattern}: no table matches it", advice=advice)
        followed = tables.followed_now
    except HelenusError as error:
        yield error
    try:
        existing = log.topics()
    except HelenusError as error:
        yield error
        return
    topics = sorted(names.topic(settings.topic_prefix, table.keyspace, table.name) for table in followed)
    if isinstance(log, KafkaLog):
        factor = settings.topic_creation_default_replication_factor
        uses = [TopicUse(topic, ("WRITE",), settings.topic_partitions, factor) for topic in topics]
        try:
            yield from log.missing_rights(uses)
        except HelenusError as error:
            yield error
    if settings.log == "pulsar" and not settings.pulsar_admin_url:
        for topic in sorted(set(topics) - existing.keys()):
            advice = "set pulsar.admin.url to have it made, or make it, with partitions"
            yield HelenusError(Kind.BROKER_REFUSED, "the topic is missing", topic, advice)


def unasked(settings: AgentSettings) -> str:
    """Return what the servers were not asked, though a start may meet it."""
    return UNASKED if settings.log == "kafka" else "whether this login may produce to Pulsar's topics, or make them"
