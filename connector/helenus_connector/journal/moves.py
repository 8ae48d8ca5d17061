"""Positions that an operator moves: the broker has them, for whichever worker runs the connector next."""

from __future__ import annotations

import time
from collections.abc import Mapping

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.journal._positions import group_of, to_commit
from helenus_connector.journal.support import obstacle
from helenus_sinks.kafka.groups import commit_to_group


def commit_move(
    worker: WorkerSettings, settings: ConnectorSettings, topic: str, offsets: Mapping[str, int], epoch: int
) -> None:
    """Commit where a stopped connector is to go on in a topic, of this `epoch`, if it publishes exactly once.

    Raises HelenusError BROKER_UNREACHABLE and BROKER_REFUSED.
    """
    if settings.exactly_once_support == "disabled" or obstacle(worker, settings):
        return
    now_ms = int(time.time() * 1000)
    positions = to_commit(topic, {int(partition): (offset, now_ms) for partition, offset in offsets.items()}, epoch)
    commit_to_group(worker.consumer_config, group_of(settings.name), positions)
