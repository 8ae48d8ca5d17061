"""Names on the wire: topics, Avro names, partitions."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ILLEGAL = re.compile(r"[^A-Za-z0-9_]")


def topic(prefix: str, keyspace: str, table: str) -> str:
    """`<prefix><keyspace>.<table>`; characters that Kafka refuses in a topic's name become `_`."""
    return prefix + re.sub(r"[^A-Za-z0-9._-]", "_", f"{keyspace}.{table}")


def avro_name(name: str) -> str:
    """A legal Avro name for a CQL identifier, the same if it is legal already."""
    legal = _ILLEGAL.sub("_", name)
    return legal if legal[:1].isalpha() or legal.startswith("_") else f"_{legal}"


def avro_names(names: Iterable[str]) -> dict[str, str]:
    """Avro names for the identifiers of one record, all different: a later clash gets a number."""
    taken: dict[str, str] = {}
    for name in names:
        legal = candidate = avro_name(name)
        number = 2
        while candidate in taken.values():
            candidate = f"{legal}_{number}"
            number += 1
        taken[name] = candidate
    return taken


def partition(token: int, partitions: int) -> int:
    """The topic partition of a Murmur3 token, as DataStax: `((short)(token >>> 48) + 32768) % partitions`."""
    return ((token >> 48) + 32768) % partitions
