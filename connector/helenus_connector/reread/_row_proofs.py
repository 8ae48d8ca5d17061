"""Proves the ordinary reads: of one row each, that shows what its changes wrote. `Evidence` proves all others.

The module runs as plain Python, and compiled by Cython with the types of `_row_proofs.pxd`:
the results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from helenus_connector.cassandra_rows.row_images import signed_64
from helenus_connector.interfaces.image import Image
from helenus_connector.reread._key_read import PROVEN, KeyRead, Proof
from helenus_connector.reread._proof import ANY_REPORTER
from helenus_connector.unconfirmed.unconfirmed_key import TopicPartition
from helenus_connector.unconfirmed.unproven_changes import UnprovenChange
from helenus_schemas.codec.key import Key
from helenus_schemas.event.change import Effect, Scope

COMPILED = not __file__.endswith(".py")
_compiled = COMPILED
_OF_ROWS = (Scope.ROW, Scope.PARTITION)  # without clustering columns, a partition is a row
_LIVE = int(Effect.LIVE)
_UNSURE = int(Effect.LIVE | Effect.COUNTER)
_ANY_REPORTER = ANY_REPORTER
_Proof = Proof
# Indexes of the fields of an Image, and of an UnprovenChange: access by name is slow.
_WRITE_TIME: Final = 1
_TIMES: Final = 2
_TIMED: Final = 3
_EXPIRES: Final = 4
_CHANGE_TIME: Final = 0
_CHANGE_EFFECT: Final = 2

Answers = Sequence[tuple[Key, "Image | None"]]
"""Keys with their rows; None if there is no row."""


def prove_row_reads(
    reads_by_key: Mapping[Key, KeyRead],
    answers: Answers,
    repeated_reads: Mapping[Key, Sequence[KeyRead]],
    start: float,
    min_reporters: int,
    count_replicas: Callable[[str, int, Key, bytes], int],
    has_deletions: Callable[[TopicPartition], bool],
    may_show_shadowed: Callable[[KeyRead], bool],
    shows_all_times: bool,
    prepare: Callable[[KeyRead], None],
) -> list[KeyRead]:
    """Set the rows of reads, as they were read at `start`, s since the epoch, and the proofs of ordinary ones; return
    them, with the `repeated_reads` of the same keys.

    A change is proven if `min_reporters` replicas reported it, as `count_replicas` counts them, and its row shows it.
    `prepare` proves all other reads: of due keys, of rows that do not show a change, and of those that have cells which
    a reported deletion shadows (`may_show_shadowed`, called if the partition `has_deletions`).
    """
    group = []
    topic_partition: TopicPartition | None = None
    partition_has_deletions = False
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
            partition_has_deletions = has_deletions(topic_partition)
        proof = None
        if not partition_has_deletions or image is None or not may_show_shadowed(key_read):
            proof = prove_row_read(key_read, image, min_reporters, count_replicas)
        if proof is None:
            prepare(key_read)
            continue
        key_read.proof = proof
        key_read.is_confirmed = proof is PROVEN
        set_record_times(key_read, image, shows_all_times)
    for key, image in answers if repeated_reads else ():
        for key_read in repeated_reads.get(key, ()):
            key_read.read_at, key_read.after = start, image
            prepare(key_read)
            group.append(key_read)
    return group


def set_record_times(key_read: KeyRead, image: Image | None, shows_all_times: bool) -> None:
    """Set the times of a row's record: when it was written, and when the first of its cells expires."""
    write_time = key_read.newest
    if image is not None:
        of_row = image[_WRITE_TIME]
        # A read may not show the times of columns with many cells; the newest change may be of one.
        if of_row is not None and (write_time is None or shows_all_times or write_time <= of_row):
            write_time = of_row
    key_read.write_time, key_read.expires = write_time, first_expiry(key_read, image)


def first_expiry(key_read: KeyRead, image: Image | None) -> int | None:
    """Return when the first cell of an image expires, by its read and by its changes, s since the epoch."""
    if image is None:
        return None
    of_changes, of_row = key_read.first_expires, image[_EXPIRES]
    return of_row if of_changes is None or (of_row is not None and of_row < of_changes) else of_changes


def prove_row_read(
    key_read: KeyRead,
    image: Image | None,
    min_reporters: int,
    count_replicas: Callable[[str, int, Key, bytes], int],
) -> Proof | None:
    """Return which of its changes the read of a row proves, if it shows each of them, or has no row and each deleted
    it. None if that is not so: then it takes more to judge. No reported deletion may shadow cells of the row.
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
        if (
            min_reporters != _ANY_REPORTER
            and count_replicas(key_read.topic, key_read.partition, key_read.values, name) < min_reporters
        ):
            if unproven is None:
                unproven = {}
            unproven[name] = awaited
    return PROVEN if unproven is None else _Proof(unproven)


def shows_write(image: Image, time: int, effect: int) -> bool:
    """Return whether a cell was written at exactly that time; if there is an `effect`, in one of its columns."""
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
