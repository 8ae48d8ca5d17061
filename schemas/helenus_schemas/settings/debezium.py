"""Properties files of Debezium's connector for Cassandra: what of one is the agent's, the worker's, the connector's.

Debezium runs one process on each node, from one file; here an agent runs on each node, and a worker somewhere. Both
read that file as it is. Keys of ours in it begin with `helenus.agent.` or `helenus.connector.`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import structlog

from helenus_schemas.settings import masking
from helenus_schemas.settings._debezium_keys import DEFAULTS, KEYS, Key, Side
from helenus_schemas.settings.properties import ConfigError, Problem

T = TypeVar("T")
AGENT = "helenus.agent."
CONNECTOR = "helenus.connector."
_MARKS = ("offset.backing.store.dir", "commit.log.relocation.dir", "kafka.topic.prefix")
_FIRST = ("topic.prefix", "kafka.topic.prefix", "cassandra.driver.config.file")
_LEFT_OUT = "column.exclude.list"
_OF_TLS = "cassandra.ssl.config.path"
_CLASS = re.compile(r"io\.debezium\.connector\.(cassandra|dse)\.")


@dataclass(frozen=True)
class Translated:
    """The properties of one side, by our keys; `names` has the key of theirs that each came from.

    `problems` are values that have no counterpart, and `lacks` those of our keys that they would have set.
    """

    properties: dict[str, str]
    names: Mapping[str, str]
    problems: Sequence[Problem]
    lacks: Collection[str]

    def make(self, build: Callable[[dict[str, str]], T]) -> T:
        """Return what `build` makes of the properties. Raises ConfigError with all that is wrong, by the keys of the
        file.
        """
        problems = list(self.problems)
        try:
            made = build(self.properties)
        except ConfigError as error:
            named = {problem.key for problem in problems}
            renamed = [replace(p, key=self.names.get(p.key, p.key)) for p in error.problems if p.key not in self.lacks]
            problems += [problem for problem in renamed if problem.key not in named]
        if problems:
            raise ConfigError(problems) from None
        return made


def is_theirs(properties: Mapping[str, str]) -> bool:
    """Return whether properties are those of Debezium's connector: they have a key that no file of ours has."""
    return any(key in properties for key in _MARKS) or bool(_CLASS.match(properties.get("connector.class", "")))


def translate(
    properties: Mapping[str, str],
    side: Side,
    source: str,
    owns: Callable[[str], bool] = lambda _: True,
    present_name: Callable[[str], str] = str,
) -> Translated:
    """Return what one side takes of a file of theirs. A key that is not theirs stays as it is, where the side `owns`
    it; `present_name` returns its name for an older one.

    `source` is what errors name.
    """
    settings = dict(DEFAULTS[side])
    names: dict[str, str] = {}
    problems: list[Problem] = []
    lacks: set[str] = set()
    # The prefix names the connector where nothing else does, and the driver's file its nodes.
    for name in sorted(properties, key=lambda key: key not in _FIRST):
        text = properties[name]
        try:
            converted = _convert_property(properties, name, side, owns, present_name)
        except ValueError as error:
            problems.append(Problem(source, name, masking.shown(text, masking.is_secret(name, text)), str(error)))
            lacks |= KEYS[name].uses_for(side).keys() if name in KEYS else set()
            continue
        if (
            _LEFT_OUT in converted and _LEFT_OUT in names
        ):  # by another of its names too: a column that either has stays out
            converted[_LEFT_OUT] = f"{settings[_LEFT_OUT]},{converted[_LEFT_OUT]}"
        settings |= converted
        names |= dict.fromkeys(converted, name)
    if side != "worker" and not (properties.get("topic.prefix") or properties.get("kafka.topic.prefix")):
        problems.append(Problem(source, "topic.prefix", None, "required property is missing"))
        lacks |= KEYS["topic.prefix"].uses_for(side).keys()
    own, own_keys = AGENT if side == "agent" else CONNECTOR, set()
    for name, text in properties.items():
        key = name.removeprefix(own)
        if key != name and owns(key):
            own_keys.add(present_name(key))
            settings[present_name(key)], names[present_name(key)] = text, name
    # What a key of ours says in place of one of theirs counts, whatever that one says.
    problems = [problem for problem in problems if not _is_replaced(problem.key, side, own_keys)]
    return Translated(settings, names, problems, lacks - settings.keys())


def unused(properties: Mapping[str, str]) -> list[str]:
    """Return the keys of a file of theirs that mean nothing here."""
    return [name for name in properties if (translation := _find_key(properties, name)) and not translation[0].is_used]


def report(properties: Mapping[str, str], source: str) -> None:
    """Log once that a file is taken for theirs, and what of it means nothing here."""
    log, see = structlog.get_logger(__name__), "docs/debezium.md"
    if ignored := unused(properties):
        log.warning("config.debezium", source=source, ignored=" ".join(ignored), see=see)
    else:
        log.info("config.debezium", source=source, see=see)


def _convert_property(
    properties: Mapping[str, str],
    name: str,
    side: Side,
    owns: Callable[[str], bool],
    present_name: Callable[[str], str],
) -> dict[str, str]:
    """Return what a property of theirs is on one side. Raises ValueError."""
    if name.startswith((AGENT, CONNECTOR)):
        return {}
    if name == _OF_TLS and properties.get("cassandra.ssl.enabled", "false").strip().lower() != "true":
        return {}
    translation, text = _find_key(properties, name), properties[name]
    if translation is None:
        return {present_name(name): text} if owns(name) else {}
    key, suffix = translation
    properties_made = {}
    for use, convert in key.uses_for(side).items():
        value = convert.replace("VALUE", text) if isinstance(convert, str) else convert(masking.resolve(text))
        if value is not None:
            properties_made[use.replace("*", suffix)] = value
    return properties_made


def _is_replaced(name: str, side: Side, own_keys: Collection[str]) -> bool:
    """Return whether all that a key of theirs would set is set by keys of ours."""
    uses = KEYS[name].uses_for(side).keys() if name in KEYS else ()
    return bool(uses) and all(use in own_keys for use in uses)


def _find_key(properties: Mapping[str, str], name: str) -> tuple[Key, str] | None:
    """Return a key of theirs, and what stands for the * in it; None for a key that is not theirs."""
    if name in KEYS:
        return KEYS[name], ""
    below = [key[:-1] for key in KEYS if key.endswith(".*") and name.startswith(key[:-1])]
    if below:
        longest = max(below, key=len)
        return KEYS[f"{longest}*"], name[len(longest) :]
    converters = [part.strip() for part in properties.get("converters", "").split(",")]
    return (KEYS["converters"], "") if name.partition(".")[0] in converters else None
