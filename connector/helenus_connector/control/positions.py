"""The positions of connectors in their events topics.

Spark's checkpoint holds one position of all topics of a query, and moves it with every batch. A topic whose part of a
batch was not done, because its connector failed, was paused or moved back, is *held*: it goes on from there instead.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.control._ownership import Owners
from helenus_connector.control.checkpoint import committed, latest, sync_planned
from helenus_connector.log.events import Offsets
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import durable

_VERSION = 1


class KnownPosition(NamedTuple):
    """Where a connector stands in a topic: the next offset by partition. It is of an `epoch` of the topic, None if
    another program has set it. With `is_loose` it was committed after a batch, and may be past events that are held.
    """

    offsets: dict[str, int]
    epoch: int | None
    is_loose: bool = False


class BrokerPositions(Protocol):
    """Positions of connectors that the brokers have, so that another worker finds them. The methods raise HelenusError:
    the brokers' errors, and NOT_OWNER where another worker runs the connectors by now.
    """

    def has(self, settings: ConnectorSettings) -> bool:
        """Return whether the brokers have a connector's positions."""

    def read(self, settings: ConnectorSettings, partitions: Mapping[str, int]) -> dict[str, KnownPosition]:
        """Return where a connector stands, by topic; `partitions` says how many each has."""

    def move(self, settings: ConnectorSettings, topic: str, offsets: Mapping[str, int], epoch: int) -> None:
        """Have a connector that does not run go on here in a topic, from this `epoch` on."""

    def renew(self, settings: ConnectorSettings, partitions: Mapping[str, int]) -> None:
        """Have brokers keep a connector's positions for longer, where they forget them."""


GONE = -2
"""HeldPositions for a partition that a topic no longer has."""


def overlaid(offsets: Offsets, held_positions: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Return `offsets`, which has no `GONE`, with held positions in place of its own. Topics of which nothing is held
    have the mappings of `offsets`: they are not to be changed.
    """
    merged = {topic: {**offsets.get(topic, {}), **held_offsets} for topic, held_offsets in held_positions.items()}
    there = {
        topic: {partition: offset for partition, offset in topic_offsets.items() if offset != GONE}
        for topic, topic_offsets in merged.items()
    }
    return {**offsets, **there}


class HeldPositions:
    """The held positions of one query, kept next to its checkpoint. Its methods may be called from any thread.

    A batch planned before an operator's `move` does not change the new position: `epoch` distinguishes them. Raises
    HelenusError(STATE) if the file is damaged, or can't be read or written.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.spark_checkpoint = checkpoint
        """Where Spark has the query's offsets: elsewhere, for a state that a group's workers share."""
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
            problem = (
                f"the held positions are damaged: {error}. They say where connectors of query.group "
                f"{checkpoint.name} go on that failed, were paused or moved. Restore the file; or delete it, stop "
                "these connectors, set their offsets over REST and resume them: events before those offsets are "
                "not read"
            )
            raise HelenusError(Kind.STATE, problem, str(file)) from None
        self._epochs_file = checkpoint / "epochs"
        with contextlib.suppress(FileNotFoundError, durable.Damaged):
            self._epochs = durable.load(self._epochs_file, _VERSION)

    def offsets(self) -> Offsets:
        """Return a copy of the held positions."""
        with self._lock:
            return {topic: dict(offsets) for topic, offsets in self._offsets.items()}

    def read_offsets(self) -> Offsets:
        """Return the position of every topic that the query ever read."""
        with self._lock:
            return overlaid(overlaid(committed(self.spark_checkpoint), self._released), self._offsets)

    def begin_batch(self) -> None:
        """Note that a batch begins, and that Spark has committed the one before."""
        with self._lock:
            self._released = {}

    def epoch(self, topic: str) -> int:
        """Return how often `move` was called for a topic."""
        with self._lock:
            return self._epochs.get(topic, 0)

    def epochs(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the `epoch` of each topic."""
        with self._lock:
            return {topic: self._epochs.get(topic, 0) for topic in topics}

    def raise_epoch(self, topic: str, epoch: int) -> None:
        """Note that `move` was called at least so often, as somebody knows who kept it elsewhere."""
        with self._lock:
            if epoch > self._epochs.get(topic, 0):
                self._epochs[topic] = epoch
                self._save_epochs()

    def hold(self, topic: str, starts: Mapping[str, int], epoch: int = 0) -> bool:
        """Hold partitions where a batch was to read them from, and did not. Returns False, and holds nothing, if the
        topic was moved since the batch was planned, in its `epoch`.
        """
        with self._lock:
            if epoch != self._epochs.get(topic, 0):
                return False
            self._save({**self._offsets, topic: {**self._offsets.get(topic, {}), **starts}})
            return True

    def hold_unless_held(self, topic: str, starts: Mapping[str, int]) -> None:
        """Hold partitions of a batch that is repeated without them: like `hold`, but never overwrites."""
        with self._lock:
            self._save({**self._offsets, topic: {**starts, **self._offsets.get(topic, {})}})

    def release(
        self, topic: str, partitions: Iterable[str], epoch: int = 0, ends: Mapping[str, int] | None = None
    ) -> bool:
        """Release partitions whose part of a batch is done: to the batch's end, or to the offsets in `ends`, before it.
        Returns False if the topic was moved since, as in `hold`.
        """
        with self._lock:
            if epoch != self._epochs.get(topic, 0):
                return False
            held_offsets = self._offsets.get(topic, {})
            gone = {partition for partition, offset in held_offsets.items() if offset == GONE}
            released = gone | ({*partitions} & held_offsets.keys())
            if released or ends:
                self._sync_plan()
                # In one step: between two, nothing would say that the rest is to be read.
                still_held = {p: offset for p, offset in held_offsets.items() if p not in released} | dict(ends or {})
                # Until Spark commits the batch, this is what is known for sure.
                self._released.setdefault(topic, {}).update({p: held_offsets[p] for p in released})
                others = {name: offsets for name, offsets in self._offsets.items() if name != topic}
                self._save({**others, **({topic: still_held} if still_held else {})})
            return True

    def move(self, topic: str, offsets: Mapping[str, int], connector: str | None = None) -> None:
        """Go on at these offsets, whatever a running batch does. They are of all partitions of the topic. If a
        `connector` is named, it owns the position from then on.
        """
        with self._lock:
            former = overlaid(overlaid(committed(self.checkpoint), self._released), self._offsets).get(topic, {})
            self._save({**self._offsets, topic: {**dict.fromkeys(former, GONE), **offsets}})
            self._epochs[topic] = self._epochs.get(topic, 0) + 1
            self._save_epochs()
            if connector is not None:  # last: one that begins anew once more misses nothing
                self.owners.assign({topic: (connector, former)})

    def _save_epochs(self) -> None:
        durable.make_directory(self._epochs_file.parent)
        durable.save(self._epochs_file, self._epochs, _VERSION, "which offsets were altered", "epochs.after-write")

    def _sync_plan(self) -> None:
        """Write to disk where Spark's batch ends, before the note that it is not done is removed from there."""
        sync_planned(self.checkpoint, latest(self.checkpoint))

    def _save(self, offsets: Offsets) -> None:
        """Apply held positions, on disk first: what Spark commits next may depend on it."""
        if offsets == self._offsets:
            return
        durable.make_directory(self._file.parent)
        durable.save(self._file, offsets, _VERSION, "the held positions", "held.after-write")
        self._offsets = offsets
