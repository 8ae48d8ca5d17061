"""Which tables there are, which of them are followed, and the decoder's plan for each."""

from __future__ import annotations

import difflib
import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from helenus_agent.commitlog.decoder import TablePlan, UnknownSchema, plan_table
from helenus_agent.node.logged_columns import widen_table
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table

_REFUSED = "refused_topic"
_SCHEMA = "system_schema"


class Stamp(NamedTuple):
    """When a table was last altered, µs since the epoch, and a digest of its options, `cdc` among them."""

    time: int
    options: str


@dataclass
class SchemaUpdate:
    """What an update of the schema brought: tables that are followed now, that can't be, that lost CDC, that have it
    again, that were dropped, and that have a column again that had been dropped, with its name."""

    added: list[Table] = field(default_factory=list)
    refused: list[tuple[Table, str]] = field(default_factory=list)
    retired: list[Table] = field(default_factory=list)
    resumed: list[Table] = field(default_factory=list)
    dropped: list[Table] = field(default_factory=list)
    added_again: list[tuple[Table, str]] = field(default_factory=list)


class KnownTables:
    """Every table ever seen, by id: one that is dropped or loses CDC may still have changes in the log.

    Followed are those with CDC whose `keyspace.table` matches one of `include` (empty: all) and none of `exclude`. The
    events of those that match one of `cells` carry their cells.
    An earlier run followed those whose ids are `before`, and those that are `paused` until they lost CDC or were
    excluded; `history` is what it remembered, with their `stamps`. `refused` are those that have been left out since
    the broker refused their topics, `unemitted_drops` dropped ones whose drop is not published yet. `plans` is what the
    decoder takes, `followed` the tables that the decoder names by index.
    """

    def __init__(
        self,
        include: Collection[str] = (),
        exclude: Collection[str] = (),
        before: Iterable[uuid.UUID] = (),
        paused: Iterable[uuid.UUID] = (),
        history: Iterable[Table] = (),
        stamps: Mapping[uuid.UUID, Stamp] | None = None,
        refused: Iterable[uuid.UUID] = (),
        cells: Collection[str] = (),
    ) -> None:
        self.plans: dict[bytes, TablePlan] = {}
        self.followed: list[Table] = []
        self.paused = set(paused)
        self.refused = set(refused)
        self.unemitted_drops: Collection[uuid.UUID] = ()
        self._include = [re.compile(pattern) for pattern in include]
        self._exclude = [re.compile(pattern) for pattern in exclude]
        self._cells = [re.compile(pattern) for pattern in cells]
        self._followed_before = set(before)
        self._history = {table.id: table for table in history}
        self._stamps = dict(stamps or {})
        self._tables: dict[uuid.UUID, Table] = {}
        self._indexes: dict[uuid.UUID, int] = {}
        self._dropped: set[uuid.UUID] = set()
        self._retiring: dict[uuid.UUID, int] = {}
        self._retired: dict[uuid.UUID, tuple[int, TablePlan, TablePlan]] = {}

    @property
    def followed_now(self) -> list[Table]:
        """Return the tables whose changes are published."""
        return [table for table in self.followed if self.plans[table.id.bytes].index >= 0]

    @property
    def followed_ids(self) -> list[uuid.UUID]:
        """Return the ids of the tables whose changes are published."""
        return [table.id for table in self.followed_now]

    @property
    def refused_now(self) -> list[Table]:
        """Return the tables that would be followed if the broker did not refuse their topics."""
        refused = [
            table for table in self._tables.values() if table.id in self.refused and table.id not in self._dropped
        ]
        return [table for table in refused if table.cdc and self.plans[table.id.bytes].reason == _REFUSED]

    @property
    def remembered(self) -> list[Table]:
        """Return the tables that the log may name: those of the followed ones' keyspaces, which share mutations with
        them; and the schema's own, by whose rows it says which columns others got.
        """
        keyspaces = {table.keyspace for table in self.followed_now}
        return [
            table
            for table in self._tables.values()
            if (table.keyspace in keyspaces and (table.id not in self._dropped or table.id in self._retiring))
            or table.id in self.unemitted_drops
            or table.keyspace == _SCHEMA
        ]

    def stamps_of(self, tables: Iterable[Table]) -> dict[uuid.UUID, Stamp]:
        """Return when tables were last altered, as far as that is known."""
        return {table.id: self._stamps[table.id] for table in tables if table.id in self._stamps}

    @property
    def other_ids(self) -> tuple[uuid.UUID, ...]:
        """Return the ids of all other tables and views there are."""
        remembered = {table.id.bytes for table in self.remembered}
        return tuple(uuid.UUID(bytes=table) for table in sorted(self.plans.keys() - remembered))

    def unmatched_patterns(self) -> Iterator[tuple[str, str, str]]:
        """Yield each pattern that matches no table there is, with its key, and the most similar table's name or ""."""
        names = [table.full_name for table in self._tables.values() if table.id not in self._dropped]
        spellings = {name.lower(): name for name in names}  # CQL ignores case without quotes; patterns do not
        lists = {"include": self._include, "exclude": self._exclude}
        keys = {f"table.{kind}.list": patterns for kind, patterns in lists.items()}
        for key, patterns in {**keys, "cells.include.list": self._cells}.items():
            for pattern in patterns:
                if not any(pattern.fullmatch(name) for name in names):
                    near = difflib.get_close_matches(pattern.pattern.replace("\\", "").lower(), spellings, 1)
                    yield key, pattern.pattern, spellings[near[0]] if near else ""

    def index(self, table: uuid.UUID) -> int:
        """Return the index of a table in `followed`. One that only an earlier run followed is added."""
        if table not in self._indexes:
            self._indexes[table] = len(self.followed)
            self.followed.append(self._tables[table])
        return self._indexes[table]

    def update(
        self,
        existing: Mapping[uuid.UUID, Table],
        views: Iterable[uuid.UUID],
        newest: int,
        stamps: Mapping[uuid.UUID, Stamp] | None = None,
        altered_meanwhile: Mapping[uuid.UUID, int] | None = None,
    ) -> SchemaUpdate:
        """Take over the schema as it is now; `views` are ids of materialised views, which have no changes of their own.

        A table that lost CDC or was dropped is followed up to the `newest` segment there is: what it logged before
        is still published. But if its name was given to a table with another key, nothing more is: their events share a
        topic, and one with the old key would not fit.

        A table whose alter time moved while its definition did not had other options in between: it may have been
        without CDC, so it counts as one that was. One that is in `altered_meanwhile` was altered once more while it was
        read, so its definition may be of before that or after.
        """
        report = SchemaUpdate()
        stamps = self._settle_stamps(existing, stamps or {}, altered_meanwhile or {})
        flipped = [table for table, stamp in stamps.items() if self._has_flipped(existing.get(table), stamp)]
        for view in views:
            self.plans[view.bytes] = TablePlan(view=True)
        for table in existing.values():
            old = self._tables.get(table.id)
            report.added_again += _added_again(old or self._history.get(table.id), table)
            if old != table or table.id in self._dropped:
                self._tables[table.id] = table
                self._dropped.discard(table.id)  # it was taken for dropped when the schema was read while it changed
                self.plans[table.id.bytes] = self._make_plan(table, old, newest, report)
        for table in self._history.values():
            if table.id not in self._tables:
                self._tables[table.id] = table
                self.plans[table.id.bytes] = self._make_plan(table, None, newest, SchemaUpdate())
        self._history.clear()
        self._followed_before.clear()
        self._mark_dropped(existing, newest, report)
        report.resumed += [existing[table] for table in flipped if self.plans[table.bytes].index >= 0]
        report.added_again = [column for column in report.added_again if self.plans[column[0].id.bytes].index >= 0]
        self._stamps.update(stamps)
        return report

    def knows(self, unknown: UnknownSchema) -> bool:
        """True if the schema has it now."""
        plan = self.plans.get(unknown.table)
        return plan is not None and (unknown.column is None or unknown.column in plan.columns)

    def name(self, unknown: UnknownSchema) -> str | None:
        """Return the name of its table, if that is known."""
        table = self._tables.get(uuid.UUID(bytes=unknown.table))
        return table.full_name if table else None

    def refuse(self, table: uuid.UUID) -> None:
        """Leave out a followed table whose topic the broker refuses, until it is admitted."""
        self.refused.add(table)
        self.plans[table.bytes] = plan_table(self._tables[table], reason=_REFUSED)

    def admit(self, table: uuid.UUID) -> None:
        """Follow a table again: the broker accepts its records."""
        self.refused.discard(table)
        self.plans[table.bytes] = self._followed_plan(self._tables[table], self._indexes[table])

    def give_up(self, unknown: UnknownSchema) -> None:
        """Stop asking for something that the schema does not have either."""
        if unknown.column is None:
            self.plans[unknown.table] = TablePlan(is_known=False)
        else:
            self.plans[unknown.table].give_up(unknown.column)

    @property
    def schema_tables(self) -> dict[str, Table]:
        """Return the tables of the keyspace `system_schema`, by name."""
        return {table.full_name: table for table in self._tables.values() if table.keyspace == _SCHEMA}

    @property
    def dropped_ids(self) -> set[uuid.UUID]:
        """Return the ids of dropped tables that the log may still name."""
        return self._dropped & self._retiring.keys()

    def widen(self, table_id: uuid.UUID, columns: Iterable[Column]) -> list[str]:
        """Give a table of `dropped_ids` the columns that it had got before, as the log says. Return the names of those
        that are new, or have another type from here on.
        """
        table, plan = self._tables[table_id], self.plans[table_id.bytes]
        wider, added = widen_table(table, columns)
        if not added:
            return []
        self._tables[table_id] = wider
        if table_id in self._indexes:
            self.followed[self._indexes[table_id]] = wider
        self.plans[table_id.bytes] = (
            self._followed_plan(wider, plan.index) if plan.index >= 0 else plan_table(wider, reason=plan.reason)
        )
        return added

    def without_successors(self, dropped: Collection[uuid.UUID]) -> list[Table]:
        """Return those of these tables whose names no followed table has."""
        successors = set(self.successors(dropped).values())
        return [self._tables[table] for table in dropped if table not in successors]

    def successors(self, dropped: Collection[uuid.UUID]) -> dict[int, uuid.UUID]:
        """Return which of these tables had the name of the table that is now at a place in `followed`."""
        names = {self._tables[table].full_name: table for table in dropped}
        return {
            self._indexes[table.id]: names[table.full_name]
            for table in self.followed_now
            if table.full_name in names and table.id not in self._dropped
        }

    def retire_before(self, segment: int) -> list[uuid.UUID]:
        """Stop following tables that lost CDC or were dropped before this segment was there.

        Return the tables that are not followed from here on.
        """
        retired = []
        for table, last in list(self._retiring.items()):
            if segment > last:
                del self._retiring[table]
                plan = self.plans[table.bytes]
                if plan.index >= 0 or plan.reason == _REFUSED:
                    reason = "dropped_table" if table in self._dropped else ""
                    self.plans[table.bytes] = plan_table(self._tables[table], reason=reason)
                self._retired[table] = last, plan, self.plans[table.bytes]
                retired.append(table)
        return retired

    def forget_retired(self) -> None:
        """Forget the tables that retired in what was read so far: it is never read again."""
        self._retired.clear()

    def rewind(self) -> None:
        """Go back to the last acknowledgement: tables that retired since are followed again."""
        for table, (last, plan, retired) in self._retired.items():
            if self.plans[table.bytes] is retired:  # else the schema has said something newer of it
                self._retiring[table] = last
                self.plans[table.bytes] = plan
        self._retired.clear()

    def _make_plan(self, table: Table, old: Table | None, newest: int, report: SchemaUpdate) -> TablePlan:
        if table.keyspace == _SCHEMA or table.full_name == "system.local":
            # What truncates a table is noted in system.local.
            return plan_table(table, schema=True)
        plan = self.plans.get(table.id.bytes)
        was_followed = table.id in self._followed_before or (plan is not None and plan.index >= 0)
        if table.cdc:
            self._retiring.pop(table.id, None)
        elif was_followed:
            self._retire(table, newest, report)
        else:
            return plan_table(table)
        if not self.is_included(table.full_name):
            if table.cdc and was_followed:
                self.paused.add(table.id)  # what is skipped from here on, a backlog too, is a gap once it is included
            return plan_table(table, reason="excluded")
        if (refusal := _refusal(table)) is not None:
            reason, message = refusal
            if old is None or not old.cdc:
                report.refused.append((table, message))
            return plan_table(table, reason=reason)
        if table.id in self._indexes:
            index = self._indexes[table.id]
            self.followed[index] = table
        else:
            index = self._indexes[table.id] = len(self.followed)
            self.followed.append(table)
            if table.id not in self.refused:
                report.added.append(table)
        if table.cdc and table.id in self.paused:
            self.paused.discard(table.id)
            report.resumed.append(table)
        return plan_table(table, reason=_REFUSED) if table.id in self.refused else self._followed_plan(table, index)

    def _retire(self, table: Table, newest: int, report: SchemaUpdate) -> None:
        """Note that a table has no CDC any more: what was logged until now is still published."""
        if table.id not in self._retiring:
            self._retiring[table.id] = newest
            if self.is_included(table.full_name):
                self.paused.add(table.id)
                report.retired.append(table)

    def _followed_plan(self, table: Table, index: int) -> TablePlan:
        """Return the plan of a table whose changes are published. A counter's cells are shards, which say nothing
        alone.
        """
        is_counter = any(column.type.name == "counter" for column in table.values)
        cells = not is_counter and any(pattern.fullmatch(table.full_name) for pattern in self._cells)
        return plan_table(table, index, cells=cells)

    def _has_flipped(self, table: Table | None, stamp: Stamp) -> bool:
        if table is None or not table.cdc:
            return False
        last = self._stamps.get(table.id)
        is_same = self._definition_before(table.id) == table
        return is_same and last is not None and stamp.time > last.time and stamp.options == last.options

    def _definition_before(self, table: uuid.UUID) -> Table | None:
        return self._tables.get(table) or self._history.get(table)

    def _settle_stamps(
        self,
        existing: Mapping[uuid.UUID, Table],
        stamps: Mapping[uuid.UUID, Stamp],
        altered_meanwhile: Mapping[uuid.UUID, int],
    ) -> dict[uuid.UUID, Stamp]:
        """Return the stamps of tables, also of those that were altered while they were read. A definition that is new
        explains that; then it is as of the later time. If it is not new, the next read has to tell: until then the
        stamp stays.
        """
        stamps_now = dict(stamps)
        for table in stamps.keys() & altered_meanwhile.keys():
            if self._definition_before(table) != existing.get(table):
                stamps_now[table] = stamps[table]._replace(time=altered_meanwhile[table])
            elif table in self._stamps:
                stamps_now[table] = self._stamps[table]
        return stamps_now

    def _mark_dropped(self, existing: Mapping[uuid.UUID, Table], newest: int, report: SchemaUpdate) -> None:
        """Note which tables are gone, and whether something else has their names."""
        names = {table.full_name: table for table in existing.values()}
        for table in self._tables.values():
            if table.id in existing:
                continue
            is_followed = self.plans[table.id.bytes].index >= 0
            if table.id not in self._dropped:
                self._dropped.add(table.id)
                self._retiring.setdefault(table.id, newest)
                if is_followed or (table.id in self.paused and table.id in self._indexes):
                    report.dropped.append(table)
            successor = names.get(table.full_name)
            if is_followed and successor is not None and _key(successor) != _key(table):
                self.plans[table.id.bytes] = plan_table(table, reason="dropped_table")
        self.paused.intersection_update(existing)
        self.refused.intersection_update(existing.keys() | self._retiring.keys())

    def is_included(self, name: str) -> bool:
        """Return whether the lists of tables want this `keyspace.table`."""
        if any(pattern.fullmatch(name) for pattern in self._exclude):
            return False
        return not self._include or any(pattern.fullmatch(name) for pattern in self._include)


def _refusal(table: Table) -> tuple[str, str] | None:
    """Return why a table's changes can't be published: the reason for metrics, and a message. None if they can."""
    if table.unsupported:
        return "unsupported_table", table.unsupported
    try:
        KeyCodec(table)
    except ValueError as error:
        return "unsupported_key", str(error)
    return None


def _added_again(old: Table | None, table: Table) -> list[tuple[Table, str]]:
    """Return the columns of a table that were dropped and added again since it was as the `old` one."""
    if old is None:
        return []
    old_columns = {column.name for column in old.values}
    readded = {column.name for column in table.values} & table.dropped.keys()
    return [(table, name) for name in sorted(readded) if name not in old_columns or name not in old.dropped]


def _key(table: Table) -> list[tuple[str, str, str]]:
    """Return the columns, types and kinds that the bytes of a table's keys depend on."""
    return [(column.name, str(column.type), column.kind) for column in table.primary_key]
