"""Which connectors can publish exactly once."""

from __future__ import annotations

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_schemas.errors import HelenusError, Kind

NOT_FENCED = "Kafka fences no writers for this login: see writers.not_fenced in the log"


def obstacle(worker: WorkerSettings, settings: ConnectorSettings) -> str:
    """Return why the settings do not allow that a table is published exactly once, empty if they do."""
    if worker.log == "pulsar" or worker.log_of_data == "pulsar":
        return "it takes Kafka's transactions, for events and records"
    if not worker.fence_writers:
        return "it takes fence.writers=true"
    if not worker.is_local and settings.state != "rows":  # a state knows what was published
        return "executors on several hosts do not know what each other has published: it takes spark.master=local[...]"
    return ""


def not_supported(settings: ConnectorSettings, reason: str) -> HelenusError:
    """Return the error of a table that is to be published exactly once, and can't be."""
    where = f"{settings.name}: {settings.keyspace}.{settings.table}"
    advice = "remove the obstacle, or set exactly.once.support=requested to go on without"
    return HelenusError(Kind.CONFIG, f"exactly.once.support=required: {reason}", where, advice)
