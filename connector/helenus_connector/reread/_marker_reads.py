"""Reads delete markers with the live rows of their scopes: a truncated table, a partition, a range of one."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from helenus_connector.cassandra_rows.row_reader import KeyRefused, UnreadReason
from helenus_connector.reread._key_read import KeyRead
from helenus_connector.reread._live_rows import first_stripe
from helenus_connector.reread._read_pass import ReadPass, ResolvedGroups
from helenus_connector.unconfirmed.unconfirmed_key import AWAY, UnconfirmedKey
from helenus_schemas.errors import HelenusError, Kind


def read_truncation(read_pass: ReadPass, key_read: KeyRead) -> ResolvedGroups:
    """Read the rows that live after a truncation. If the table has many rows again, this may take long: stripes of the
    ring that are unread after some seconds, or when a read fails, are left to a later batch.
    """
    if key_read.event is None:
        key_read.parts = read_pass.count_partitions()
    key_read.continues = first_stripe(key_read) > 0
    key_read.read_rows = read_pass.live_rows.read_table
    key_read.read_at = start = time.time()
    is_whole = False
    try:
        yield from read_pass.deliver(key_read)
        is_whole = id(key_read) not in read_pass.live_rows.next_stripes
    except HelenusError as error:
        if error.kind is not Kind.CASSANDRA_READ or id(key_read) not in read_pass.live_rows.next_stripes:
            raise
        key_read.read_at, key_read.published = start, True
    if not is_whole:
        read_pass.outcome.waiting_keys.append(_remaining_rows(read_pass, key_read, start))


def _remaining_rows(read_pass: ReadPass, key_read: KeyRead, start: float) -> UnconfirmedKey:
    """Return the key with which the rest of a truncation waits for a later batch: from its first unread stripe on."""
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
        stripe=read_pass.live_rows.next_stripes[id(key_read)],
        newest=key_read.newest,
        deleted_at=key_read.deleted_at,
    )


def read_scopes(
    read_pass: ReadPass, key_reads: Sequence[KeyRead], partly_published: list[tuple[KeyRead, HelenusError]]
) -> ResolvedGroups:
    """Read markers, each with the live rows of its scope and static columns; no two of the same partition. Adds to
    `partly_published` the markers whose read failed when some of their records had been appended, with the error.
    """
    requested: list[KeyRead] = []
    for key_read in key_reads:
        if read_pass.unread_keys.pop_skipped(key_read):
            error = HelenusError(Kind.CASSANDRA_READ, "the read failed when a part of the rows was there")
            read_pass.unread_keys.note(key_read, UnreadReason(error, False))
        else:
            requested.append(key_read)
    start, consistency = time.time(), key_reads[0].consistency
    scopes = [(key_read.scope, key_read.values, key_read.bounds) for key_read in requested]
    for index, answer in read_pass.reader.read_scopes(scopes, consistency):
        key_read = requested[index]
        if isinstance(answer, UnreadReason):
            read_pass.unread_keys.note(key_read, answer)
            continue
        key_read.read_at = start
        if isinstance(answer, KeyRefused):
            yield from read_pass.refuse(key_read, answer)
            continue
        key_read.after, read_pass.live_rows.prefetched[id(key_read)] = answer
        if key_read.verifying is not None and not read_pass.is_verified(key_read):
            read_pass.outcome.keys_read += 1
            del read_pass.live_rows.prefetched[id(key_read)]
            continue
        try:
            yield from _deliver_scope(read_pass, key_read)
        except KeyRefused as refusal:
            yield from read_pass.refuse(key_read, refusal)
        except HelenusError as failure:
            if failure.kind is not Kind.CASSANDRA_READ:
                raise
            if key_read.records:
                partly_published.append((key_read, failure))
                continue
            read_pass.unread_keys.note(key_read, UnreadReason(failure, False))
            # No record of it was appended: take back what `note_publishing` noted before the first one.
            keys = read_pass.published[key_read.topic, key_read.partition].keys
            if keys[-1:] == [key_read.key]:
                keys.pop()


def read_scope_again(read_pass: ReadPass, key_read: KeyRead, error: HelenusError) -> ResolvedGroups:
    """Read a marker again that was published without all rows of its scope, because of `error`.

    To a sink that applies the marker, rows that did not follow it are deleted. So a marker that has to be published,
    but can't be with all its rows, must not be published at all: raises `error`, which fails the batch, and the batch
    that follows leaves the marker out. One that was published before, and is only confirmed, is read here at the level
    of changed keys, without a deadline.
    """
    if key_read.must_be_published or key_read.verifying:
        read_pass.unread_keys.skip_once(key_read)
        raise error
    key_read.consistency, read_pass.reader.retry_deadline = read_pass.consistency, math.inf
    read_pass.published[key_read.topic, key_read.partition].keys.remove(key_read.key)
    start = time.time()
    try:
        key_read.after = read_pass.reader.read_statics(key_read.values, key_read.consistency)
        key_read.read_at = start
        yield from _deliver_scope(read_pass, key_read)
    except KeyRefused as refusal:
        key_read.read_at = start
        yield from read_pass.refuse(key_read, refusal)


def _deliver_scope(read_pass: ReadPass, key_read: KeyRead) -> ResolvedGroups:
    if key_read.is_marked:
        key_read.read_rows = read_pass.live_rows.read_scope
    return read_pass.deliver(key_read)
