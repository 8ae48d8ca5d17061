"""Properties files of Debezium's connector for Cassandra: what of one is the agent's, the worker's, the connector's.

Debezium runs one process on each node, from one file; here an agent runs on each node, and a worker somewhere. Both
read that file as it is. Keys of ours in it begin with `helenus.agent.` or `helenus.connector.`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import structlog

from helenus_schemas.settings import masking
from helenus_schemas.settings._debezium_keys import DEFAULTS, KEYS, Key, Side
from helenus_schemas.settings.properties import ConfigError, Problem

AGENT = "helenus.agent."
CONNECTOR = "helenus.connector."
_MARKS = ("offset.backing.store.dir", "commit.log.relocation.dir", "kafka.topic.prefix", "connector.name")
_CLASS = re.compile(r"io\.debezium\.connector\.(cassandra|dse)\.")


@dataclass(frozen=True)
class Translated:
    """The properties of one side, by our keys; `names` has the key of theirs that each came from."""

    properties: dict[str, str]
    names: Mapping[str, str]

    def named(self, error: ConfigError) -> ConfigError:
        """The same, by the keys that the file has."""
        return ConfigError(
            [replace(problem, key=self.names.get(problem.key, problem.key)) for problem in error.problems]
        )


def is_theirs(properties: Mapping[str, str]) -> bool:
    """Whether properties are those of Debezium's connector: they have a key that no file of ours has."""
    return any(key in properties for key in _MARKS) or bool(_CLASS.match(properties.get("connector.class", "")))


def translate(
    properties: Mapping[str, str], side: Side, source: str, owns: Callable[[str], bool] = lambda _: True
) -> Translated:
    """What one side takes of a file of theirs. A key that is not theirs stays as it is, where the side `owns` it.

    `source` is what errors name. Raises ConfigError for values that have no counterpart.
    """
    found = dict(DEFAULTS[side])
    names: dict[str, str] = {}
    problems = []
    # The prefix names the connector where nothing else does.
    for name in sorted(properties, key=lambda key: not key.endswith("topic.prefix")):
        text = properties[name]
        try:
            made = _made(properties, name, side, owns)
        except ValueError as error:
            problems.append(Problem(source, name, masking.shown(text, masking.is_secret(name, text)), str(error)))
            continue
        found |= made
        names |= dict.fromkeys(made, name)
    if side != "worker" and "topic.prefix" not in properties and "kafka.topic.prefix" not in properties:
        problems.append(Problem(source, "topic.prefix", None, "required property is missing"))
    if problems:
        raise ConfigError(problems)
    own = AGENT if side == "agent" else CONNECTOR
    for name, text in properties.items():
        key = name.removeprefix(own)
        if key != name and owns(key):
            found[key], names[key] = text, name
    return Translated(found, names)


def unused(properties: Mapping[str, str]) -> list[str]:
    """The keys of a file of theirs that mean nothing here."""
    return [name for name in properties if (known := _known(properties, name)) and not known[0].is_used]


def report(properties: Mapping[str, str], source: str) -> None:
    """Log once that a file is taken for theirs, and what of it means nothing here."""
    log, see = structlog.get_logger(__name__), "docs/debezium.md"
    if ignored := unused(properties):
        log.warning("config.debezium", source=source, ignored=" ".join(ignored), see=see)
    else:
        log.info("config.debezium", source=source, see=see)


def _made(properties: Mapping[str, str], name: str, side: Side, owns: Callable[[str], bool]) -> dict[str, str]:
    """What a property of theirs is on one side. Raises ValueError."""
    if name.startswith((AGENT, CONNECTOR)):
        return {}
    known, text = _known(properties, name), properties[name]
    if known is None:
        return {name: text} if owns(name) else {}
    key, rest = known
    made = {}
    for use, convert in key.of(side).items():
        value = convert.replace("VALUE", text) if isinstance(convert, str) else convert(masking.resolve(text))
        if value is not None:
            made[use.replace("*", rest)] = value
    return made


def _known(properties: Mapping[str, str], name: str) -> tuple[Key, str] | None:
    """A key of theirs, and what stands for the * in it; None for a key that is not theirs."""
    if name in KEYS:
        return KEYS[name], ""
    below = [key[:-1] for key in KEYS if key.endswith(".*") and name.startswith(key[:-1])]
    if below:
        longest = max(below, key=len)
        return KEYS[f"{longest}*"], name[len(longest) :]
    converters = [part.strip() for part in properties.get("converters", "").split(",")]
    return (KEYS["converters"], "") if name.partition(".")[0] in converters else None
