"""Read and check `transforms`, `predicates`, and the keys below them.

transforms=mask          transforms.mask.type=org.apache.kafka.connect.transforms.MaskField$Value
predicates=live          transforms.mask.fields=a,b      transforms.mask.predicate=live
                         predicates.live.type=org.apache.kafka.connect.transforms.predicates.RecordIsTombstone
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from helenus_connector.transforms.contract import REQUIRED, ConfigKey, RecordPredicate, Transform

if TYPE_CHECKING:
    from helenus_connector.transforms.catalog import PluginClass, PluginType

KINDS: Mapping[str, PluginType] = {"transforms": "transformation", "predicates": "predicate"}
LISTED = ""
"""The key of the list of names, in a mapping of the keys below `transforms.` or `predicates.`."""
TYPE = ConfigKey("type", "STRING", "Class of the transform or predicate.", importance="HIGH")
PREDICATE = ConfigKey(
    "predicate",
    "STRING",
    "Name of the predicate that says which records it applies to.",
    default="",
    importance="MEDIUM",
)
NEGATE = ConfigKey(
    "negate", "BOOLEAN", "Whether it applies to the records of which the predicate is false.", default=False
)
Problems = Iterator[tuple[str, str]]


@dataclass(frozen=True)
class TransformStep:
    """A transform of a chain, and the predicate that decides on it, if any."""

    name: str
    transform: Transform
    predicate: RecordPredicate | None
    is_negated: bool

    def applies_to(self, record: Any) -> bool:
        """Return whether the transform is to change the record."""
        return self.predicate is None or self.predicate.test(record) is not self.is_negated


def _find_class(name: str, kind: PluginType) -> PluginClass:
    # Each of Spark's processes reads settings, and most connectors have no transform.
    from helenus_connector.transforms.catalog import find_class

    return find_class(name, kind)


def names_in(properties: Mapping[str, str]) -> list[str]:
    """Return the names that `transforms` or `predicates` lists."""
    return [name.strip() for name in properties.get(LISTED, "").split(",") if name.strip()]


def make_steps(transforms: Mapping[str, str], predicates: Mapping[str, str]) -> list[TransformStep]:
    """Make the transforms that are listed, in their order. Raises ValueError for what `check_properties` reports."""
    made: dict[str, RecordPredicate] = {}
    for name in names_in(predicates):
        made[name] = _make("predicates", name, predicates)
    steps = []
    for name in names_in(transforms):
        negate = NEGATE.parse(transforms.get(f"{name}.negate", "false"))
        predicate = transforms.get(f"{name}.predicate", "").strip()
        steps.append(
            TransformStep(name, _make("transforms", name, transforms), made[predicate] if predicate else None, negate)
        )
    return steps


def _make(kind: str, name: str, properties: Mapping[str, str]) -> Any:
    plugin = _find_class(properties[f"{name}.type"].strip(), KINDS[kind])
    prefix = f"{name}."
    texts = {key[len(prefix) :]: value for key, value in properties.items() if key.startswith(prefix)}
    values = {key.name: key.parse(texts[key.name]) if key.name in texts else key.default for key in plugin.keys}
    return plugin.make(values)


def keys_of(kind: str, name: str, properties: Mapping[str, str]) -> tuple[ConfigKey, ...]:
    """Return the keys that a transform or predicate has below its name."""
    common = (TYPE, PREDICATE, NEGATE) if kind == "transforms" else (TYPE,)
    try:
        plugin = _find_class(properties.get(f"{name}.type", "").strip(), KINDS[kind])
    except ValueError:
        return common
    return (*common, *plugin.keys)


def check_properties(transforms: Mapping[str, str], predicates: Mapping[str, str]) -> Problems:
    """Yield (key, reason) for all that is wrong with `transforms`, `predicates` and the keys below them."""
    for kind, properties in (("transforms", transforms), ("predicates", predicates)):
        names = names_in(properties)
        if repeated := [name for name in names if names.count(name) > 1]:
            yield kind, f"{repeated[0]} is listed twice"
        for name in dict.fromkeys(names):
            yield from _check_plugin(kind, name, properties)
        yield from _check_unlisted(kind, names, properties)
    for name in dict.fromkeys(names_in(transforms)):
        yield from _check_predicate(name, transforms, names_in(predicates))


def _check_plugin(kind: str, name: str, properties: Mapping[str, str]) -> Problems:
    """Check one transform or predicate by its own keys, and if they are right, make it."""
    prefix = f"{kind}.{name}."
    if not properties.get(f"{name}.type", "").strip():
        yield f"{prefix}type", "required property is missing"
        return
    try:
        plugin = _find_class(properties[f"{name}.type"].strip(), KINDS[kind])
    except ValueError as error:
        yield f"{prefix}type", str(error)
        return
    problems = list(_check_values(kind, name, plugin, properties))
    yield from problems
    if problems:
        return
    try:
        _make(kind, name, properties)
    except Exception as error:  # a class of a user's own may raise anything
        yield f"{prefix}type", str(error)
    if plugin.needs_predicate and not properties.get(f"{name}.predicate", "").strip():
        yield f"{prefix}predicate", "set it: without a predicate every record would be dropped"


def _check_values(kind: str, name: str, plugin: PluginClass, properties: Mapping[str, str]) -> Problems:
    common = {"type", "predicate", "negate"} if kind == "transforms" else {"type"}
    keys = {key.name: key for key in plugin.keys}
    for key in keys.values():
        if key.default is REQUIRED and f"{name}.{key.name}" not in properties:
            yield f"{kind}.{name}.{key.name}", "required property is missing"
    for full, value in properties.items():
        if not full.startswith(f"{name}.") or (below := full[len(name) + 1 :]) in common:
            continue
        if below not in keys:
            near = difflib.get_close_matches(below, [*common, *keys], 1)
            yield f"{kind}.{full}", "unknown property" + (f", did you mean {kind}.{name}.{near[0]}?" if near else "")
            continue
        try:
            keys[below].parse(value)
        except ValueError as error:
            yield f"{kind}.{full}", str(error)


def _check_unlisted(kind: str, names: list[str], properties: Mapping[str, str]) -> Problems:
    """Report keys of a name that is not in the list."""
    for full in properties:
        if full != LISTED and not any(full.startswith(f"{name}.") for name in names):
            yield f"{kind}.{full}", f"{kind} does not list {full.partition('.')[0]}: add it, or leave this out"


def _check_predicate(name: str, transforms: Mapping[str, str], predicates: list[str]) -> Problems:
    predicate = transforms.get(f"{name}.predicate", "").strip()
    if predicate and predicate not in predicates:
        yield f"transforms.{name}.predicate", f"predicates does not list {predicate}"
    negate = transforms.get(f"{name}.negate")
    if negate is None:
        return
    try:
        NEGATE.parse(negate)
    except ValueError as error:
        yield f"transforms.{name}.negate", str(error)
    if not predicate:
        yield f"transforms.{name}.negate", "there is no predicate to negate"
