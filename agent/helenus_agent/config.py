"""The agent's configuration: a properties file, and the node's cassandra.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator
from typing_extensions import Self

from helenus_agent.aliases import ALIASES, ENVIRONMENT, ON_PULSAR, names_pulsar
from helenus_agent.commitlog.segment import ReadMode
from helenus_agent.node_yaml import node_address
from helenus_schemas.service.monitoring import is_loopback
from helenus_schemas.settings import debezium
from helenus_schemas.settings.fields import (
    CommaList,
    Hosts,
    Milliseconds,
    PassThrough,
    ReplicationFactor,
    listener_address,
    topic,
)
from helenus_schemas.settings.model import Alias, Group
from helenus_schemas.settings.named_class import is_class_name
from helenus_schemas.settings.properties import ConfigError, Problem
from helenus_schemas.settings.shared import (
    CassandraSettings,
    KafkaSettings,
    ListenerSettings,
    LogSettings,
    PulsarSettings,
    TraceSettings,
)
from helenus_sinks.kafka.settings import shown, wrong_settings

_STATE_DIR = "/var/lib/helenus/agent"
TransactionalPolicy = Literal["refuse", "gap"]


def _pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {pattern!r}: {error}") from None
    return pattern


def _patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        _pattern(pattern)
        if re.fullmatch(r"\w+", pattern):
            raise ValueError(f"{pattern} matches no table: give keyspace.table, or {pattern}\\..* for a whole keyspace")
        if character := re.search(r"""["';`]""", pattern):
            why = "put commas between several" if character[0] == ";" else "names are written without quotes"
            raise ValueError(f"no name has a {character[0]} in it: {why}")
    return patterns


def _single_host(points: tuple[str, ...]) -> tuple[str, ...]:
    if len(points) != 1:
        raise ValueError("name one address: that of the node whose log is read")
    return points


def _transfer(value: str) -> str:
    if value not in ("delete", "archive") and not is_class_name(value):
        raise ValueError(f"delete, archive, or package.module:Name of a class or function: {value!r} is none of them")
    return value


def _check_http_host(host: str) -> str:
    if not host:  # which to Python means every address
        raise ValueError("name an address of this machine, or leave the property out: then only this machine reads it")
    return host


def _check_listener(listener: str) -> str:
    _, _, port = listener_address(listener) or ("", "", 0)
    if listener and not port:
        raise ValueError(
            "give one address as http://host:port or https://host:port, or leave the property out: then none is open"
        )
    return listener


def _keyspace(name: str) -> str:
    if not re.fullmatch(r"[a-z]\w{0,47}", name, re.ASCII) or name != name.lower():
        raise ValueError("a keyspace's name here has small letters, digits and '_' alone, and 48 of them at most")
    return name


def _replication(text: str) -> str:
    """Check a keyspace's replication: it becomes part of a statement."""
    if text and not re.fullmatch(rf"\{{\s*{_ENTRY}(\s*,\s*{_ENTRY})*\s*\}}", text, re.ASCII):
        raise ValueError("give it as CQL: {'class': 'NetworkTopologyStrategy', 'dc1': 3}")
    return text


_ENTRY = r"'[\w. -]+'\s*:\s*('[\w. /-]+'|\d+)"


Patterns = Annotated[CommaList, AfterValidator(_patterns)]


class AgentSettings(ListenerSettings, CassandraSettings, PulsarSettings, KafkaSettings, LogSettings, TraceSettings):
    """The keys of agent.properties."""

    aliases: ClassVar[Mapping[str, str | Alias]] = ALIASES
    environment: ClassVar[Mapping[str, str]] = ENVIRONMENT

    cassandra_contact_points: Annotated[Hosts, AfterValidator(_single_host), Group("Cassandra", "HIGH")] = (
        "127.0.0.1",
    )
    """CQL address of the node whose commit log is read."""
    cassandra_local_dc: Annotated[str | None, Field(min_length=1), Group("Cassandra", "HIGH")] = None
    """The node's data centre. The agent refuses a node of another one."""
    cassandra_config: Annotated[Path | None, Group("Commit log", "HIGH")] = None
    """The node's cassandra.yaml, which names `cdc_raw` and says whether CDC is on. Set this or `cdc.raw.dir`."""
    cdc_raw_dir: Annotated[Path | None, Group("Commit log", "HIGH")] = None
    """The node's `cdc_raw`; default: the one that cassandra.yaml names."""
    state_dir: Annotated[Path, Group("Agent", "HIGH")]
    """Directory of positions and quarantine: one for each agent, on a persistent disk unless `state.store=cassandra`.
    With `config.store=cassandra` the default is `/var/lib/helenus/agent`."""
    log: Annotated[Literal["kafka", "pulsar"], Group("Topics", "HIGH")] = "kafka"
    """Where events go."""
    topic_prefix: Annotated[str, AfterValidator(topic), Group("Topics")] = "events-"
    """Events of ks.table go to the topic of this name followed by `ks.table`."""
    headers: Annotated[Literal["none", "datastax"], Group("Topics", "LOW")] = "none"
    """`datastax` adds the headers segpos, token and writetime to events."""
    topic_partitions: Annotated[int, Field(ge=1), Group("Topics", "HIGH")] = 4
    """Partitions of topics that the agent creates. They can't be changed later: size them for growth."""
    topic_creation_default_replication_factor: Annotated[ReplicationFactor, Group("Topics", "HIGH")] = -1
    """Replication factor of topics that the agent creates on Kafka. -1: the brokers' `default.replication.factor`,
    which is 1 unless set."""
    topic_retention_ms: Annotated[int, Field(ge=-1), Group("Topics")] = 7 * 24 * 3600 * 1000
    """How long these topics keep events: longer than the connector may ever be down. -1: for ever."""
    topic_config: Annotated[PassThrough, Group("Topics", "LOW")] = {}
    """Other settings of these topics, such as `topic.config.min.insync.replicas`."""
    table_include_list: Annotated[Patterns, Group("Tables")] = ()
    """Regular expressions for ks.table: only these of the tables with `cdc = true` are published. Default: all."""
    table_exclude_list: Annotated[Patterns, Group("Tables")] = ()
    """Regular expressions for ks.table: these are not published."""
    cells_include_list: Annotated[Patterns, Group("Tables")] = ()
    """Regular expressions for ks.table: events of these tables carry the mutation's cells, for consumers that do not
    read rows again. Default: none. Tables with counters have no cells."""
    errors_large_event: Annotated[Literal["light"], Group("Tables", "LOW", expert=True)] = "light"
    """What becomes of an event too large for its topic with its cells. `light`: it goes without them, counted, and
    whoever needs them reads the row."""
    transactional_tables: Annotated[TransactionalPolicy, Group("Tables", "LOW")] = "refuse"
    """Tables of Cassandra 6.0 with a `transactional_mode`, whose writes are in no commit log. `refuse`: they are not
    followed, and the agent is not ready. `gap`: they are, and their topics receive an event of scope GAP."""
    read_mode: Annotated[Literal["auto", ReadMode], Group("Commit log")] = "auto"
    """How far a live segment is read. `eager`: beyond the last sync marker, as far as checksums are right, some ms
    behind the write. `marker`: to the last one, up to 100 ms behind. `idx`: as far as it is fsynced. `auto`: `eager` if
    the node syncs periodically, else `marker` ([what a crash takes back](guarantees.md#what-a-crash-takes-back))."""
    segment_transfer: Annotated[str, AfterValidator(_transfer), Group("Commit log")] = "delete"
    """What happens to a fully processed segment: `delete`, `archive`, or your own code as `package.module:Name`."""
    segment_archive_dir: Annotated[Path | None, Group("Commit log", "LOW")] = None
    """Where `archive` puts segments."""
    segment_source: Annotated[str, Group("Commit log", "LOW")] = ""
    """Where `helenus-agent resend` reads archived segments: a directory, a URL of fsspec (`s3://bucket/node1`), or
    your own class as `package.module:Class`; default: `segment.archive.dir`."""
    segment_source_config: Annotated[PassThrough, Group("Commit log", "LOW")] = {}
    """Options of the URL's file system, as fsspec names them (`segment.source.config.key`), or of your class."""
    startup_timeout_ms: Annotated[Milliseconds, Group("Agent")] = 0
    """How long the start waits for Cassandra and the brokers."""
    poll_interval_ms: Annotated[Milliseconds, Field(ge=1, le=1000), Group("Agent", "LOW", expert=True)] = 20
    """Longest pause between two looks at live segments: 2 after a change, then growing; at least 80 when quiet."""
    listeners: Annotated[str, AfterValidator(_check_listener), Group("Agent", "HIGH")] = ""
    """Address of `/metrics`, `/health` and with `config.store=cassandra` the REST API, as http://host:port or
    https://host:port; default: none is open."""
    http_host: Annotated[str, AfterValidator(_check_http_host), Group("Agent", "LOW", replaced_by="listeners")] = (
        "127.0.0.1"
    )
    """The host of `listeners`."""
    http_port: Annotated[int, Field(ge=0, lt=65536), Group("Agent", "LOW", replaced_by="listeners")] = 0
    """The port of `listeners`; 0 opens none."""
    metrics_other_products: Annotated[bool, Group("Agent", "LOW")] = True
    """Whether `/metrics` also uses the names of DataStax's agent, Debezium and the Sidecar."""
    state_store: Annotated[Literal["file", "cassandra"], Group("Control plane", "HIGH")] = "file"
    """Where the agent's state is. `cassandra`: in `state.dir`, and [a copy](control-plane.md#state) in a table."""
    state_store_interval_ms: Annotated[Milliseconds, Field(ge=1000), Group("Control plane", "LOW")] = 5000
    """How often at most the copy is written; what is in no log, and the end of a segment, within a second."""
    config_store: Annotated[Literal["file", "cassandra"], Group("Control plane", "HIGH")] = "file"
    """Where settings come from. `cassandra`: also from the table `configs` of a keyspace, which all agents follow
    ([control-plane.md](control-plane.md)); the agent's own file takes precedence."""
    config_store_keyspace: Annotated[str, AfterValidator(_keyspace), Group("Control plane")] = "helenus"
    """The keyspace of our tables. The agent creates it where its role may, and otherwise prints the CQL."""
    config_store_replication: Annotated[str, AfterValidator(_replication), Group("Control plane")] = ""
    """The replication that the keyspace is created with, as CQL. Required unless every data centre has three nodes by
    then; default: `NetworkTopologyStrategy` with three replicas in each."""
    config_store_consistency: Annotated[
        Literal["LOCAL_QUORUM", "LOCAL_ONE", "ONE", "QUORUM", "EACH_QUORUM", "ALL"], Group("Control plane", "LOW")
    ] = "LOCAL_QUORUM"
    """The consistency level of its reads and writes."""
    config_store_poll_interval_ms: Annotated[Milliseconds, Field(ge=100), Group("Control plane", "LOW")] = 5000
    """How often `configs` is read."""
    config_store_report_interval_ms: Annotated[Milliseconds, Field(ge=500), Group("Control plane", "LOW")] = 10_000
    """How often the agent writes its row of `agents`; an agent whose row is older than three of these is dead."""
    rest_local_writes: Annotated[bool, Group("Control plane")] = False
    """Whether a listener on loopback takes changes without a login: from every user of the machine. A listener on
    another address takes them with `rest.basic.auth.user.info` or `listeners.https.ssl.cafile` alone."""
    config_providers_file_param_allowed_paths: Annotated[CommaList, Group("Control plane", "LOW")] = ()
    """Folders whose files `configs` may refer to as `${file:PATH:KEY}`; default: none. The agent's own file, and the
    files that it refers to, are never allowed. Whoever may change `configs` can read what is in them."""
    config_providers_env_param_allowlist_pattern: Annotated[
        str, AfterValidator(_pattern), Group("Control plane", "LOW")
    ] = ""
    """Regular expression for the variables that `configs` may refer to as `${env:NAME}`; default: none."""

    @model_validator(mode="before")
    @classmethod
    def _default_state_dir(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("config.store") == "cassandra":
            return {"state.dir": _STATE_DIR, **values}
        return values

    @classmethod
    def from_properties(
        cls,
        properties: Mapping[str, str],
        source: str,
        environment: Mapping[str, str] | None = None,
        context: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Self:
        if not debezium.is_theirs(properties):
            _check_program(properties, source)
            if cls is AgentSettings and names_pulsar(properties, environment or {}):
                chosen = {"log", "messagingProvider"} & properties.keys() or "CDC_MESSAGING_PROVIDER" in (
                    environment or {}
                )
                completed = properties if chosen else {**properties, "log": "pulsar"}
                return _OnPulsar.from_properties(completed, source, environment, context, **more)  # type: ignore[return-value]
            return super().from_properties(properties, source, environment, context, **more)
        debezium.report(properties, source)
        if f"{debezium.AGENT}listeners" in properties:  # which says the same as their http.port
            properties = {name: text for name, text in properties.items() if name != "http.port"}
        theirs = debezium.translate(properties, "agent", source, present_name=cls.present_name)
        make = super().from_properties
        return theirs.make(
            lambda completed: make({**node_address(completed), **completed}, source, environment, context, **more)
        )

    @classmethod
    def conflicts(cls, properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        yield from super().conflicts(properties)
        if properties.get("cassandra.password") and not properties.get("cassandra.username"):
            yield "cassandra.username", "set it too: a cassandra.password alone logs nobody in"
        is_stored = properties.get("config.store") == "cassandra"
        if not is_stored and "cassandra.config" not in properties and "cdc.raw.dir" not in properties:
            yield "cassandra.config", "set it, the path of the node's cassandra.yaml, or cdc.raw.dir"
        needed = "pulsar.service.url" if properties.get("log") == "pulsar" else "bootstrap.servers"
        if needed not in properties and not is_stored:
            hints_pulsar = "pulsar.service.url" in properties and "log" not in properties
            yield needed, "required property is missing" + (", or log=pulsar" if hints_pulsar else "")
        yield from _listener_conflicts(properties)
        if properties.get("segment.transfer") == "archive" and "segment.archive.dir" not in properties:
            yield "segment.archive.dir", "set it, where segment.transfer=archive puts segments"

    @property
    def listener(self) -> tuple[str, int]:
        """Return host and port to listen on; port 0 for none."""
        if (address := listener_address(self.listeners)) is None:
            return self.http_host, self.http_port
        _, host, port = address
        return host, port

    @property
    def secure(self) -> bool:
        """Return whether the listener speaks TLS."""
        return _is_secure(self.listeners)

    @property
    def read_only(self) -> str:
        """Return why the REST API takes no changes, empty if it does."""
        if self.rest_basic_auth_user_info or (self.secure and self.listeners_https_ssl_cafile):
            return ""
        if not is_loopback(self.listener[0]):
            return "changes need a login: set rest.basic.auth.user.info in the agent's file"
        if not self.rest_local_writes:
            return "changes need a login: set rest.basic.auth.user.info, or rest.local.writes=true, in the agent's file"
        return ""


def _check_program(properties: Mapping[str, str], source: str) -> None:
    """Raise ConfigError, of one line, for a file of a worker or of a connector."""
    if "state.dir" in properties:
        return
    owner = "worker" if "checkpoint.dir" in properties else "connector"
    if owner == "worker" or properties.keys() >= {"keyspace", "table"}:
        reason = f"it is a {owner}'s file, which helenus-connector reads: give the agent's"
        raise ConfigError([Problem(source, "", None, reason)])


def _is_secure(listener: str) -> bool:
    scheme, _, _ = listener_address(listener) or ("", "", 0)
    return scheme == "https"


def _listener_conflicts(properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the certificates that an https listener lacks, and `listeners` where the older http.host and http.port say
    another address.
    """
    if _is_secure(properties.get("listeners", "")):
        for key in ("listeners.https.ssl.certfile", "listeners.https.ssl.keyfile"):
            if key not in properties:
                yield key, "set it: an https listener has a certificate"
    if "listeners" not in properties:
        return
    _, host, port = listener_address(properties["listeners"]) or ("", "", 0)
    for key, value in (("http.host", host), ("http.port", str(port))):
        if properties.get(key, value).strip() != value:
            yield "listeners", f"{key} is an older name of a part of it, and has another value: leave that one out"


class _OnPulsar(AgentSettings):
    """The settings of an agent whose events go to Pulsar: keys of DataStax's agent about TLS are about that."""

    aliases: ClassVar[Mapping[str, str | Alias]] = {**ALIASES, **ON_PULSAR}


def check(settings: AgentSettings, source: str) -> None:
    """Raise ConfigError for settings of librdkafka that it does not take; `source` is the properties file's name."""
    if settings.log != "kafka":
        return
    config = {**settings.kafka, **settings.producer}
    problems = []
    for name, reason in wrong_settings({"bootstrap.servers": settings.bootstrap_servers, **config}, config).items():
        # A setting that is missing goes where the others of the file are.
        is_own = name in settings.producer or (name not in settings.kafka and not settings.kafka)
        key = settings.name_in_file(("producer." if is_own else "kafka.") + (name or "*"))
        problems.append(Problem(source, key, shown(key, name, config, reason), reason))
    if problems:
        raise ConfigError(problems)
