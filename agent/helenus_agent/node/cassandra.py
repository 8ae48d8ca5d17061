"""The node's CQL: its settings and its schema."""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from cassandra import DriverException, Unauthorized
from cassandra.cluster import NoHostAvailable
from cassandra.policies import WhiteListRoundRobinPolicy

from helenus_agent.node.tables import Stamp
from helenus_agent.node.truncations import Truncation, read_truncations
from helenus_schemas.cql.table import Table, read_tables, read_udts
from helenus_schemas.cql.types import CqlType, quote
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.cassandra import connect, fit_page_size, is_page_refused
from helenus_schemas.settings.shared import CassandraSettings

_log = structlog.get_logger(__name__)
_POLL_S, _RARE_POLL_S = 1.0, 5.0  # s between two questions whether the schema has changed
_TRIES = 5
_NODE = (
    "SELECT host_id, cluster_name, release_version, data_center, listen_address, broadcast_address, rpc_address "
    "FROM system.local WHERE key = 'local'"
)
_ADDRESSES = ("listen_address", "broadcast_address", "rpc_address")
_RECONNECT_S = 15.0  # s without any node that the driver takes for up, after which the session is recreated
# The generation is another one with every start of the node; the host id is, once it is upgraded to Cassandra 6.0.
_VERSION = "SELECT schema_version, truncated_at, gossip_generation, host_id FROM system.local WHERE key = 'local'"
_SETTINGS = ("cdc", "commitlog_directory", "commitlog_sync", "commitlog_disk_access_mode", "accord.enabled")
# A table that moves away from transactions is one that has them until it has moved.
_MODE = re.compile(r"\b(?:transactional_mode|transactional_migration_from) = '(?!off'|none')(\w+)'")
_SIZE = re.compile(r"(\d{1,15})(B|KiB|MiB|GiB)", re.ASCII)
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_ALTERED = "SELECT id, writetime(cdc) AS time FROM system_schema.tables"


@dataclass(frozen=True)
class Node:
    """The node whose log is read. `settings` are those of its cassandra.yaml that concern CDC, as it runs with them.

    `addresses`: its listen_address, broadcast_address and rpc_address, as far as it says.
    """

    host_id: uuid.UUID
    release: str
    settings: Mapping[str, str]
    data_center: str = ""
    addresses: Mapping[str, str] = field(default_factory=dict)
    cluster: str = ""

    @property
    def has_cdc(self) -> bool | None:
        """Return whether it links its log into cdc_raw, None if it does not say."""
        value = self.settings.get("cdc_enabled")
        return None if value is None else value == "true"

    @property
    def blocks_writes(self) -> bool:
        """True if it refuses writes when cdc_raw is full, and deletes nothing that is not read."""
        return self.settings.get("cdc_block_writes", "true") == "true"

    @property
    def shows_entries(self) -> bool:
        """Return whether an entry is in its log's file as soon as it is written, and acknowledged before it is on disk.

        So it is by default: the file is mapped, and synced from time to time. With `batch` and `group` the client waits
        for the sync and its marker; with `direct` there is nothing in the file before. False if it does not say.
        Compressed segments say so themselves.
        """
        is_mapped = self.settings.get("commitlog_disk_access_mode", "mmap") in ("mmap", "legacy", "auto")
        return is_mapped and self.settings.get("commitlog_sync") == "periodic"

    @property
    def raw_limit(self) -> int | None:
        """Return bytes that cdc_raw may take, None if the node does not say."""
        old = self.settings.get("cdc_total_space_in_mb")
        text = f"{old}MiB" if old else self.settings.get("cdc_total_space", "")
        match = _SIZE.fullmatch(text)
        return int(match[1]) * _UNITS[match[2]] if match else None


@dataclass(frozen=True)
class Schema:
    """All tables by id, the ids of materialised views, keyspaces whose writes are not logged, for each table that was
    truncated its last TRUNCATE, and when each table was last altered before it was read. Those that were altered while
    they were read are in `altered_meanwhile`, with the time after that, µs since the epoch. `transactional` are tables
    with CDC whose writes are transactions, with their mode."""

    tables: Mapping[uuid.UUID, Table]
    views: tuple[uuid.UUID, ...]
    not_durable: tuple[str, ...]
    truncations: Mapping[uuid.UUID, Truncation]
    stamps: Mapping[uuid.UUID, Stamp]
    altered_meanwhile: Mapping[uuid.UUID, int] = field(default_factory=dict)
    transactional: Mapping[uuid.UUID, str] = field(default_factory=dict)


class Cassandra:
    """The node whose cdc_raw is read; it alone is asked. Raises HelenusError."""

    def __init__(self, settings: CassandraSettings) -> None:
        self._settings = settings
        self._where = f"{settings.cassandra_contact_points[0]}:{settings.cassandra_port}"
        self._session = self._connect()
        self._down_since: float | None = None
        self._is_refused = False
        self._has_transactions = False
        self._modes: dict[uuid.UUID, tuple[int | None, str]] = {}
        self._version: Any = None
        self._altered: list[Any] = []
        self._question: Any = None
        self._asked_at = 0.0

    def node(self) -> Node:
        """Return its identity and CDC settings: none before 4.0, which has no such table, or if they may not be
        read.
        """
        local = self._rows(_NODE)[0]
        try:
            rows = self._rows("SELECT name, value FROM system_views.settings")
            settings = {r.name: r.value for r in rows if r.name.startswith(_SETTINGS) and r.value is not None}
        except HelenusError as error:
            is_refused = error.kind is Kind.CASSANDRA_AUTH
            if not is_refused and _has_virtual_tables(local.release_version):
                raise  # no answer must not be taken for the defaults
            settings = {"accord.enabled": "true"}  # maybe
            if is_refused and not self._is_refused:
                self._is_refused = True
                _log.warning("node.settings_refused", advice="GRANT SELECT ON system_views.settings TO its role")
        self._has_transactions = settings.pop("accord.enabled", "false") == "true" and _has_accord(
            local.release_version
        )
        addresses = {name: str(value) for name in _ADDRESSES if (value := getattr(local, name))}
        return Node(
            local.host_id, local.release_version, settings, local.data_center, addresses, local.cluster_name or ""
        )

    def schema(self) -> Schema:
        """Return the schema as it is now."""
        self._question = None
        torn: ValueError | None = None
        altered: list[Any] = []
        altered_since: list[Any] = []
        for _ in range(_TRIES):
            self._version = self._rows(_VERSION)[0]
            altered = self._altered = self._rows(_ALTERED)
            try:
                tables, torn = self._read_tables(), None
            except ValueError as error:
                torn = error  # a type and a table of it may have been created between the queries
                continue
            views = self._rows("SELECT id FROM system_schema.views")
            options = [self._rows(f"SELECT * FROM system_schema.{name}") for name in ("tables", "indexes", "triggers")]
            keyspaces = self._rows("SELECT keyspace_name, durable_writes FROM system_schema.keyspaces")
            # A change between the queries above is seen by these two.
            version, altered_since = self._rows(_VERSION)[0], self._rows(_ALTERED)
            if version == self._version and altered_since == altered:
                break
        if torn is not None:
            raise HelenusError(Kind.TABLE_UNSUPPORTED, f"the schema is not understood: {torn}", self._where)
        transactional = self._read_modes(tables, altered)
        return Schema(
            tables,
            tuple(r.id for r in views),
            tuple(r.keyspace_name for r in keyspaces if not r.durable_writes),
            read_truncations(self._version.truncated_at),
            _stamps(altered, options, transactional),
            _altered_since(altered, altered_since),
            transactional,
        )

    def changed(self, rarely: bool = False) -> bool:
        """True if something is not as it was at the last `schema()`. Asks once a second, or `rarely` every five, and
        never waits.
        """
        now = time.monotonic()
        if self._question is not None and self._question.is_done:
            answer = self._question.answer
            self._question = None
            return answer is not None and answer != self._version
        if self._question is None and now - self._asked_at >= (_RARE_POLL_S if rarely else _POLL_S):
            self._asked_at = now
            self._question = _Question(self._session)
        return False

    def is_as_learned(self) -> bool:
        """Return whether the schema is what the last `schema()` gave, which this asks now. Raises as it does."""
        # A table's own row is there before the node has the new version.
        return bool(self._rows(_VERSION)[0] == self._version) and self._rows(_ALTERED) == self._altered

    def udts(self, keyspace: str) -> Mapping[str, CqlType]:
        """Return a keyspace's UDTs by name, as they are now."""
        try:
            return read_udts(self._session, keyspace)
        except (DriverException, NoHostAvailable) as error:
            raise self._unavailable_error(error) from None

    def close(self) -> None:
        """Disconnect."""
        self._session.cluster.shutdown()

    def _connect(self) -> Any:
        try:
            # It resolves their addresses.
            policy = WhiteListRoundRobinPolicy(list(self._settings.cassandra_contact_points))
        except (OSError, UnicodeError) as error:
            message = f"no contact point has an address: {error}"
            raise HelenusError(Kind.CASSANDRA_UNREACHABLE, message, self._where) from None
        return connect(self._settings, policy)

    def _read_tables(self) -> Mapping[uuid.UUID, Table]:
        try:
            tables = read_tables(self._session)
        except (DriverException, NoHostAvailable) as error:
            if is_page_refused(error):
                fit_page_size(self._session)
            raise self._unavailable_error(error) from None
        # One that was created between the queries may be without its columns: leave it out.
        return {table.id: table for table in tables.values() if table.partition_key}

    def _read_modes(self, tables: Mapping[uuid.UUID, Table], altered: list[Any]) -> dict[uuid.UUID, str]:
        """Return the modes of transactional tables with CDC. Only DESCRIBE shows them; each table that was altered is
        described again, once.
        """
        times = {row.id: row.time for row in altered}
        wanted = [table for table in tables.values() if table.cdc] if self._has_transactions else []
        modes = {}
        for table in wanted:
            cached = self._modes.get(table.id)
            if cached is None or cached[0] is None or cached[0] != times.get(table.id):
                name = f"{quote(table.keyspace)}.{quote(table.name)}"
                described = self._rows(f"DESCRIBE TABLE {name}")
                match = _MODE.search(described[0].create_statement) if described else None
                cached = times.get(table.id), match[1] if match else ""
            modes[table.id] = cached
        self._modes = modes
        return {table: mode for table, (_, mode) in modes.items() if mode}

    def _rows(self, query: str) -> list[Any]:
        try:
            rows = list(self._session.execute(query))
            self._down_since = None
            return rows
        except (DriverException, NoHostAvailable) as error:
            if is_page_refused(error):  # the guardrail was set while the agent runs
                fit_page_size(self._session)
            raise self._unavailable_error(error) from None

    def _unavailable_error(self, error: Exception) -> HelenusError:
        if isinstance(error, Unauthorized):
            advice = "grant the role of cassandra.username what docs/security.md lists"
            return HelenusError(Kind.CASSANDRA_AUTH, f"Cassandra refuses: {error}", self._where, advice)
        if is_page_refused(error):
            message = f"Cassandra wants smaller pages: {error}"
            return HelenusError(Kind.CASSANDRA_UNREACHABLE, message, self._where, "it is asked for smaller ones next")
        if isinstance(error, NoHostAvailable) and not error.errors:
            self._reconnect()
        return HelenusError(Kind.CASSANDRA_UNREACHABLE, f"Cassandra does not answer: {error}", self._where)

    def _reconnect(self) -> None:
        """Connect anew: the driver may miss that a node came up again, and then asks it no more."""
        now = time.monotonic()
        if self._down_since is None or now - self._down_since < _RECONNECT_S:
            self._down_since = self._down_since or now
            return
        self._down_since = now
        with contextlib.suppress(HelenusError):
            session = self._connect()
            self._session.cluster.shutdown()
            self._session, self._question = session, None


def _has_virtual_tables(release: str) -> bool:
    major, _, _ = release.partition(".")
    return major.isdigit() and int(major) >= 4


def _has_accord(release: str) -> bool:
    major, _, _ = release.partition(".")
    return major.isdigit() and int(major) >= 6


def _stamps(
    altered: list[Any], options: list[list[Any]], transactional: Mapping[uuid.UUID, str]
) -> dict[uuid.UUID, Stamp]:
    """Return when each table was altered, with a digest of its `options`: the rows that an ALTER TABLE or CREATE INDEX
    changes, those of tables first, and the mode of a transactional one, which is in none of them.
    """
    digests: dict[tuple[str, str], Any] = {}
    for row in (row for rows in options for row in rows):
        digest = digests.setdefault((row.keyspace_name, row.table_name), hashlib.md5(usedforsecurity=False))
        digest.update(repr(row).encode())
    names = {row.id: (row.keyspace_name, row.table_name) for row in options[0]}
    return {
        row.id: Stamp(row.time, digests[names[row.id]].hexdigest() + transactional.get(row.id, ""))
        for row in altered
        if row.time is not None and row.id in names
    }


def _altered_since(altered: list[Any], altered_since: list[Any]) -> dict[uuid.UUID, int]:
    """Return which tables were altered between two looks, and when at the second."""
    times = {row.id: row.time for row in altered}
    return {row.id: row.time for row in altered_since if row.time is not None and row.time != times.get(row.id)}


class _Question:
    """A query in the background: has something changed?"""

    def __init__(self, session: Any) -> None:
        self.answer: Any = None
        self.is_done = False
        future = session.execute_async(_VERSION)
        future.add_callbacks(self._answered, self._failed)

    def _answered(self, rows: Any) -> None:
        self.answer = rows[0]
        self.is_done = True

    def _failed(self, _: Exception) -> None:
        self.is_done = True
