"""The outcome of each key: its events are counted, and it waits if it is not confirmed."""

from __future__ import annotations

from helenus_connector.interfaces.resolver import ResolverOutcome
from helenus_connector.reread._key_read import KeyRead, Proof
from helenus_connector.unconfirmed.unconfirmed_key import PublishedKeys, UnconfirmedKey
from helenus_connector.unconfirmed.unproven_changes import pack_changes


def hand_back(key_read: KeyRead, outcome: ResolverOutcome, image: bytes | None) -> None:
    """Add a key to the batch's outcome: count its events, and have it wait if a change of it is not confirmed. `image`
    is the digest of the record published last, None if it is not known.
    """
    unconfirmed = key_read.unconfirmed
    copies = unconfirmed.copies if unconfirmed else 0
    events = key_read.events + copies
    if key_read.is_outdated:
        outcome.outdated += events
    elif key_read.dead_lettered:
        outcome.dead_lettered += events
    elif key_read.published:
        outcome.published += events
    # Events of earlier batches that still have no outcome.
    open_events = 0 if key_read.is_outdated or key_read.dead_lettered or key_read.published else copies
    is_read = key_read.read_at is not None
    proof = key_read.proof if is_read else Proof(key_read.awaited)
    unproven = proof.unproven
    outcome.contradicted += proof.contradicted
    # Changes that stay unproven when others are proven came later: the key waits for them as a new one.
    is_new = len(unproven) < len(key_read.awaited)
    is_confirmed = is_read and not unproven
    if unconfirmed and (is_confirmed or is_new or unconfirmed.key != key_read.key):
        outcome.settled_keys.append(unconfirmed)
    if is_confirmed:
        outcome.unchanged += open_events
        return
    if not unconfirmed and not unproven:
        return
    attempts = unconfirmed.attempts + 1 if unconfirmed and not is_new and unconfirmed.key == key_read.key else 0
    topic, partition, key, bounds = key_read.name
    waiting_key = UnconfirmedKey(
        topic, partition, key, key_read.scope, pack_changes(unproven), image, open_events, attempts, bounds=bounds
    )
    waiting_key.since, waiting_key.pause_s = key_read.since, proof.pause_s
    waiting_key.newest, waiting_key.deleted_at = key_read.newest, key_read.deleted_at
    outcome.waiting_keys.append(waiting_key)


def last_published(key_read: KeyRead, published: PublishedKeys, is_scope: bool) -> bytes | None:
    """Return the digest of what was published last of a key, or of a marker's scope; None if that is not known."""
    is_read = key_read.read_at is not None
    if is_scope and published.touches(key_read.key, more_than=int(is_read and key_read.published)):
        return None  # records of rows in its scope are newer, or it was not read to the end
    if not is_read and published.covers(key_read.key):
        return None  # a marker of this batch deleted its row, or published it as one of its scope
    return key_read.digest or (key_read.unconfirmed.image if key_read.unconfirmed else None)


def take_verified(key_read: KeyRead, outcome: ResolverOutcome) -> bool:
    """Return whether a read shows any of the changes that it was to verify. These become changes of this batch, as if
    their events had come with it; the others are `unseen`.
    """
    if key_read.read_at is None:
        return False
    verifying, unseen = key_read.verifying or (), key_read.unseen
    shown_changes = [admitted for admitted in verifying if admitted.id not in unseen]
    outcome.verified_changes += shown_changes
    outcome.unseen_changes += [admitted for admitted in verifying if admitted.id in unseen]
    key_read.events = sum(admitted.copies for admitted in shown_changes)
    key_read.awaited = {name: change for name, change in key_read.awaited.items() if name not in unseen}
    unproven = {name: change for name, change in key_read.proof.unproven.items() if name in key_read.awaited}
    key_read.proof = key_read.proof._replace(unproven=unproven)
    return bool(shown_changes)
