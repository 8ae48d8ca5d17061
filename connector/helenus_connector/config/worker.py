"""The worker's file: what all connectors of a worker share."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, field_validator
from typing_extensions import Self

from helenus_connector.config._patterns import check_regex
from helenus_connector.config.connector import ConnectorSettings, PulsarConnectorSettings
from helenus_connector.config.model import Model
from helenus_connector.config.spark_submit import is_submitted, with_submitted
from helenus_schemas.settings import debezium, masking
from helenus_schemas.settings.fields import (
    CommaList,
    Milliseconds,
    PassThrough,
    PathOrUrl,
    ReplicationFactor,
    listener_address,
)
from helenus_schemas.settings.model import Alias, Group
from helenus_schemas.settings.properties import ConfigError, Problem, read_properties
from helenus_schemas.settings.shared import KafkaSettings, ListenerSettings, LogSettings, PulsarSettings, TraceSettings

_MASTER = re.compile(
    r"local(-cluster\[\d+,\d+,\d+]|\[([1-9]\d*|\*)(, *\d+)?])?|spark://\S+:\d+(,\S+:\d+)*|yarn|k8s://\S+"
)

_MEMORY = {
    "driver": re.compile(r"(\d+)([kmgt])", re.IGNORECASE),  # Spark gives it to the JVM as it is
    "executor": re.compile(r" *(\d+) *([bkmgtp]|[kmgtp]b) *", re.IGNORECASE),  # as JavaUtils.byteStringAs reads it
}
_MIN_MEMORY = 450 << 20  # of Spark's UnifiedMemoryManager
_POSITIONS = "positions, and connectors that come over REST, are kept in checkpoint.dir"
# Keys of Kafka Connect's workers.
_ALIASES: Mapping[str, str | Alias] = {
    "offset.storage.file.filename": Alias(why=_POSITIONS),
    "offset.storage.partitions": Alias(why="each connector has a topic of its own, of one partition"),
    "offset.flush.*": Alias(why=_POSITIONS),
    "config.storage.partitions": Alias(why="the topic has one partition, as Connect's"),
    "status.storage.partitions": Alias(why="the topic has one partition"),
    "plugin.path": Alias(why="the connector is all there is"),
}


_TAKEN_GROUPS = ("helenus-owners", "helenus-reader")
_NO_TOPIC = re.compile(r"[^a-zA-Z0-9._-]")
"""What no name of a topic of Kafka's has."""


class WorkerSettings(ListenerSettings, PulsarSettings, KafkaSettings, LogSettings, TraceSettings):
    """What all connectors of a worker share."""

    aliases: ClassVar[Mapping[str, str | Alias]] = _ALIASES
    meant: ClassVar[Mapping[str, str]] = {**KafkaSettings.meant, "http.host": "listeners", "http.port": "listeners"}
    own_references: ClassVar[tuple[str, ...]] = ("spark.",)

    _own: frozenset[Path] = PrivateAttr(default=frozenset())

    log: Annotated[Literal["kafka", "pulsar"], Group("Worker", "HIGH")] = "kafka"
    """Where events come from, and records go to."""
    data_log: Annotated[Literal["", "kafka", "pulsar"], Group("Worker")] = ""
    """Where records and dead letters go, if not to `log`."""
    consumer: Annotated[PassThrough, Group("Kafka", "LOW")] = {}
    """librdkafka's settings for consumers; they override `kafka.*`."""
    topic_creation_default_replication_factor: Annotated[ReplicationFactor, Group("Kafka", "HIGH")] = -1
    """Replication factor of topics that the worker creates on Kafka. -1: the brokers' `default.replication.factor`,
    which is 1 unless set."""
    fence_writers: Annotated[bool, Group("Worker", "LOW")] = True
    """Whether brokers refuse the records of a worker, or of a task, that another one has replaced. Records are then
    written in transactions on Kafka, where the login needs [rights](security.md#rights-in-kafka) for that, and by
    exclusive producers on Pulsar."""
    offset_storage_topic: Annotated[str, Group("Kafka")] = "helenus-offsets"
    """How the names of topics begin with what waits of connectors that publish exactly once, or of a group on Pulsar;
    the connector's name follows. On Kafka one that you make needs one partition, `cleanup.policy=delete`,
    `retention.ms=-1` and `retention.bytes=-1`."""
    offset_storage_replication_factor: Annotated[ReplicationFactor, Group("Kafka")] = -1
    """Replication factor of these topics. -1: the brokers' default."""
    group_id: Annotated[str, Group("Worker", "HIGH")] = ""
    """Workers with one `group.id`, each with its own `checkpoint.dir`, elect one that runs the connectors; the others
    [stand by](operations.md#workers-of-a-group). Default: none, the worker is alone."""
    state_checkpoint_dir: Annotated[PathOrUrl, Group("Worker")] = ""
    """A directory that all workers of the group share: on NFS, CephFS and the like, or by the URL of a file system of
    Spark's, such as `s3a://bucket/directory`. Connectors with `state` keep it there, and the next leader [goes on with
    it](state.md#in-a-group). Default: none, it begins the state anew."""
    session_timeout_ms: Annotated[Milliseconds, Field(ge=1), Group("Worker", "LOW")] = 6000
    """After how long without a sign of life of the worker that runs the connectors another one takes over. Kafka's
    brokers take 6000 at least (`group.min.session.timeout.ms`)."""
    config_storage_topic: Annotated[str, Group("Kafka")] = "helenus-configs"
    """How the name of the topic begins with what the workers of a group share: connectors, with their passwords, and
    how far snapshots are; the group's id follows. One that you make needs one partition, and
    `cleanup.policy=compact`."""
    config_storage_replication_factor: Annotated[ReplicationFactor, Group("Kafka")] = -1
    """Replication factor of this topic. -1: the brokers' default."""
    status_storage_topic: Annotated[str, Group("Kafka")] = "helenus-status"
    """How the name of the topic begins to which a group's workers write the status of connectors and tasks, for tools;
    the group's id follows."""
    status_storage_replication_factor: Annotated[ReplicationFactor, Group("Kafka")] = -1
    """Replication factor of this topic. -1: the brokers' default."""
    pulsar_key_based_batcher: Annotated[bool, Group("Pulsar", "LOW")] = False
    """Whether a batch has records of one key only. Consumers that share a subscription of type `Key_Shared` need that,
    or they get other consumers' keys; records then cost much more CPU."""
    listeners: Annotated[str, Group("REST", "HIGH")] = "http://127.0.0.1:8083"
    """Address of the REST API, `/metrics` and `/health`: http://host:port or https://host:port."""
    rest_advertised_host_name: Annotated[str, Group("REST", "LOW")] = ""
    """The worker's host in its `worker_id`; default: that of `listeners`, or the machine's name. A listener on loopback
    answers to this name too."""
    config_providers_file_param_allowed_paths: Annotated[CommaList, Group("REST", "LOW")] = ()
    """Folders whose files connectors made over REST may refer to as `${file:PATH:KEY}`; default: none. The worker's own
    file may not be in one, and the files that it refers to are never allowed. Set it with a login: whoever may use the
    REST API can read what is in them."""
    config_providers_env_param_allowlist_pattern: Annotated[str, Group("REST", "LOW")] = ""
    """Regular expression for the variables that connectors made over REST may refer to as `${env:NAME}`; default: none.
    """
    plugin_packages: Annotated[CommaList, Group("REST", "LOW")] = ()
    """Python packages of your own whose classes connectors made over REST may name; default:
    none. A connector's file may name any that is installed."""
    data_source_template: Annotated[Path | None, Group("Worker")] = None
    """A connector's properties file without `name`, `keyspace` and `table`, for the connectors that
    [data sources](control-plane.md#statements) make; its `cassandra.*` says where these are read. Default: none is."""
    data_source_keyspace: Annotated[str, Group("Worker", "LOW")] = "helenus"
    """The agents' `config.store.keyspace`, in which data sources are."""
    checkpoint_dir: Annotated[Path, Group("Worker", "HIGH")]
    """Directory of positions, on a persistent disk that the driver's next machine can read."""
    batch_interval_ms: Annotated[Milliseconds, Group("Worker")] = 0
    """Shortest time between the starts of two batches."""
    small_batch_events: Annotated[int, Field(ge=0), Group("Worker", "LOW")] = 1000
    """Up to how many events a batch is done in a Python process of the worker's own, some 30 ms sooner than by a job of
    Spark's. 0: none is. On a cluster of Spark's it has no effect."""
    startup_timeout_ms: Annotated[Milliseconds, Group("Worker")] = 0
    """How long the start waits for servers and tables that are not there yet. What waiting does not mend, such as a
    refused login, fails at once."""
    standby_timeout_ms: Annotated[int | None, Field(ge=-1), Group("Worker")] = None
    """How long the worker stands by while another one has its `checkpoint.dir`, to take over when that one ends. -1:
    for ever, 0: not at all; default: `startup.timeout.ms`."""
    metrics_other_products: Annotated[bool, Group("Worker", "LOW")] = True
    """Whether `/metrics` also uses the names of Kafka Connect, Debezium and DataStax's connector."""
    spark: Annotated[PassThrough, Group("Worker")] = {}
    """Spark's settings, such as `spark.master`."""
    public_spark_api: Annotated[bool, Group("Worker", "LOW")] = False
    """Whether batches go by PySpark's public API alone, without Helenus's classes in Spark's Java process and without
    PySpark's internals. They [cost more](scaling.md#any-spark) then. Where these are missing, or PySpark is of another
    version, the public API is used anyway."""

    @field_validator("listeners")
    @classmethod
    def _check_listener(cls, value: str) -> str:
        if listener_address(value) is None:
            raise ValueError("give one listener as http://host:port or https://host:port")
        return value

    @field_validator("checkpoint_dir", mode="before")
    @classmethod
    def _check_checkpoint(cls, value: object) -> object:
        if isinstance(value, str) and re.match(r"[A-Za-z][\w+.-]*:/", value):
            raise ValueError(
                "give a local path. For a worker that another host replaces, or without a disk: set group.id, by which "
                "positions are with the brokers, and for connectors with state state.checkpoint.dir, which may be a URL"
            )
        return value

    @field_validator("data_source_keyspace")
    @classmethod
    def _check_keyspace(cls, value: str) -> str:
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,47}", value):
            raise ValueError("a keyspace's name here has small letters, digits and '_' alone, and 48 of them at most")
        return value

    @field_validator("config_providers_env_param_allowlist_pattern")
    @classmethod
    def _check_pattern(cls, value: str) -> str:
        return check_regex(value)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load as `Settings.load`; connectors that come over REST may then use none of the worker's own files."""
        settings = super().load(path)
        # By their names: what they lead to may be replaced while the worker runs.
        own = masking.absolute(path)
        named = (getattr(settings, name) for name in cls.model_fields if name.endswith("file"))
        settings._own = frozenset({own, *filter(None, named), *masking.files(read_properties(path).values())})
        key = "config.providers.file.param.allowed.paths"
        for folder in settings.config_providers_file_param_allowed_paths:
            for used_directory, description in (
                (own, "the worker's own file"),
                (settings.checkpoint_dir, "checkpoint.dir"),
            ):
                if any(
                    Path(name(used_directory)).is_relative_to(name(folder))
                    for name in (masking.absolute, os.path.realpath)
                ):
                    reason = f"{description} is in it: name a folder that is for connectors alone"
                    raise ConfigError([Problem(str(path), key, folder, reason)])
        return settings

    def refuse_to_connectors(self, files: Iterable[Path]) -> None:
        """Never let connectors that come over REST refer to these files, such as those of other connectors."""
        self._own |= {masking.absolute(file) for file in files}

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], source: str, *more: Any, **named: Any) -> Self:
        """Read settings as `Settings.from_properties`, with those of `spark-submit`. Of a file of Debezium's it takes
        what is the worker's.
        """
        if is_submitted():
            properties = with_submitted(properties, source)
        if not debezium.is_theirs(properties):
            return super().from_properties(properties, source, *more, **named)
        make = super().from_properties
        theirs = debezium.translate(properties, "worker", source, cls.knows, cls.present_name)
        return theirs.make(lambda properties: make(properties, source, *more, **named))

    @classmethod
    def conflicts(cls, properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        log = properties.get("log", "kafka")
        for used, needed in (("kafka", "bootstrap.servers"), ("pulsar", "pulsar.service.url")):
            if used in (log, properties.get("data.log")) and needed not in properties:
                other = used == "kafka" and "pulsar.service.url" in properties and "log" not in properties
                yield needed, "required property is missing" + (", or log=pulsar" if other else "")
        yield from super().conflicts(properties)
        if "data.source.template" in properties and "pulsar" in (log, properties.get("data.log")):
            yield "data.source.template", "data sinks are Kafka, and this worker has Pulsar: leave it out"
        if properties.get("group.id"):
            yield from _group_conflicts(properties)
        elif "state.checkpoint.dir" in properties:
            yield "state.checkpoint.dir", "leave it out: a worker without group.id keeps state in checkpoint.dir"
        if not _MASTER.fullmatch(properties.get("spark.master", "local")):
            yield "spark.master", "give local, local[N], local[*], spark://host:port, yarn or k8s://https://host:port"
        yield from _authentication_conflicts(properties)
        for process, written in _MEMORY.items():
            match = written.fullmatch(properties.get(f"spark.{process}.memory", "1g"))
            if match is None:
                yield f"spark.{process}.memory", "give a whole number with its unit, such as 512m or 2g"
            elif int(match[1]) << 10 * "bkmgtp".index(match[2][0].lower()) < _MIN_MEMORY:
                yield f"spark.{process}.memory", "Spark does not start with less than 450m"
            for options in (f"spark.{process}.extraJavaOptions", f"spark.{process}.defaultJavaOptions"):
                if "-Xmx" in properties.get(options, ""):
                    yield options, f"leave -Xmx out: spark.{process}.memory says how much memory there is"
        if _is_secure(properties.get("listeners", "")):
            for key in ("listeners.https.ssl.certfile", "listeners.https.ssl.keyfile"):
                if key not in properties:
                    yield key, "set it: an https listener has a certificate"

    @classmethod
    def unknown(cls, key: str) -> str:
        if ConnectorSettings.knows(ConnectorSettings.key_of(key)):
            return "it goes into the connector's file"
        return super().unknown(key)

    @property
    def listener(self) -> tuple[str, int]:
        """Host and port to listen on."""
        _, host, port = listener_address(self.listeners) or ("", "", 0)
        return host, port

    @property
    def secure(self) -> bool:
        """Return whether the listener speaks TLS."""
        return _is_secure(self.listeners)

    @property
    def worker_id(self) -> str:
        """Return `host:port` of this worker, as Kafka Connect's status shows it."""
        return f"{self._advertised_host}:{self.listener[1]}"

    @property
    def advertised_url(self) -> str:
        """Return `http://host:port` or `https://host:port`, by which the other workers of its group reach this one."""
        host, (_, port) = self._advertised_host, self.listener
        return f"{'https' if self.secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def _advertised_host(self) -> str:
        host, _ = self.listener
        everywhere = host in ("0.0.0.0", "::")
        return self.rest_advertised_host_name or (socket.gethostname() if everywhere else host)

    @property
    def is_local(self) -> bool:
        """Return whether Spark runs its tasks in its one Java process, and no executors."""
        return is_local_master(self.spark.get("master", "local"))

    @property
    def log_of_data(self) -> Literal["kafka", "pulsar"]:
        """Return where records go to."""
        return self.data_log or self.log

    @property
    def model(self) -> Model:
        """Return how the properties of its connectors are read."""
        settings = PulsarConnectorSettings if self.log_of_data == "pulsar" else ConnectorSettings
        places = {"kafka": "", "pulsar": self.pulsar_topic_prefix}
        allowed = masking.Allowed(
            tuple(map(Path, self.config_providers_file_param_allowed_paths)),
            self.config_providers_env_param_allowlist_pattern,
            self._own,
        )
        return Model(settings, places[self.log], places[self.log_of_data], allowed, self.plugin_packages, self.group_id)

    def journal_topic(self, connector: str) -> str:
        """Return the topic with what waits of a connector that publishes exactly once."""
        return f"{self.offset_storage_topic}-{_in_topic(connector)}"

    @property
    def group_topic(self) -> str:
        """Return the topic with what the workers of the group share."""
        return f"{self.config_storage_topic}-{self.group_name}"

    @property
    def status_topic(self) -> str:
        """Return the topic to which the workers of the group write the status of connectors and tasks."""
        return f"{self.status_storage_topic}-{self.group_name}"

    @property
    def group_name(self) -> str:
        """Return the group's id as a part of other names."""
        return _in_topic(self.group_id)

    @property
    def state_mount(self) -> Path | None:
        """Return `state.checkpoint.dir` where it is a path; None where it is a URL, or not set."""
        path = self.state_checkpoint_dir
        return Path(path) if path and "://" not in path else None

    @property
    def state_url(self) -> str | None:
        """Return `state.checkpoint.dir` where it is the URL of a file system of Spark's, or None."""
        return self.state_checkpoint_dir if "://" in self.state_checkpoint_dir else None

    @property
    def producer_config(self) -> dict[str, str]:
        """Return librdkafka's settings of every producer. A flush does not wait for `linger.ms`, and
        ends every batch.
        """
        return {"bootstrap.servers": self.bootstrap_servers, "linger.ms": "100", **self.kafka, **self.producer}

    @property
    def consumer_config(self) -> dict[str, str]:
        """Return librdkafka's settings of every consumer."""
        return {"bootstrap.servers": self.bootstrap_servers, **self.kafka, **self.consumer}


def is_local_master(master: str) -> bool:
    """Return whether this `spark.master` has no executors: `local-cluster[...]`, made for Spark's own tests, has."""
    return re.match(r"local($|\[)", master) is not None


def _in_topic(name: str) -> str:
    """Return a name as a part of the name of a topic."""
    return _NO_TOPIC.sub(lambda match: f"_{ord(match[0]):x}_", name)


def _group_conflicts(properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Settings with which another worker can't go on where the one before it was."""
    log = properties.get("log", "kafka")
    if properties.get("data.log", "") not in ("", log):
        yield "group.id", "workers of a group have events and records with one message broker"
    if properties.get("fence.writers", "true").strip().lower() == "false":
        yield "fence.writers", "workers of a group fence each other, which takes true"
    if not is_local_master(properties.get("spark.master", "local")):
        yield "spark.master", "executors on other hosts know nothing of a group: it takes local[...]"
    if properties.get("group.id") in _TAKEN_GROUPS:
        yield "group.id", "Helenus has that group for something else: give it another name"
    if "standby.timeout.ms" in properties:
        yield "standby.timeout.ms", "leave it out: it is for workers that share checkpoint.dir, and have no group.id"
    shared, own = (properties.get(key, "").strip() for key in ("state.checkpoint.dir", "checkpoint.dir"))
    shared = shared.removeprefix("file://")
    is_path = shared != "" and "://" not in shared
    if is_path and own and Path(os.path.realpath(shared)).is_relative_to(os.path.realpath(own)):
        yield "state.checkpoint.dir", "it is in checkpoint.dir, which is this worker's own: name one that all share"


def _authentication_conflicts(properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Settings with which Spark's ports would not ask who connects, unless a cluster's operator decided that."""
    authenticate = properties.get("spark.authenticate", "").strip().lower()
    master = properties.get("spark.master", "local")
    is_standalone = master.startswith("spark://") and _MASTER.fullmatch(master) is not None
    if authenticate not in ("", "true", "false"):
        yield "spark.authenticate", "give true or false"
    elif authenticate == "false" and master.startswith("local"):
        # Nobody but this worker's own processes has to connect.
        yield "spark.authenticate", "leave it out: any user of this machine could read passwords, and run code as yours"
    elif authenticate != "false" and is_standalone and "spark.authenticate.secret" not in properties:
        problem = "set it to the secret of the cluster's master and workers, which have spark.authenticate=true; "
        yield (
            "spark.authenticate.secret",
            problem + "or spark.authenticate=false, if all who reach its ports are trusted",
        )


def _is_secure(listener: str) -> bool:
    scheme, _, _ = listener_address(listener) or ("", "", 0)
    return scheme == "https"
