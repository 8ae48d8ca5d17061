"""A session asks for pages that the cluster's guardrail accepts."""

from __future__ import annotations

from typing import Any

import pytest
from cassandra import InvalidRequest, OperationTimedOut
from cassandra.query import SimpleStatement
from hypothesis import given
from hypothesis import strategies as st

from helenus_schemas.service.cassandra import fit_page_size


class Session:
    """Refuses pages of more rows than it allows, as Cassandra words it."""

    def __init__(self, max_rows: int, failure: Exception | None = None, default: int | None = 5000) -> None:
        self.most, self.failure, self.default_fetch_size = max_rows, failure, default
        self.statements: list[str] = []

    def execute(self, statement: SimpleStatement) -> Any:
        self.statements.append(statement.query_string)
        if self.failure is not None:
            raise self.failure
        assert statement.fetch_size == self.default_fetch_size
        if statement.fetch_size > self.most:
            raise InvalidRequest(
                'Error from server: code=2200 [Invalid query] message="Guardrail page_size violated: Query for table '
                f"system_schema.keyspaces with page size {statement.fetch_size} exceeds the failure threshold of "
                f'{self.most}."'
            )


@given(st.integers(1, 10_000))
def test_pages_are_as_large_as_they_may_be(max_rows: int) -> None:
    session = Session(max_rows)
    fit_page_size(session)
    assert (
        session.default_fetch_size == 5000
        if max_rows >= 5000
        else max_rows / 2 <= session.default_fetch_size <= max_rows
    )
    assert len(session.statements) <= 14


@pytest.mark.parametrize("failure", [InvalidRequest("no such table"), OperationTimedOut("away")])
def test_what_else_is_wrong_is_for_the_next_statement_to_say(failure: Exception) -> None:
    session = Session(10, failure)
    fit_page_size(session)
    assert (session.default_fetch_size, len(session.statements)) == (5000, 1)


def test_a_session_without_pages_stays_so() -> None:
    session = Session(10, default=None)
    fit_page_size(session)
    assert session.statements == []
