"""Which parts of a batch of a query with state are published: the transaction of each part marks its partitions.

    batch    changes of some partitions → records + marks → one transaction;  all parts are done → Spark notes it

Spark repeats a batch that it has not noted, from the same state and events. What it gives is the same, so a part whose
mark is there is not published again. A mark is the position of its partition in the connector's consumer group: of an
events topic with `state=rows`, and of a data topic with `state=keys`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.checkpoint import latest, latest_committed
from helenus_connector.journal._positions import BatchMark, Positions, group_of, read_positions, to_mark
from helenus_schemas.service.failpoints import reach
from helenus_sinks.kafka.owned_log import OwnedKafkaLog

Place = tuple[str, int]
"""A topic and the number of its partition."""


@dataclass(frozen=True)
class MarkedBatch:
    """The batch `number` of a `state`. A former attempt has published the parts of the `published` places."""

    state: str
    number: int
    published: frozenset[Place] = frozenset()


@dataclass(frozen=True)
class BatchMarks:
    """The marks of a `state` as a run found them. `repeated` is the batch that Spark will repeat, if there is one, with
    the places whose parts are `published`. `former_state` is another one whose batches were published, if any. `newest`
    is a batch that was published and that the checkpoint does not have: then its state is an older one, as after a copy
    was restored, or a disk forgot its last writes. `overtaken` are the places that have a mark of another state, or
    of a later batch, and `other_states` all the others that have a mark.
    """

    state: str
    repeated: int | None
    published: frozenset[Place]
    former_state: str | None = None
    newest: int | None = None
    overtaken: frozenset[Place] = frozenset()
    other_states: frozenset[str] = frozenset()

    def batch(self, number: int) -> MarkedBatch:
        """Return a batch of this run."""
        return MarkedBatch(self.state, number, self.published if number == self.repeated else frozenset())


def read_marks(
    worker: WorkerSettings, connector: str, partitions: Mapping[str, int], state: str, checkpoint: Path
) -> BatchMarks:
    """Return the marks of topics, each with so many partitions, once the former run is fenced: by then its last
    transaction has ended. Raises HelenusError BROKER_UNREACHABLE and BROKER_REFUSED.
    """
    return find_marks(read_positions(worker, connector, partitions), state, checkpoint)


def find_marks(positions: Positions, state: str, checkpoint: Path) -> BatchMarks:
    """Return the marks that these positions are."""
    planned, committed = latest(checkpoint), latest_committed(checkpoint)
    marks = {
        (topic, int(number)): position.mark
        for topic, of_topic in positions.items()
        for number, position in of_topic.items()
        if position.mark is not None
    }
    of_state = {topic_partition: mark.batch for topic_partition, mark in marks.items() if mark.state == state}
    newest = max(of_state.values(), default=-1)
    repeated = planned if planned > committed else None
    published = frozenset(topic_partition for topic_partition, batch in of_state.items() if batch == repeated)
    other_states = frozenset(mark.state for mark in marks.values() if mark.state != state)
    overtaken = marks.keys() - {topic_partition for topic_partition, batch in of_state.items() if batch <= planned}
    return BatchMarks(
        state,
        repeated,
        published,
        None if of_state else min(other_states, default=None),
        newest if newest > planned else None,
        frozenset(overtaken),
        other_states,
    )


@dataclass
class PartTransaction:
    """The transaction of one part of a batch, which `log` has open. `ends` is where its places end."""

    log: OwnedKafkaLog
    connector: str
    batch: MarkedBatch
    ends: Mapping[Place, int]

    def commit(self, timeout: float) -> None:
        """Commit the records with the marks of their partitions. Raises as `OwnedKafkaLog.commit`."""
        mark = BatchMark(self.batch.state, self.batch.number)
        reach("connector.before-transaction")
        self.log.commit({group_of(self.connector): to_mark(self.ends, mark)}, timeout)
        reach("connector.after-transaction")
