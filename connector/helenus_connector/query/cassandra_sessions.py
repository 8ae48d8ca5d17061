"""The Cassandra sessions that a Python worker of Spark keeps between its tasks."""

from __future__ import annotations

import ctypes
import signal
import sys
from typing import Any

from pyspark import TaskContext

from helenus_connector.cassandra_rows.raw_rows import RawProtocolHandler, row_factory
from helenus_connector.config.connector import ConnectorSettings
from helenus_schemas.service.cassandra import connect

_sessions: dict[tuple[object, ...], Any] = {}


def session_for(settings: ConnectorSettings) -> Any:
    """Return this process's session, whose rows of user tables are CQL bytes. Raises as `connect`."""
    session = _sessions.get(settings.server)
    if session is None:
        session = connect(settings, protocol_handler=RawProtocolHandler, row_factory=row_factory, metadata=True)
        _sessions[settings.server] = session
    return session


def take_session(settings: ConnectorSettings) -> Any:
    """Remove and return this process's session, or None: the next `session_for` connects again. The caller shuts it
    down.
    """
    return _sessions.pop(settings.server, None)


def end_with_parent() -> None:
    """Let this process die with its parent, Spark's: later writes of it might be outdated."""
    pr_set_pdeathsig = 1
    if sys.platform == "linux" and TaskContext.get() is not None:
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
