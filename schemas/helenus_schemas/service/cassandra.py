"""A driver session from settings; the driver's errors become ours."""

from __future__ import annotations

import contextlib
import logging
import ssl
from typing import Any

from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    DriverException,
    InvalidRequest,
    UnresolvableContactPoints,
)
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.connection import ConnectionShutdown
from cassandra.policies import (
    ConstantSpeculativeExecutionPolicy,
    DCAwareRoundRobinPolicy,
    ExponentialReconnectionPolicy,
    LoadBalancingPolicy,
    TokenAwarePolicy,
)
from cassandra.query import SimpleStatement, named_tuple_factory

from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings import regular_files
from helenus_schemas.settings.shared import CassandraSettings

_ASK_NEXT_S = 1.0  # after which an idempotent statement is sent to the next node too
_HEARTBEAT_S = 5  # two of them pass before a node that hangs counts as down
_PROBE = "SELECT keyspace_name FROM system_schema.keyspaces"
"""A statement that every role may execute, with a short answer. It has no LIMIT: with one Cassandra does not check the
page size."""
_PAGE_REFUSED = "Guardrail page_size"
_CUT_OFF = (ConnectionResetError, ConnectionShutdown)
"""How a connection ends if the node does not understand its first bytes, as with TLS on one side only."""


def known_releases(session: Any) -> list[str]:
    """Return the versions of Cassandra that the nodes have, sorted, as far as the driver knows."""
    hosts = session.cluster.metadata.all_hosts()
    return sorted(str(host.release_version) for host in hosts if host.release_version)


def is_cassandra_3(session: Any) -> bool:
    """Return whether the nodes are of Cassandra 3.x, as far as the driver knows. A cluster that is being upgraded is
    not: what its upgraded nodes decide is what all of them decide in the end.
    """
    releases = known_releases(session)
    return bool(releases) and all(release.startswith("3.") for release in releases)


def connect(
    settings: CassandraSettings,
    policy: LoadBalancingPolicy | None = None,
    protocol_handler: Any = None,
    row_factory: Any = named_tuple_factory,
    metadata: bool = False,
) -> Any:
    """Return a connected session; the caller ends it with `session.cluster.shutdown()`.

    `policy` overrides the token-aware one of the local data centre. `protocol_handler` and `row_factory` decode
    results. `metadata`: the driver keeps the schema. Raises HelenusError: unreachable, or the login or the certificate
    was refused.
    """
    # The driver logs each failed attempt with a trace; the one error below says it all.
    logging.getLogger("cassandra").setLevel(logging.CRITICAL)
    where = f"{','.join(settings.cassandra_contact_points)} port {settings.cassandra_port}"
    if policy is None:
        # Without a name it stays with the data centre of the contact point that answers: one that joins later may have
        # no rows yet.
        policy = TokenAwarePolicy(DCAwareRoundRobinPolicy(settings.cassandra_local_dc or ""))
    profile = ExecutionProfile(
        load_balancing_policy=policy,
        consistency_level=ConsistencyLevel.LOCAL_ONE,
        row_factory=row_factory,
        request_timeout=settings.cassandra_request_timeout_ms / 1000,
        # A node that hangs keeps its connections open: idempotent statements are sent to the next one too.
        speculative_execution_policy=ConstantSpeculativeExecutionPolicy(_ASK_NEXT_S, 2),
    )
    timeout = settings.cassandra_connect_timeout_ms / 1000
    password = settings.cassandra_password
    try:
        cluster = Cluster(
            list(settings.cassandra_contact_points),
            port=settings.cassandra_port,
            auth_provider=PlainTextAuthProvider(settings.cassandra_username, password.get_secret_value())
            if settings.cassandra_username and password
            else None,
            ssl_context=_tls(settings),
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            connect_timeout=timeout,
            control_connection_timeout=timeout,
            schema_metadata_enabled=metadata,
            schema_event_refresh_window=0,
            # The driver's default takes up to a minute to detect a node that hangs, and sends it requests meanwhile.
            idle_heartbeat_interval=_HEARTBEAT_S,
            idle_heartbeat_timeout=_HEARTBEAT_S,
            # The driver's default waits up to ten minutes before it tries a node again.
            reconnection_policy=ExponentialReconnectionPolicy(0.5, 5.0),
        )
    except (UnresolvableContactPoints, UnicodeError):  # the latter for a name that is not legal
        raise HelenusError(Kind.CASSANDRA_UNREACHABLE, "no contact point has an address", where) from None
    try:
        session = cluster.connect()
    except NoHostAvailable as error:
        cluster.shutdown()
        raise _connection_error(settings, error, cluster, where) from None
    leave_other_data_center(cluster, settings.cassandra_local_dc)
    fit_page_size(session)
    if protocol_handler is not None:
        session.client_protocol_handler = protocol_handler
    return session


def _connection_error(settings: CassandraSettings, error: NoHostAvailable, cluster: Any, where: str) -> HelenusError:
    """Return why no node accepted a connection: a wrong data centre, a refused login, TLS, or no answer."""
    data_centers = {host.datacenter for host in cluster.metadata.all_hosts()} - {None}
    if data_centers and settings.cassandra_local_dc not in (None, *data_centers):
        advice = f"set cassandra.local.dc to one of {', '.join(sorted(data_centers))}"
        message = f"no node is in the data centre {settings.cassandra_local_dc}"
        return HelenusError(Kind.CONFIG, message, where, advice)
    causes = list(error.errors.values()) if isinstance(error.errors, dict) else []
    refused = next((c for c in causes if isinstance(c, AuthenticationFailed)), None)
    if refused is not None:
        return HelenusError(Kind.CASSANDRA_AUTH, f"Cassandra refused the login: {_reason(refused)}", where)
    # The driver wraps OpenSSL's errors in plain OSErrors, with their text.
    untrusted = next((c for c in causes if "[SSL" in str(c)), None)
    if untrusted is not None:
        return HelenusError(Kind.CASSANDRA_AUTH, f"no TLS connection to Cassandra: {_reason(untrusted)}", where)
    reason = f": {_reason(causes[0])}" if causes else ""
    if any(isinstance(c, _CUT_OFF) or "EOF occurred" in str(c) for c in causes):
        if not settings.cassandra_ssl_enabled:
            reason += "; a node that requires TLS does so: cassandra.ssl.enabled=true"
        elif not settings.cassandra_ssl_certfile:
            reason += "; a node that requires client certificates does so: cassandra.ssl.certfile"
    return HelenusError(Kind.CASSANDRA_UNREACHABLE, f"cannot connect to Cassandra{reason}", where)


def leave_other_data_center(cluster: Any, local_dc: str | None) -> None:
    """Have the driver's control connection end at a node of the local data centre. The driver opens it to any contact
    point, as it does not know yet where that is, and keeps it.
    """
    host = cluster.get_control_connection_host()
    if local_dc and host is not None and host.datacenter not in (None, local_dc):
        with contextlib.suppress(NoHostAvailable):  # then the driver itself goes on trying when this one ends
            cluster.control_connection.connect()


def fit_page_size(session: Any) -> None:
    """Halve the rows of a page that this session asks for by default until the cluster accepts them: its guardrail
    `page_size_fail_threshold` may be below the driver's 5,000. Costs one small statement where it is not.
    """
    while session.default_fetch_size and session.default_fetch_size > 1:
        try:
            session.execute(SimpleStatement(_PROBE, fetch_size=session.default_fetch_size))
            return
        except InvalidRequest as error:
            if not is_page_refused(error):
                return
            session.default_fetch_size //= 2
        except (DriverException, NoHostAvailable):
            return  # the next statement meets it too, and says what it is for


def is_page_refused(error: Exception) -> bool:
    """Return whether Cassandra refused a statement because a guardrail wants smaller pages."""
    return isinstance(error, InvalidRequest) and _PAGE_REFUSED in str(error)


def _reason(error: Exception) -> str:
    """Return the server's own words, without the driver's wrapping."""
    text = str(error)
    for wrapping in ('message="', "Last error: "):
        _, mark, after = text.rpartition(wrapping)
        if mark:
            return after.rstrip('"')
    return text


def _tls(settings: CassandraSettings) -> ssl.SSLContext | None:
    if not settings.cassandra_ssl_enabled:
        return None
    files = (settings.cassandra_ssl_cafile, settings.cassandra_ssl_certfile, settings.cassandra_ssl_keyfile)
    try:
        regular_files.check(*files)
        context = ssl.create_default_context(cafile=settings.cassandra_ssl_cafile)
        context.check_hostname = settings.cassandra_ssl_check_hostname
        if settings.cassandra_ssl_certfile:
            context.load_cert_chain(settings.cassandra_ssl_certfile, settings.cassandra_ssl_keyfile)
    except (OSError, ssl.SSLError) as error:
        where = ", ".join(str(file) for file in files if file)
        raise HelenusError(Kind.CONFIG, f"cannot use the certificates of cassandra.ssl.*: {error}", where) from None
    return context
