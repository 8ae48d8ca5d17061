"""The key that Cassandra's Sidecar gives its records: `keyspace:table:` and a hash of the partition key.

Rows of a partition share it, and now and then those of other partitions: 32 bits. Nothing can be read from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from helenus_schemas.cql.table import Table

_SEED, _M = 0x9747B28C, 0x5BD1E995
_32 = 0xFFFFFFFF


def prefix(table: Table) -> bytes:
    return f"{table.keyspace}:{table.name}:".encode()


def key_of(table: Table) -> Callable[[Sequence[bytes | None]], bytes]:
    """A function from the CQL bytes of a primary key's columns to the key."""
    first, width = prefix(table), len(table.partition_key)
    return lambda values: b"%b%x" % (first, murmur2(b"".join([value or b"" for value in values[:width]])))


def murmur2(data: bytes) -> int:
    """The hash of Kafka's partitioner, as an unsigned number."""
    found = _SEED ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _32
        found = found * _M & _32 ^ (k ^ k >> 24) * _M & _32
    if rest := data[whole:]:
        found = (found ^ int.from_bytes(rest, "little")) * _M & _32
    found = (found ^ found >> 13) * _M & _32
    return found ^ found >> 15
