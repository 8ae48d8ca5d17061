"""Tables of Cassandra 6.0 whose writes are transactions of Accord: their changes are in no commit log.

A table with a `transactional_mode`, or on its way from one, accepts `cdc = true` without a word, but Accord applies its
writes past the commit log, ordinary INSERTs included (TxnWrite applies them as not durable; the journal is Accord's).
No program that reads the log can have them. So such a table is refused by name, or followed with a gap, as configured.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from helenus_agent import metrics
from helenus_agent.config import TransactionalPolicy
from helenus_agent.positions import Positions
from helenus_agent.segments import gaps
from helenus_schemas.cql.table import Table

_ADVICE = "ALTER TABLE ... WITH transactional_mode = 'off', or leave it out with table.exclude.list"
_log = structlog.get_logger(__name__)


class TransactionalTables:
    """`summary` says for health checks which tables are refused, None if none is."""

    def __init__(self, positions: Positions, policy: TransactionalPolicy) -> None:
        self.summary: str | None = None
        self._positions = positions
        self._policy = policy
        self._logged: set[str] = set()  # in this process: each start says it again

    def learn(
        self, tables: Mapping[uuid.UUID, Table], modes: Mapping[uuid.UUID, str], is_included: Callable[[str], bool]
    ) -> dict[uuid.UUID, Table]:
        """Take over the schema's tables, and the modes of those whose writes are transactions. Return the tables as
        they are to be followed: refused ones as if they were without CDC, so what they logged before is published.
        """
        present_before = set(self._positions.transactional)
        present = {str(table): tables[table] for table in modes if is_included(tables[table].full_name)}
        for text in sorted(present.keys() - self._logged):
            table = present[text]
            _log.error(
                "table.transactional", table=table.full_name, mode=modes[table.id], policy=self._policy, advice=_ADVICE
            )
        self._logged = set(present)
        if self._policy == "gap":
            for text in present.keys() - present_before:
                gaps.report_transactional(self._positions, present[text].id)
        for text in present_before - present.keys():
            if self._policy == "gap" and (table_id := uuid.UUID(text)) in tables:
                gaps.report_resumed(self._positions, table_id, tables[table_id].full_name)
        self._positions.transactional = sorted(present)
        metrics.TRANSACTIONAL.set(len(present))
        self.summary = None
        if self._policy == "gap":
            return dict(tables)
        if present:
            names = ", ".join(sorted(table.full_name for table in present.values()))
            self.summary = f"the writes of transactional tables are in no commit log ({names}): {_ADVICE}"
        return {key: replace(table, cdc=table.cdc and str(key) not in present) for key, table in tables.items()}
