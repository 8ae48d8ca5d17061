"""A change event that goes on from the gate to the resolver.

It runs as it is, and compiled by Cython with the types of `admitted.pxd`: a backlog has one for each of its changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from helenus_schemas.event.own_format import Match, parse_match

if TYPE_CHECKING:
    from helenus_connector.interfaces.event import Event, Nodes, WaitingChange
    from helenus_schemas.codec.key import Key
    from helenus_schemas.event.change import Change, Scope


COMPILED = not __file__.endswith(".py")


class AdmittedChange:
    """A change event that goes on: the `event` as it was read, or of its copies the one that completed it, and what
    the first of them says: its `match`, if that was scanned, or else its `change`.

    `key` is the key in today's form, `values` are the CQL bytes of its columns (none if it concerns the whole table).
    `id` names the change among its replicas' copies; None if they can't be recognised, then each of them goes on.
    `copies` counts the events of this batch that are it, itself included, and those that waited at the gate: it is
    right once all events are read. It came again and again if `pause_s` is not 0: its key is not to be read before so
    many seconds have passed, unless something else asks for it. With `is_published` an earlier batch published the
    change, and its read is not confirmed yet. `nodes` reported it, where that is counted.

    One that waited for too long may go on below its level: if it is `verifying`, it is to be published if a read at the
    gate's level shows it; with `is_released` in any case, marked as such.
    """

    event: Event
    key: bytes
    values: Key
    id: bytes | None
    copies: int
    is_published: bool
    nodes: Nodes | None
    verifying: WaitingChange | None
    is_released: bool
    pause_s: float
    match: Match | None
    _change: Change | None

    def __init__(
        self,
        event: Event,
        change: Change | None,
        key: bytes,
        values: Key,
        id: bytes | None,
        copies: int = 1,
        is_published: bool = False,
        match: Match | None = None,
    ) -> None:
        self.event = event
        self._change = change
        self.key = key
        self.values = values
        self.id = id
        self.copies = copies
        self.is_published = is_published
        self.nodes = None
        self.verifying = None
        self.is_released = False
        self.pause_s = 0.0
        self.match = match

    @property
    def change(self) -> Change:
        """What the event says; of a match it is read when this is first asked for."""
        change = self._change
        if change is None:
            assert self.match is not None
            change = self._change = parse_match(self.match)
        return change

    @property
    def scope(self) -> Scope:
        """What the change concerns."""
        return self.change.scope if self.match is None else self.match.decode_scope()
