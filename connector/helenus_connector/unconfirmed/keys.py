"""The keys that wait to be confirmed: each is read again after a while, and published again if its image changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import structlog

from helenus_connector.unconfirmed import files
from helenus_connector.unconfirmed._due_queue import DueQueue
from helenus_connector.unconfirmed.files import ReadEnd
from helenus_connector.unconfirmed.unconfirmed_key import (
    AWAY,
    NameInPartition,
    PublishedKeys,
    TopicPartition,
    UnconfirmedKey,
    later_time,
)
from helenus_connector.unconfirmed.unproven_changes import (
    CHANGE_BYTES,
    UnprovenChange,
    newest_write_times,
    pack_changes,
    pack_unknown_changes,
    stamp_changes,
    unpack_changes,
)
from helenus_schemas.event.change import Scope
from helenus_schemas.service.durable import Damaged

_log = structlog.get_logger(__name__)
MAX_BACKOFF_S = 60.0
_MOST_DOUBLED = 20
_MOST_AWAITED = 1000  # of one key; of more it is only known that there are some
_SOME = (bytes(16), bytes(15) + b"\1")
_MARKED = (Scope.PARTITION, Scope.RANGE, Scope.TABLE)

TopicChange = tuple[Iterable[tuple[int, NameInPartition]], Iterable[UnconfirmedKey], Mapping[int, PublishedKeys]]
"""What changed in an events topic: the keys that wait no more, by partition and name, those that wait now, and what was
published by partition.
"""


class UnconfirmedKeys:
    """The keys of a query's connectors that wait for a proven read. Lives in the driver, as long as the worker does.
    Its methods may be called from any thread.

    A restart steps back `replay_s` from the last `save`; what waits longer is kept next to `file`. In s, by topic.
    How long a Change has waited goes by `clock`, which nobody sets; without one, by the `now` of the calls.
    """

    def __init__(
        self,
        timeout_s: Mapping[str, float],
        replay_s: Mapping[str, float],
        file: Path,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._clock = clock
        self._longest = MAX_BACKOFF_S
        self._timeout = timeout_s
        self._replay = replay_s
        self.file = self._file = file
        self._lock = threading.RLock()
        self._keys: dict[TopicPartition, dict[NameInPartition, UnconfirmedKey]] = {}
        self._queue = DueQueue(self._is_waiting)
        self._ended: dict[str, ReadEnd] = {}
        self._saved: dict[str, ReadEnd] = {}
        self._kept: int | None = None
        self._kept_at = self._ended_at = 0.0
        self._often = min(replay_s.values(), default=0.0) / 4
        self._is_old = True

    def use(self, timeout_s: Mapping[str, float], replay_s: Mapping[str, float]) -> None:
        """Go by other times. The keys of a topic that has none wait until it has again."""
        with self._lock:
            self._timeout, self._replay = timeout_s, replay_s
            self._often = min(replay_s.values(), default=0.0) / 4

    def __len__(self) -> int:
        return sum(map(len, list(self._keys.values())))

    def counts(self, topic: str) -> tuple[int, int]:
        """Return how many keys of an events topic wait, and how many events whose outcome is open."""
        with self._lock:
            topic_keys = [keys for (keys_topic, _), keys in self._keys.items() if keys_topic == topic]
            return sum(map(len, topic_keys)), sum(p.copies for keys in topic_keys for p in keys.values())

    def all_counts(self) -> dict[str, tuple[int, int, int]]:
        """Return the same by events topic, and how many of the keys can't be read; only topics with any."""
        counts_by_topic: dict[str, tuple[int, int, int]] = {}
        with self._lock:
            for (topic, _), keys in self._keys.items():
                if keys:
                    waiting, copies, unread = counts_by_topic.get(topic, (0, 0, 0))
                    waiting, copies = waiting + len(keys), copies + sum(p.copies for p in keys.values())
                    counts_by_topic[topic] = waiting, copies, unread + sum(p.unread > 0 for p in keys.values())
        return counts_by_topic

    def next_due(self) -> float | None:
        """Return when the next key is to be read again, s since the epoch."""
        with self._lock:
            first_due = self._queue.first_due(self._timeout.keys())
            return None if first_due is None else first_due.due_at

    def select_due(self, now: float, limit: int) -> list[UnconfirmedKey]:
        """Return at most `limit` keys to read again by now: what is due longest comes first. They stay until `apply`
        hears of them, and what it does not hear of is due again after its time.
        """
        with self._lock:
            return self._select_due(now, limit)

    def _select_due(self, now: float, limit: int) -> list[UnconfirmedKey]:
        due_keys: list[UnconfirmedKey] = []
        while len(due_keys) < limit:
            first_due = self._queue.first_due(self._timeout.keys())
            if first_due is None:
                break
            # What is further away than anything can be is so since the clock was put back.
            longest_s = max(self._longest, self._timeout[first_due.topic])
            if now < first_due.due_at <= now + longest_s:
                break
            due_keys += self._queue.take(first_due, limit - len(due_keys))
        handed = self._age(now)
        for unconfirmed in due_keys:
            unconfirmed.handed = handed
        # Keys share numbers: there may be very many.
        next_due_at = {topic: now + self._timeout[topic] for topic in {unconfirmed.topic for unconfirmed in due_keys}}
        for unconfirmed in due_keys:
            self._queue.add(unconfirmed, next_due_at[unconfirmed.topic])
        return due_keys

    def hand_back(self, keys: Iterable[UnconfirmedKey], due_at: float) -> None:
        """Have keys of `select_due` that no task took be due since `due_at`, instead of after their time."""
        with self._lock:
            for unconfirmed in keys:
                self._queue.add(unconfirmed, due_at)

    def _is_waiting(self, unconfirmed: UnconfirmedKey) -> bool:
        keys = self._keys.get(unconfirmed.topic_partition, {})
        return keys.get(unconfirmed.name_in_partition) is unconfirmed

    def _age(self, now: float) -> float:
        return now if self._clock is None else self._clock()

    def apply(
        self,
        resolved: Iterable[UnconfirmedKey],
        waiting: Iterable[UnconfirmedKey],
        now: float,
        published: Mapping[TopicPartition, PublishedKeys] | None = None,
    ) -> None:
        """Take over what a batch says: due keys that are resolved, keys that wait, new or again, and what it published:
        a key's image is what was published last, and unknown once other reads published it.
        """
        with self._lock:
            self._apply(resolved, waiting, now, published or {})

    def _apply(
        self,
        resolved: Iterable[UnconfirmedKey],
        waiting: Iterable[UnconfirmedKey],
        now: float,
        published: Mapping[TopicPartition, PublishedKeys],
    ) -> None:
        for topic_partition, newer in published.items():
            self._overtake(self._keys.get(topic_partition, {}), newer)
        for unconfirmed in resolved:
            self._keys.get(unconfirmed.topic_partition, {}).pop(unconfirmed.name_in_partition, None)
        same: dict[float, float] = {}  # keys share numbers
        age = self._age(now)
        for unconfirmed in waiting:
            unconfirmed.awaited = stamp_changes(unconfirmed.awaited, age)
            keys = self._keys.setdefault(unconfirmed.topic_partition, {})
            earlier = keys.get(unconfirmed.name_in_partition)
            unconfirmed.since = same.setdefault(unconfirmed.since // 1, unconfirmed.since // 1)
            if earlier is None or unconfirmed.since < earlier.since or unconfirmed.scope > earlier.scope:
                self._is_old |= self._is_kept(unconfirmed, now)
            if earlier is not None and earlier is not unconfirmed and unconfirmed.attempts == 0:
                # A later change or copy of a key that waits already: one re-read serves both, at its time.
                _merge(earlier, unconfirmed, age)
                continue
            if len(unconfirmed.awaited) > _MOST_AWAITED * CHANGE_BYTES:
                unconfirmed.awaited = _few(unpack_changes(unconfirmed.awaited), age)
            keys[unconfirmed.name_in_partition] = unconfirmed
            wait = self._timeout.get(unconfirmed.topic, 0.0) * 2 ** min(unconfirmed.attempts, _MOST_DOUBLED)
            self._longest = max(self._longest, unconfirmed.pause_s)
            due_at = now + max(min(wait, MAX_BACKOFF_S), unconfirmed.pause_s)
            self._queue.add(unconfirmed, same.setdefault(due_at, due_at))

    def _overtake(self, waiting_keys: Mapping[NameInPartition, UnconfirmedKey], newer: PublishedKeys) -> None:
        if not waiting_keys:
            return
        newer_keys = set(newer.keys)
        for unconfirmed in waiting_keys.values():
            if unconfirmed.image is not None and (
                unconfirmed.key in newer_keys
                or newer.covers(unconfirmed.key)
                or (unconfirmed.scope in _MARKED and newer.touches(unconfirmed.key))
            ):
                unconfirmed.image = None

    def forget_images(self, topic: str | None = None, keeps: Collection[str] = ()) -> None:
        """Forget what was published last of a topic's keys, or of all but those that it `keeps`: a batch failed on the
        way.
        """
        with self._lock:
            for unconfirmed in self._all():
                if topic in (unconfirmed.topic, None) and unconfirmed.topic not in keeps:
                    unconfirmed.image = None

    def waiting_topics(self) -> set[str]:
        """Return the events topics of which keys wait."""
        with self._lock:
            return {topic for (topic, _), keys in self._keys.items() if keys}

    def of_topic(self, topic: str) -> list[UnconfirmedKey]:
        """Return the keys of an events topic."""
        with self._lock:
            return [unconfirmed for unconfirmed in self._all() if unconfirmed.topic == topic]

    def awaited_changes(self, topic: str) -> set[bytes]:
        """Return the ids of the changes that an events topic's keys wait for."""
        with self._lock:
            return {change for unconfirmed in self.of_topic(topic) for change in unpack_changes(unconfirmed.awaited)}

    def restore(self, topic: str, changes: Iterable[TopicChange], now: float) -> None:
        """Have the keys of an events topic be those after these changes, in their order; the first begins with none."""
        with self._lock:
            self._queue.drop(topic)
            for topic_partition in [name for name in self._keys if name[0] == topic]:
                del self._keys[topic_partition]
            for settled, waiting, published in changes:
                for partition, name in settled:
                    self._keys.get((topic, partition), {}).pop(name, None)
                places = {(topic, partition): keys for partition, keys in published.items()}
                self._apply([], waiting, now, places)

    def save(self, now: float, topics: Iterable[str]) -> None:
        """Keep what a restart would not step back to, and that these topics were read until now.

        There are no such keys as a rule: a read is proven within seconds. When there are, they may be very many: they
        are written when the set changed, once in a while, as each has half of `replay_s` until it must be there. Of
        events that were old when they came, it must be at once. When a topic was read is written once in a while too:
        from an earlier time more is read again. Raises HelenusError(STATE).
        """
        with self._lock:
            read = [(topic, ReadEnd(now, self._replay.get(topic, 0.0)), self._saved.get(topic)) for topic in topics]
            self._ended.update((topic, ended) for topic, ended, _ in read)
            # Where the next start steps back less than it would have by now, more keys are to be kept, and before that.
            self._is_old |= any(saved is not None and ended.replay_s < saved.replay_s for _, ended, saved in read)
            if self._is_old or not 0 <= now - self._kept_at < self._often:
                self._save_keys(now)
            is_new = any(saved is None or ended.replay_s != saved.replay_s for _, ended, saved in read)
            if is_new or (read and not 0 <= now - self._ended_at < self._often):
                self._save_ended(now)

    def _save_keys(self, now: float) -> None:
        content = files.as_text(p for p in self._all() if self._is_kept(p, now))
        if hash(content) != self._kept:
            files.save_keys(self._file, content)
        self._kept, self._kept_at, self._is_old = hash(content), now, False

    def _is_kept(self, unconfirmed: UnconfirmedKey, now: float) -> bool:
        """Return whether no event of those to which a start steps back brings a key again: it waits for longer; or it
        waits to be published for events that name no change, which a start passes over.
        """
        is_old = unconfirmed.since < now - self._replay.get(unconfirmed.topic, 0.0) / 2
        return is_old or (unconfirmed.unread > 0 and not unconfirmed.awaited)

    def _save_ended(self, now: float) -> None:
        files.save_ended(self._file, self._ended)
        self._saved, self._ended_at = dict(self._ended), now

    def _all(self) -> Iterator[UnconfirmedKey]:
        return (unconfirmed for keys in self._keys.values() for unconfirmed in keys.values())

    def load(self, now: float) -> None:
        """Take over what an earlier run kept: to be read and published, and then proven at level ALL, whoever reported
        its Changes.

        If a file is damaged, unconfirmed keys may be anywhere: all topics are read again from their first event. Raises
        HelenusError(STATE) for one that can't be read.
        """
        with self._lock:
            damage: list[str] = []
            loaded: list[UnconfirmedKey] = []
            try:
                self._ended = files.load_ended(self._file)
            except Damaged as error:
                damage.append(f"{self._file}: {error}")
            try:
                waits = pack_unknown_changes(self._age(now))
                for topic, partition, scope, key, bounds, awaited in files.load_keys(self._file):
                    loaded_key = UnconfirmedKey(
                        topic, partition, key, scope, awaited or waits, bounds=bounds, unread=AWAY
                    )
                    loaded_key.newest, loaded_key.deleted_at = newest_write_times(unpack_changes(awaited))
                    loaded.append(loaded_key)
            except Damaged as error:
                damage.append(f"{self._file}.keys: {error}")
            self._apply([], loaded, now, {})
            self._saved = dict(self._ended)
            if damage:
                advice = "topics are read again from their first event, as unconfirmed keys may be anywhere in them"
                _log.warning("unconfirmed.damaged", reason="; ".join(damage), advice=advice)
                # This first: when the other file is whole again, nothing else shows the damage.
                self._read_all_again(now)
                self._save_keys(now)

    def read_all_again(self, now: float) -> None:
        """Have the next start read all topics from their first event. Raises HelenusError(STATE)."""
        with self._lock:
            self._read_all_again(now)
            self._save_keys(now)

    def _read_all_again(self, now: float) -> None:
        self._ended = {"": ReadEnd(0.0, 0.0)}
        self._save_ended(now)

    def shrink(self, topic: str, partitions: Collection[int]) -> int:
        """Forget a topic's keys of other partitions than these, and return how many events waited with them."""
        with self._lock:
            gone = [
                topic_partition
                for topic_partition in self._keys
                if topic_partition[0] == topic and topic_partition[1] not in partitions
            ]
            copies = sum(p.copies for topic_partition in gone for p in self._keys[topic_partition].values())
            for topic_partition in gone:
                del self._keys[topic_partition]
            self._is_old |= bool(gone)
            return copies

    def give(self, topics: Collection[str]) -> tuple[dict[str, ReadEnd], list[UnconfirmedKey]]:
        """Return when these topics were last read, and their keys: for another query, which goes on with them."""
        with self._lock:
            ended = {topic: read_end for topic in topics if (read_end := self._ended.get(topic, self._ended.get("")))}
            return ended, [p for p in self._all() if p.topic in topics]

    def take(self, ended: Mapping[str, ReadEnd], keys: Iterable[UnconfirmedKey], now: float) -> None:
        """Go on with topics of another query, and their keys: to be read as those of an earlier run are. It is on the
        disk when this returns. Raises HelenusError(STATE).
        """
        with self._lock:
            self._apply([], [replace(p, image=None, attempts=0, unread=AWAY) for p in keys], now, {})
            self._save_keys(now)
            self._ended.update(ended)
            self._save_ended(now)

    def drop(self, topics: Collection[str], now: float) -> None:
        """Another query goes on with these topics. Raises HelenusError(STATE)."""
        with self._lock:
            self._keys = {
                topic_partition: keys
                for topic_partition, keys in self._keys.items()
                if topic_partition[0] not in topics
            }
            for topic in topics:
                self._queue.drop(topic)
                self._ended.pop(topic, None)
            self._save_keys(now)
            self._save_ended(now)


def _merge(earlier: UnconfirmedKey, later: UnconfirmedKey, now: float) -> None:
    """Have a key that waits already wait for what it waits for later, too."""
    earlier.awaited = _few({**unpack_changes(earlier.awaited), **unpack_changes(later.awaited)}, now)
    earlier.copies += later.copies
    earlier.image = later.image or earlier.image
    earlier.since = min(earlier.since, later.since)
    earlier.scope = max(earlier.scope, later.scope)
    earlier.unread = max(earlier.unread, later.unread)
    earlier.stripe = min(earlier.stripe, later.stripe)
    earlier.newest = later_time(earlier.newest, later.newest)
    earlier.deleted_at = later_time(earlier.deleted_at, later.deleted_at)


def _few(awaited: Mapping[bytes, UnprovenChange], now: float) -> bytes:
    """Pack the changes that a key waits for; of more than it may have, that there are some. Two stand for them: one
    grows old while the other stands for what still comes, so that a key which is written all the time is proven too.
    """
    if len(awaited) <= _MOST_AWAITED:
        return pack_changes(awaited)
    few = {change: change_state for change, change_state in awaited.items() if change in _SOME}
    young = _SOME[1] if _SOME[0] in few else _SOME[0]
    return pack_changes({**few, young: UnprovenChange(None, now)})
