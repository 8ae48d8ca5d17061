"""The result of a verification, and its progress."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

MISSING, STALE, GHOST, FOREIGN, MISPLACED = "missing", "stale", "ghost", "foreign", "misplaced"
EXPIRED, CHANGING, UNPUBLISHABLE = "expired", "changing", "unpublishable"
DOUBTFUL = "doubtful"
"""A record that says that it expired, of a row that lives: EXPIRED or STALE, as the row's write time says then."""
DIFFERENCES = (MISSING, STALE, GHOST, FOREIGN, MISPLACED)
"""A row without record; a record that is not the row; a record of a key that the table has not, or can't have; one that
has a value beside the key's last record, in another partition of the topic.
"""
NO_DIFFERENCES = (EXPIRED, CHANGING, UNPUBLISHABLE)
"""Counted apart: records that say that they expired, and did; keys that were published again and again, to the end;
rows that no record can show."""
DIFFERENT = 3
"""The exit status where topic and table differ."""


@dataclass
class DifferingKeys:
    """Keys of one kind: how many, and the first of them as JSON text."""

    count: int = 0
    keys: list[str] = field(default_factory=list)


@dataclass
class VerifyReport:
    """What was found in one table. `rows` and `records` were looked at; a record that a later one replaced counts too.

    `rounds`: how often keys that differed were looked at again. `repaired`: events that were appended. `behind`: why
    the connector may not have published all that was there, None if it had.
    """

    connector: str
    keyspace: str
    table: str
    topic: str
    started: float
    seconds: float = 0.0
    rows: int = 0
    records: int = 0
    sample: float = 1.0
    rounds: int = 0
    repaired: int = 0
    behind: str | None = None
    found: dict[str, DifferingKeys] = field(
        default_factory=lambda: {k: DifferingKeys() for k in (*DIFFERENCES, *NO_DIFFERENCES)}
    )

    @property
    def differences(self) -> int:
        """Return how many keys differ."""
        return sum(self.found[kind].count for kind in DIFFERENCES)

    @property
    def exit_status(self) -> int:
        return DIFFERENT if self.differences else 0

    def as_json(self) -> dict[str, Any]:
        """Return the report as the REST API shows it."""
        return {
            "connector": self.connector,
            "keyspace": self.keyspace,
            "table": self.table,
            "topic": self.topic,
            "started": round(self.started, 3),
            "seconds": round(self.seconds, 3),
            "rows": self.rows,
            "records": self.records,
            "sample": self.sample,
            "rounds": self.rounds,
            "repaired": self.repaired,
            "behind": self.behind,
            "equal": not self.differences,
            "differences": {kind: self._shown(kind) for kind in DIFFERENCES},
            "apart": {kind: self._shown(kind) for kind in NO_DIFFERENCES},
        }

    @classmethod
    def of_json(cls, shown: dict[str, Any]) -> VerifyReport:
        """Parse what `as_json` returned. Raises KeyError and TypeError for anything else."""
        differing = {k: DifferingKeys() for k in (*DIFFERENCES, *NO_DIFFERENCES)}  # an older version knew fewer kinds
        for k, content in {**shown["differences"], **shown["apart"]}.items():
            differing[k] = DifferingKeys(content["count"], list(content["keys"]))
        own = {name: shown[name] for name in cls.__dataclass_fields__ if name != "found"}
        return cls(**own, found=differing)

    def _shown(self, kind: str) -> dict[str, Any]:
        return {"count": self.found[kind].count, "keys": self.found[kind].keys}


class VerifyStopped(Exception):
    """The verification was stopped."""


@dataclass
class Progress:
    """How far a verification is: what it `does`, and how many keys `differ` as far as is known. Any thread may use it.

    `stop` is set when it is to end.
    """

    does: str = "waiting"
    differ: int | None = None
    since: float = field(default_factory=time.time)
    stop: threading.Event = field(default_factory=threading.Event)
    _context: Any = None
    _group: str = ""
    _before: frozenset[int] = frozenset()

    def check(self) -> None:
        """Raise VerifyStopped if it is to end."""
        if self.stop.is_set():
            raise VerifyStopped

    def wait(self, seconds: float) -> None:
        """Wait. Raises VerifyStopped."""
        self.stop.wait(seconds)
        self.check()

    def follow(self, context: Any, group: str) -> None:
        """Count Spark's jobs of a group from now on; of none without a context."""
        self._context, self._group = context, group

    def begin(self, does: str) -> None:
        """Begin another step."""
        self.does, self._before = does, frozenset(self._jobs())

    def cancel(self) -> None:
        """Ask it to end, and Spark to end its jobs."""
        self.stop.set()
        if self._context is not None:
            self._context.cancelJobGroup(self._group)

    def tasks(self) -> tuple[int, int]:
        """Return how many of the current step's Spark tasks are completed, and how many there are."""
        completed = count = 0
        if self._context is not None:
            tracker = self._context.statusTracker()
            for job in set(self._jobs()) - self._before:
                for stage in getattr(tracker.getJobInfo(job), "stageIds", ()):
                    info = tracker.getStageInfo(stage)
                    if info is not None:
                        completed, count = completed + info.numCompletedTasks, count + info.numTasks
        return completed, count

    def _jobs(self) -> list[int]:
        return list(self._context.statusTracker().getJobIdsForGroup(self._group)) if self._context is not None else []

    def as_json(self) -> dict[str, Any]:
        completed, tasks = self.tasks()
        seconds = round(time.time() - self.since, 1)
        shown = {"does": self.does, "tasks": tasks, "done": completed, "seconds": seconds}
        return shown if self.differ is None else {**shown, "differ": self.differ}
