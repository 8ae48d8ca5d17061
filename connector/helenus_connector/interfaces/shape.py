"""The interface of a shape, which makes the records of the data topic.

ResolvedKey of key 5, `after` {v: x} → Record(key=5, value={v: x}); `after` None → Record(key=5, value=None)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_schemas.errors import HelenusError
from helenus_sinks.log import Headers


class Record(NamedTuple):
    """A record for the data topic; `value` is None for a delete, `key` is None for what concerns no single key."""

    key: bytes | None
    value: bytes | None
    headers: Headers


class ShapedRecord(NamedTuple):
    """One record, or the `cause` why it can't be made: then `record` only stands for it in a digest.

    `key` is the event key of the row or marker, and `image` the row. `make` makes the record of another image of the
    same row: one with fewer columns, if the complete record is too large. `alike` replaces the record in a digest if
    its value says more than the row's content does: two records with equal content then count as equal. `topic` is
    where the record goes, if that is not the data topic.
    """

    record: Record
    cause: HelenusError | None
    key: bytes
    image: Image | None
    make: Callable[[Image | None], Record]
    alike: bytes | None = None
    topic: str | None = None


class Shape(Protocol):
    """Makes the records of one version of a table. Apart from the clock its methods are pure functions: the same
    ResolvedKey gives the same records. They are called by the thread that runs the table's batch.
    """

    def records(self, resolved: ResolvedKey) -> Iterable[ShapedRecord | None]:
        """Make the record of a row; or that of a marker, followed by those of the live rows in its scope, in order.

        Called once for each ResolvedKey that `rows` left out. None stands for a row whose key can't be encoded. A row
        that can't be published has its `cause` and does not hold up the others. Raises RowsFailed from
        `resolved.rows`, and HelenusError if the schema registry does not answer.
        """
        ...

    def rows(self, resolved: Sequence[ResolvedKey]) -> Sequence[Record | None]:
        """Make the record of each, if it is the only record of a row without special cases; None for those that
        `records` has to make. Called once per group of rows: for many rows it is cheaper than `records`.
        """
        ...

    def smaller(self, image: Image) -> Iterator[tuple[Image, tuple[str, bytes]]]:
        """Yield the image without its largest column, without its two largest and so on, each with the header that
        names the columns left out. Called if a record exceeds the largest size that the log accepts.
        """
        ...
