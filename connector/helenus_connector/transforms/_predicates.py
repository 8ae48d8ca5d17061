"""Kafka's predicates: HasHeaderKey, RecordIsTombstone, TopicNameMatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from helenus_connector.connect_data.record import ConnectRecord
from helenus_connector.transforms._java_regex import compile_regex
from helenus_connector.transforms.contract import ConfigKey, check_not_empty


class HasHeaderKey:
    """True for records with a header of a name."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (ConfigKey("name", "STRING", "The header name.", check=check_not_empty),)

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._name: str = settings["name"]

    def test(self, record: ConnectRecord) -> bool:
        return any(header.name == self._name for header in record.headers)


class RecordIsTombstone:
    """True for records whose value is null."""

    KEYS: ClassVar[Sequence[ConfigKey]] = ()

    def __init__(self, settings: Mapping[str, Any]) -> None:
        pass

    def test(self, record: ConnectRecord) -> bool:
        return record.value is None


def _check_pattern(pattern: str) -> None:
    check_not_empty(pattern)
    compile_regex(pattern)


class TopicNameMatches:
    """True for records whose topic's whole name matches an expression."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (
        ConfigKey("pattern", "STRING", "A regular expression for the whole name of a topic.", check=_check_pattern),
    )

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._regex = compile_regex(settings["pattern"])

    def test(self, record: ConnectRecord) -> bool:
        return self._regex.fullmatch(record.topic) is not None
