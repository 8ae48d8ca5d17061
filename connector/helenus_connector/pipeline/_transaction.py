"""The interface of a batch's transaction, where a table is published exactly once. `journal` implements it."""

from __future__ import annotations

from typing import Protocol

from helenus_connector.pipeline.batch_outcome import BatchOutcome


class Transaction(Protocol):
    """A batch's records, and what waits after it: published together, or not at all. Methods raise HelenusError: then
    nothing is published, unless `commit` can't say.
    """

    def flush(self, timeout: float) -> None:
        """Wait until the broker has all records that were appended."""
        ...

    def abort(self) -> None:
        """Drop all records that were appended."""
        ...

    def commit(self, outcome: BatchOutcome, timeout: float) -> None:
        """Publish the records."""
        ...
