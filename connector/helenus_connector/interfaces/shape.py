"""The interface of a shape: what a record looks like.

Resolved key 5, `after` {v: x} → Record(key=5, value={v: x}); `after` None → Record(key=5, value=None)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_schemas.errors import HelenusError
from helenus_sinks.log import Headers


class Record(NamedTuple):
    """A record for the data topic; `value` is None for a delete, `key` for what concerns no key."""

    key: bytes | None
    value: bytes | None
    headers: Headers


class ShapedRecord(NamedTuple):
    """One record, or the `cause` why it can't be made: then `record` only stands for it in a digest.

    `key` is the event's key of the row, or the marker, that it is of, and `image` the row. `make` makes the record of
    another image of the same row: one with fewer columns, where the whole record is too large. `alike` stands for the
    record in a digest, where its value says more than what the row is: two records of one row then count as the same.
    """

    record: Record
    cause: HelenusError | None
    key: bytes
    image: Image | None
    make: Callable[[Image | None], Record]
    alike: bytes | None = None


class Shape(Protocol):
    """Makes the records of one version of a table. Pure but for the clock: the same Resolved gives the same
    records.
    """

    def records(self, resolved: ResolvedKey) -> Iterable[ShapedRecord | None]:
        """The record of a row; or of a marker, followed by those of the rows that live in its scope, in their order.

        None stands for a row whose key has no form. A row that can't be published has its `cause` and holds up no
        other. Raises RowsFailed from `resolved.rows`, and HelenusError if the schema registry can't be asked.
        """
        ...

    def rows(self, resolved: Sequence[ResolvedKey]) -> Sequence[Record | None]:
        """The record of each, where it is the one record of a row and nothing about it is out of the ordinary; None for
        what `records` is to make. Cheaper for many at once.
        """
        ...

    def smaller(self, image: Image) -> Iterator[tuple[Image, tuple[str, bytes]]]:
        """The image without its largest column, without its two largest and so on, and the header that names them."""
        ...
