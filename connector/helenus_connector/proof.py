"""When a read is proven.

The commit log is written before the memtable, and a read may miss the one replica that has the write. So an image is
*proven* for a Change only if enough current replicas had reported it before the read began that every read of that
level must meet one of them, and the row shows the Change or the read began long enough after the report.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from cassandra import ConsistencyLevel

_AWAITED = struct.Struct(">16sqd")
AWAITED_BYTES = _AWAITED.size
_NO_TIME = -(2**63)


def block_for(consistency: int, rf: int) -> int:
    """How many replicas a read of this level waits for, of the `rf` in its data centre."""
    if consistency in (ConsistencyLevel.QUORUM, ConsistencyLevel.LOCAL_QUORUM):
        return rf // 2 + 1
    return rf if consistency == ConsistencyLevel.ALL else 1


def level(consistency: int, nodes: int, rf: int) -> int:
    """The lowest level, not below `consistency`, at which a read is proven once `nodes` replicas reported."""
    return consistency if nodes + block_for(consistency, rf) > rf else ConsistencyLevel.ALL


def proven(nodes: int, seen: float, consistency: int, rf: int, read_at: float, shows: bool, min_age_s: float) -> bool:
    """Whether a read that began at `read_at` proves the image for a Change that so many `nodes` reported, the last of
    them `seen` at that time, s. `shows` says that the row has a cell with the very write time of the Change: a node
    shows all of a mutation's part in a row at once. A newer cell shows nothing, it is another write's.
    """
    meets = consistency == ConsistencyLevel.ALL or nodes + block_for(consistency, rf) > rf
    return meets and (shows or read_at - seen >= min_age_s)


class Awaited(NamedTuple):
    """A Change whose read is not proven: write time in µs, when its last report was seen, s."""

    write_time: int | None
    seen: float


def packed(awaited: Mapping[bytes, Awaited]) -> bytes:
    """Changes by their ids in the cache, as a pending key holds them."""
    return b"".join(
        _AWAITED.pack(change, _NO_TIME if time is None else time, seen) for change, (time, seen) in awaited.items()
    )


def unpacked(data: bytes) -> dict[bytes, Awaited]:
    """What `packed` made bytes of."""
    found = _AWAITED.iter_unpack(data)
    return {change: Awaited(None if time == _NO_TIME else time, seen) for change, time, seen in found}


def unknown(now: float) -> bytes:
    """Stands for Changes that are not known one by one: to be read at level ALL, and not too early."""
    return packed({bytes(16): Awaited(None, now)})
