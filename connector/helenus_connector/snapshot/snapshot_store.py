"""Keep the progress of snapshots, in a document that outlives the worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from helenus_connector.control.documents import Document
from helenus_connector.snapshot._ring import TokenStretch, new_stretch, remaining_share
from helenus_connector.snapshot.request import SnapshotRequest
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import durable

State = Literal["SCANNING", "PUBLISHING", "COMPLETE", "STOPPED", "FAILED"]
_VERSION = 2


@dataclass(eq=False)
class Snapshot:
    """A snapshot of a table, or of some partitions of it.

    SCANNING: keys are read, and appended to the events topic. PUBLISHING: all are, and the connector is not past their
    `ends` in the topic yet; `marked` says that its last event is among them. `table_id` says which incarnation of the
    table it is of, `cause` why it began, and `is_whole` that all of the table was asked for. `left` is what is left to
    scan, of `whole` (as shares of the ring). `rows` were scanned; of `skipped` the key can't be published. `started`
    and `ended` in s since the epoch, and in so many `seconds` of these it went on. `last` is the topic partition and
    the key, in hexadecimal, of a row that was scanned last. `error` is why it failed, `waiting` why it does not go on
    right now.
    """

    connector: str
    table: str
    table_id: str
    cause: str
    where: str = ""
    is_whole: bool = True
    left: list[TokenStretch] = field(default_factory=list)
    whole: float = 1.0
    state: State = "SCANNING"
    rows: int = 0
    skipped: int = 0
    started: float = 0.0
    ended: float | None = None
    seconds: float = 0.0
    last: tuple[int, str] | None = None
    ends: dict[str, int] = field(default_factory=dict)
    marked: bool = False
    is_paused: bool = False
    error: str | None = None
    waiting: str | None = None

    @property
    def is_over(self) -> bool:
        return self.state in ("COMPLETE", "STOPPED", "FAILED")

    @property
    def scanned_share(self) -> float:
        """Return which share of it is scanned, from 0 to 1."""
        if self.state in ("PUBLISHING", "COMPLETE") or (self.where and not self.left):
            return 1.0
        return 0.0 if self.where else 1 - remaining_share(self.left) / self.whole

    @property
    def seconds_left(self) -> float | None:
        """Estimate how long the rest of the scan takes at the rate so far, in s; None without an estimate."""
        scanned = self.scanned_share
        if self.state != "SCANNING" or scanned <= 0 or self.where or not self.seconds:
            return None
        return self.seconds * (1 - scanned) / scanned

    def shown(self) -> dict[str, Any]:
        """Return the snapshot as REST shows it."""
        seconds_left = self.seconds_left
        paused = self.is_paused and not self.is_over
        return {
            "table": self.table,
            "state": "PAUSED" if paused else self.state,
            "cause": self.cause,
            **({"where": self.where} if self.where else {}),
            "rows": self.rows,
            "skipped": self.skipped,
            "done": round(self.scanned_share, 4),
            "rate": round(self.rows / self.seconds, 1) if self.seconds else 0.0,
            "eta_s": None if seconds_left is None else round(seconds_left, 1),
            "started": _iso_time(self.started),
            "ended": None if self.ended is None else _iso_time(self.ended),
            **({"waiting": self.waiting} if self.waiting and not self.is_over else {}),
            **({"error": self.error} if self.error else {}),
        }


def new_snapshot(
    connector: str, table: str, table_id: str, cause: str, requested: SnapshotRequest, has_statics: bool
) -> Snapshot:
    """Return a snapshot of which nothing is scanned."""
    stretches = [new_stretch(after, until) for after, until in requested.token_ranges]
    if has_statics:
        stretches += [new_stretch(after, until, statics=True) for after, until in requested.token_ranges]
    whole = remaining_share(stretches)
    return Snapshot(
        connector, table, table_id, cause, requested.where, requested.is_whole, stretches, whole, started=time.time()
    )


@dataclass(eq=False)
class TableSnapshots:
    """What is known of a connector's table: of which incarnation a snapshot of the whole is complete (its id, or ""),
    why another one is needed, the last one that began, and the last one of the `whole`, which may be the same.
    """

    complete: str = ""
    needed: str = ""
    snapshot: Snapshot | None = None
    whole: Snapshot | None = None

    def begin(self, snapshot: Snapshot) -> None:
        """Begin another snapshot."""
        self.snapshot = snapshot
        if snapshot.is_whole:
            self.whole, self.needed = snapshot, ""  # what is lost from now on needs another one

    def forget_ended(self) -> None:
        """Forget all snapshots that are over."""
        self.complete = ""
        if self.snapshot is not None and self.snapshot.is_over:
            self.snapshot = None
        if self.whole is not None and self.whole.is_over:
            self.whole = None

    @property
    def is_under_way(self) -> bool:
        """Return whether a snapshot is running."""
        return self.snapshot is not None and not self.snapshot.is_over

    @property
    def is_published(self) -> bool:
        """Return whether the last one of the whole table is complete, and none is running."""
        is_at_rest = self.snapshot is None or self.snapshot.is_over
        return is_at_rest and self.whole is not None and self.whole.state == "COMPLETE"

    def cause(self, mode: str, table_id: str, is_old: bool) -> str | None:
        """Return why a snapshot of the whole table is to begin now, None if none is. `is_old`: the worker has begun
        one, or gone on with one, since its start.
        """
        last = self.whole
        if self.needed and mode == "when_needed":
            return self.needed
        if mode == "always":
            return None if is_old else "always"
        if last is not None and last.table_id == table_id:
            if last.state == "FAILED":  # it begins again with the worker, also if an earlier one is complete
                return None if is_old else last.cause
            if last.state == "STOPPED":
                return None
        return None if self.complete == table_id else "initial"


class SnapshotFile:
    """The file `snapshots` in `checkpoint.dir`: a `control.documents.Document`."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "snapshots"

    def read(self) -> Any:
        """Return the content; None if there is no file."""
        try:
            return durable.load(self._file, _VERSION)
        except FileNotFoundError:
            return None
        except durable.Damaged as error:
            problem = (
                f"the progress of snapshots is damaged: {error}. Restore the file; or delete it: then snapshots begin"
            )
            raise HelenusError(Kind.STATE, f"{problem} again, as snapshot.mode says", str(self._file)) from None

    def save(self, content: Any) -> None:
        """Replace the file."""
        durable.make_directory(self._file.parent)
        durable.save(self._file, content, _VERSION, "the progress of snapshots", "snapshots.after-write")


class SnapshotStore:
    """The snapshots of a worker's connectors, by connector and table, in a document. `signals` is where connectors are
    in their signal topics: the next offset of each partition. Any thread may use it; `lock` is held over what belongs
    together. Raises as the document.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self.lock = threading.RLock()
        self._tables: dict[tuple[str, str], TableSnapshots] = {}
        self.signals: dict[tuple[str, str], dict[str, int]] = {}
        content = document.read()
        if content is None:
            return
        for entry in content["signals"]:
            self.signals[entry["connector"], entry["topic"]] = entry["offsets"]
        for entry in content["tables"]:
            last = _read_snapshot(entry["snapshot"])
            whole = last if last is not None and last.is_whole else _read_snapshot(entry.get("whole"))
            self._tables[entry["connector"], entry["table"]] = TableSnapshots(
                entry["complete"], entry["needed"], last, whole
            )

    def for_table(self, connector: str, table: str) -> TableSnapshots:
        """Return the snapshots of a connector's table, to be read or changed."""
        with self.lock:
            return self._tables.setdefault((connector, table), TableSnapshots())

    def snapshots(self, connector: str | None = None) -> list[Snapshot]:
        """Return the last snapshot of each table, of one connector or of all."""
        with self.lock:
            named = [(name, table.snapshot) for (name, _), table in self._tables.items()]
        return [snapshot for name, snapshot in named if snapshot is not None and connector in (None, name)]

    def signalled(self, connector: str, topic: str) -> dict[str, int]:
        """Return a copy of a connector's offsets in a signal topic, by partition."""
        with self.lock:
            return dict(self.signals.get((connector, topic), {}))

    def forget(self, connector: str) -> None:
        """Forget the snapshots of a connector; the caller saves it."""
        self._tables = {name: table for name, table in self._tables.items() if name[0] != connector}

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock, and save what was changed."""
        with self.lock:
            yield
            self._save()

    def _save(self) -> None:
        tables = [
            {
                "connector": connector,
                "table": table,
                "complete": snapshots.complete,
                "needed": snapshots.needed,
                "snapshot": None if snapshots.snapshot is None else asdict(snapshots.snapshot),
                "whole": None if snapshots.whole in (None, snapshots.snapshot) else asdict(snapshots.whole),
            }
            for (connector, table), snapshots in self._tables.items()
            if snapshots.complete or snapshots.needed or snapshots.snapshot
        ]
        signals = [{"connector": c, "topic": t, "offsets": offsets} for (c, t), offsets in self.signals.items()]
        content = {"tables": tables, "signals": signals}
        self._document.save(content)


def _read_snapshot(content: dict[str, Any] | None) -> Snapshot | None:
    if content is None:
        return None
    stretches = [TokenStretch(**stretch) for stretch in content["left"]]
    last = content["last"] and (int(content["last"][0]), str(content["last"][1]))
    return Snapshot(**{**content, "left": stretches, "last": last, "waiting": None})


def _iso_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
