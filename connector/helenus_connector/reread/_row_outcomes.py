"""What is noted of the rows of a batch before they are published, and once they are published and confirmed.

It runs as it is, and compiled by Cython with the types of `_row_outcomes.pxd`: the results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.reread._key_read import PROVEN, KeyRead
from helenus_connector.unconfirmed.unconfirmed_key import Place, PublishedKeys

COMPILED = not __file__.endswith(".py")


def note_published(resolved: Iterable[ResolvedKey], published: Mapping[Place, PublishedKeys]) -> None:
    """Note what is about to be published where, by its place."""
    place: Place | None = None
    keys: list[bytes] = []
    for one in resolved:
        topic, partition = one.topic, one.partition
        if place is None or place[1] != partition or place[0] != topic:
            place = (topic, partition)
            to = published[place]
            keys, to.is_sorted = to.keys, False
        if one.read_rows is None:
            keys.append(one.key)
        else:
            published[place].add(one.key, True)


def mark_confirmed(
    works: Iterable[KeyRead],
    left: Mapping[int, int],
    mark: Callable[[str, int, Iterable[bytes], bool], None],
    rest: Callable[[KeyRead], None],
) -> int:
    """How many events are published and confirmed: each such change is `mark`ed, those of a partition at once. What is
    more than that to do of a work is for `rest`; so is one of which a part is `left`.
    """
    events = 0
    changes: dict[Place, list[bytes]] = {}
    place: Place | None = None
    names: list[bytes] = []
    for work in works:
        if (
            not work.published
            or work.proof is not PROVEN
            or work.unconfirmed is not None
            or work.dead_lettered
            or work.verifying is not None
            or (left and id(work) in left)
        ):
            rest(work)
            continue
        events += work.events
        topic, partition = work.topic, work.partition
        if place is None or place[1] != partition or place[0] != topic:
            place = (topic, partition)
            names = changes.setdefault(place, [])
        names.extend(work.awaited)
    for (topic, partition), names in changes.items():
        mark(topic, partition, names, True)
    return events
