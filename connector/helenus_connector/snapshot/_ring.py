"""The ring of Murmur3 tokens in stretches, and what is left of each to scan.

    Stretch(0, 100, at=40)    partitions with tokens above 0, up to 100; those up to 40 are scanned

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
    def share(self) -> float:
        """How much of the ring is left of it, from 0 to 1."""
        return (self.until - self.at) / _RING

    def halves(self) -> tuple[TokenStretch, TokenStretch] | None:
        """What is left in two, of which the first goes on where this one is; None if it is too short for that."""
        middle = self.at + (self.until - self.at) // 2
        if not self.at < middle < self.until:
            return None
        return replace(self, until=middle), TokenStretch(middle, self.until, middle, None, self.statics)

    def again(self) -> TokenStretch:
        """The same without the server's paging state, from the beginning of the partition that it is in."""
        after = self.after if self.paging is None else max(self.after, self.at - 1)
        return replace(self, after=after, at=after, paging=None)


def stretch(after: int = LEAST_TOKEN, until: int = MOST_TOKEN, statics: bool = False) -> TokenStretch:
    """A stretch of which nothing is scanned."""
    return TokenStretch(after, until, after, None, statics)


def share(left: Iterable[TokenStretch]) -> float:
    """How much of the ring is left of rows, or of static columns, in all."""
    return sum(one.share for one in left)
