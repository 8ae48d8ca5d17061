"""Notes the keys of a batch before they are published, and marks their changes once they are confirmed.

The module runs as plain Python, and compiled by Cython with the types of `_row_outcomes.pxd`:
the results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.reread._key_read import PROVEN, KeyRead
from helenus_connector.unconfirmed.unconfirmed_key import PublishedKeys, TopicPartition

COMPILED = not __file__.endswith(".py")


def note_published(resolved: Iterable[ResolvedKey], published: Mapping[TopicPartition, PublishedKeys]) -> None:
    """Note keys that are about to be published, by their topic partition."""
    topic_partition: TopicPartition | None = None
    keys: list[bytes] = []
    for resolved_key in resolved:
        topic, partition = resolved_key.topic, resolved_key.partition
        if topic_partition is None or topic_partition[1] != partition or topic_partition[0] != topic:
            topic_partition = (topic, partition)
            published_keys = published[topic_partition]
            keys, published_keys.is_sorted = published_keys.keys, False
        if resolved_key.read_rows is None:
            keys.append(resolved_key.key)
        else:
            published[topic_partition].add(resolved_key.key, True)


def mark_confirmed(
    reads: Iterable[KeyRead],
    unfinished: Mapping[int, int],
    mark: Callable[[str, int, Iterable[bytes], bool], None],
    hand_back: Callable[[KeyRead], None],
) -> int:
    """Call `mark` with the changes of reads that are published and proven, once per topic partition; return how many
    events that are. Call `hand_back` with any other read: one that is due, verifies changes, is not proven or not
    published, or is in `unfinished`, the truncations of which some stripes are unread.
    """
    events = 0
    changes: dict[TopicPartition, list[bytes]] = {}
    topic_partition: TopicPartition | None = None
    names: list[bytes] = []
    for key_read in reads:
        if (
            not key_read.published
            or key_read.proof is not PROVEN
            or key_read.unconfirmed is not None
            or key_read.dead_lettered
            or key_read.verifying is not None
            or (unfinished and id(key_read) in unfinished)
        ):
            hand_back(key_read)
            continue
        events += key_read.events
        topic, partition = key_read.topic, key_read.partition
        if topic_partition is None or topic_partition[1] != partition or topic_partition[0] != topic:
            topic_partition = (topic, partition)
            names = changes.setdefault(topic_partition, [])
        names.extend(key_read.awaited)
    for (topic, partition), names in changes.items():
        mark(topic, partition, names, True)
    return events
