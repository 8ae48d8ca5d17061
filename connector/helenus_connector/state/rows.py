"""The rows of a place, merged from the cells of its events: the operator of `state=rows`.

    UPDATE t SET v = 2 WHERE k = 7, by three replicas → one Merged "u", with the row before and after; two that are none

Each event is merged by Cassandra's rules (`cells`), so it does not matter in which order events come, or how often.
What a batch gives depends on the store, its events and its time alone. First comes what expired by then, in the order
of time, so that `before` is always what was last said of a row; then the events, in theirs.

    store key                    value
    r key, s key of partition    a row, static columns (`cells.Row`)
    p key of partition           what is deleted of it, and its last page (`partitions.Partition`)
    g u32 page, key of partition a full page of its rows' keys
    m                            the table's id, the batch's time, how many rows are kept (`_META`)
    c…                           the calendar of what expires, or can be forgotten

Keys are those of events, in Avro. Tables without clustering columns have no partitions: theirs are rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from struct import Struct
from uuid import UUID

from helenus_connector.gate.event import check
from helenus_connector.interfaces.gate import Event
from helenus_connector.interfaces.merged import ASK, GAP, POISON, Merged
from helenus_connector.interfaces.resolver import Bounds, SchemaChanged
from helenus_connector.state.cells import NEVER, Row, has_seen
from helenus_connector.state.index import KeyedStore
from helenus_connector.state.kept import AT_ONCE, OF_PAGE, OF_PARTITION, OF_ROW, OF_STATIC, Kept, page_name
from helenus_connector.state.partitions import check_version, covering, keys_of
from helenus_connector.state.reads import Read, Reading, is_read
from helenus_connector.state.reports import Report, Reports, about
from helenus_connector.state.showing import Showing
from helenus_schemas.codec.key import KeyCodec, Outgrown
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType, has_more_fields
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.cells import Cells, Deletion, decode_cells
from helenus_schemas.event.change import Change, Scope
from helenus_schemas.event.own_format import match_own_format, parse_match

PATIENCE_S = 60
"""As `settle.min.age.ms` is, unless it is set."""
GC_GRACE_S = 864_000
"""What Cassandra keeps tombstones for, unless the table says otherwise."""
_ROW, _STATIC, _PARTITION, _RANGE, _TABLE = Scope.ROW, Scope.STATIC, Scope.PARTITION, Scope.RANGE, Scope.TABLE
_META_KEY = b"m"
_META = Struct(">B16sQQ")
_BYTES = 4 << 20
_PAGES = 16
_BACKLOG_S = 60


class Rows:
    """The rows of one place in one batch. Raises HelenusError TABLE_UNSUPPORTED for a table with counters.

    `partition` is the topic's. `gc_grace_s`: how long tombstones are kept. `patience_s`: after which time a read shows
    all that was written before. `markers`: whether delete markers are on the data topic, where the rows of their scope
    that live follow them. `is_whole`: whether all rows of before are known. Else a row of which nothing is known is
    read, or said to be gone. `id_now` gives the table's id as all nodes have it, which `table` may be behind.

    `copies` counts events that were known, `outdated` those of a table that had this name before, `unchanged` others of
    which no row shows anything. `light` and `celled` are the nodes from which changes of a row came without their
    cells, and with them.
    """

    def __init__(
        self,
        table: Table,
        codec: KeyCodec,
        store: KeyedStore,
        partition: int,
        gc_grace_s: int = GC_GRACE_S,
        patience_s: int = PATIENCE_S,
        markers: bool = True,
        is_whole: bool = True,
        id_now: Callable[[], UUID] | None = None,
    ) -> None:
        counters = [column.name for column in table.values if column.type.name == "counter"]
        if counters:
            what = f"state=rows can't keep counters, as of column {counters[0]}: the log has shards of them, not values"
            raise HelenusError(Kind.TABLE_UNSUPPORTED, what, table.full_name, "use state=none or state=keys")
        self._table, self._codec, self._store, self._gc_grace = table, codec, store, gc_grace_s
        self._place = partition
        self._reports = Reports(codec, bool(table.clustering))
        of_scopes = {_ROW: table.regulars, _STATIC: table.statics}
        self._covers, self._is_within = covering(table)
        self._kept = Kept(table, codec, store, gc_grace_s)
        self._showing = Showing(table, self._kept, partition)
        self._known = frozenset(column.name for column in table.columns) | table.dropped_at.keys()
        self._types = {column.name: column.type for column in table.values}
        self._alike: Mapping[str, CqlType] | None = None
        self._asked: set[bytes] = set()
        self._patience_s, self._markers, self._is_whole, self._id_now = patience_s, markers, is_whole, id_now
        self._lists = frozenset(c.name for c in table.values if c.type.multicell and c.type.name == "list")
        self._readings = {scope: self._reading(scope, columns) for scope, columns in of_scopes.items()}
        self.copies = self.outdated = self.unchanged = 0
        self.light: set[str] = set()
        self.celled: set[str] = set()
        self.next_due: float | None = None

    def _reading(self, scope: Scope, columns: Sequence[Column]) -> Reading:
        names = {column.name for column in columns}
        schema = bytes.fromhex(self._table.schema_id)
        return Reading(scope, schema, names, self._lists & names, self._table.dropped_at, self._patience_s)

    @property
    def waiting(self) -> int:
        """How many times are noted at which a row expires, is forgotten, or is to be read."""
        return self._kept.calendar.waiting()

    @property
    def count(self) -> int:
        """How many rows are kept, with those that are deleted and not forgotten yet."""
        return self._kept.count

    def take(self, events: Iterable[Event], now: float) -> Iterator[Merged]:
        """Do a batch, at its time, s since the epoch; to be read to its end. Raises SchemaChanged for events of a newer
        table than this one, and ValueError for a store that a newer version wrote.
        """
        rest = iter(events)
        first = next(rest, None)
        yield from self._begin(int(now), int(now) if first is None else first.timestamp // 1000)
        yield from self._due()
        some: list[Event] = []
        size = 0
        for event in chain(() if first is None else (first,), rest):
            some.append(event)
            size += len(event.value or b"")
            if len(some) == AT_ONCE or size > _BYTES:
                yield from self._take(some)
                some, size = [], 0
        yield from self._take(some)
        self._store.put_many({_META_KEY: _META.pack(1, self._table.id.bytes, self._kept.now, self._kept.count)})
        self._kept.calendar.save()
        self.next_due = self._kept.calendar.next_due()

    def _begin(self, now: int, read_to: int) -> Iterator[Merged]:
        """`read_to`: when the first event was appended. In a backlog an hour of events is an hour for tombstones, too:
        what comes late within it must meet them.
        """
        (meta,) = self._store.get_many([_META_KEY])
        self._kept.now = now
        if meta is not None:
            check_version(meta[0])
            _, table, before, self._kept.count = _META.unpack(meta)
            self._kept.now = max(now, before)  # what was said to have expired stays so
        self._kept.purged_to = read_to if self._kept.now - read_to > _BACKLOG_S else self._kept.now
        if meta is not None and table != self._table.id.bytes:
            if self._id_now is None or self._id_now() != self._table.id:  # one may come back WITH ID
                self._is_older(table)
            yield from self._forget()

    def _take(self, events: Sequence[Event]) -> Iterator[Merged]:
        reports: list[Report | Merged] = []
        for event in events:
            try:
                reports.append(self._reports.of(event))
            except Outgrown:
                self.outdated += 1
            except Malformed as error:
                reports.append(about(event, POISON, str(error)))
        self._kept.fetch(r.name for r in reports if type(r) is Report)
        left = [self._placed(r) for r in reports if isinstance(r, Merged) or not self._is_copy(r)]
        self._kept.fetch_partitions(r.key for r in left if type(r) is Report)
        for report in left:
            if isinstance(report, Merged):
                self.unchanged += report.op == GAP
                yield report
                continue
            others, is_shown = self.copies + self.outdated, False
            try:
                for merged in self._merge(report):
                    is_shown |= merged.op != ASK
                    yield merged
            except Malformed as error:
                is_shown = True
                yield about(report.event, POISON, str(error))
            self.unchanged += not is_shown and self.copies + self.outdated == others
        self._kept.save()
        self._kept.let_go()

    def _placed(self, report: Report | Merged) -> Report | Merged:
        """A report whose key can be read."""
        if isinstance(report, Report) and report.key:
            try:
                self._kept.home(report.key)
            except Malformed as error:
                return about(report.event, POISON, str(error))
        return report

    def _is_copy(self, report: Report) -> bool:
        if report.mutation is None or report.name[:1] == OF_PARTITION:
            return False
        row = self._kept.rows.get(report.name)
        if row is not None:
            is_copy = report.mutation in row.seen
        else:
            raw = self._kept.raw.get(report.name)
            is_copy = raw is not None and has_seen(raw, report.mutation)
        self.copies += is_copy
        return is_copy

    def _merge(self, report: Report) -> Iterator[Merged]:
        event, name, key, mutation, change = report
        if self._kept.rows and self._is_copy(report):
            return
        if change is None:
            match = match_own_format(event.value or b"")
            assert match is not None
            change = parse_match(match)
        scope = change.scope
        if scope is _TABLE:
            yield from self._truncate(change, event)
            return
        said = None if change.cells is None else decode_cells(change.cells, scope)
        if said is not None and said.table != self._table.id.bytes:
            self._is_older(said.table)
            self.outdated += 1
            return
        if said is not None and said.columns is not self._alike:
            self._check_columns(said)
            self._alike = said.columns  # that of alike changes is one object
        if scope is _PARTITION or scope is _RANGE:
            deletion = said.deletion if said is not None else None
            if deletion is None:
                if change.write_time is None:
                    yield about(event, ASK)
                    return
                deletion = Deletion(change.write_time, event.timestamp // 1000)
            if self._kept.has_partitions:
                yield from self._delete(change, key, deletion, event)
                return
            said = Cells(b"", b"", {}, deletion=deletion)
        if change.node is not None:
            (self.light if said is None else self.celled).add(change.node)
        is_unknown = not self._is_whole and not self._kept.knows(name)
        if said is None or (is_unknown and scope is not _PARTITION and not is_read(change)):
            if is_unknown and scope is _ROW and self._table.statics:
                of_statics = OF_STATIC + self._kept.home(key)[0]
                if of_statics not in self._asked and not self._kept.knows(of_statics):
                    self._asked.add(of_statics)
                    yield self._ask(of_statics)  # it is answered first: the row's record has them
            yield about(event, ASK)
            return
        static = scope is _STATIC
        home, values = self._kept.home(key)
        clustering = None if static else values[self._codec.partition_columns :]
        partition = self._kept.partition(home) if self._kept.has_partitions else None
        floor = partition.floor(clustering, self._covers) if partition is not None else NEVER
        row = self._kept.row(name)
        before = self._showing.show(name, row)
        in_doubt = False
        if is_read(change):
            changed = self._readings[scope].merge(row, Read.of(change, said), floor, self._kept.now)
            in_doubt = row.ended(self._kept.now)
        else:
            changed, in_doubt = row.merge(said, floor, self._table.dropped_at, self._lists)
            if changed:
                in_doubt |= self._is_in_doubt(row)
        if not changed and not in_doubt:
            self.copies += 1
            return
        if mutation is not None:
            row.saw(mutation)
        self._kept.put(name, row, home)
        merged = self._showing.said(name, key, before, event, change.write_time, is_unknown)
        if merged is not None:
            yield merged
        if in_doubt:
            yield about(event, ASK)

    def _is_in_doubt(self, row: Row) -> bool:
        """Whether a row that an event changed lives by a guess. What is to be read later is read once no event came for
        as long.
        """
        if row.read_at:
            row.read_at = self._kept.now + self._patience_s
        return row.is_guess(self._kept.now)

    def _ask(self, name: bytes) -> Merged:
        """To have a row read of which no event says anything."""
        scope = _STATIC if name[:1] == OF_STATIC else _ROW
        return Merged(self._place, name[1:], scope, None, ASK, None, None, None, None, None)

    def _delete(self, change: Change, key: bytes, deletion: Deletion, event: Event) -> Iterator[Merged]:
        """A deletion of a partition, or of a range: its marker, and what lived in its scope."""
        home, values = self._kept.home(key)
        bounds = (change.start, change.end) if change.scope is _RANGE else None
        if bounds is not None:
            check(self._codec, values, bounds)
        partition = self._kept.partition(home)
        if not partition.delete(deletion, bounds, self._is_within):
            self.copies += 1
            return
        self._kept.changed_partitions[home] = None
        after = None
        if bounds is not None and self._table.statics and self._markers:
            # The marker has the key of the static columns' own record, which it must not take away.
            name = OF_STATIC + home
            statics = self._showing.show(name, self._kept.row(name))
            after = None if statics is None else statics.values
        yield Merged(self._place, key, change.scope, bounds, "d", None, after, deletion.write_time, None, event)
        yield from self._shadow(home, deletion.write_time, bounds, event)

    def _truncate(self, change: Change, event: Event) -> Iterator[Merged]:
        """All that was written until then is gone. Nothing is kept of it: other nodes' copies come before their own
        events of it.
        """
        floor = change.write_time if change.write_time is not None else event.timestamp * 1000
        self._kept.save()
        yield Merged(self._place, event.key or b"", _TABLE, None, "d", None, None, floor, None, event)
        if self._kept.has_partitions and self._table.statics:
            yield from self._truncate_statics(floor, event)
        kind = OF_PARTITION if self._kept.has_partitions else OF_ROW
        for names in self._kept.listed(kind):
            for name in names:
                home = name[1:]
                if self._kept.has_partitions:
                    partition = self._kept.partition(home)
                    if partition.deletion is not None and partition.deletion.write_time <= floor:
                        partition.deletion = None
                    partition.shadow(floor)
                    self._kept.changed_partitions[home] = None
                    yield from self._shadow(home, floor, None, event)
            if not self._kept.has_partitions:
                yield from self._shadow_rows(names, b"", floor, None, event)
            self._kept.save()
            self._kept.let_go()

    def _truncate_statics(self, floor: int, event: Event) -> Iterator[Merged]:
        """Those of partitions that have nothing else, and are not listed."""
        for names in self._kept.listed(OF_STATIC):
            self._kept.fetch_partitions(name[1:] for name in names)
            for name in names:
                if self._kept.partition(name[1:]).is_empty():
                    yield from self._shadow_rows([name], name[1:], floor, None, event)
            self._kept.let_go()

    def _shadow(self, home: bytes, floor: int, bounds: Bounds | None, event: Event) -> Iterator[Merged]:
        """What a deletion takes of a partition's rows, some pages at a time."""
        if bounds is None and self._table.statics:
            yield from self._shadow_rows([OF_STATIC + home], home, floor, None, event)
        partition = self._kept.partition(home)
        last = partition.pages
        yield from self._shadow_rows([OF_ROW + key for key in partition.open], home, floor, bounds, event)
        for start in range(partition.first, last, _PAGES):
            pages = self._store.get_many([page_name(home, n) for n in range(start, min(start + _PAGES, last))])
            names = [OF_ROW + key for page in pages for key in keys_of(page)]
            yield from self._shadow_rows(names, home, floor, bounds, event)

    def _shadow_rows(
        self, names: Sequence[bytes], home: bytes, floor: int, bounds: Bounds | None, event: Event
    ) -> Iterator[Merged]:
        kept = self._kept.rows.keys() | self._kept.raw.keys()
        self._kept.fetch(names)
        for name in names:
            key = name[1:]
            if bounds is not None and not self._covers(
                self._kept.home(key)[1][self._codec.partition_columns :], bounds
            ):
                continue
            row = self._kept.row(name)
            before, merged = self._showing.show(name, row), None
            in_doubt = row.doubts(floor)
            if row.shadow(floor):
                in_doubt |= self._is_in_doubt(row)
                self._kept.put(name, row, home)
                merged = self._showing.said(name, key, before, event, floor)
            if merged is None and before is not None and self._markers:
                merged = self._showing.record(name, key, before, before, event, floor)
            if merged is not None:
                yield merged
            if in_doubt:
                yield self._ask(name)
        self._kept.save()
        for name in names:
            if name not in kept:
                self._kept.drop(name)

    def _due(self) -> Iterator[Merged]:
        """What expired, and what can be forgotten."""
        while names := list(dict.fromkeys(self._kept.calendar.due(self._kept.now, AT_ONCE))):
            names = [name for name in names if self._can_be(name[1:])]
            of_partitions = [name for name in names if name[:1] == OF_PARTITION]
            of_rows = [name for name in names if name[:1] != OF_PARTITION]
            self._kept.fetch(of_rows)
            self._kept.fetch_partitions([name[1:] for name in names])
            for name in of_partitions:
                partition = self._kept.partition(name[1:])
                if 0 < partition.armed <= self._kept.now:
                    partition.armed = 0
                    partition.purge(self._kept.purged_to, self._gc_grace)
                    self._kept.changed_partitions[name[1:]] = None
            for name in of_rows:
                row = self._kept.row(name)
                if not 0 < row.armed <= self._kept.now:
                    continue
                before = self._showing.of(name).shown(row, row.armed - 1)
                in_doubt = row.is_to_be_read(row.armed - 1, self._kept.now)
                row.armed = 0
                row.purge(self._kept.purged_to, self._gc_grace)
                home, _ = self._kept.home(name[1:])
                self._kept.put(name, row, home)
                merged = self._showing.said(name, name[1:], before, None, None)
                if merged is not None:
                    yield merged
                if in_doubt:
                    yield self._ask(name)
            self._kept.save()
            self._kept.let_go()

    def _can_be(self, key: bytes) -> bool:
        """Whether a key is one of this table: one that was recreated with another key may have left its names."""
        try:
            self._kept.home(key)
        except Malformed:
            return False
        return True

    def _forget(self) -> Iterator[Merged]:
        """The table was recreated: none of its rows is one of now."""
        for kind in (OF_ROW, OF_STATIC, OF_PARTITION, OF_PAGE):
            for names in self._kept.listed(kind):
                self._store.remove_many(names)
                for name in names if kind in (OF_ROW, OF_STATIC) else ():
                    if not self._can_be(name[1:]):
                        continue
                    scope = _ROW if kind == OF_ROW else _STATIC
                    yield Merged(self._place, name[1:], scope, None, "d", None, None, None, None, None)
        self._kept.count = 0

    def _check_columns(self, said: Cells) -> None:
        """Raise SchemaChanged for columns or fields that this definition has not: it is older than what was written."""
        if not self._known >= said.columns.keys():
            unknown = ", ".join(sorted(said.columns.keys() - self._known))
            raise SchemaChanged(f"a change of {self._table.full_name} names the column {unknown}, which is not known")
        for name, of_then in said.columns.items():
            if (now := self._types.get(name)) is not None and has_more_fields(of_then, now):
                raise SchemaChanged(f"a change has fields of the column {name} of {self._table.full_name} that are new")

    def _is_older(self, table: bytes) -> None:
        """Raise SchemaChanged if the id of another table of this name is newer, by its time."""
        one, other = UUID(bytes=table), self._table.id
        if one.version == other.version == 1 and one.time > other.time:
            raise SchemaChanged(f"{self._table.full_name} was recreated, with the id {one}")
