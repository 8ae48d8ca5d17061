"""Names on the wire: topics, Avro names, partitions."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

_ILLEGAL = re.compile(r"[^A-Za-z0-9_]")


def topic(prefix: str, keyspace: str, table: str) -> str:
    """`<prefix><keyspace>.<table>`; characters that Kafka refuses in a topic's name become `_`."""
    return prefix + re.sub(r"[^A-Za-z0-9._-]", "_", f"{keyspace}.{table}")


def avro_name(name: str) -> str:
    """A legal Avro name for a CQL identifier, the same if it is legal already."""
    legal = _ILLEGAL.sub("_", name)
    return legal if legal[:1].isalpha() or legal.startswith("_") else f"_{legal}"


def avro_names(names: Iterable[str], reserved: Collection[str] = ()) -> dict[str, str]:
    """Avro names for CQL identifiers, all different and none of them `reserved`: see `distinct`."""
    return distinct({name: avro_name(name) for name in names}, reserved)


def distinct(wanted: Mapping[str, str], reserved: Collection[str] = ()) -> dict[str, str]:
    """What each thing is called, by what it wants to be called: all different and none of them `reserved`.

    What wants its own name keeps it. Of the others, those that clash get a hash of their own name behind the wanted
    one: the answer never depends on the order, nor on names that do not clash.
    """
    free = {name: f"{want}_type" if want in reserved else want for name, want in wanted.items()}
    uses = Counter(free.values())
    return {
        name: want if name == want or (uses[want] == 1 and want not in reserved) else f"{want}_{_hash(name)}"
        for name, want in free.items()
    }


def _hash(name: str) -> str:
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()[:8]


def partition(token: int, partitions: int) -> int:
    """The topic partition of a Murmur3 token, as DataStax: `((short)(token >>> 48) + 32768) % partitions`."""
    return ((token >> 48) + 32768) % partitions
