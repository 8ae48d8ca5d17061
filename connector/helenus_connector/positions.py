"""Where connectors stand in their events topics.

Spark's checkpoint holds one position of all topics of a query, and moves it with every batch. A topic whose part of a
batch was not done, because its connector failed, paused or is to go back, is *held*: it goes on from there instead.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from helenus_schemas import durable

Offsets = dict[str, dict[str, int]]
"""Next offset by topic and partition; partitions are text, because this is kept as JSON."""


def overlaid(offsets: Mapping[str, Mapping[str, int]], held: Mapping[str, Mapping[str, int]]) -> Offsets:
    """`offsets`, but where something is held that."""
    return {topic: {**offsets.get(topic, {}), **held.get(topic, {})} for topic in [*offsets, *held]}


def committed(checkpoint: Path) -> Offsets:
    """Where the last batch that Spark has as done ended: nothing if there was none.

    The format is Spark's: `commits/N` says that batch N is done, `offsets/N` ends with a line for each source.
    """
    done = sorted((int(f.name) for f in checkpoint.glob("commits/*") if f.name.isdigit()), reverse=True)
    for batch in done:
        with contextlib.suppress(FileNotFoundError):  # it was cleaned up meanwhile
            return planned(checkpoint, batch)
    return {}


def latest(checkpoint: Path) -> int:
    """The number of the last batch that was planned, done or not; -1 if there was none."""
    return max((int(f.name) for f in checkpoint.glob("offsets/*") if f.name.isdigit()), default=-1)


def planned(checkpoint: Path, batch: int) -> Offsets:
    """Where a batch ends, done or not. Raises FileNotFoundError if Spark has no such batch."""
    told = (checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1]
    topics: Offsets = json.loads(told)["topics"]
    return topics


def adopt(directory: Path, checkpoint: Path) -> None:
    """Move the checkpoint of a worker from before there were groups, which lay in `checkpoint.dir` itself."""
    moved = directory / f"{checkpoint.name}.new"  # is there if a move was cut off
    if checkpoint.exists() or not ((directory / "offsets").is_dir() or moved.exists()):
        return
    moved.mkdir(exist_ok=True)
    for name in ("pending", "metadata", "sources", "commits", "offsets"):
        if (directory / name).exists():
            (directory / name).replace(moved / name)
    moved.replace(checkpoint)


class Held:
    """The held positions of one query, kept beside its checkpoint. Its methods may be called from any thread.

    What an operator sets by `move` is not for a batch that was planned before: `epoch` tells them apart.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._file = file = checkpoint / "held"
        self._lock = threading.Lock()
        self._epochs: dict[str, int] = {}
        self._released: Offsets = {}
        try:
            self._offsets: Offsets = json.loads(file.read_text())
        except FileNotFoundError:
            self._offsets = {}
        self._epochs_file = checkpoint / "epochs"
        with contextlib.suppress(FileNotFoundError):
            self._epochs = json.loads(self._epochs_file.read_text())

    def offsets(self) -> Offsets:
        """A copy of what is held."""
        with self._lock:
            return {topic: dict(offsets) for topic, offsets in self._offsets.items()}

    def where(self) -> Offsets:
        """Where every topic of the query stands that was ever read."""
        with self._lock:
            return overlaid(overlaid(committed(self._checkpoint), self._released), self._offsets)

    def begin(self) -> None:
        """A batch begins, and so Spark has committed the one before."""
        with self._lock:
            self._released = {}

    def epoch(self, topic: str) -> int:
        """How often `move` was called for a topic."""
        with self._lock:
            return self._epochs.get(topic, 0)

    def hold(self, topic: str, starts: Mapping[str, int]) -> None:
        """These partitions were to be read from here, and were not done."""
        with self._lock:
            self._offsets.setdefault(topic, {}).update(starts)
            self._save()

    def keep(self, topic: str, starts: Mapping[str, int]) -> None:
        """These partitions were in a batch that is done again without them: as `hold`, but what is held stays."""
        with self._lock:
            self._offsets[topic] = {**starts, **self._offsets.get(topic, {})}
            self._save()

    def release(self, topic: str, partitions: Iterable[str]) -> None:
        """These partitions are done, as far as their batch went."""
        with self._lock:
            held = self._offsets.get(topic)
            if held is None:
                return
            for partition in partitions:
                if partition in held:
                    # Until Spark commits the batch, this is what is known for sure.
                    self._released.setdefault(topic, {})[partition] = held.pop(partition)
            if not held:
                del self._offsets[topic]
            self._save()

    def move(self, topic: str, offsets: Mapping[str, int]) -> None:
        """Go on from here, whatever a batch that is under way makes of it."""
        with self._lock:
            self._epochs[topic] = self._epochs.get(topic, 0) + 1
            self._offsets.setdefault(topic, {}).update(offsets)
            self._save()
            durable.replace(self._epochs_file, self._epochs, "which offsets were altered", "connector.epochs-saved")

    def _save(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(self._offsets))
        new.replace(self._file)
