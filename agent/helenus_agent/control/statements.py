"""Executes CEP-44's statements about data sinks and data sources, as the role that is logged in.

A sink is a name and an address. A source has the agents publish a table: to the sink's brokers, which become service
`kafka` of `configs`, and by `cdc = true`; and a worker that follows `data_sources` makes its connector. Cassandra
decides who may do what: `MODIFY` on the control plane's tables, and for a source `ALTER` on the table. Each step of a
statement leaves what its repetition goes on from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from helenus_agent.config import AgentSettings
from helenus_agent.control._config_follower import describe
from helenus_agent.control._row_keys import ROW_KEYS, SERVICES, property_name, setting_name
from helenus_agent.control._service_configs import Rows, check_service, effective_config
from helenus_agent.control._source_store import SourceStore, StoredSource
from helenus_agent.control._statement_grammar import (
    CreateSink,
    CreateSource,
    Describe,
    DropSink,
    DropSource,
    Statement,
    TableName,
    Word,
)
from helenus_agent.control._statement_grammar import StatementError as StatementError
from helenus_agent.control._statement_grammar import is_complete as is_complete
from helenus_agent.control._statement_grammar import parse_statements as parse_statements
from helenus_agent.own_properties import OwnProperties
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings import masking
from helenus_schemas.settings.data_sink import AddressError, SinkAddress, parse_sink_address
from helenus_schemas.settings.properties import ConfigError, Problem

_SYSTEM = re.compile(r"system(_.*)?|dse.*", re.ASCII)
_SINK = "data sink"
_TOPIC_KEYS = frozenset(("topic.partitions", "topic.creation.default.replication.factor", "topic.retention.ms"))
"""Keys of an agent's file, beside `topic.config.*`, that an address may have."""
_OVER_REST = "change it over the REST API of an agent"
HELP = (
    ("CREATE DATA_SINK [IF NOT EXISTS] name WITH 'kafka://host:port?name=value'", "names brokers"),
    ("DROP DATA_SINK [IF EXISTS] name", "forgets them"),
    ("CREATE DATA_SOURCE [IF NOT EXISTS] cdc ON TABLE ks.t WITH sink", "publishes a table"),
    ("DROP DATA_SOURCE [IF EXISTS] cdc ON TABLE ks.t", "ends that"),
    ("DESCRIBE DATA_SINKS", "lists data sinks"),
    ("DESCRIBE DATA_SOURCES", "lists data sources"),
)


@dataclass(frozen=True)
class StatementResult:
    """A statement's result: a table of texts."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class StatementSession:
    """Executes statements over one session with Cassandra. `own` are the agent's properties, which count for what
    agents do beside the rows of `configs`.
    """

    def __init__(self, own: OwnProperties, settings: AgentSettings) -> None:
        self._own = own
        self._keyspace = settings.config_store_keyspace
        self._store = SourceStore(settings)

    def close(self) -> None:
        """Disconnect."""
        self._store.close()

    def execute(self, statement: Statement) -> StatementResult:
        """Execute a statement. Raises StatementError for what is wrong with it here and now, HelenusError for servers'
        errors.
        """
        if isinstance(statement, CreateSink):
            return self._create_sink(statement)
        if isinstance(statement, DropSink):
            return self._drop_sink(statement)
        if isinstance(statement, CreateSource):
            return self._create_source(statement)
        if isinstance(statement, DropSource):
            return self._drop_source(statement)
        if isinstance(statement, Describe):
            return self._describe_sinks() if statement.kind == "DATA_SINKS" else self._describe_sources()
        return StatementResult(("statement", "what it does"), HELP)

    def _create_sink(self, statement: CreateSink) -> StatementResult:
        name, address = statement.name, statement.address
        sink = _parse_address(address)
        for key in sorted(sink.agent_parameters.keys() & (ROW_KEYS - _TOPIC_KEYS)):
            where = "before the ?" if key == "bootstrap.servers" else "in service cdc, over the REST API of an agent"
            raise _locate(address, ConfigError([Problem(_SINK, key, None, f"it has its place {where}")]))
        try:
            # The row of `cdc` counts, and not that of `kafka`: it may be another sink's.
            others = {service: row for service, row in self._rows().items() if service == "cdc"}
            check_service(self._own, others, "kafka", _kafka_row(sink))
        except ConfigError as error:
            raise _locate(address, error) from None
        if self._store.create_sink(name.value, address.value):
            return _changes((f"data_sink {name.value}", "created"))
        if not statement.if_not_exists:
            raise name.refuse(f"there is a data sink {name.value} already: DROP it first, or give another name")
        if self._store.sinks().get(name.value) == address.value:
            return _changes((f"data_sink {name.value}", "there already"))
        return _changes((f"data_sink {name.value}", "there already, with another address: unchanged"))

    def _drop_sink(self, statement: DropSink) -> StatementResult:
        name = statement.name
        self._check_unused(name)
        address = self._store.sinks().get(name.value)
        if self._store.drop_sink(name.value):
            try:
                # Of a source that is created meanwhile: either it sees that its sink is gone, or it is seen here.
                self._check_unused(name)
            except StatementError:
                if address is not None:
                    self._store.create_sink(name.value, address)
                raise
            return _changes((f"data_sink {name.value}", "dropped"))
        if not statement.if_exists:
            raise name.refuse(f"there is no data sink {name.value}: DESCRIBE DATA_SINKS lists them")
        return _changes((f"data_sink {name.value}", "not there"))

    def _check_unused(self, sink: Word) -> None:
        if used := [source for source in self._store.sources() if source.sink == sink.value]:
            example = f"{used[0].keyspace}.{used[0].table}"
            raise sink.refuse(f"{len(used)} data sources have this sink: DROP DATA_SOURCE cdc ON TABLE {example} first")

    def _create_source(self, statement: CreateSource) -> StatementResult:
        """Create a data source, in five steps. What was interrupted goes on when the statement is repeated."""
        table, label = statement.table, f"data_source cdc on {statement.table}"
        # 1. All that can be wrong, before anything is changed: also whether the role may alter the table.
        has_cdc = self._table_cdc(table)
        former = self._source(table)
        is_complete = former.sink is not None
        if is_complete:
            if not statement.if_not_exists:
                raise table.word.refuse(f"{table} has this data source already, with the sink {former.sink}")
            if former.sink != statement.sink.value:
                return _changes((label, f"there already, with the sink {former.sink}: unchanged"))
        new_rows = self._plan_rows(statement)
        self._set_cdc(table, has_cdc)
        # 2. What a DROP has to undo.
        if not (has_cdc or is_complete or self._store.note_altering(former)):
            raise self._overtaken(table)
        # 3. Where agents publish to, and that they do.
        changes = []
        for service, row in new_rows.items():
            self._store.write(service, row)
            changes.append((f"service {service}", "configured for all agents"))
        # 4. The table. Agents meet this change in the node's log, before the first write that they are to publish.
        if not has_cdc:
            self._set_cdc(table, True)
            changes.append((str(table), "cdc = true"))
        # 5. The source. A worker makes its connector.
        if not is_complete:
            source = replace(former, sink=statement.sink.value, sets_cdc=former.sets_cdc or not has_cdc)
            if not self._store.create_source(source):
                raise self._overtaken(table)
            if source.sink not in self._store.sinks():
                self._drop_source(DropSource(statement.service, table, if_exists=True))
                raise statement.sink.refuse("somebody else dropped this data sink just now: create it, and repeat this")
        return _changes((label, "there already" if is_complete else "created"), *changes)

    def _drop_source(self, statement: DropSource) -> StatementResult:
        """Drop a data source, or undo one that was not completed. Its topics stay, and so do the connector's
        positions.
        """
        table, label = statement.table, f"data_source cdc on {statement.table}"
        source = self._source(table)
        if source.sink is None and not source.sets_cdc:
            if not statement.if_exists:
                raise table.word.refuse(f"{table} has no data source: DESCRIBE DATA_SOURCES lists them")
            return _changes((label, "not there"))
        has_cdc = self._store.table_cdc(table.keyspace, table.table)
        changes = [(label, "dropped: topics and positions stay")]
        if has_cdc is not None:
            self._set_cdc(table, has_cdc)  # asks whether the role may
            if has_cdc and source.sets_cdc:
                self._set_cdc(table, False)
            changes.append((str(table), "cdc = true stays, as before" if not source.sets_cdc else "cdc = false"))
        if not self._store.drop_source(source):
            raise self._overtaken(table)
        return _changes(*changes)

    def _describe_sinks(self) -> StatementResult:
        rows = tuple((name, _shown_address(address)) for name, address in sorted(self._store.sinks().items()))
        return StatementResult(("data_sink", "address"), rows)

    def _describe_sources(self) -> StatementResult:
        rows = []
        for source in self._store.sources():
            if source.sink is None:
                continue
            has_cdc = self._store.table_cdc(source.keyspace, source.table)
            shown = "no such table" if has_cdc is None else f"cdc = {str(has_cdc).lower()}"
            rows.append((source.service, f"{source.keyspace}.{source.table}", source.sink, shown))
        return StatementResult(("data_source", "on table", "with sink", "table has"), tuple(rows))

    def _rows(self) -> dict[str, dict[str, str]]:
        return {service: row for service, row in self._store.read().items() if service in SERVICES}

    def _source(self, table: TableName) -> StoredSource:
        """Return the row of a table's data source, without a sink if there is none."""
        named = (table.keyspace, table.table, "cdc")
        rows = (row for row in self._store.sources() if (row.keyspace, row.table, row.service) == named)
        return next(rows, StoredSource(*named, None, False))

    def _table_cdc(self, table: TableName) -> bool:
        if _SYSTEM.fullmatch(table.keyspace) or table.keyspace == self._keyspace:
            raise table.word.refuse("Cassandra's own tables and those of the control plane are not published")
        has_cdc = self._store.table_cdc(table.keyspace, table.table)
        if has_cdc is None:
            raise table.word.refuse(f"there is no table {table}; names with capital letters need double quotes")
        return has_cdc

    def _set_cdc(self, table: TableName, value: bool) -> None:
        try:
            self._store.set_cdc(table.keyspace, table.table, value)
        except HelenusError as error:
            if error.kind is Kind.CASSANDRA_UNREACHABLE:
                raise
            raise table.word.refuse(f"{error.what}; {error.advice}") from None

    def _overtaken(self, table: TableName) -> StatementError:
        """Return the error of a statement that met another one. It may have altered the table by what it had read
        before: what the other one has created has to publish all the same.
        """
        if self._source(table).sink is not None:
            self._set_cdc(table, True)
        return table.word.refuse(f"somebody else changed the data source of {table} just now: repeat the statement")

    def _plan_rows(self, statement: CreateSource) -> dict[str, dict[str, str]]:
        """Return the rows of `configs` that are missing for agents to publish a table to a sink. Raises StatementError
        if the rows that there are, or the agent's own properties, have agents do something else.
        """
        name, table = statement.sink, statement.table
        address = self._store.sinks().get(name.value)
        if address is None:
            raise name.refuse(f"there is no data sink {name.value}: CREATE DATA_SINK {name.value} WITH 'kafka://…'")
        try:
            sink = parse_sink_address(address)
        except AddressError as error:  # CQL wrote it
            raise name.refuse(f"the address of this sink is wrong: {error}: DROP it, and create it anew") from None
        rows = self._rows()
        new_rows: dict[str, dict[str, str]] = {}
        if "kafka" not in rows:
            self._refuse_pulsar(name, rows)
            new_rows["kafka"] = _kafka_row(sink)
        elif reason := _difference(sink, rows["kafka"]):
            raise name.refuse(reason)
        if "cdc" not in rows:
            new_rows["cdc"] = {"cdc_enabled": "true"}
        try:
            config = effective_config(self._own, {**rows, **new_rows})
        except ConfigError as error:
            raise name.refuse(f"agents can't use it: {describe(error)}") from None
        if config.settings is None:
            raise name.refuse(f"{config.reason}: {_OVER_REST}")
        self._refuse_pulsar(name, {**rows, **new_rows})
        brokers = frozenset(config.settings.bootstrap_servers.lower().replace(" ", "").split(","))
        if brokers != sink.broker_set:
            raise name.refuse(f"this agent's own properties name other brokers: {config.settings.bootstrap_servers}")
        if not _is_included(config.settings, str(table)):
            lists = "table.include.list and table.exclude.list"
            raise table.word.refuse(f"{lists} of service cdc, or of the agent, leave {table} out: {_OVER_REST}")
        return new_rows

    def _refuse_pulsar(self, sink: Word, rows: Rows) -> None:
        try:
            config = effective_config(self._own, rows)
        except ConfigError:
            return  # what is wrong is said with the new rows
        if config.settings is not None and config.settings.log == "pulsar":
            raise sink.refuse("agents publish to Pulsar, and to one message broker alone: this sink is Kafka")


def _parse_address(address: Word) -> SinkAddress:
    try:
        return parse_sink_address(address.value)
    except AddressError as error:
        raise StatementError(str(error), address.start + error.start, address.start + error.end) from None


def _locate(address: Word, error: ConfigError) -> StatementError:
    """Return the error of the first wrong parameter, at its place in the address."""
    problem = error.problems[0]
    names = [problem.key, property_name("kafka", problem.key), setting_name(property_name("kafka", problem.key))]
    for name in names:
        if name and (match := re.search(rf"(?<=[?&]){re.escape(name)}(?==)", address.value)):
            start = address.start + match.start()
            return StatementError(f"{problem.key}: {problem.reason}", start, start + len(match[0]))
    return address.refuse(f"{problem.key}: {problem.reason}" if problem.key else problem.reason)


def _kafka_row(sink: SinkAddress) -> dict[str, str]:
    return {"bootstrap.servers": sink.brokers, **sink.agent_parameters}


def _difference(sink: SinkAddress, row: Mapping[str, str]) -> str:
    """Return why agents with this row of service `kafka` do not publish to a sink, empty if they do."""
    settings = {setting_name(property_name("kafka", key)): text for key, text in row.items()}
    servers = settings.get("bootstrap.servers", "")
    if frozenset(servers.lower().replace(" ", "").split(",")) != sink.broker_set:
        shown = masking.shown(servers, secret=False)
        return f"an agent has one message broker, and service kafka names {shown}: {_OVER_REST}, or use that sink"
    for key, text in sink.agent_parameters.items():
        if settings.get(setting_name(property_name("kafka", key))) != text:
            return f"service kafka, which all agents have, has another {key} than this sink: {_OVER_REST}"
    return ""


def _is_included(settings: AgentSettings, name: str) -> bool:
    if any(re.fullmatch(pattern, name) for pattern in settings.table_exclude_list):
        return False
    includes = settings.table_include_list
    return not includes or any(re.fullmatch(pattern, name) for pattern in includes)


def _shown_address(address: str) -> str:
    """Return an address without secrets: CQL may have written anything."""
    try:
        parse_sink_address(address)
    except AddressError as error:
        return f"(wrong: {error})"
    return address


def _changes(*changes: tuple[str, str]) -> StatementResult:
    return StatementResult(("what", "now"), tuple(changes))
