"""Kafka's transforms of topics and of whole records: RegexRouter, TimestampRouter, Filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from helenus_connector.connect_data.java_dates import DateFormat
from helenus_connector.connect_data.record import ConnectRecord
from helenus_connector.transforms._java_regex import compile_regex, replace_first
from helenus_connector.transforms.contract import ConfigKey, TransformError


class RegexRouter:
    """Renames topics whose whole name matches."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (
        ConfigKey("regex", "STRING", "Regular expression for a topic.", importance="HIGH", check=compile_regex),
        ConfigKey("replacement", "STRING", "The topic's new name; $1 is a group.", importance="HIGH"),
    )

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._regex = compile_regex(settings["regex"])
        self._replacement: str = settings["replacement"]

    def apply(self, record: ConnectRecord) -> ConnectRecord:
        if not self._regex.fullmatch(record.topic):
            return record
        return replace(record, topic=replace_first(self._regex, self._replacement, record.topic))


class TimestampRouter:
    """Names topics by the records' time."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (
        ConfigKey(
            "topic.format",
            "STRING",
            "The topic's name, with ${topic} and ${timestamp}.",
            default="${topic}-${timestamp}",
            importance="HIGH",
        ),
        ConfigKey(
            "timestamp.format",
            "STRING",
            "Format of the timestamp, as of Java's SimpleDateFormat.",
            default="yyyyMMdd",
            importance="HIGH",
            check=DateFormat,
        ),
    )

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._topic: str = settings["topic.format"]
        self._format = DateFormat(settings["timestamp.format"])

    def apply(self, record: ConnectRecord) -> ConnectRecord:
        if record.timestamp is None:
            raise TransformError("the record has no timestamp")
        topic = self._topic.replace("${topic}", record.topic)
        return replace(record, topic=topic.replace("${timestamp}", self._format.format(record.timestamp)))


class DropRecord:
    """Drops the record: Kafka's Filter, which a predicate decides on."""

    KEYS: ClassVar[Sequence[ConfigKey]] = ()

    def __init__(self, settings: Mapping[str, Any]) -> None:
        pass

    def apply(self, record: ConnectRecord) -> None:  # noqa: ARG002
        return None
