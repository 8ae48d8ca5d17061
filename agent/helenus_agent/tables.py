"""Which tables there are, which of them are followed, and the decoder's plan for each."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from helenus_agent.decoder import Plan, Unknown, plan_of
from helenus_schemas.key import KeyCodec
from helenus_schemas.table import Table


@dataclass
class Report:
    """What an update of the schema brought: tables that are followed now, that can't be, and that lost CDC."""

    added: list[Table] = field(default_factory=list)
    refused: list[tuple[Table, str]] = field(default_factory=list)
    retired: list[Table] = field(default_factory=list)


class Tables:
    """Every table ever seen, by id: one that is dropped or loses CDC may still have changes in the log.

    Followed are those with CDC whose `keyspace.table` matches one of `include` (empty: all) and none of `exclude`.
    `before` are the ids of tables that an earlier run followed. `plans` is what the decoder takes, `followed` the
    tables that the decoder names by index.
    """

    def __init__(
        self, include: Collection[str] = (), exclude: Collection[str] = (), before: Iterable[uuid.UUID] = ()
    ) -> None:
        self.plans: dict[bytes, Plan] = {}
        self.followed: list[Table] = []
        self._include = [re.compile(pattern) for pattern in include]
        self._exclude = [re.compile(pattern) for pattern in exclude]
        self._known: dict[uuid.UUID, Table] = {}
        self._indexes: dict[uuid.UUID, int] = {}
        self._before = set(before)
        self._retiring: dict[uuid.UUID, int] = {}

    @property
    def followed_ids(self) -> list[uuid.UUID]:
        """The ids of the tables whose changes are told."""
        return [table.id for table in self.followed if self.plans[table.id.bytes].index >= 0]

    def update(self, known: Mapping[uuid.UUID, Table], views: Iterable[uuid.UUID], newest: int) -> Report:
        """Take over the schema as it is now; `views` are ids of materialised views, which have no changes of their own.

        A table that lost CDC is followed up to the `newest` segment there is: what it logged before still gets out.
        """
        report = Report()
        for view in views:
            self.plans[view.bytes] = Plan()
        for table in known.values():
            old = self._known.get(table.id)
            if old != table:
                self._known[table.id] = table
                self.plans[table.id.bytes] = self._plan(table, old, newest, report)
        return report

    def knows(self, unknown: Unknown) -> bool:
        """True if the schema has it now."""
        plan = self.plans.get(unknown.table)
        return plan is not None and (unknown.column is None or unknown.column in plan.columns)

    def give_up(self, unknown: Unknown) -> None:
        """The schema does not know it either: never ask again."""
        if unknown.column is None:
            self.plans[unknown.table] = Plan(known=False)
        else:
            self.plans[unknown.table].give_up(unknown.column)

    def reach(self, segment: int) -> None:
        """From this segment on, tables that lost CDC before it was there are not followed any more."""
        for table, last in list(self._retiring.items()):
            if segment > last:
                del self._retiring[table]
                self.plans[table.bytes] = plan_of(self._known[table])

    def _plan(self, table: Table, old: Table | None, newest: int, report: Report) -> Plan:
        if table.keyspace == "system_schema":
            return plan_of(table, schema=True)
        plan = self.plans.get(table.id.bytes)
        was_followed = table.id in self._before or (plan is not None and plan.index >= 0)
        if not table.cdc and was_followed:
            if table.id not in self._retiring:
                self._before.discard(table.id)
                self._retiring[table.id] = newest
                report.retired.append(table)
        elif not table.cdc:
            return plan_of(table)
        else:
            self._retiring.pop(table.id, None)
        if not self._included(table.full_name):
            return plan_of(table, reason="excluded")
        try:
            KeyCodec(table)
        except ValueError as error:
            if old is None or not old.cdc:
                report.refused.append((table, str(error)))
            return plan_of(table, reason="unsupported_key")
        if table.id in self._indexes:
            index = self._indexes[table.id]
            self.followed[index] = table
        else:
            index = self._indexes[table.id] = len(self.followed)
            self.followed.append(table)
            report.added.append(table)
        return plan_of(table, index)

    def _included(self, name: str) -> bool:
        if any(pattern.fullmatch(name) for pattern in self._exclude):
            return False
        return not self._include or any(pattern.fullmatch(name) for pattern in self._include)
