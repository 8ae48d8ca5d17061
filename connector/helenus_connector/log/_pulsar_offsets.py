"""Offsets on Pulsar.

An offset is a message's id as one number, which orders as ids do: its ledger, the entry in it, and its index in the
entry, 32 bits for each of the last two. A range has the ids from its start up to, not including, its end; numbers
between may hold no message, so the difference of two is no count.
"""

from __future__ import annotations

from typing import Any

NONE = 2**64 - 1
"""An id's way to say -1."""


def offset(ledger: int, entry: int, index: int) -> int:
    """Return an id as a number; a message that is alone in its entry has the index 0 or -1."""
    return (ledger << 64) | (entry << 32) | max(index, 0)


def parts(number: int) -> tuple[int, int, int]:
    """Return ledger, entry and index of an offset."""
    return number >> 64, number >> 32 & 0xFFFFFFFF, number & 0xFFFFFFFF


def after(last: Any) -> int:
    """Return the offset after a topic's last message, given its id from a broker; -1 if there is none."""
    if NONE in (last.ledgerId, last.entryId):
        return -1
    return offset(last.ledgerId, last.entryId, last.batch_index if last.HasField("batch_index") else 0) + 1


def offset_of(message: Any) -> int:
    """Return the offset of a message of pulsar-client's."""
    message_id = message.message_id()
    return offset(message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())
