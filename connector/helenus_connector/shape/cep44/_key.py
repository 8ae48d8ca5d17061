"""The key that Cassandra's Sidecar gives its records: `keyspace:table:` and a hash of the partition key.

Rows of a partition share it, and now and then those of other partitions: 32 bits. Nothing can be read from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from helenus_schemas.cql.table import Table

_SEED, _M = 0x9747B28C, 0x5BD1E995  # as in Kafka's `Utils.murmur2`
_32 = 0xFFFFFFFF


def table_prefix(table: Table) -> bytes:
    """Return what all keys of a table begin with."""
    return f"{table.keyspace}:{table.name}:".encode()


def key_encoder(table: Table) -> Callable[[Sequence[bytes | None]], bytes]:
    """Return a function from the CQL bytes of a primary key's columns to the key."""
    prefix, width = table_prefix(table), len(table.partition_key)
    return lambda values: b"%b%x" % (prefix, murmur2(b"".join([value or b"" for value in values[:width]])))


def murmur2(data: bytes) -> int:
    """Return the hash of Kafka's partitioner, as an unsigned number."""
    hashed = _SEED ^ len(data)
    block_end = len(data) & ~3
    for index in range(0, block_end, 4):
        block = int.from_bytes(data[index : index + 4], "little") * _M & _32
        hashed = hashed * _M & _32 ^ (block ^ block >> 24) * _M & _32
    if tail := data[block_end:]:
        hashed = (hashed ^ int.from_bytes(tail, "little")) * _M & _32
    hashed = (hashed ^ hashed >> 13) * _M & _32
    return hashed ^ hashed >> 15
