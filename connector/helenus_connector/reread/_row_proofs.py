"""What the reads of rows prove of their changes, where each read is of one row and shows what they wrote.

It runs as it is, and compiled by Cython with the types of `_row_proofs.pxd`: the results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from helenus_connector.cassandra_rows.row_images import signed_64
from helenus_connector.interfaces.image import Image
from helenus_connector.reread._key_read import PROVEN, KeyRead, Proof
from helenus_connector.unconfirmed.unconfirmed_key import TopicPartition
from helenus_connector.unconfirmed.unproven_changes import UnprovenChange
from helenus_schemas.codec.key import Key
from helenus_schemas.event.change import Effect, Scope

COMPILED = not __file__.endswith(".py")
_compiled = COMPILED
_OF_ROWS = (Scope.ROW, Scope.PARTITION)  # the latter of a table without clustering columns
_LIVE = int(Effect.LIVE)
_UNSURE = int(Effect.LIVE | Effect.COUNTER)
_Proof = Proof
# The fields of an Image, and of an UnprovenChange: by name they are slow to look up.
_WRITE_TIME: Final = 1
_TIMES: Final = 2
_TIMED: Final = 3
_EXPIRES: Final = 4
_CHANGE_TIME: Final = 0
_CHANGE_EFFECT: Final = 2

Answers = Sequence[tuple[Key, "Image | None"]]
"""Keys with their rows; None of one that has none."""


def prove_row_reads(
    reads_by_key: Mapping[Key, KeyRead],
    answers: Answers,
    more: Mapping[Key, Sequence[KeyRead]],
    start: float,
    least: int,
    nodes: Callable[[str, int, Key, bytes], int],
    has_deletions: Callable[[TopicPartition], bool],
    is_undone: Callable[[KeyRead], bool],
    shows_all_times: bool,
    prepare: Callable[[KeyRead], None],
) -> list[KeyRead]:
    """Return the reads of keys, and `more` of them, each with its row as it was read at `start`, s since the epoch, and
    what that proves, if at `least` so many `nodes` reported a change. What is more than that to do is for `prepare`,
    such as a row that shows what a deletion takes away that was reported, as `is_undone` says.
    """
    group = []
    topic_partition: TopicPartition | None = None
    some_deleted = False
    for key, image in answers:
        key_read = reads_by_key[key]
        key_read.read_at = start
        key_read.after = image
        group.append(key_read)
        if key_read.unconfirmed is not None or key_read.verifying is not None or key_read.scope not in _OF_ROWS:
            prepare(key_read)
            continue
        topic, partition = key_read.topic, key_read.partition
        if topic_partition is None or topic_partition[1] != partition or topic_partition[0] != topic:
            topic_partition = (topic, partition)
            some_deleted = has_deletions(topic_partition)
        proof = None
        if not some_deleted or image is None or not is_undone(key_read):
            proof = prove_row_read(key_read, image, least, nodes)
        if proof is None:
            prepare(key_read)
            continue
        key_read.proof = proof
        key_read.is_confirmed = proof is PROVEN
        set_record_times(key_read, image, shows_all_times)
    for key, image in answers if more else ():
        for key_read in more.get(key, ()):
            key_read.read_at, key_read.after = start, image
            prepare(key_read)
            group.append(key_read)
    return group


def set_record_times(key_read: KeyRead, image: Image | None, shows_all_times: bool) -> None:
    """Set the times of the record of a row: when it was written, and when the first of its cells expires."""
    write_time = key_read.newest
    key_read.expires = None
    if image is not None:
        of_row = image[_WRITE_TIME]
        # Of columns of many cells the read may not show it.
        if of_row is not None and (write_time is None or shows_all_times or write_time <= of_row):
            write_time = of_row
        expires, of_row = key_read.first_expires, image[_EXPIRES]
        key_read.expires = of_row if expires is None or (of_row is not None and of_row < expires) else expires
    key_read.write_time = write_time


def prove_row_read(
    key_read: KeyRead,
    image: Image | None,
    least: int,
    nodes: Callable[[str, int, Key, bytes], int],
) -> Proof | None:
    """Return what the read of a row proves of its changes, if it shows them, or they deleted the row and it is gone; of
    a row that lives no deletion is known. None if more has to be known.
    """
    unproven: dict[bytes, UnprovenChange] | None = None
    for name, awaited in key_read.awaited.items():
        time, effect = awaited[_CHANGE_TIME], awaited[_CHANGE_EFFECT]
        if time is None:
            return None
        if image is None:
            if not effect or effect & _UNSURE:
                return None
        elif (effect and not effect & _LIVE) or not shows_write(image, time, effect):
            return None
        if least > 0 and nodes(key_read.topic, key_read.partition, key_read.values, name) < least:
            if unproven is None:
                unproven = {}
            unproven[name] = awaited
    return PROVEN if unproven is None else _Proof(unproven)


def shows_write(image: Image, time: int, effect: int) -> bool:
    """Return whether a cell was written at that very time; with an `effect`, one in its columns."""
    if _compiled:
        times = image[_TIMES]
        if not times:
            return time == image[_WRITE_TIME]
        bits = image[_TIMED].bits if effect else ()
        for i in range(len(times)):
            cell = times[i]
            if cell is not None and signed_64(cell) == time and (not effect or bits[i] & effect):
                return True
        return False
    return image.shows_write(time, effect)
