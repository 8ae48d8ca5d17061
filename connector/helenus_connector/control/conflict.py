"""Which connectors can't run on one worker together, because of the topics that they read and write."""

from __future__ import annotations

from collections.abc import Iterable

from helenus_connector.config.connector import ConnectorSettings
from helenus_schemas.settings.properties import ConfigError, Problem


def conflict(settings: ConnectorSettings, other: ConnectorSettings, source: str = "") -> Problem | None:
    """Return why a table of one connector can't run next to that of another connector; None if it can.

    Two that read a topic in one query would get a part of it each; where two write a topic, order per key is lost.
    `source` is what names the first: its file, or by default its connector.
    """
    source = source or settings.name
    same_data = settings.data == other.data
    if settings.query_group == other.query_group and settings.events == other.events:
        advice = f"give one of them another query.group{' and another data.topic' if same_data else ''}"
        reason = f"connector {other.name} reads {settings.events} already; {advice}"
        return Problem(source, "table", settings.table, reason)
    if same_data:
        reason = f"connector {other.name} writes {settings.data} already; give one of them another data.topic"
        return Problem(source, "data.topic", settings.data_topic or None, reason)
    return None


def check_conflicts(connectors: Iterable[tuple[str, ConnectorSettings]]) -> None:
    """Raise ConfigError if any two connectors conflict, each with its source, as far as they name tables."""
    problems: list[Problem] = []
    checked: list[ConnectorSettings] = []
    for source, settings in connectors:
        tables = [settings.of_table(table) for table in settings.tables]
        conflicts = (conflict(table, other, source) for table in tables for other in checked)
        problems += [problem for problem in conflicts if problem]
        checked += tables
    if problems:
        raise ConfigError(problems)


def matching(settings: ConnectorSettings, topics: Iterable[str]) -> set[str]:
    """Return the events topics of tables that match a connector's patterns, also of tables that are not known yet."""
    placeholder = "table"
    prefix, name, suffix = settings.of_table(placeholder).events.rpartition(placeholder)
    if not name or settings.of_table(placeholder * 2).events != prefix + placeholder * 2 + suffix:
        return set()
    topics_alike = [topic for topic in topics if topic.startswith(prefix) and topic.endswith(suffix)]
    return {topic for topic in topics_alike if settings.matches(topic[len(prefix) : len(topic) - len(suffix)])}
