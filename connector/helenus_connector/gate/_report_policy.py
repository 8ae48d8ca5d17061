"""With which of its reports a change goes on: `FirstReport` at level one, `_level_reports.LevelReports` above."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from helenus_connector.gate.cache import CacheEntry
from helenus_connector.interfaces.admitted_change import AdmittedChange
from helenus_connector.interfaces.event import Event, WaitingChange
from helenus_connector.interfaces.gate import Intake

DecodeWaiting = Callable[[WaitingChange], "AdmittedChange | None"]
"""Decodes the event of a change that waits. Returns None for one that the table can no longer have: it is counted."""


class ReportPolicy(Protocol):
    """The policy of one batch. It counts in the batch's `Intake`.

    `counts_reports` says whether one report may be too few. If not, the loop over the events does not call it.
    """

    counts_reports: bool

    def count_report(
        self, admitted: AdmittedChange, entry: CacheEntry, node: bytes, event: Event
    ) -> AdmittedChange | None:
        """Return the change that one more `event` of a `node` completes, else None.

        `admitted` is the change as this batch has it, made of its first event here; `entry` is what the cache knows.
        """
        ...

    def note_confirmed_copy(self, change: bytes, event: Event) -> None:
        """Note that a copy of a confirmed change came. It is counted already."""
        ...

    def settle_overdue(self, waiting: WaitingChange, decode: DecodeWaiting) -> AdmittedChange | None:
        """Return a change whose timeout has passed, or that is handed out early, if it is admitted."""
        ...

    def waiting_changes(self) -> Iterable[WaitingChange]:
        """Return the changes that wait after the batch: new ones, and those with more reports than before."""
        ...


class FirstReport:
    """Admits a change with its first report. Changes that waited when the gate had another level are admitted."""

    counts_reports = False

    def __init__(self, intake: Intake) -> None:
        self._at_gate = intake.at_gate

    def count_report(
        self,
        admitted: AdmittedChange,
        entry: CacheEntry,  # noqa: ARG002
        node: bytes,  # noqa: ARG002
        event: Event,  # noqa: ARG002
    ) -> AdmittedChange | None:
        return admitted

    def note_confirmed_copy(self, change: bytes, event: Event) -> None:
        """Do nothing: no change waits for this copy."""

    def settle_overdue(self, waiting: WaitingChange, decode: DecodeWaiting) -> AdmittedChange | None:
        admitted = decode(waiting)
        self._at_gate.gone.append((waiting.event.partition, waiting.id))
        self._at_gate.completed += admitted is not None
        return admitted

    def waiting_changes(self) -> Iterable[WaitingChange]:
        return ()
