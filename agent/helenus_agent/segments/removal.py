"""Finished segments leave cdc_raw: by the configured transfer, or into quarantine if they could not be read wholly."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from helenus_agent import metrics
from helenus_agent.commitlog.segment import Segment
from helenus_agent.commitlog.segment_name import parse_name
from helenus_agent.positions import Positions
from helenus_agent.segments import gaps
from helenus_agent.segments.transfer import Transfer, move
from helenus_schemas.errors import Action, HelenusError, Kind

_RETRY_S = (1.0, 60.0)  # s until a transfer that failed is tried again: at first, at most
_log = structlog.get_logger(__name__)


class Removal:
    """Takes segments out of cdc_raw that are read to their end and acknowledged; if `may_remove` is given, those whose
    ids it allows.

    `error`: why the last try failed, None if it did not.
    """

    def __init__(
        self,
        transfer: Transfer,
        quarantine: Path,
        positions: Positions,
        may_remove: Callable[[int], bool] | None = None,
    ) -> None:
        self.error: str | None = None
        self._transfer = transfer
        self._quarantine = quarantine
        self._positions = positions
        self._may_remove = may_remove
        self._wait_s = 0.0
        self._next_try_at = 0.0
        for path in quarantine.glob("*.log"):
            number = (parse_name(path.name) or (0, 0))[1]
            if number in positions.segments:
                gaps.report_quarantined(positions, path)  # killed before that was saved
            positions.finish(number)

    @property
    def is_due(self) -> bool:
        """False while it waits after a failure."""
        return time.monotonic() >= self._next_try_at

    def remove(self, finished: list[Segment]) -> None:
        """Remove these segments, from cdc_raw and from the list. One that fails stays in it, and delays no other.

        Raises HelenusError for what no retry will mend.
        """
        self.error = None
        for segment in list(finished):
            if self._may_remove is not None and not self._may_remove(segment.id):
                continue
            try:
                self._remove(segment)
            except HelenusError as error:
                if error.action is not Action.RETRY:
                    raise
                self.error = str(error)
                metrics.RETRIES.labels(error.kind.value).inc()
                _log.error("segment.not_taken", path=str(segment.path), error=str(error), then="it is tried again")
            else:
                finished.remove(segment)
        first_wait, max_wait = _RETRY_S
        self._wait_s = min(max(first_wait, self._wait_s * 2), max_wait) if self.error else 0.0
        self._next_try_at = time.monotonic() + self._wait_s

    def count_quarantined(self, segments: Iterable[Segment]) -> tuple[int, str]:
        """Return how many segments are in quarantine, or will go there from among these; and where to look."""
        bad = [segment for segment in segments if segment.bad]
        in_directory = sum(1 for _ in self._quarantine.glob("*.log"))
        return len(bad) + in_directory, str(bad[0].path if bad else self._quarantine)

    def _remove(self, segment: Segment) -> None:
        segment.close()
        try:
            if segment.bad and segment.path.exists() and not segment.unlinked:
                path = move(segment.path, self._quarantine)
                self._positions.finish(segment.id)
                gaps.report_quarantined(self._positions, path)
            elif segment.bad:
                self._positions.finish(segment.id)
                gaps.report_lost(self._positions, segment.id, segment.position, str(segment.path.parent))
            elif segment.unlinked:
                _log.info("segment.done", segment=segment.id)  # the file is the node's
            else:
                self._transfer(segment.path)
                _log.info("segment.done", segment=segment.id)
        except OSError as error:
            message = f"cannot take the segment away: {error.strerror}"
            raise HelenusError(Kind.CDC_DIRECTORY, message, str(segment.path)) from None
        metrics.DONE.inc()
