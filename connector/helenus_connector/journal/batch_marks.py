"""Which parts of a batch of a query with state are published: the transaction of each part marks its partitions.

    batch    changes of some partitions → records + marks → one transaction;  all parts are done → Spark notes it

Spark repeats a batch that it has not noted, from the same state and events. What it gives is the same, so a part whose
mark is there is not published again. A mark is the position of its partition in the connector's consumer group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.checkpoint import latest, latest_committed
from helenus_connector.journal._positions import BatchMark, GroupPosition, group_of, read_positions, to_mark
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.failpoints import reach
from helenus_sinks.kafka.owned_log import OwnedKafkaLog


@dataclass(frozen=True)
class MarkedBatch:
    """The batch `number` of a `state`. A former attempt has published the parts of the `published` partitions."""

    state: str
    number: int
    published: frozenset[int] = frozenset()


@dataclass(frozen=True)
class BatchMarks:
    """The marks of a `state` as a run found them. `repeated` is the batch that Spark will repeat, if there is one, with
    the partitions whose parts are `published`. `former_state` is another one whose batches were published, if any.
    """

    state: str
    repeated: int
    published: frozenset[int]
    former_state: str | None = None

    def batch(self, number: int) -> MarkedBatch:
        """Return a batch of this run."""
        return MarkedBatch(self.state, number, self.published if number == self.repeated else frozenset())


def read_marks(
    worker: WorkerSettings, connector: str, topic: str, partitions: int, state: str, checkpoint: Path
) -> BatchMarks:
    """Return the marks of a topic, once the former run is fenced: by then its last transaction has ended.

    Raises HelenusError(STATE) if a batch was published that the checkpoint does not have: then its state is older, as
    after a copy was restored, or a disk forgot its last writes. Raises BROKER_UNREACHABLE and BROKER_REFUSED.
    """
    positions = read_positions(worker, connector, {topic: partitions}).get(topic, {})
    return find_marks(positions, state, checkpoint)


def find_marks(positions: Mapping[str, GroupPosition], state: str, checkpoint: Path) -> BatchMarks:
    """Return the marks that these positions are. Raises as `read_marks`."""
    planned, committed = latest(checkpoint), latest_committed(checkpoint)
    marks = {int(number): position.mark for number, position in positions.items() if position.mark is not None}
    of_state = {number: mark.batch for number, mark in marks.items() if mark.state == state}
    newest = max(of_state.values(), default=-1)
    if newest > planned:
        problem = f"batch {newest} was published, and the checkpoint's last one is {planned}: its state is an older one"
        advice = (
            "restore the checkpoint of then; or delete it: the rows are read from Cassandra once more, and published"
        )
        raise HelenusError(Kind.STATE, problem, str(checkpoint), advice)
    repeated = planned if planned > committed else committed + 1
    published = frozenset(number for number, batch in of_state.items() if batch == repeated)
    former_state = next((mark.state for mark in marks.values() if mark.state != state), None)
    return BatchMarks(state, repeated, published, None if of_state else former_state)


@dataclass
class PartTransaction:
    """The transaction of one part of a batch, which `log` has open. `ends` is where the batch ends, by partition of the
    events' `topic`.
    """

    log: OwnedKafkaLog
    connector: str
    topic: str
    batch: MarkedBatch
    ends: dict[int, int]

    def commit(self, timeout: float) -> None:
        """Commit the records with the marks of their partitions. Raises as `OwnedKafkaLog.commit`."""
        mark = BatchMark(self.batch.state, self.batch.number)
        reach("connector.before-transaction")
        self.log.commit({group_of(self.connector): to_mark(self.topic, self.ends, mark)}, timeout)
        reach("connector.after-transaction")
