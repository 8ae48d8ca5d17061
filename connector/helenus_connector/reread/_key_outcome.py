"""What a batch hands back of each key: its events by their outcome, and whether it waits to be confirmed."""

from __future__ import annotations

from helenus_connector.interfaces.resolver import ResolverOutcome
from helenus_connector.reread._key_read import KeyRead, Proof
from helenus_connector.unconfirmed.unconfirmed_key import PublishedKeys, UnconfirmedKey
from helenus_connector.unconfirmed.unproven_changes import pack_changes


def hand_back(work: KeyRead, handed: ResolverOutcome, image: bytes | None) -> None:
    """Count a key's events, and have it wait if a change of it is not confirmed. `image` is the digest of what was
    published last.
    """
    unconfirmed = work.unconfirmed
    copies = unconfirmed.copies if unconfirmed else 0
    events = work.events + copies
    if work.is_outdated:
        handed.outdated += events
    elif work.dead_lettered:
        handed.dead_lettered += events
    elif work.published:
        handed.published += events
    waits = 0 if work.is_outdated or work.dead_lettered or work.published else copies
    is_read = work.read_at is not None
    proof = work.proof if is_read else Proof(work.awaited)
    unproven = proof.unproven
    handed.contradicted += proof.contradicted
    # What is left when others are confirmed came later: it waits as a new one.
    is_new = len(unproven) < len(work.awaited)
    is_confirmed = is_read and not unproven
    if unconfirmed and (is_confirmed or is_new or unconfirmed.key != work.key):
        handed.settled_keys.append(unconfirmed)
    if is_confirmed:
        handed.unchanged += waits
        return
    if not unconfirmed and not unproven:
        return
    attempts = unconfirmed.attempts + 1 if unconfirmed and not is_new and unconfirmed.key == work.key else 0
    topic, partition, key, bounds = work.name
    again = UnconfirmedKey(
        topic, partition, key, work.scope, pack_changes(unproven), image, waits, attempts, bounds=bounds
    )
    again.since, again.rest = work.since, proof.rest
    again.newest, again.deleted_at = work.newest, work.deleted_at
    handed.waiting_keys.append(again)


def last_published(work: KeyRead, published: PublishedKeys, is_scope: bool) -> bytes | None:
    """The digest of what was published last of a key, or of a marker's scope; None if that is not known."""
    is_read = work.read_at is not None
    if is_scope and published.touches(work.key, more_than=int(is_read and work.published)):
        return None  # records of its scope are newer, or not all of them were read
    if not is_read and published.covers(work.key):
        return None  # a marker took it away, or published it otherwise
    return work.digest or (work.unconfirmed.image if work.unconfirmed else None)
