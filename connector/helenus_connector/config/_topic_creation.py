"""How a connector's data topics are created: Kafka Connect's `topic.creation.*`, as `TopicCreationConfig` of Kafka 4.

    topic.creation.default.replication.factor=3        of topics that match no group
    topic.creation.groups=compacted
    topic.creation.compacted.include=data-shop\\..*     the first group that matches a topic's name counts
    topic.creation.compacted.min.insync.replicas=2     any other key is a setting of the topic

A group has the default's replication factor unless it has its own, and none of the default's other settings. Partitions
are not chosen: a data topic has as many as its events topic, which keeps the order of a key's records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_DEFAULT = "default"
_GROUPS = "groups"
_INCLUDE, _EXCLUDE, _FACTOR, _PARTITIONS = "include", "exclude", "replication.factor", "partitions"
_OF_GROUPS = {_INCLUDE, _EXCLUDE}
_MOST_REPLICAS = 32767  # a 16-bit number in Kafka's protocol


class TopicCreation(NamedTuple):
    """How a topic is created: its settings, and its replication factor, None for the worker's."""

    config: Mapping[str, str]
    replication_factor: int | None


def topic_creation(properties: Mapping[str, str], topic: str, cleanup_policy: str) -> TopicCreation:
    """Return how a data topic is created. `properties` are those below `topic.creation.`, `cleanup_policy` is that of a
    topic for which they have none.
    """
    group = next((name for name in _group_names(properties) if _is_in(properties, name, topic)), _DEFAULT)
    factor = properties.get(f"{group}.{_FACTOR}", properties.get(f"{_DEFAULT}.{_FACTOR}"))
    prefix, own = f"{group}.", {_FACTOR, _PARTITIONS, *(_OF_GROUPS if group != _DEFAULT else ())}
    config = {key.removeprefix(prefix): value for key, value in properties.items() if key.startswith(prefix)}
    config = {key: value for key, value in config.items() if key not in own}
    return TopicCreation({"cleanup.policy": cleanup_policy, **config}, None if factor is None else int(factor))


def check_topic_creation(properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (key, reason) for wrong properties below `topic.creation.`."""
    groups = _group_names(properties)
    if _DEFAULT in groups:
        yield _GROUPS, f"{_DEFAULT} is no group: its settings are those of topics that match none"
    for group in groups:
        if group != _DEFAULT and not properties.get(f"{group}.{_INCLUDE}", "").strip():
            yield f"{group}.{_INCLUDE}", "set it: regular expressions for the names of the group's topics"
    for key, value in properties.items():
        if key == _GROUPS:
            continue
        group, setting = _split(key, groups)
        if not setting:
            yield key, f"begin it with {_DEFAULT}. or with a group that topic.creation.{_GROUPS} names"
        elif setting in _OF_GROUPS and group == _DEFAULT:
            yield key, "it goes with a group"
        elif setting in _OF_GROUPS:
            yield from ((key, reason) for reason in _wrong_patterns(value))
        elif setting == _FACTOR and not (value.strip() == "-1" or 0 < _number(value) <= _MOST_REPLICAS):
            yield key, "give the number of brokers that have the topic, or -1 for the brokers' default"
        elif setting == _PARTITIONS and not (value.strip() == "-1" or _number(value) > 0):
            yield key, "give 1 or more, or -1"


def chooses_partitions(properties: Mapping[str, str]) -> bool:
    """Return whether the properties have a number of partitions, which does not count."""
    return any(key.endswith(f".{_PARTITIONS}") and value.strip() != "-1" for key, value in properties.items())


def _group_names(properties: Mapping[str, str]) -> list[str]:
    return [name.strip() for name in properties.get(_GROUPS, "").split(",") if name.strip()]


def _split(key: str, groups: list[str]) -> tuple[str, str]:
    """Return a key's group, which may have dots in its name, and the setting; the latter is empty without a group."""
    names = sorted((name for name in (*groups, _DEFAULT) if key.startswith(f"{name}.")), key=len)
    return (names[-1], key.removeprefix(f"{names[-1]}.")) if names else ("", "")


def _is_in(properties: Mapping[str, str], group: str, topic: str) -> bool:
    included, excluded = (
        any(
            re.fullmatch(pattern.strip(), topic)
            for pattern in properties.get(f"{group}.{key}", "").split(",")
            if pattern
        )
        for key in (_INCLUDE, _EXCLUDE)
    )
    return included and not excluded


def _wrong_patterns(patterns: str) -> Iterator[str]:
    for pattern in patterns.split(","):
        try:
            re.compile(pattern.strip())
        except re.error as error:
            yield f"{pattern.strip()} is no regular expression: {error}"


def _number(text: str) -> int:
    return int(text) if re.fullmatch(" *[0-9]{1,9} *", text) else 0
