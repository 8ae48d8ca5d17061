"""The plan of a query, from the driver to its planner and workers: which topics belong to which connector, and where
shared files lie.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from functools import cached_property
from pathlib import Path
from typing import Any

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.run_directory import replace
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.log.events import Offsets
from helenus_schemas.service.logs import Setup, follow, setup
from helenus_sinks.kafka.owners import RecordsOwner
from helenus_sinks.pulsar.epochs import EpochOwner


@dataclass(frozen=True)
class QueryPlan:
    """One streaming query as it is now: the tables it reads, each as settings of its own, by events topic.

    `held` is where to read on in these topics if the checkpoint says otherwise, `epochs` counts how often an operator
    moved them. `slots` is how many tasks Spark runs at once, `start` the number of the start, for its
    fence. `tables` has the epochs of all tables of the group, also of those that don't run now. `directory` is the
    run's own, made on each host. `logging` is how the driver reports: its planner and workers do so too. `places`, in a
    query with state, has for each partition the number by which its events are grouped. `owner` is whose producers
    write, where others are fenced. `exactly_once` are the topics of which each batch is one transaction, each with the
    offsets, by partition, from which on a run reads past events. Of `restored` topics the run has what waits from
    a journal, and reads nothing again. What the operator of a query with state goes by are `rules`, in JSON's types.
    """

    worker: WorkerSettings
    connectors: dict[str, ConnectorSettings]
    directory: str
    group: str = "default"
    held: Offsets = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    slots: int = 1
    start: int = 0
    tables: dict[str, int] = field(default_factory=dict)
    places: tuple[int, ...] = ()
    owner: RecordsOwner | EpochOwner | None = None
    exactly_once: dict[str, dict[str, int]] = field(default_factory=dict)
    restored: frozenset[str] = frozenset()
    rules: dict[str, Any] = field(default_factory=dict)
    logging: Setup = field(default_factory=setup)

    @property
    def has_state(self) -> bool:
        """Return whether the query has an operator with state: of one table, then."""
        return bool(self.places)

    @property
    def topics_with_past(self) -> Collection[str]:
        """Return the topics of which a run reads past events, to know what it has published: a state knows it."""
        return () if self.has_state else self.exactly_once.keys()

    def for_topics(self, topics: Collection[str]) -> QueryPlan:
        """Return the part of the plan for tasks that read these topics alone: all of it has hundreds of kB for hundreds
        of tables, and takes some ms to send.
        """
        connectors = {topic: self.connectors[topic] for topic in topics if topic in self.connectors}
        # Only the planner needs the offsets of past events.
        exactly_once: dict[str, dict[str, int]] = {topic: {} for topic in self.exactly_once}
        owner = self.owner.for_topics(topics) if isinstance(self.owner, EpochOwner) else self.owner
        return replaced(self, connectors=connectors, held={}, epochs={}, exactly_once=exactly_once, owner=owner)

    # These are asked for in each batch, and of hundreds of tables they take a while.
    @cached_property
    def max_batch_size(self) -> int:
        """Return how many events a batch may have, of all tables together."""
        return max((c.max_batch_size for c in self.connectors.values()), default=1)

    @cached_property
    def max_batch_bytes(self) -> int:
        """Return how many bytes of events a batch may have, of all tables together."""
        return max((c.max_batch_size_in_bytes for c in self.connectors.values()), default=1)

    @cached_property
    def tasks_max(self) -> int:
        """Return how many tasks a batch may have, however few Spark runs at once."""
        return max((c.tasks_max for c in self.connectors.values()), default=1)

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """Return the topics of every consumer group, or subscription on Pulsar: each connector has one."""
        groups: dict[str, list[str]] = {}
        for topic, connector in self.connectors.items():
            groups.setdefault(f"helenus-{connector.name}", []).append(topic)
        return groups

    @property
    def due_file(self) -> Path:
        """Return the file with the time when the next key is due, s since the epoch: from the driver,
        for the planner.
        """
        return Path(self.directory) / f"{self.group}.due"

    @property
    def parts_file(self) -> Path:
        """Return the file with what the tasks of a batch read: from the planner, for the driver."""
        return Path(self.directory) / f"{self.group}.parts"

    @property
    def away_file(self) -> Path:
        """Return the file with the reason why no batch can be planned, since its own time: from the planner, for the
        driver.
        """
        return Path(self.directory) / f"{self.group}.away"

    @property
    def checkpoint(self) -> Path:
        """Return the directory of Spark's offsets of the query, and of our files about them."""
        return self.worker.checkpoint_dir.absolute() / self.group

    @property
    def unconfirmed_file(self) -> Path:
        """Return the file with the keys that wait for long, and when the last batch ended."""
        return self.checkpoint / "unconfirmed"

    @property
    def file(self) -> Path:
        """Return the file of the plan, from the driver for its planner: the source's options are no
        place for secrets.
        """
        return Path(self.directory) / f"{self.group}.plan"

    def save(self) -> None:
        """Write the plan to `file`, for this user alone."""
        replace(self.file, pickle.dumps(self))

    @staticmethod
    def load(path: str) -> QueryPlan:
        """Load the plan in a file that this process's own driver wrote, and set up this process's
        logging as it says.
        """
        return QueryPlan.loads(Path(path).read_bytes())

    @staticmethod
    def loads(file: bytes) -> QueryPlan:
        """Load the plan of such a file's bytes."""
        plan = pickle.loads(file)
        assert isinstance(plan, QueryPlan)
        follow(plan.logging)
        return plan
