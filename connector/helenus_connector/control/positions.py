"""Where connectors stand in their events topics.

Spark's checkpoint holds one position of all topics of a query, and moves it with every batch. A topic whose part of a
batch was not done, because its connector failed, was paused or moved back, is *held*: it goes on from there instead.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from helenus_connector.control._ownership import Owners
from helenus_connector.control.checkpoint import committed, latest
from helenus_connector.log.events import Offsets
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import durable

_VERSION = 1
GONE = -2
"""HeldPositions for a partition that a topic no longer has."""


def overlaid(offsets: Offsets, held: Mapping[str, Mapping[str, int]]) -> Offsets:
    """`offsets`, which has no `GONE`, but where something is held that. Topics of which nothing is held have the
    mappings of `offsets`: they are not to be changed.
    """
    both = {topic: {**offsets.get(topic, {}), **here} for topic, here in held.items()}
    return {**offsets, **{topic: {p: at for p, at in found.items() if at != GONE} for topic, found in both.items()}}


class HeldPositions:
    """The held positions of one query, kept next to its checkpoint. Its methods may be called from any thread.

    A batch planned before an operator's `move` does not change the new position: `epoch` distinguishes them. Raises
    HelenusError(STATE) if the file is damaged, or can't be read or written.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self._file = file = checkpoint / "held"
        self.owners = Owners(checkpoint)
        self._lock = threading.Lock()
        self._epochs: dict[str, int] = {}
        self._released: Offsets = {}
        try:
            self._offsets: Offsets = durable.load(file, _VERSION)
        except FileNotFoundError:
            self._offsets = {}
        except durable.Damaged as error:
            what = (
                f"the held positions are damaged: {error}. They say where connectors of query.group "
                f"{checkpoint.name} go on that failed, were paused or moved. Restore the file; or delete it, stop "
                "these connectors, set their offsets over REST and resume them: events before those offsets are "
                "not read"
            )
            raise HelenusError(Kind.STATE, what, str(file)) from None
        self._epochs_file = checkpoint / "epochs"
        with contextlib.suppress(FileNotFoundError, durable.Damaged):
            self._epochs = durable.load(self._epochs_file, _VERSION)

    def offsets(self) -> Offsets:
        """A copy of what is held."""
        with self._lock:
            return {topic: dict(offsets) for topic, offsets in self._offsets.items()}

    def where(self) -> Offsets:
        """The position of every topic that the query ever read."""
        with self._lock:
            return overlaid(overlaid(committed(self.checkpoint), self._released), self._offsets)

    def begin(self) -> None:
        """A batch begins, and so Spark has committed the one before."""
        with self._lock:
            self._released = {}

    def epoch(self, topic: str) -> int:
        """How often `move` was called for a topic."""
        with self._lock:
            return self._epochs.get(topic, 0)

    def epochs(self, topics: Iterable[str]) -> dict[str, int]:
        """`epoch` of each topic."""
        with self._lock:
            return {topic: self._epochs.get(topic, 0) for topic in topics}

    def hold(self, topic: str, starts: Mapping[str, int], epoch: int = 0) -> bool:
        """These partitions were to be read from here, and were not done. False, and nothing is held, if the topic was
        moved since that was planned, in its `epoch`.
        """
        with self._lock:
            if epoch != self._epochs.get(topic, 0):
                return False
            self._save({**self._offsets, topic: {**self._offsets.get(topic, {}), **starts}})
            return True

    def keep(self, topic: str, starts: Mapping[str, int]) -> None:
        """These partitions were in a batch that is done again without them: like `hold`, but never overwrites."""
        with self._lock:
            self._save({**self._offsets, topic: {**starts, **self._offsets.get(topic, {})}})

    def release(
        self, topic: str, partitions: Iterable[str], epoch: int = 0, ends: Mapping[str, int] | None = None
    ) -> bool:
        """These partitions are done, as far as their batch went; those in `ends` up to there, before its end. False if
        the topic was moved since, as in `hold`.
        """
        with self._lock:
            if epoch != self._epochs.get(topic, 0):
                return False
            held = self._offsets.get(topic, {})
            done = {p for p, at in held.items() if at == GONE} | {*partitions} & held.keys()
            if done or ends:
                self._sync_plan()
                # In one step: between two, nothing would say that the rest is to be read.
                left = {**{p: at for p, at in held.items() if p not in done}, **(ends or {})}
                # Until Spark commits the batch, this is what is known for sure.
                self._released.setdefault(topic, {}).update({p: held[p] for p in done})
                self._save(
                    {**{t: o for t, o in self._offsets.items() if t != topic}, **({topic: left} if left else {})}
                )
            return True

    def move(self, topic: str, offsets: Mapping[str, int], connector: str | None = None) -> None:
        """Go on from here, whatever a running batch does. These are all partitions of the topic. The position is that
        `connector`'s from then on, if one is named.
        """
        with self._lock:
            before = overlaid(overlaid(committed(self.checkpoint), self._released), self._offsets).get(topic, {})
            self._save({**self._offsets, topic: {**dict.fromkeys(before, GONE), **offsets}})
            self._epochs[topic] = self._epochs.get(topic, 0) + 1
            durable.save(self._epochs_file, self._epochs, _VERSION, "which offsets were altered", "epochs.after-write")
            if connector is not None:  # last: one that begins anew once more misses nothing
                self.owners.take({topic: (connector, before)})

    def _sync_plan(self) -> None:
        """Write to disk where Spark's batch ends, before the note that it is not done is removed from there."""
        planned = self.checkpoint / "offsets" / str(latest(self.checkpoint))
        with contextlib.suppress(FileNotFoundError):
            durable.sync(planned)
            durable.sync(planned.parent)

    def _save(self, offsets: Offsets) -> None:
        """Apply this, on disk first: what Spark commits next may depend on it."""
        if offsets == self._offsets:
            return
        durable.make_directory(self._file.parent)
        durable.save(self._file, offsets, _VERSION, "the held positions", "held.after-write")
        self._offsets = offsets
