"""Rows and partitions that are due: what expired, which tombstones can be purged, and which rows are to be read.

row v = 1, expires 60 · a batch at 61 → a `d`, and the row is in the calendar for when its tombstone can be purged

Each batch begins with these. Where no events come, the planner begins one when the earliest entry of the calendar is
due: `RowsQuery` writes that time to the plan's `due_file`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from helenus_connector.interfaces.merged_change import MergedChange
from helenus_connector.state.rows._cell_rules import NEVER
from helenus_connector.state.rows._read_requests import ReadRequests
from helenus_connector.state.rows._row_image import RowImages
from helenus_connector.state.rows._row_store import NAMES_AT_ONCE, PARTITION_PREFIX, RowStore


class DueRows:
    """The due rows of one topic partition in one batch. `gc_grace_s`: for how long tombstones are kept here. Names
    whose key `is_valid_key` refuses are skipped.
    """

    def __init__(
        self,
        row_store: RowStore,
        images: RowImages,
        requests: ReadRequests,
        gc_grace_s: int,
        is_valid_key: Callable[[bytes], bool],
    ) -> None:
        self._row_store, self._images, self._requests = row_store, images, requests
        self._gc_grace_s, self._is_valid_key = gc_grace_s, is_valid_key

    def process(self) -> Iterator[MergedChange]:
        """Take all that is due out of the calendar, in the order of time, and give the changes that follow from it."""
        calendar, now = self._row_store.calendar, self._row_store.now
        while names := list(dict.fromkeys(calendar.take_due(now, NAMES_AT_ONCE))):
            names = [name for name in names if self._is_valid_key(name[1:])]
            partition_names = [name for name in names if name[:1] == PARTITION_PREFIX]
            row_names = [name for name in names if name[:1] != PARTITION_PREFIX]
            self._row_store.fetch_rows(row_names)
            self._row_store.fetch_partitions([name[1:] for name in names])
            self._purge_partitions(partition_names)
            for name in row_names:
                yield from self._process_row(name)
            self._row_store.save()
            self._row_store.release_all()

    def _purge_partitions(self, names: Sequence[bytes]) -> None:
        for name in names:
            partition = self._row_store.get_partition(name[1:])
            if 0 < partition.scheduled_at <= self._row_store.now:
                partition.scheduled_at = 0
                purged = partition.purge(self._row_store.purge_clock, self._gc_grace_s)
                self._row_store.history.raise_horizon(purged)
                self._row_store.changed_partitions[name[1:]] = None

    def _process_row(self, name: bytes) -> Iterator[MergedChange]:
        row, now = self._row_store.get_row(name), self._row_store.now
        # A row may be in the calendar more than once: only its own time counts.
        if not 0 < row.scheduled_at <= now:
            return
        # A second before, the row was as it was last published: its time in the calendar is that of its first expiry,
        # or earlier, and at its expiry a cell no longer lives.
        last_shown_at = row.scheduled_at - 1
        before = self._images.values_for(name).show(row, last_shown_at)
        has_lost_guess = row.drop_expired_guess(now)
        in_doubt = has_lost_guess or row.needs_read(last_shown_at, now)
        row.scheduled_at = 0
        purged_to = row.purge(self._row_store.purge_clock, self._gc_grace_s)
        self._row_store.history.raise_horizon(purged_to)
        self._row_store.put_row(name, row, self._row_store.resolve_key(name[1:])[0])
        merged = self._images.record_change(name, name[1:], before, None, None)
        if merged is not None or purged_to != NEVER:
            row.forget_mutations()  # what hid a part of one ended, or was purged
        if merged is not None:
            yield merged
        if in_doubt:
            yield self._requests.for_row(name)
