"""The classes of transforms and predicates, by the names that Kafka Connect and Debezium have for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from helenus_connector.transforms import (
    _cast,
    _column_types,
    _debezium_envelope,
    _header_to_value,
    _headers,
    _logical_router,
    _outbox,
    _predicates,
    _routers,
    _scripted,
    _structure,
    _timestamps,
    _values,
)
from helenus_connector.transforms._record_part import KEY, VALUE
from helenus_connector.transforms.contract import ConfigKey, RecordPredicate, Transform
from helenus_schemas.settings.named_class import import_class

PluginType = Literal["transformation", "predicate"]
_KAFKA = "org.apache.kafka.connect.transforms."
_PARTS = {"Key": KEY, "Value": VALUE}


@dataclass(frozen=True)
class PluginClass:
    """A class of transforms or of predicates: its keys, and what makes an instance of it of their values."""

    name: str
    type: PluginType
    keys: Sequence[ConfigKey]
    make: Callable[[Mapping[str, Any]], Any]
    needs_predicate: bool = False


def _of_parts(name: str, plugin: Any) -> Iterator[PluginClass]:
    for suffix, part in _PARTS.items():
        yield PluginClass(
            f"{_KAFKA}{name}${suffix}", "transformation", plugin.KEYS, partial(_make_of_part, plugin, part)
        )


def _make_of_part(plugin: Any, part: Any, settings: Mapping[str, Any]) -> Transform:
    made: Transform = plugin(settings, part)
    return made


def _kafka_classes() -> Iterator[PluginClass]:
    yield from _of_parts("Cast", _cast.Cast)
    yield PluginClass(f"{_KAFKA}DropHeaders", "transformation", _headers.DropHeaders.KEYS, _headers.DropHeaders)
    yield from _of_parts("ExtractField", _structure.ExtractField)
    yield PluginClass(f"{_KAFKA}Filter", "transformation", (), _routers.DropRecord, needs_predicate=True)
    yield from _of_parts("Flatten", _structure.Flatten)
    yield from _of_parts("HeaderFrom", _headers.HeaderFrom)
    yield from _of_parts("HoistField", _structure.HoistField)
    yield from _of_parts("InsertField", _values.InsertField)
    yield PluginClass(f"{_KAFKA}InsertHeader", "transformation", _headers.InsertHeader.KEYS, _headers.InsertHeader)
    yield from _of_parts("MaskField", _values.MaskField)
    yield PluginClass(f"{_KAFKA}RegexRouter", "transformation", _routers.RegexRouter.KEYS, _routers.RegexRouter)
    yield from _of_parts("ReplaceField", _structure.ReplaceField)
    yield from _of_parts("SetSchemaMetadata", _structure.SetSchemaMetadata)
    yield from _of_parts("TimestampConverter", _timestamps.TimestampConverter)
    yield PluginClass(
        f"{_KAFKA}TimestampRouter", "transformation", _routers.TimestampRouter.KEYS, _routers.TimestampRouter
    )
    yield PluginClass(f"{_KAFKA}ValueToKey", "transformation", _structure.ValueToKey.KEYS, _structure.ValueToKey)
    for predicate in (_predicates.HasHeaderKey, _predicates.RecordIsTombstone, _predicates.TopicNameMatches):
        yield PluginClass(f"{_KAFKA}predicates.{predicate.__name__}", "predicate", predicate.KEYS, predicate)


_DEBEZIUM: Mapping[str, Any] = {
    "ByLogicalTableRouter": _logical_router.ByLogicalTableRouter,
    "ContentBasedRouter": _scripted.ContentBasedRouter,
    "ExtractNewRecordState": _debezium_envelope.ExtractNewRecordState,
    "Filter": _scripted.ExpressionFilter,
    "HeaderToValue": _header_to_value.HeaderToValue,
    "outbox.EventRouter": _outbox.EventRouter,
}


def _debezium_classes() -> Iterator[PluginClass]:
    for name, plugin in _DEBEZIUM.items():
        yield PluginClass(f"io.debezium.transforms.{name}", "transformation", plugin.KEYS, plugin)


_OWN = (
    PluginClass(
        "helenus.ConvertColumns", "transformation", _column_types.ConvertColumns.KEYS, _column_types.ConvertColumns
    ),
)
CLASSES: Mapping[str, PluginClass] = {
    plugin.name: plugin for plugin in (*_kafka_classes(), *_debezium_classes(), *_OWN)
}
"""By name, in the order in which they are listed."""
_REFUSED: Mapping[str, str] = {
    "io.debezium.transforms.partitions.PartitionRouting": (
        "a record's partition is that of its key's token, which keeps the order per key"
    ),
}


def find_class(name: str, kind: PluginType) -> PluginClass:
    """Return a class by its name; one of a user's own, as `package.module:Class`, is imported. Raises ValueError."""
    if reason := _REFUSED.get(name):
        raise ValueError(f"{name.rpartition('.')[2]} is refused: {reason}")
    if ":" in name:
        return _import_class(name, kind)
    plugin = CLASSES.get(name)
    if plugin is not None and plugin.type == kind:
        return plugin
    if plugin is not None:
        raise ValueError(f"it is a {plugin.type}, and no {kind}")
    if {f"{name}$Key", f"{name}$Value"} & CLASSES.keys():
        raise ValueError(f"give {name}$Key or {name}$Value")
    raise ValueError(f"there is no such {kind}: docs/transforms.md lists those that there are")


def _import_class(name: str, kind: PluginType) -> PluginClass:
    contract = RecordPredicate if kind == "predicate" else Transform
    method = "test" if kind == "predicate" else "apply"
    plugin: Any = import_class(name, contract.__name__, (method,), ("KEYS",))
    if not all(isinstance(key, ConfigKey) for key in plugin.KEYS or ()):
        raise ValueError(f"{name}: KEYS has something that is no ConfigKey")
    return PluginClass(name, kind, tuple(plugin.KEYS or ()), plugin)
