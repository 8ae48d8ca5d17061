"""Debezium's Filter and ContentBasedRouter, with expressions as `_expressions` understands them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from helenus_connector.connect_data.record import ConnectRecord
from helenus_connector.connect_data.schema import ConnectSchema
from helenus_connector.transforms._expressions import compile_expression
from helenus_connector.transforms._java_regex import compile_regex
from helenus_connector.transforms.contract import ConfigKey, TransformError

_LANGUAGES = ("jsr223.groovy", "jsr223.graal.js")
_COMMON = (
    ConfigKey(
        "topic.regex",
        "STRING",
        "Regular expression for the topics whose records it applies to; default: all.",
        default="",
        importance="LOW",
        check=compile_regex,
    ),
    ConfigKey(
        "language",
        "STRING",
        "Language of the expression; what Groovy and JavaScript have in common is understood.",
        importance="HIGH",
        choices=_LANGUAGES,
    ),
)
_NULLS = ConfigKey(
    "null.handling.mode",
    "STRING",
    "What becomes of records without a value: kept, dropped, or the expression decides.",
    default="keep",
    importance="LOW",
    choices=("drop", "keep", "evaluate"),
    ignores_case=True,
)


class _Scripted(ABC):
    """Evaluates an expression of each record."""

    def __init__(self, settings: Mapping[str, Any], expression: str) -> None:
        pattern: str = settings["topic.regex"]
        self._regex = compile_regex(pattern) if pattern else None
        self._evaluate = compile_expression(settings[expression])
        self._nulls: str = settings["null.handling.mode"].lower()

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        if self._regex is not None and not self._regex.fullmatch(record.topic):
            return record
        if record.value is None and self._nulls != "evaluate":
            return record if self._nulls == "keep" else None
        names = {
            "key": record.key,
            "value": record.value,
            "topic": record.topic,
            "keySchema": _schema(record.key_schema),
            "valueSchema": _schema(record.value_schema),
            "header": {header.name: {"value": header.value} for header in record.headers},
        }
        return self.changed(record, self._evaluate(names))

    @abstractmethod
    def changed(self, record: ConnectRecord, result: Any) -> ConnectRecord | None:
        """Return what becomes of a record by what the expression says."""


def _schema(schema: ConnectSchema | None) -> Mapping[str, Any] | None:
    return None if schema is None else {"name": schema.name, "type": schema.type, "version": schema.version}


class ExpressionFilter(_Scripted):
    """Drops the records of which a condition is false."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (
        *_COMMON,
        ConfigKey(
            "condition", "STRING", "Which records stay: an expression.", importance="HIGH", check=compile_expression
        ),
        _NULLS,
    )

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings, "condition")

    def changed(self, record: ConnectRecord, result: Any) -> ConnectRecord | None:
        if not isinstance(result, bool):
            raise TransformError("condition is neither true nor false")
        return record if result else None


class ContentBasedRouter(_Scripted):
    """Routes records to topics that an expression names; null leaves the topic as it is."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (
        *_COMMON,
        ConfigKey(
            "topic.expression",
            "STRING",
            "The topic, or null: an expression.",
            importance="HIGH",
            check=compile_expression,
        ),
        _NULLS,
    )

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings, "topic.expression")

    def changed(self, record: ConnectRecord, result: Any) -> ConnectRecord | None:
        if result is not None and not isinstance(result, str):
            raise TransformError("topic.expression is neither text nor null")
        return record if result is None else replace(record, topic=result)
