"""The keys of Debezium's connector for Cassandra, older names too, and which of ours each sets.

They are those of its documentation from 1.0 to 3.x, and of its CassandraConnectorConfig.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from helenus_schemas.settings import _java_driver, _java_producer
from helenus_schemas.settings.properties import ConfigError, read_properties

Side = Literal["agent", "worker", "connector"]
Convert = Callable[[str], "str | None"]
Use = Mapping[str, "str | Convert"]
"""Key of ours -> its value: a text with VALUE for theirs, or what makes it. A `*` in both keys is the same text."""


@dataclass(frozen=True)
class Key:
    """What becomes of one of their keys. One without any use means nothing here, and `why` says so; where there is a
    use, it says what else to know.
    """

    agent: Use = field(default_factory=dict)
    worker: Use = field(default_factory=dict)
    connector: Use = field(default_factory=dict)
    why: str = ""

    def uses_for(self, side: Side) -> Use:
        """Return which of our keys it sets in the file of one side."""
        return {"agent": self.agent, "worker": self.worker, "connector": self.connector}[side]

    @property
    def is_used(self) -> bool:
        return bool(self.agent or self.worker or self.connector)


def _copied(key: str) -> Use:
    return {key: "VALUE"}


def _truth(value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise ValueError("neither true nor false")
    return value.strip().lower() == "true"


def _node(value: str) -> str | None:
    """Return a single host; None for several: the agent asks its own node, whose address cassandra.yaml has."""
    return None if "," in value else value


def _pem(value: str) -> str:
    if value.lower().endswith((".jks", ".p12", ".pfx")):
        raise ValueError("a Java trust store is not read: export its certificates as PEM, and name that file")
    return value


def _pkcs12(value: str) -> str:
    if value.lower().endswith(".jks"):
        raise ValueError("a JKS key store is not read: convert it with keytool -importkeystore to PKCS12")
    return value


def _trust_store(file: str) -> str | None:
    """Return the trust store that their driver's TLS settings name, if it is PEM. Raises ValueError for stores of
    Java's, and for a file that can't be read.
    """
    advice = "set cassandra.ssl.cafile, and .certfile and .keyfile where nodes ask for them, to PEM files"
    try:
        stores = {key.lower(): path for key, path in read_properties(file).items() if key.lower().endswith("location")}
    except ConfigError as error:
        raise ValueError(f"{error.problems[0].reason}; {advice} (helenus.agent.…, helenus.connector.…)") from None
    trust_store = next((path for key, path in stores.items() if "trust" in key), None)
    if any("trust" not in key for key in stores) or (trust_store and not trust_store.endswith((".pem", ".crt"))):
        raise ValueError(f"Java key stores are not read: {advice}, after helenus.agent. and helenus.connector.")
    return trust_store


def _login(setting: str) -> Convert:
    def read_login(value: str) -> str:
        match = re.search(rf"""\b{setting}\s*=\s*(["'])(.*?)\1""", value)
        if match is None:
            raise ValueError(
                f"it names no {setting}: set kafka.producer.sasl.username and kafka.producer.sasl.password"
            )
        return match[2]

    return read_login


def _transfer(value: str) -> None:
    if value.endswith("BlackHoleCommitLogTransfer"):
        return
    raise ValueError(
        "no Java class can be run: leave it out, and set helenus.agent.segment.transfer to delete, archive, or "
        "package.module:Name of your own code"
    )


def _dot(value: str) -> None:
    if value != ".":
        raise ValueError("topics are named prefix.keyspace.table: set helenus.connector.data.topic for other names")


def _snapshot(value: str) -> str:
    mode = value.strip().lower()
    if mode not in ("initial", "always", "never"):
        raise ValueError("INITIAL, ALWAYS or NEVER")
    return "never" if mode == "never" else "initial"


def _mode(value: str) -> str:
    """Return a mode in small letters: theirs may have capitals."""
    return value.strip().lower()


def _consistency(value: str) -> str:
    level = value.strip().upper()
    return {"ONE": "LOCAL_ONE", "TWO": "QUORUM", "THREE": "ALL", "EACH_QUORUM": "ALL"}.get(level, level)


_LIVE = "segments are read while they are written"
_ONE = "one thread reads the commit log, in its order"
_BOUND = "32 MB at most wait for the broker, and segments wait for it in cdc_raw"
_SAVED = "positions are saved at most four times a second, after the broker's acknowledgement"
_ASKED = "the cluster is asked for it"
_CLASS_OF_JAVA = "it names a Java class, and none is run"
_TOPICS = "the topics' names are those of topic.prefix and topic.delimiter"
_NO_READER = "their connector reads no topic; what the worker reads with is in kafka.producer.*"
_PREFIX = Key(
    {"topic.prefix": "events-VALUE."},
    connector={
        "name": "VALUE",
        "events.topic": "events-VALUE.${keyspace}.${table}",
        "data.topic": "VALUE.${keyspace}.${table}",
        "errors.deadletterqueue.topic.name": "dlq-VALUE.${keyspace}.${table}",
    },
    why="the data topics have their names; the events between agents and worker have topics of their own",
)
_DRIVER: Use = {
    "cassandra.port": _java_driver.port,
    "cassandra.username": _java_driver.login("username"),
    "cassandra.password": _java_driver.login("password"),
    "cassandra.ssl.enabled": _java_driver.has_tls,
    "cassandra.ssl.check.hostname": _java_driver.checks_hostname,
}
_EXCLUDED = Key(
    connector=_copied("column.exclude.list"), why="columns of the key are never left out; with several names all count"
)


def _secure(name: str, use: str, convert: str | Convert = "VALUE") -> tuple[str, Key]:
    """Return a setting of their producer that every client of ours needs."""
    both = {f"kafka.{use}": convert}
    return f"kafka.producer.{name}", Key(both, both)


KEYS: Mapping[str, Key] = {
    "connector.name": Key(connector=_copied("name")),
    "name": Key(connector=_copied("name")),
    "connector.class": Key(why="the commands are helenus-agent and helenus-connector"),
    "tasks.max": Key(
        why="theirs is always 1; helenus.connector.tasks.max says how many partitions are processed at once"
    ),
    "topic.prefix": _PREFIX,
    "kafka.topic.prefix": _PREFIX,
    "cassandra.config": Key(_copied("cassandra.config")),
    "cassandra.hosts": Key(
        {"cassandra.contact.points": _node},
        connector=_copied("cassandra.contact.points"),
        why="with several hosts the agent asks its own node, at the rpc_address of cassandra.yaml",
    ),
    **{
        key: Key(_copied(key), connector=_copied(key))
        for key in ("cassandra.port", "cassandra.username", "cassandra.password", "cassandra.ssl.enabled")
    },
    "cassandra.ssl.config.path": Key(
        {"cassandra.ssl.cafile": _trust_store},
        connector={"cassandra.ssl.cafile": _trust_store},
        why="a trust store in PEM counts. Java key stores are refused: set cassandra.ssl.cafile, .certfile and "
        ".keyfile with PEM files, for both sides",
    ),
    "cassandra.driver.config.file": Key(
        {"cassandra.contact.points": lambda file: _node(_java_driver.hosts(file) or ","), **_DRIVER},
        connector={
            "cassandra.contact.points": _java_driver.hosts,
            "cassandra.local.dc": _java_driver.local_dc,
            **_DRIVER,
        },
        why="the Java driver's file: contact points, local data centre, login, and whether there is TLS. Its key "
        "stores are not read: set cassandra.ssl.cafile with a PEM file, for both sides",
    ),
    "cassandra.node.id": Key(why=_ASKED),
    "cassandra.cluster.name": Key(why=_ASKED),
    "http.port": Key(_copied("http.port"), why="the port of `listeners`; the worker has helenus.connector.listeners"),
    "offset.backing.store.dir": Key(
        _copied("state.dir"), {"checkpoint.dir": "VALUE/connector"}, why="offsets of theirs that are there are not read"
    ),
    "offset.flush.interval.ms": Key(why=_SAVED),
    "max.offset.flush.size": Key(why=_SAVED),
    "commit.log.relocation.dir": Key(
        {"segment.archive.dir": "VALUE/archive"}, why="used with commit.log.post.processing.enabled=false alone"
    ),
    "commit.log.post.processing.enabled": Key(
        {"segment.transfer": lambda value: None if _truth(value) else "archive"},
        why="with false, processed segments are kept in the relocation directory",
    ),
    "commit.log.transfer.class": Key({"segment.transfer": _transfer}, why="BlackHoleCommitLogTransfer alone"),
    "commit.log.transfer.*": Key(why=_CLASS_OF_JAVA),
    "commit.log.real.time.processing.enabled": Key(why=_LIVE),
    "commit.log.error.reprocessing.enabled": Key(
        why="segments that cannot be decoded are quarantined: helenus-agent reprocess reads them again"
    ),
    "commit.log.relocation.dir.poll.interval.ms": Key(why=_LIVE),
    "commit.log.marked.complete.poll.interval.ms": Key(why=_LIVE),
    "commit.log.processor.shutdown.timeout.seconds": Key(why="the agent stops within ten seconds"),
    "cdc.dir.poll.interval.ms": Key(why=_LIVE),
    "poll.interval.ms": Key(why=_LIVE),
    "latest.commit.log.only": Key(why="every segment is read"),
    "num.of.change.event.queues": Key(why=_ONE),
    "event.order.guarantee.mode": Key(why=_ONE),
    "max.queue.size": Key(why=_BOUND),
    "max.queue.size.in.bytes": Key(why=_BOUND),
    "max.batch.size": Key(why=_BOUND),
    "schema.refresh.interval.ms": Key(why="the commit log itself shows when the schema changes"),
    "snapshot.mode": Key(
        connector={"snapshot.mode": _snapshot},
        why="INITIAL and ALWAYS are the same: each table once, also one that gets cdc = true later. One worker takes "
        "snapshots for the whole cluster",
    ),
    "snapshot.consistency": Key(
        connector={"snapshot.consistency": _consistency}, why="ONE is LOCAL_ONE, TWO QUORUM, THREE and EACH_QUORUM ALL"
    ),
    "snapshot.scan.interval.ms": Key(connector=_copied("table.refresh.interval.ms")),
    "snapshot.fetch.size": Key(why="a snapshot reads a few thousand keys at a time, and smaller pages after timeouts"),
    **{key: Key(connector=_copied(key)) for key in ("key.converter", "value.converter")},
    **{f"{key}.*": Key(connector=_copied(f"{key}.*")) for key in ("key.converter", "value.converter")},
    "converters": Key(why=_CLASS_OF_JAVA),
    "tombstones.on.delete": Key(connector=_copied("tombstones.on.delete")),
    "decimal.handling.mode": Key(connector={"decimal.handling.mode": _mode}),
    "varint.handling.mode": Key(connector={"varint.handling.mode": _mode}),
    "field.exclude.list": _EXCLUDED,
    "column.exclude.list": _EXCLUDED,
    "field.blacklist": _EXCLUDED,
    "column.blacklist": _EXCLUDED,
    "skipped.operations": Key(why="their connector for Cassandra skips none either"),
    "topic.delimiter": Key(connector={"data.topic": _dot}, why="a dot alone"),
    "topic.naming.strategy": Key(why=_TOPICS),
    "topic.cache.size": Key(why=_TOPICS),
    "topic.heartbeat.prefix": Key(why="there is no heartbeat topic: /health/ready says whether agent and worker work"),
    "heartbeat.interval.ms": Key(why="there is no heartbeat topic: /health/ready says whether agent and worker work"),
    "schema.name.adjustment.mode": Key(why="names that Avro forbids are always replaced"),
    "field.name.adjustment.mode": Key(why="names that Avro forbids are always replaced"),
    "sourceinfo.struct.maker": Key(why=_CLASS_OF_JAVA),
    "custom.metric.tags": Key(why="metrics are at /metrics, with Prometheus's labels"),
    "errors.max.retries": Key(why="errors that may pass are tried again without end"),
    "retriable.restart.connector.wait.ms": Key(why="errors that may pass are tried again without end"),
    "tracing.enabled": Key(why="there is no tracing"),
    "kafka.producer.bootstrap.servers": Key(_copied("bootstrap.servers"), _copied("bootstrap.servers")),
    **dict(
        [
            _secure("security.protocol", "security.protocol"),
            _secure("ssl.truststore.location", "ssl.ca.location", _pem),
            _secure("ssl.keystore.location", "ssl.keystore.location", _pkcs12),
            _secure("ssl.*", "ssl.*"),
            _secure("sasl.*", "sasl.*"),
        ]
    ),
    "kafka.producer.sasl.jaas.config": Key(
        {"kafka.sasl.username": _login("username"), "kafka.sasl.password": _login("password")},
        {"kafka.sasl.username": _login("username"), "kafka.sasl.password": _login("password")},
        why="username and password are taken from it",
    ),
    **{f"kafka.producer.{key}": Key(why=why) for key, why in _java_producer.UNUSED.items()},
    **{
        f"kafka.producer.{key}": Key(
            {f"producer.{use}": _java_producer.system_default},
            {f"producer.{use}": _java_producer.system_default},
        )
        for key, use in _java_producer.RENAMED.items()
    },
    **dict(_secure(key, use) for key, use in _java_producer.SECURITY.items()),
    "kafka.producer.acks": Key(why="always all: with less, changes are lost"),
    "kafka.producer.enable.idempotence": Key(why="always true: without it, retries change the order"),
    "kafka.producer.max.request.size": Key(
        {"producer.message.max.bytes": "VALUE"}, {"producer.message.max.bytes": "VALUE"}
    ),
    "kafka.producer.*": Key(_copied("producer.*"), _copied("producer.*"), why="names that librdkafka has too"),
    "kafka.consumer.*": Key(why=_NO_READER),
}
DEFAULTS: Mapping[Side, Mapping[str, str]] = {
    "agent": {"cells.include.list": ".*"},
    "worker": {},
    "connector": {
        "keyspace": ".*",
        "table": ".*",
        "resolver": "none",
        "output.format": "debezium-cassandra",
    },
}
"""What holds where their file says nothing else: every table with `cdc = true`, and each change as it was written."""
