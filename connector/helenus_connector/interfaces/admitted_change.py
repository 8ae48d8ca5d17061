"""A change event that the gate passes on to the resolver.

The module runs as plain Python, and compiled by Cython with the types of `admitted_change.pxd`: a backlog creates one
object for each of its changes.
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
    """A change that the gate admits to the resolver.

    `event` is the event as it was read; where replicas are counted, the copy that completed the change. The content is
    that of the first copy: its `match`, if the event was only scanned, or else its `change`.

    `key` is the key in the current format, `values` are the CQL bytes of its columns (empty if the change concerns the
    whole table). `id` identifies the change among the copies that its replicas report; it is None if copies can't be
    recognised, and then each copy is admitted. `copies` counts the events of this batch that report the change,
    including this one and those that waited at the gate: the number is final once all events are read. If `pause_s` is
    not 0, the same node reported the change repeatedly: the key is not read before that many seconds have passed,
    unless another change requests it. `is_published` says that an earlier batch published the change and that no read
    has confirmed it yet. `nodes` are the nodes that reported it, where replicas are counted.

    A change that waited too long may be admitted below the gate's consistency level. If `verifying` is set, the change
    is published only if a read at that level shows it; with `is_released` it is published in any case, and marked.
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
        """Return the content of the event. A match is parsed at the first access."""
        change = self._change
        if change is None:
            assert self.match is not None
            change = self._change = parse_match(self.match)
        return change

    @property
    def scope(self) -> Scope:
        """Return what the change concerns: a row, static columns, a partition, a range or the table."""
        return self.change.scope if self.match is None else self.match.decode_scope()
