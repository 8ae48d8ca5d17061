"""What the reads of rows prove of their changes, where each read is of one row and shows what they wrote.

It runs as it is, and compiled by Cython with the types of `_row_proofs.pxd`: the results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from helenus_connector.cassandra_rows.row_images import signed_64
from helenus_connector.interfaces.image import Image
from helenus_connector.reread._key_read import PROVEN, KeyRead, Proof
from helenus_connector.unconfirmed.unconfirmed_key import Place
from helenus_connector.unconfirmed.unproven_changes import UnprovenChange
from helenus_schemas.codec.key import Key
from helenus_schemas.event.change import Effect, Scope

COMPILED = not __file__.endswith(".py")
_compiled = COMPILED
_OF_ROWS = (Scope.ROW, Scope.PARTITION)  # the latter of a table without clustering columns
_LIVE = int(Effect.LIVE)
_UNSURE = int(Effect.LIVE | Effect.COUNTER)
_Proof = Proof
# Places in an Image: by name they are slow to look up.
_WRITE_TIME: Final = 1
_TIMES: Final = 2
_TIMED: Final = 3
_EXPIRES: Final = 4

Answers = Sequence[tuple[Key, "Image | None"]]
"""Keys with their rows; None of one that has none."""


def prove_row_reads(
    works: Mapping[Key, KeyRead],
    answers: Answers,
    more: Mapping[Key, Sequence[KeyRead]],
    start: float,
    least: int,
    nodes: Callable[[str, int, Key, bytes], int],
    has_deletions: Callable[[Place], bool],
    is_undone: Callable[[KeyRead], bool],
    shows_all_times: bool,
    prepare: Callable[[KeyRead], None],
) -> list[KeyRead]:
    """The works of keys, and `more` of them, each with its row as it was read at `start`, s since the epoch, and what
    that proves, if at `least` so many `nodes` reported a change. What is more than that to do is for `prepare`, such
    as a row that shows what a deletion takes away that was reported, as `is_undone` says.
    """
    group = []
    place: Place | None = None
    some_deleted = False
    for key, image in answers:
        work = works[key]
        work.read_at = start
        work.after = image
        group.append(work)
        if work.unconfirmed is not None or work.verifying is not None or work.scope not in _OF_ROWS:
            prepare(work)
            continue
        topic, partition = work.topic, work.partition
        if place is None or place[1] != partition or place[0] != topic:
            place = (topic, partition)
            some_deleted = has_deletions(place)
        proof = None
        if not some_deleted or image is None or not is_undone(work):
            proof = prove_row_read(work, image, least, nodes)
        if proof is None:
            prepare(work)
            continue
        work.proof = proof
        work.is_confirmed = proof is PROVEN
        write_time = work.newest
        if image is not None:
            of_row = image[_WRITE_TIME]
            if of_row is not None and (write_time is None or shows_all_times or write_time <= of_row):
                write_time = of_row
            expires, of_row = work.first_expires, image[_EXPIRES]
            if expires is None or (of_row is not None and of_row < expires):
                expires = of_row
            if expires is not None:
                work.expires = expires
        work.write_time = write_time
    for key, image in answers if more else ():
        for work in more.get(key, ()):
            work.read_at, work.after = start, image
            prepare(work)
            group.append(work)
    return group


def prove_row_read(
    work: KeyRead,
    image: Image | None,
    least: int,
    nodes: Callable[[str, int, Key, bytes], int],
) -> Proof | None:
    """What the read of a row proves of its changes, if it shows them, or they deleted the row and it is gone; of a row
    that lives no deletion is known. None if more is to be asked.
    """
    unproven: dict[bytes, UnprovenChange] | None = None
    for name, awaited in work.awaited.items():
        time, effect = awaited[0], awaited[2]
        if time is None:
            return None
        if image is None:
            if not effect or effect & _UNSURE:
                return None
        elif (effect and not effect & _LIVE) or not shows_write(image, time, effect):
            return None
        if least > 0 and nodes(work.topic, work.partition, work.values, name) < least:
            if unproven is None:
                unproven = {}
            unproven[name] = awaited
    return PROVEN if unproven is None else _Proof(unproven)


def shows_write(image: Image, time: int, effect: int) -> bool:
    """Whether a cell was written at that very time; with an `effect`, one in its columns."""
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
