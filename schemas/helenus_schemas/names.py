"""Names on the wire, of topics and in Avro; and of numbers of things in messages."""

from __future__ import annotations

import hashlib
import re

_ILLEGAL = re.compile(r"[^A-Za-z0-9_]")


def topic(prefix: str, keyspace: str, table: str) -> str:
    """Return `<prefix><keyspace>.<table>`; characters that Kafka refuses in a topic's name become `_`."""
    return prefix + re.sub(r"[^A-Za-z0-9._-]", "_", f"{keyspace}.{table}")


def avro_name(name: str, is_taken: bool = False) -> str:
    """Return the Avro name of a CQL identifier: itself if it is legal and not `is_taken`, else one that ends in a hash
    of it.

    It depends on the identifier alone: adding or dropping a column never changes another column's name.
    """
    legal = _ILLEGAL.sub("_", name)
    legal = legal if legal[:1].isalpha() or legal.startswith("_") else f"_{legal}"
    return name if legal == name and not is_taken else f"{legal}_{_hash(name)}"


def _hash(name: str) -> str:
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()[:8]


def counted(count: float, noun: str) -> str:
    """Return a number of things, as in `1 segment` and `1200 segments`."""
    return f"{count:.0f} {noun}{'' if count == 1 else 's'}"
