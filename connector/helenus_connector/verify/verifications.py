"""Run the verifications of a worker's connectors, one after the other, and keep the last result of each table."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import structlog

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.connectors import Connectors, UnderWay, UnknownConnector
from helenus_connector.control.status import Task
from helenus_connector.log.choice import planner
from helenus_connector.log.events import behind, ends
from helenus_connector.metrics import Labels
from helenus_connector.verify import _metrics
from helenus_connector.verify._report_file import ReportFile
from helenus_connector.verify.options import VerifyOptions
from helenus_connector.verify.report import Progress, VerifyReport, VerifyStopped
from helenus_schemas.errors import HelenusError, Kind

if TYPE_CHECKING:
    from helenus_connector.verify._engine import Behind

State = Literal["WAITING", "RUNNING", "DONE", "FAILED", "STOPPED"]
_log = structlog.get_logger(__name__)
_TURN_S = 1.0
_GRACE_S = 3.0
_numbers = itertools.count(1)


@dataclass
class Verification:
    """The verification of a table, by its labels; `report` once it is DONE, `error` if it FAILED. `id` is one of
    this worker's.
    """

    labels: Labels
    options: VerifyOptions
    id: int = field(default_factory=lambda: next(_numbers))
    state: State = "WAITING"
    progress: Progress = field(default_factory=Progress)
    report: VerifyReport | None = None
    error: str | None = None

    @property
    def is_over(self) -> bool:
        return self.state not in ("WAITING", "RUNNING")

    def shown(self) -> dict[str, Any]:
        """Return it as the REST API shows it."""
        shown: dict[str, Any] = {"id": self.id, "table": self.labels[2], "state": self.state}
        if not self.is_over:
            shown["progress"] = self.progress.as_json()
        if self.report is not None:
            shown["report"] = self.report.as_json()
        return shown if self.error is None else {**shown, "error": self.error}


class Verifications:
    """All verifications of a worker. `start` begins its thread; any thread may call the other methods. The last results
    outlive the worker.

    Methods that take a connector's name raise Unknown.
    """

    def __init__(self, worker: WorkerSettings, connectors: Connectors) -> None:
        self._worker = worker
        self._connectors = connectors
        self._report_file = ReportFile(worker.checkpoint_dir.absolute() / "verifications")
        self._last: dict[tuple[str, str], Verification] = {}
        self._reports: dict[tuple[str, str], VerifyReport] = {}  # of the last one that was DONE
        for report in self._report_file.reports():
            verification = Verification(
                (report.connector, report.keyspace, report.table), VerifyOptions(), state="DONE", report=report
            )
            self._last[report.connector, report.table] = verification
            self._reports[report.connector, report.table] = report
            _metrics.show(report)
        self._lock = threading.Lock()
        self._directory: Path | None = None
        self._requested = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, name: str, tables: Sequence[str], options: VerifyOptions) -> list[Verification]:
        """Ask for these tables of a connector, by default for all. Raises HelenusError CONFIG if there is no such
        table, and UnderWay if one of them is being verified.
        """
        tasks = self._tasks(name, tables)
        with self._lock:
            for task in tasks:
                before = self._last.get((name, task.settings.table))
                if before is not None and not before.is_over:
                    raise UnderWay(f"a verification of {task.settings.table} is under way", name)
            begun = [Verification(task.labels, options) for task in tasks]
            self._last.update({(name, verification.labels[2]): verification for verification in begun})
        self._requested.set()
        return begun

    def last_verifications(self, name: str) -> list[Verification]:
        """Return the last verification of each table of a connector."""
        with self._connectors.lock:
            self._connectors.get(name)
        with self._lock:
            return [verification for (connector, _), verification in sorted(self._last.items()) if connector == name]

    def stop(self, name: str) -> list[Verification]:
        """Stop the running verifications of a connector."""
        running = [verification for verification in self.last_verifications(name) if not verification.is_over]
        for verification in running:
            verification.progress.cancel()
        return running

    def start(self, spark: Any, directory: Path | None = None) -> None:
        """Run verifications on this session from now on. `directory` is the run's, where budgets of rows are."""
        self._directory = directory
        self._thread = threading.Thread(target=self._run, args=(spark,), name="verifications", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End within seconds."""
        self._stopping.set()
        self._requested.set()
        for verification in list(self._last.values()):
            if not verification.is_over:
                verification.progress.cancel()
        if self._thread is not None:
            self._thread.join(_GRACE_S)

    def _run(self, spark: Any) -> None:
        while not self._stopping.is_set():
            with self._lock:
                waiting = [verification for verification in self._last.values() if verification.state == "WAITING"]
            for verification in waiting:
                if not self._stopping.is_set():
                    self._verify(spark, verification)
            self._forget()
            self._requested.wait(_TURN_S)
            self._requested.clear()

    def _verify(self, spark: Any, verification: Verification) -> None:
        from helenus_connector.verify import _engine  # with Arrow, which others need not load

        connector, keyspace, table = verification.labels
        where = {"connector": connector, "table": f"{keyspace}.{table}"}
        verification.state, verification.progress.since = "RUNNING", time.time()
        _log.info("verify.started", **where)
        try:
            verification.progress.check()
            [task] = self._tasks(connector, [table])
            report = _engine.verify(
                spark,
                self._worker,
                task.settings,
                verification.options,
                verification.progress,
                lambda: self._behind(task, verification.progress),
                self._directory,
            )
        except VerifyStopped:
            verification.state = "STOPPED"
            _log.info("verify.stopped", **where)
        except UnknownConnector:
            verification.state = "STOPPED"  # its connector was deleted
        except HelenusError as error:
            if verification.progress.stop.is_set():
                verification.state = "STOPPED"
                return
            verification.state, verification.error = "FAILED", str(error)
            _log.error("verify.failed", **where, error=str(error))
        except Exception as error:  # a bug of ours must not end all verifications
            verification.state, verification.error = "FAILED", f"{type(error).__name__}: {error}"
            if not self._stopping.is_set():
                _log.exception("verify.failed", **where, error=verification.error)
        else:
            verification.report = report
            with self._lock:
                self._reports[connector, table] = report
            _metrics.show(report)
            self._keep()
            verification.state = "DONE"
            counts = {kind: keys.count for kind, keys in report.found.items() if keys.count}
            seconds = round(report.seconds, 1)
            _log.info("verify.done", **where, rows=report.rows, records=report.records, seconds=seconds, **counts)

    def _behind(self, task: Task, progress: Progress) -> Behind:
        """Return a function that says why the connector has not published what the events topic has now. Raises as
        `ends`, and VerifyStopped."""
        events = task.events
        with closing(planner(self._worker)) as broker:
            until = ends(broker, events, wait=progress.wait)

        def why() -> str | None:
            if not behind(events, self._connectors.offsets_of_task(task), until):
                return None
            with self._connectors.lock:
                states = {t.id: t.state for t in self._connectors.get(task.connector).status().tasks}
            state = states.get(task.id, "STOPPED")
            return "the connector has not read all events yet" if state == "RUNNING" else f"the connector is {state}"

        return why

    def _forget(self) -> None:
        """Forget the tables of connectors that were deleted."""
        names = self._connectors.all().keys()
        with self._lock:
            gone = [self._last.pop(name) for name in [name for name in self._last if name[0] not in names]]
            self._reports = {name: report for name, report in self._reports.items() if name[0] in names}
        for verification in gone:
            _metrics.forget(verification.labels)
        if gone:
            self._keep()

    def _keep(self) -> None:
        with self._lock:
            reports = list(self._reports.values())
        try:
            self._report_file.save(reports)
        except HelenusError as error:
            _log.warning("verify.not_kept", reason=str(error))

    def _tasks(self, name: str, tables: Sequence[str]) -> list[Task]:
        with self._connectors.lock:
            tasks = dict(self._connectors.get(name).tasks)
        for table in tables:
            if table not in tasks:
                problem = f"the connector has no table {table}: there are {', '.join(sorted(tasks)) or 'none yet'}"
                raise HelenusError(Kind.CONFIG, problem, name, "name one of its tables, or none for all")
        if not tasks:
            raise HelenusError(Kind.CONFIG, "the connector has no tables yet", name, "wait until it has")
        return [tasks[table] for table in dict.fromkeys(tables)] or list(tasks.values())
