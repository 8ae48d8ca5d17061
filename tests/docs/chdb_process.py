"""ClickHouse's embedded engine, chDB, in a child process that is replaced after some sessions.

chDB 26.9 leaves five threads and up to nine file descriptors behind whenever a session closes that had a table of
MergeTree open. A recipe opens one session and is not concerned: within a session neither number grows. The examples of
a test open thousands.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

import pyarrow as pa
import pyarrow.ipc as ipc
import pytest
import to_clickhouse
from settings import Settings

Result = TypeVar("Result")

SESSIONS = 50  # about 500 descriptors: where the limit is 1,024, as on many systems, a child stays below it


class ChildProcess:
    """Runs functions in a child process, which the first session starts and every so many sessions replace."""

    def __init__(self) -> None:
        self._executor: ProcessPoolExecutor | None = None
        self._sessions = 0

    def count_session(self) -> None:
        """Count a session that is about to be opened. No other one may be open."""
        if self._sessions % SESSIONS == 0:
            if self._executor is not None:
                self._executor.shutdown()
            # Spawned, not forked: this process has threads of other stores' libraries.
            self._executor = ProcessPoolExecutor(1, get_context("spawn"))
        self._sessions += 1

    def run(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Run a function of a module in the child process. Raises what it raises."""
        assert self._executor is not None
        return self._executor.submit(function, *arguments).result()


_child = ChildProcess()
_engine: to_clickhouse.Embedded  # in the child process


def _open_engine(directory: str) -> None:
    global _engine
    _engine = to_clickhouse.Embedded(directory)


def _run_command(sql: str) -> None:
    _engine.command(sql)


def _read(sql: str) -> pa.Table:
    return _engine.read(sql)


def _insert(table: str, rows: pa.Table) -> None:
    _engine.insert(table, rows)


def _close_engine() -> None:
    _engine.close()


class EmbeddedInChild:
    """The recipe's own `Embedded`, in the child process."""

    def __init__(self, directory: str) -> None:
        _child.count_session()
        _child.run(_open_engine, directory)

    def command(self, sql: str) -> None:
        _child.run(_run_command, sql)

    def read(self, sql: str) -> pa.Table:
        return _child.run(_read, sql)

    def insert(self, table: str, rows: pa.Table) -> None:
        _child.run(_insert, table, rows)

    def close(self) -> None:
        _child.run(_close_engine)


class ClickHouseInChild(to_clickhouse.ClickHouse):
    """The recipe, with its engine in the child process."""

    def __init__(self, settings: Settings) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(to_clickhouse, "Embedded", EmbeddedInChild)
            super().__init__(settings)


def _query(directory: str, sql: str) -> bytes:
    from chdb.session import Session

    with Session(directory) as session:
        return bytes(session.query(sql, "ArrowStream").bytes())


def query(directory: str, sql: str) -> pa.Table:
    """Run a query in a session of its own, without the recipe."""
    _child.count_session()
    return ipc.open_stream(_child.run(_query, directory, sql)).read_all()
