"""Reads what delete markers leave: a truncation and the rows that live, a partition or a range of it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from helenus_connector.cassandra_rows.row_reader import KeyRefused, UnreadReason
from helenus_connector.reread._attempt import ReadAttempt, ResolvedGroups
from helenus_connector.reread._key_read import KeyRead
from helenus_connector.reread._live_rows import first_stripe
from helenus_connector.unconfirmed.unconfirmed_key import AWAY, UnconfirmedKey
from helenus_schemas.errors import HelenusError, Kind


def read_truncation(attempt: ReadAttempt, key_read: KeyRead) -> ResolvedGroups:
    """Read the rows that live after a truncation. A table that is full again may take long: what is unread after some
    seconds, or when a read fails, is left to a later batch.
    """
    if key_read.event is None:
        key_read.parts = attempt.count_partitions()
    key_read.continues = first_stripe(key_read) > 0
    key_read.read_rows = attempt.live.table_rows
    key_read.read_at = start = time.time()
    is_whole = False
    try:
        yield from attempt.deliver(key_read)
        is_whole = id(key_read) not in attempt.live.next_stripes
    except HelenusError as error:
        if error.kind is not Kind.CASSANDRA_READ or id(key_read) not in attempt.live.next_stripes:
            raise
        key_read.read_at, key_read.published = start, True
    if not is_whole:
        attempt.outcome.waiting_keys.append(_remaining_rows(attempt, key_read, start))


def _remaining_rows(attempt: ReadAttempt, key_read: KeyRead, start: float) -> UnconfirmedKey:
    """Return what a later batch reads of a truncation: the rows from the first stripe on that is not read."""
    since = start
    if key_read.event:
        since = key_read.event.timestamp / 1000
    elif key_read.unconfirmed:
        since = key_read.unconfirmed.since
    return UnconfirmedKey(
        key_read.topic,
        key_read.partition,
        key_read.key,
        key_read.scope,
        since=since,
        unread=AWAY,
        stripe=attempt.live.next_stripes[id(key_read)],
        newest=key_read.newest,
        deleted_at=key_read.deleted_at,
    )


def read_scopes(
    attempt: ReadAttempt, key_reads: Sequence[KeyRead], cut: list[tuple[KeyRead, HelenusError]]
) -> ResolvedGroups:
    """Read markers, each with the rows of its scope that live, and static columns. A partition is in one read. Adds to
    `cut` those of which a part was published, and why no more.
    """
    requested: list[KeyRead] = []
    for key_read in key_reads:
        if attempt.unread.was_cut(key_read):
            error = HelenusError(Kind.CASSANDRA_READ, "the read failed when a part of the rows was there")
            attempt.unread.note(key_read, UnreadReason(error, False))
        else:
            requested.append(key_read)
    start, consistency = time.time(), key_reads[0].consistency
    scopes = [(key_read.scope, key_read.values, key_read.bounds) for key_read in requested]
    for index, answer in attempt.reader.scopes(scopes, consistency):
        key_read = requested[index]
        if isinstance(answer, UnreadReason):
            attempt.unread.note(key_read, answer)
            continue
        key_read.read_at = start
        if isinstance(answer, KeyRefused):
            yield from attempt.refuse(key_read, answer)
            continue
        key_read.after, attempt.live.prefetched[id(key_read)] = answer
        if key_read.verifying is not None and not attempt.is_verified(key_read):
            attempt.outcome.keys_read += 1
            del attempt.live.prefetched[id(key_read)]
            continue
        try:
            yield from _deliver_scope(attempt, key_read)
        except KeyRefused as refusal:
            yield from attempt.refuse(key_read, refusal)
        except HelenusError as failure:
            if failure.kind is not Kind.CASSANDRA_READ:
                raise
            if key_read.records:
                cut.append((key_read, failure))
                continue
            attempt.unread.note(key_read, UnreadReason(failure, False))
            keys = attempt.published[key_read.topic, key_read.partition].keys
            if keys[-1:] == [key_read.key]:
                keys.pop()


def read_statics(attempt: ReadAttempt, key_read: KeyRead, error: HelenusError) -> ResolvedGroups:
    """Read a marker once more of which a part was published, and then `error` came.

    For who honours the marker, the rows that did not follow are gone: what can't be published whole is not published at
    all. Raises `error` if it has to be published: the batch is done again, without it.
    """
    if key_read.is_asked_for or key_read.verifying:
        attempt.unread.cut(key_read)
        raise error
    key_read.consistency, attempt.reader.until = attempt.consistency, math.inf
    attempt.published[key_read.topic, key_read.partition].keys.remove(key_read.key)
    start = time.time()
    try:
        key_read.after = attempt.reader.statics(key_read.values, key_read.consistency)
        key_read.read_at = start
        yield from _deliver_scope(attempt, key_read)
    except KeyRefused as refusal:
        key_read.read_at = start
        yield from attempt.refuse(key_read, refusal)


def _deliver_scope(attempt: ReadAttempt, key_read: KeyRead) -> ResolvedGroups:
    if key_read.is_marked:
        key_read.read_rows = attempt.live.scope_rows
    return attempt.deliver(key_read)
