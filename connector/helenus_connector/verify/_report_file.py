"""Keep the last result of each table, in a file that outlives the worker: it names a few keys of each kind only."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import structlog

from helenus_connector.verify.report import VerifyReport
from helenus_schemas.errors import HelenusError
from helenus_schemas.service import durable

_log = structlog.get_logger(__name__)
_VERSION = 1
_KEYS = 10


class ReportFile:
    """The results in `file`."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def reports(self) -> list[VerifyReport]:
        """Return what was saved; nothing, and a line in the log, if the file can't be read: the next result
        replaces it.
        """
        try:
            return [VerifyReport.of_json(shown) for shown in durable.load(self._file, _VERSION)]
        except FileNotFoundError:
            return []
        except (durable.Damaged, HelenusError, KeyError, TypeError) as error:
            _log.warning("verify.not_kept", reason=f"the last results can't be read: {error}", file=str(self._file))
            return []

    def save(self, reports: Iterable[VerifyReport]) -> None:
        """Replace what was saved. Raises HelenusError(STATE)."""
        durable.make_directory(self._file.parent)
        durable.save(
            self._file, [_short(report) for report in reports], _VERSION, "results of verify", "verify.after-write"
        )


def _short(report: VerifyReport) -> dict[str, Any]:
    shown = report.as_json()
    for kinds in (shown["differences"], shown["apart"]):
        for kind, differing in kinds.items():
            kinds[kind] = {**differing, "keys": differing["keys"][:_KEYS]}
    return shown
