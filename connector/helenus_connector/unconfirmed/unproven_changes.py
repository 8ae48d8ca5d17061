"""Changes of an unconfirmed key, whose read is not proven yet, and their bytes."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import NamedTuple

from helenus_schemas.event.change import Effect

_GONE = int(Effect.GONE)
_AWAITED = struct.Struct(">16sqdQQ")
CHANGE_BYTES = _AWAITED.size
_NO_TIME = -(2**63)


class UnprovenChange(NamedTuple):
    """A change whose read is not proven: its write time in µs, when the driver first had its last report, s by a clock
    that is not set (NaN: it has not yet), its effect, when the last of its cells expires, s since the epoch.
    """

    write_time: int | None
    seen: float = math.nan
    effect: int = 0
    all_expired_at: int | None = None

    def may_hide(self, change: UnprovenChange, now: float) -> bool:
        """Return whether it may have taken away all that another change wrote: a cell that expired hides older ones."""
        if self.write_time is None or change.write_time is None or self.write_time < change.write_time:
            return False
        return self.is_expired(now)

    def is_expired(self, now: float) -> bool:
        """Return whether the last of its cells has expired."""
        return self.all_expired_at is not None and self.all_expired_at < now

    def waited(self, now: float) -> float:
        """Return for how long the driver has waited since the last report, s."""
        return 0.0 if math.isnan(self.seen) else max(0.0, now - self.seen)


def pack_changes(awaited: Mapping[bytes, UnprovenChange]) -> bytes:
    """Return the bytes of changes, by their ids in the cache, as an unconfirmed key holds them."""
    return b"".join(
        _AWAITED.pack(change, _NO_TIME if time is None else time, seen, effect, expired or 0)
        for change, (time, seen, effect, expired) in awaited.items()
    )


def unpack_changes(data: bytes) -> dict[bytes, UnprovenChange]:
    """Return what `pack_changes` made bytes of."""
    return {
        change: UnprovenChange(None if time == _NO_TIME else time, seen, effect, expired or None)
        for change, time, seen, effect, expired in _AWAITED.iter_unpack(data)
    }


def newest_write_times(awaited: Mapping[bytes, UnprovenChange]) -> tuple[int | None, int | None]:
    """Return the newest write time of changes, and that of those which delete a whole row or partition; None if none is
    known.
    """
    times = [(change.write_time, change.effect & _GONE) for change in awaited.values() if change.write_time is not None]
    newest = max((time for time, _ in times), default=None)
    return newest, max((time for time, is_gone in times if is_gone), default=None)


def stamp_changes(data: bytes, now: float) -> bytes:
    """Return packed changes with the time of the driver's clock where there is none."""
    changes = unpack_changes(data)
    if not any(math.isnan(unproven.seen) for unproven in changes.values()):
        return data
    return pack_changes(
        {
            change: unproven._replace(seen=now) if math.isnan(unproven.seen) else unproven
            for change, unproven in changes.items()
        }
    )


def unstamp_changes(data: bytes) -> bytes:
    """Return packed changes without the time of the driver's clock: another driver has another clock."""
    return pack_changes({change: unproven._replace(seen=math.nan) for change, unproven in unpack_changes(data).items()})


def pack_unknown_changes(now: float) -> bytes:
    """Return bytes that stand for changes which are not known one by one: to be read at level ALL, not too early."""
    return pack_changes({bytes(16): UnprovenChange(None, now)})
