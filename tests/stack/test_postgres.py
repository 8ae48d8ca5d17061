"""PostgreSQL as a server of the stack: it keeps its rows, is never root, and lets in one user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from helenus_stack.stack import Stack

pytestmark = pytest.mark.integration

OFFSET = 10_000 + os.getpid() % 90 * 100


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("stack")
    with Stack(directory, only=["postgres"], postgres=True, port_offset=OFFSET) as stack:
        yield stack


def ask(stack: Stack, statement: str) -> list[tuple[object, ...]]:
    url = stack.status().postgres_url
    assert url
    with psycopg.connect(url) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def test_rows_survive_every_kind_of_end(stack: Stack) -> None:
    ask(stack, "CREATE TABLE t AS SELECT 1 AS one")
    stack.stop("postgres")
    stack.start("postgres")
    stack.kill("postgres")
    stack.start("postgres")
    assert ask(stack, "SELECT one FROM t") == [(1,)]


def test_it_is_not_root(stack: Stack) -> None:
    (pid,) = [server.pid for server in stack.status().servers if server.name == "postgres"]
    assert Path(f"/proc/{pid}").stat().st_uid != 0


@pytest.mark.parametrize(("user", "database"), [("postgres", "postgres"), ("postgres", "helenus"), ("x", "helenus")])
def test_other_logins_are_refused(stack: Stack, user: str, database: str) -> None:
    refused = pytest.raises(psycopg.OperationalError, match=r"no pg_hba\.conf entry")
    with refused, psycopg.connect(f"postgresql://{user}@127.0.0.1:{stack.settings.postgres_port}/{database}"):
        pass


def test_its_user_runs_no_programs(stack: Stack) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        ask(stack, "COPY (SELECT 1) TO PROGRAM 'cat'")
