"""The owners of a query's positions: as in Kafka Connect, offsets belong to a connector's name.

Spark's checkpoint and the file `held` have a position for each events topic. The file `owners` next to them says which
connector it belongs to, and where earlier ones stood. So a connector of another name begins at the topic's first event,
and one that was deleted and created again goes on where it was. A position that an earlier version left has no owner:
it belongs to the next connector that reads on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helenus_connector.log.events import Offsets
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import durable

_VERSION = 1


class Owners:
    """The owners of a query's positions by events topic, kept next to its checkpoint. The caller has a lock.

    Raises HelenusError(STATE) if the file can't be written.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._file = checkpoint / "owners"
        self._owners: dict[str, dict[str, Any]] = {}
        # Without it, positions are what they were before there were owners.
        with contextlib.suppress(FileNotFoundError, durable.Damaged):
            self._owners = durable.load(self._file, _VERSION)

    def owner(self, topic: str) -> str | None:
        """Return the connector that a topic's position belongs to; None if it is not known."""
        name: str | None = self._owners.get(topic, {}).get("connector")
        return name

    def former(self, topic: str, connector: str) -> Mapping[str, int]:
        """Return where a connector stood when another one took its place: by partition, empty if that
        never happened.
        """
        position: Mapping[str, int] = self._owners.get(topic, {}).get("former", {}).get(connector, {})
        return position

    def position_of(self, connector: str, topic: str, where: Offsets) -> Mapping[str, int]:
        """Return where a connector stands: in the topics' positions `where`, if that is its own or nobody's."""
        if self.owner(topic) in (None, connector):
            return where.get(topic, {})
        return self.former(topic, connector)

    def assign(self, positions: Mapping[str, tuple[str, Mapping[str, int]]]) -> None:
        """Make connectors the owners of topics' positions. Each topic has its new owner, and where the present one
        stood.
        """
        owners = dict(self._owners)
        for topic, (connector, offsets) in positions.items():
            owner = self.owner(topic)
            if owner == connector:
                continue
            former = {**owners.get(topic, {}).get("former", {}), **({owner: dict(offsets)} if owner else {})}
            former.pop(connector, None)
            owners[topic] = {"connector": connector, "former": former}
        if owners == self._owners:
            return
        durable.make_directory(self._file.parent)
        durable.save(self._file, owners, _VERSION, "whose the positions are", "owners.after-write")
        self._owners = owners


def other_rows(connector: str, owner: str | None, where: str) -> HelenusError:
    """Return STATE: the rows that are kept are another connector's, and begin nowhere else."""
    problem = f"the rows that are kept here are of the connector {owner}, and {connector} would not begin with them"
    advice = "set another query.group: then it starts from the beginning; or delete this directory"
    return HelenusError(Kind.STATE, problem, where, advice)
