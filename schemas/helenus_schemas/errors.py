"""Every error an operator can meet, and what happens on it: one table, read by the agent and the connector.

A `HelenusError` says what went wrong and where; its `Kind` decides whether the work is retried, dead-lettered or
stopped, and which advice is printed where the error has none of its own. Errors survive pickling, because Spark
carries them from worker to driver.
"""

from __future__ import annotations

import enum
import re
import traceback
from dataclasses import dataclass
from pathlib import Path


class Action(enum.Enum):
    """What the program does when an error of a kind appears."""

    RETRY = "retry"
    DEAD_LETTER = "dead-letter"
    STOP = "stop"


class Kind(enum.Enum):
    """What went wrong."""

    CONFIG = "config"
    CASSANDRA_UNREACHABLE = "cassandra-unreachable"
    CASSANDRA_AUTH = "cassandra-auth"
    CASSANDRA_READ = "cassandra-read"
    CASSANDRA_WRITE = "cassandra-write"
    SCHEMA_BEHIND = "schema-behind"
    ROW_UNREADABLE = "row-unreadable"
    CDC_DISABLED = "cdc-disabled"
    CDC_ENCRYPTED = "cdc-encrypted"
    CDC_VERSION = "cdc-version"
    CDC_DIRECTORY = "cdc-directory"
    TRANSFER_FAILED = "transfer-failed"
    SEGMENT_SOURCE = "segment-source"
    TABLE_MISSING = "table-missing"
    TABLE_UNSUPPORTED = "table-unsupported"
    BROKER_UNREACHABLE = "broker-unreachable"
    BROKER_REFUSED = "broker-refused"
    APPEND_FAILED = "append-failed"
    TOPIC_MISSING = "topic-missing"
    PARTITIONS_CHANGED = "partitions-changed"
    OFFSETS_LOST = "offsets-lost"
    RECORD_TOO_LARGE = "record-too-large"
    REGISTRY_UNREACHABLE = "registry-unreachable"
    REGISTRY_AUTH = "registry-auth"
    REGISTRY_REFUSED = "registry-refused"
    SCHEMA_MISSING = "schema-missing"
    POISON_EVENT = "poison-event"
    GATE_FULL = "gate-full"
    BATCH_FAILED = "batch-failed"
    STATE = "state"
    NOT_OWNER = "not-owner"
    WORKER_UNREACHABLE = "worker-unreachable"


@dataclass(frozen=True)
class Policy:
    """The action for a kind of error, and the advice printed with it."""

    action: Action
    advice: str


POLICIES: dict[Kind, Policy] = {
    Kind.CONFIG: Policy(Action.STOP, "correct the properties file and start again"),
    Kind.CASSANDRA_UNREACHABLE: Policy(
        Action.RETRY, "check cassandra.contact.points, cassandra.port and that the node is up"
    ),
    Kind.CASSANDRA_AUTH: Policy(Action.STOP, "check cassandra.username, cassandra.password and cassandra.ssl.*"),
    Kind.CASSANDRA_READ: Policy(Action.RETRY, "check that enough replicas are up for query.consistency"),
    Kind.CASSANDRA_WRITE: Policy(
        Action.RETRY,
        "check that enough replicas are up for query.consistency in the source, target.consistency in the target",
    ),
    Kind.SCHEMA_BEHIND: Policy(Action.RETRY, "give the target's table the columns that the source's has"),
    Kind.ROW_UNREADABLE: Policy(
        Action.DEAD_LETTER,
        "SELECT this key in cqlsh and look into the nodes' logs: too many tombstones (tombstone_failure_threshold), or "
        "a damaged SSTable (nodetool scrub); other keys are processed, and this one is read again until that succeeds; "
        "errors.tolerance=all dead-letters its events after ten reads",
    ),
    Kind.CDC_DISABLED: Policy(
        Action.STOP, "set cdc_enabled: true in cassandra.yaml and restart the node, or ALTER TABLE ... WITH cdc = true"
    ),
    Kind.CDC_ENCRYPTED: Policy(
        Action.STOP,
        "encrypted segments are not supported: set transparent_data_encryption_options: enabled: false and restart the "
        "node; changes in encrypted segments have to be read from the tables",
    ),
    Kind.CDC_VERSION: Policy(
        Action.STOP,
        "start an agent of a Helenus that knows this Cassandra; until then segments stay in cdc_raw, and writes to "
        "tables with CDC are refused when it is full",
    ),
    Kind.CDC_DIRECTORY: Policy(
        Action.STOP, "run the agent as a user that may read and delete in cdc_raw, or correct cdc.raw.dir"
    ),
    Kind.TRANSFER_FAILED: Policy(
        Action.RETRY,
        "check the disk and the permissions of its destination, or your segment.transfer; the segment stays in cdc_raw",
    ),
    Kind.SEGMENT_SOURCE: Policy(
        Action.STOP, "check segment.source, its login and its options, and repeat the command: it sends all of it again"
    ),
    Kind.TABLE_MISSING: Policy(Action.STOP, "create the table, or correct keyspace and table"),
    Kind.TABLE_UNSUPPORTED: Policy(Action.STOP, "leave the column out with columns, or choose another table"),
    # Kafka's advice; Pulsar's errors have their own (helenus_sinks.pulsar.errors).
    Kind.BROKER_UNREACHABLE: Policy(Action.RETRY, "check bootstrap.servers, and that the brokers are up"),
    Kind.BROKER_REFUSED: Policy(
        Action.STOP, "check the broker's ACLs, the security.*, ssl.* and sasl.* settings and the topic's name"
    ),
    Kind.APPEND_FAILED: Policy(
        Action.RETRY, "check the broker's log; nothing counts as delivered until it is acknowledged"
    ),
    Kind.TOPIC_MISSING: Policy(
        Action.RETRY,
        "if somebody deleted it: agents and workers create their topics again by themselves; what was in it is lost, "
        "so re-snapshot the table",
    ),
    Kind.PARTITIONS_CHANGED: Policy(
        Action.STOP,
        "stop writers, drain the topic, give the data topic as many partitions; then stop the connector, reset its "
        "offsets, resume and restart it over REST; order per key spans one partition count",
    ),
    Kind.OFFSETS_LOST: Policy(
        Action.STOP,
        "raise the retention of the events topic, on Pulsar also the message TTL and backlog quota; or set "
        "errors.data.loss=continue to go on and count the loss",
    ),
    Kind.RECORD_TOO_LARGE: Policy(
        Action.STOP,
        "raise max.message.bytes of the topic and producer.message.max.bytes of the worker; or set errors.large.record "
        "to dead-letter, chunk or reference",
    ),
    Kind.REGISTRY_UNREACHABLE: Policy(
        Action.RETRY, "check value.converter.schema.registry.url and that the registry is up"
    ),
    Kind.REGISTRY_AUTH: Policy(
        Action.STOP,
        "check value.converter.schema.registry.basic.auth.user.info and value.converter.schema.registry.ssl.*",
    ),
    Kind.REGISTRY_REFUSED: Policy(
        Action.STOP,
        "compare the table, and decimal.handling.mode and varint.handling.mode, with the latest schema of the "
        "registry's subject, or of Pulsar's topic; delete it, choose another data.topic, or set "
        "schema.on.incompatible=new-topic to go on in another",
    ),
    Kind.SCHEMA_MISSING: Policy(
        Action.STOP, "register it under that subject and restart the task, or leave auto-registration on"
    ),
    Kind.POISON_EVENT: Policy(
        Action.DEAD_LETTER, "read the event at its position; errors.tolerance=all dead-letters such events"
    ),
    Kind.GATE_FULL: Policy(
        Action.RETRY,
        "see why nodes do not report: are their agents up, and do writes reach as many replicas as gate asks "
        "for? The table is read on when waiting changes expire; a larger gate.max.waiting.bytes lets more wait, and "
        "gate.expired=verify makes room by reading them early",
    ),
    Kind.BATCH_FAILED: Policy(Action.RETRY, "read the error above it; the same events are processed again"),
    Kind.STATE: Policy(Action.STOP, "check the disk and the permissions of the state or checkpoint directory"),
    Kind.NOT_OWNER: Policy(
        Action.STOP,
        "stop one of the two workers, or take the connector out of one; to have this one go on, restart its tasks over "
        "REST: POST /connectors/NAME/restart?includeTasks=true",
    ),
    Kind.WORKER_UNREACHABLE: Policy(
        Action.RETRY, "check --url against listeners in the worker's file, and --user and --cafile if it asks for them"
    ),
}


class HelenusError(Exception):
    """An error with its kind, what happened, and where (a key, path, address or position).

    `advice`: what an operator should do. It is given with the error where its cause is known, else it is the kind's.
    """

    def __init__(self, kind: Kind, message: str, where: str = "", advice: str = "") -> None:
        super().__init__(kind, message, where)  # pickled together with the attributes below
        self.kind = kind
        self.what = message
        self.where = where
        self.advice = advice or POLICIES[kind].advice

    @property
    def action(self) -> Action:
        """Return what the program does on this error."""
        return POLICIES[self.kind].action

    def with_location(self, where: str) -> HelenusError:
        """Return the same error with another location."""
        return HelenusError(self.kind, self.what, where, self.advice)

    def __str__(self) -> str:
        location = f" ({self.where})" if self.where else ""
        return f"{self.what}{location}: {self.advice} [{self.kind.value}]"


_PRINTED = re.compile(r"(?:HelenusError|\bhelenus_[\w.]+): (.*) \[([a-z-]+)\]")


def error_in(text: str) -> HelenusError | None:
    """Return the error in a traceback's text: the JVM passes a worker's error on as text alone."""
    match = _PRINTED.search(text)
    if match is None or match[2] not in {kind.value for kind in Kind}:
        return None
    kind = Kind(match[2])
    message = match[1].removesuffix(f": {POLICIES[kind].advice}")
    if message == match[1]:  # the error has advice of its own; if that has a colon, the printed text is still the same
        message, _, advice = match[1].rpartition(": ")
        return HelenusError(kind, message, advice=advice)
    return HelenusError(kind, message)


def reason(error: BaseException) -> str:
    """Return what a log says of any error: ours as it is; of another, which is a bug, its type and where it was raised
    too.
    """
    if isinstance(error, HelenusError):
        return str(error)
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {error}"
