"""The interface of what keeps a run's journals and positions with the brokers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from helenus_connector.journal._entry import JournalEntry
from helenus_connector.journal._positions import Positions
from helenus_connector.journal._topic import JournalContent


class JournalStore(Protocol):
    """Journals by connector, and positions, which a run has for itself by then. The methods raise HelenusError:
    NOT_OWNER where another one has them, and the brokers' errors.
    """

    publishes_once: bool
    """Whether entries are in the transactions of their records: else the driver writes them afterwards."""

    def create(self, connectors: Collection[str]) -> None:
        """Create the journals that are not there."""

    def read(self, connectors: Collection[str], wait: Callable[[float], None]) -> dict[str, JournalContent]:
        """Return what the journals have. `wait` waits for some seconds, or raises."""

    def ends(self, connectors: Collection[str]) -> dict[str, int]:
        """Return the offset after each journal's last entry."""

    def delete_before(self, offsets: Mapping[str, int]) -> None:
        """Delete what is before an offset of each journal."""

    def read_positions(self, partitions: Mapping[str, Mapping[str, int]]) -> Positions:
        """Return the positions of connectors, of which the topics have so many `partitions`."""

    def commit(self, connectors: Mapping[str, str], entries: Mapping[str, JournalEntry], positions: Positions) -> None:
        """Write entries and positions by topic, each topic of a connector: those of a connector together, or nothing
        of them.
        """
