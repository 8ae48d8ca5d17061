"""What is done for each key of a batch where nothing about it is out of the ordinary: one row, of which a read shows
what changes wrote. Loops over lists; whatever else a key needs, they call for.

It runs as it is, and compiled by Cython with the types of `_ordinary.pxd`: the results are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from helenus_connector.interfaces.admitted import Admitted
from helenus_connector.interfaces.image import Image, Timed
from helenus_connector.interfaces.resolved import Resolved
from helenus_connector.reread._proof import Awaited
from helenus_connector.reread._work import PROVEN, Proof, Work, effect_of, expiry_of
from helenus_connector.reread.rows import RawRow
from helenus_connector.reread.unconfirmed import Name, Place, Published
from helenus_schemas.codec.key import Key
from helenus_schemas.event.change import Effect, Origin, Scope
from helenus_schemas.event.own_format import HAS_EXPIRED, HAS_EXPIRES, HAS_WRITTEN

COMPILED = not __file__.endswith(".py")
_compiled = COMPILED
_ROW, _PARTITION, _TABLE = Scope.ROW, Scope.PARTITION, Scope.TABLE  # an enum's members are slow to look up
_OF_ROWS = (_ROW, _PARTITION)  # the latter of a table without clustering columns
_LOG = Origin.LOG
_UNSCANNED = (Origin.LOG, Origin.REPAIR, Origin.STATE)
_WRITTEN, _EXPIRY, _EXPIRED = HAS_WRITTEN, HAS_EXPIRES, HAS_EXPIRED  # in C
_LIVE = int(Effect.LIVE)
_DELETES = int(Effect.GONE | Effect.DELETES)
_UNSURE = int(Effect.LIVE | Effect.COUNTER)
_NAN = math.nan
_new = tuple.__new__
_Image, _Awaited, _Proof = Image, Awaited, Proof
# Places in an Image: by name they are slow to look up.
_WRITE_TIME: Final = 1
_TIMES: Final = 2
_TIMED: Final = 3
_EXPIRES: Final = 4

Answers = Sequence[tuple[Key, "Image | None"]]
"""Keys with their rows; None of one that has none."""


def take(
    changes: Iterable[Admitted],
    by_name: dict[Name, Work],
    taken: list[tuple[Work, Admitted]],
    consistency: int,
    has_rows: bool,
    note: Callable[[Admitted], None],
    add: Callable[[Admitted], None],
) -> bool:
    """Read the keys of changes: what changes of one key have in common is one work, by its name. Those that delete, or
    write what expires, are to be `note`d; what is more than a row, or waits, is `add`ed. Unless a table `has_rows`
    within its partitions, a partition is one row. Returns whether some are no changes: a snapshot, or a repair, asks
    for a row of which no event says whether it expires.
    """
    some_asked = False
    for admitted in changes:
        values, name_of, event, match = admitted.values, admitted.id, admitted.event, admitted.match
        origin, parts = _LOG, 1
        if match is not None and match.found is None:
            has, effect, scope = match.has, match.effect, match.concerns()
            written = match.written if has & _WRITTEN else None
            expires = match.expires if has & _EXPIRY else None
            expired = match.expired if has & _EXPIRED else None
        else:
            change = admitted.change
            scope, effect, written, expires = change.scope, change.effect, change.write_time, change.expires_at
            expired, origin, parts = change.all_expired_at, change.origin, change.parts
        if name_of is not None and (effect & _DELETES or expires is not None or scope is _TABLE):
            note(admitted)
        if name_of is None and origin is not _LOG:
            some_asked = True
        is_row = scope is _ROW or (scope is _PARTITION and not has_rows)
        if not is_row or admitted.verifying is not None or None in values:
            add(admitted)
            continue
        key = admitted.key
        topic, partition = event.topic, event.partition
        name = (topic, partition, key, None)
        work = by_name.get(name)
        if work is None:
            if name_of is not None and (admitted.is_published or admitted.pause_s):
                add(admitted)
                continue
            work = Work(topic, partition, key, values, scope, None, parts, event, consistency)
            work.events = 1
            work.newest = written
            if origin is not _LOG:
                work.is_scanned = origin not in _UNSCANNED
            by_name[name] = work
        else:
            work.events += 1
            if scope is _PARTITION and scope > work.scope:
                work.scope = scope
            if written is not None and (work.newest is None or written > work.newest):
                work.newest = written
        if scope is _PARTITION and written is not None and (work.deleted_at is None or written > work.deleted_at):
            work.deleted_at = written
        if admitted.is_released:
            work.is_released = True
        taken.append((work, admitted))
        if expires is not None and (work.first_expires is None or expires < work.first_expires):
            work.first_expires = expires
        if name_of is not None:
            awaited = work.awaited
            if name_of not in awaited:
                awaited[name_of] = _new(_Awaited, (written, _NAN, effect_of(effect), expiry_of(expired)))
    return some_asked


def images(
    rows: Iterable[RawRow],
    width: int,
    end: int,
    timed: int,
    shown: Timed,
    expires: Callable[[RawRow], int | None] | None,
) -> list[Image]:
    """Rows as they were read: `width` columns of the key, others up to `end`, then so many write times."""
    found = []
    for row in rows:
        values = row[width:end] or row[:width]
        times = row[end : end + timed]
        expiry = None if expires is None else expires(row)
        found.append(_new(_Image, (values, newest(times), times, shown, expiry)))
    return found


def matched(
    keys: list[Key], found: Mapping[Key, Image], normalized: Callable[[Key], Key] | None, is_last: bool
) -> tuple[list[tuple[Key, Image | None]], list[Key], int]:
    """Keys with the rows that were found of them, the keys that are left, and how many have a row. After the last rows
    none are left: they have no row. `normalized` gives a key as it is found.
    """
    answers: list[tuple[Key, Image | None]] = []
    left: list[Key] = []
    count = 0
    for key in keys:
        image = found.get(key if normalized is None else normalized(key))
        if image is not None:
            count += 1
        elif not is_last:
            left.append(key)
            continue
        answers.append((key, image))
    return answers, left, count


def newest(times: tuple[bytes | None, ...]) -> int | None:
    """The newest of write times, µs."""
    if _compiled:
        best, has_one = 0, False
        for time in times:
            if time:
                number = integer(time)
                if not has_one or number > best:
                    best, has_one = number, True
        return best if has_one else None
    first = times[0] if times else None
    # Of a row that was written at once they are all the same.
    known = [first] if first and times.count(first) == len(times) else [time for time in times if time]
    if not known:
        return None
    last = max(known)
    if last[0] < 0x80:  # as bytes they are in the order of numbers, unless some are negative
        return int.from_bytes(last, "big")
    return max([int.from_bytes(time, "big", signed=True) for time in known])


def by_key(works: Sequence[Work]) -> tuple[dict[Key, Work], dict[Key, list[Work]]]:
    """Works by the keys that they read; and more of them, where several read one key."""
    found = {work.values: work for work in works}
    more: dict[Key, list[Work]] = {}
    if len(found) < len(works):
        for work in works:
            if found[work.values] is not work:
                more.setdefault(work.values, []).append(work)
    return found, more


def read(
    works: Mapping[Key, Work],
    answers: Answers,
    more: Mapping[Key, Sequence[Work]],
    start: float,
    least: int,
    nodes: Callable[[str, int, Key, bytes], int],
    has_deletions: Callable[[Place], bool],
    is_undone: Callable[[Work], bool],
    shows_all_times: bool,
    prepare: Callable[[Work], None],
) -> list[Work]:
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
            proof = proof_of(work, image, least, nodes)
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


def proof_of(
    work: Work,
    image: Image | None,
    least: int,
    nodes: Callable[[str, int, Key, bytes], int],
) -> Proof | None:
    """What the read of a row proves of its changes, if it shows them, or they deleted the row and it is gone; of a row
    that lives no deletion is known. None if more is to be asked.
    """
    unproven: dict[bytes, Awaited] | None = None
    for name, awaited in work.awaited.items():
        time, effect = awaited[0], awaited[2]
        if time is None:
            return None
        if image is None:
            if not effect or effect & _UNSURE:
                return None
        elif (effect and not effect & _LIVE) or not shows(image, time, effect):
            return None
        if least > 0 and nodes(work.topic, work.partition, work.values, name) < least:
            if unproven is None:
                unproven = {}
            unproven[name] = awaited
    return PROVEN if unproven is None else _Proof(unproven)


def shows(image: Image, time: int, effect: int) -> bool:
    """Whether a cell was written at that very time; with an `effect`, one in its columns."""
    if _compiled:
        times = image[_TIMES]
        if not times:
            return time == image[_WRITE_TIME]
        bits = image[_TIMED].bits if effect else ()
        for i in range(len(times)):
            cell = times[i]
            if cell is not None and integer(cell) == time and (not effect or bits[i] & effect):
                return True
        return False
    return image.shows(time, effect)


def integer(data: bytes) -> int:
    """A signed number of 8 bytes."""
    if _compiled and len(data) == 8:
        number = 0
        for i in range(8):
            number = number << 8 | data[i]
        return number
    return int.from_bytes(data, "big", signed=True)


def rows(works: Iterable[Work], clustered: bool) -> tuple[dict[int, list[Work]], list[Work]]:
    """The works of rows that changes alone ask for, by the level to read them at; and the others. Unless a table's rows
    are `clustered` in partitions, a partition is one row.
    """
    found: dict[int, list[Work]] = {}
    others: list[Work] = []
    level: int | None = None
    members: list[Work] = []
    for work in works:
        scope = work.scope
        is_row = scope is _ROW or (scope is _PARTITION and not clustered)
        if not is_row or work.unconfirmed is not None or work.verifying is not None:
            others.append(work)
            continue
        if level is None or work.consistency != level:
            level = work.consistency
            members = found.setdefault(level, [])
        members.append(work)
    return found, others


def publishing(resolved: Iterable[Resolved], published: Mapping[Place, Published]) -> None:
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


def done(
    works: Iterable[Work],
    left: Mapping[int, int],
    mark: Callable[[str, int, Iterable[bytes], bool], None],
    rest: Callable[[Work], None],
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
