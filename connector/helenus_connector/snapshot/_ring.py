"""Divide the ring of Murmur3 tokens into stretches, each with what is left of it to scan.

    TokenStretch(0, 100, at=40)    partitions with tokens above 0, up to 100; those up to 40 are scanned

Keys are spread evenly over the ring. So the share of it that is scanned says how much of the table is, whatever its
size: no estimate is needed, and those of `system.size_estimates` count partitions, not rows, and are minutes old.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from helenus_schemas.event.placement import LEAST_TOKEN, MOST_TOKEN

_RING = 1 << 64


@dataclass(frozen=True, slots=True)
class TokenStretch:
    """Partitions with tokens above `after`, up to `until`.

    `at` is the token of the last key that was scanned. `paging` is the server's paging state after it, in hexadecimal;
    None at the beginning. With `statics` the partitions' static columns are asked for, not rows.
    """

    after: int
    until: int
    at: int
    paging: str | None = None
    statics: bool = False

    @property
    def remaining_share(self) -> float:
        """Return how much of the ring is left to scan of it, from 0 to 1."""
        return (self.until - self.at) / _RING

    def halves(self) -> tuple[TokenStretch, TokenStretch] | None:
        """Divide the rest of it in two, of which the first goes on where this one is; return None if it is too
        short.
        """
        middle = self.at + (self.until - self.at) // 2
        if not self.at < middle < self.until:
            return None
        return replace(self, until=middle), TokenStretch(middle, self.until, middle, None, self.statics)

    def without_paging(self) -> TokenStretch:
        """Return it without the server's paging state, from the beginning of the partition that it is in."""
        start = self.after if self.paging is None else max(self.after, self.at - 1)
        return replace(self, after=start, at=start, paging=None)


def new_stretch(after: int = LEAST_TOKEN, until: int = MOST_TOKEN, statics: bool = False) -> TokenStretch:
    """Return a stretch of which nothing is scanned."""
    return TokenStretch(after, until, after, None, statics)


def remaining_share(stretches: Iterable[TokenStretch]) -> float:
    """Return how much of the ring is left to scan of rows, or of static columns, in all."""
    return sum(new_stretch.remaining_share for new_stretch in stretches)
