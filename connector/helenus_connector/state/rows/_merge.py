"""The rows of a place, merged from the cells of its events: the operator of `state=rows`.

    UPDATE t SET v = 2 WHERE k = 7, by three replicas → one MergedChange "u", with the row before and after, and no more

Each event is merged by Cassandra's rules (`_row`), in any order, however often it comes. What Cassandra does not decide
by write times is read: an event that a TRUNCATE may have dropped (`_partition_history`), and what a tombstone hides
that may have been purged (`_cell_rules`). The result depends on the store, the events and the time of the batch. First
comes what expired, in the order of time, so that `before` is what was last said; then the events.

    store key                    value
    r key, s key of partition    a row, static columns (`_row.CellRow`)
    p key of partition           what is deleted of it, and its last page (`_partition.PartitionState`)
    g u32 page, key of partition a full page of its rows' keys
    m                            what is known of the logs (`_partition_history.PartitionHistory`)
    c…                           the calendar of what expires, can be forgotten, or is to be read
Keys are those of events, in Avro. Tables without clustering columns have no partitions: theirs are rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from uuid import UUID

from helenus_connector.gate.event_content import check_bounds
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.merged_change import ASK, GAP, POISON, MergedChange
from helenus_connector.state.rows._cell_rules import NEVER, Doubts
from helenus_connector.state.rows._partition import covering
from helenus_connector.state.rows._partition_history import PartitionHistory, Standing, TruncationReport
from helenus_connector.state.rows._read_requests import ReadRequests
from helenus_connector.state.rows._replica_reports import ReplicaReport, ReplicaReports, not_mergeable
from helenus_connector.state.rows._row import CellRow
from helenus_connector.state.rows._row_bytes import has_seen
from helenus_connector.state.rows._row_image import RowImages
from helenus_connector.state.rows._row_read import ReadMerge, RowRead, is_read
from helenus_connector.state.rows._row_store import AT_ONCE, OF_PARTITION, OF_STATIC, RowStore
from helenus_connector.state.rows._row_values import cell_decoder
from helenus_connector.state.rows._scopes import ScopeMerge
from helenus_connector.state.rows._table_check import TableCheck
from helenus_connector.state.store.keyed_store import KeyedStore
from helenus_connector.state.store.packing import LAST_SECOND
from helenus_schemas.codec.key import KeyCodec, Outgrown
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.cells import Cells, Deletion
from helenus_schemas.event.change import Change, Origin, Scope
from helenus_schemas.event.own_format import match_own_format, parse_match
from helenus_schemas.event.wire import decode

Changes = Iterator[MergedChange]
PATIENCE_S = 60
"""As `settle.min.age.ms` is, unless it is set."""
GC_GRACE_S = 864_000
"""What Cassandra keeps tombstones for, unless the table says otherwise."""
LEAST_GRACE_S = 86_400
"""For how long tombstones are kept here at least: what agents report that much later than others needs no read."""
_ROW, _STATIC, _PARTITION, _RANGE, _TABLE = Scope.ROW, Scope.STATIC, Scope.PARTITION, Scope.RANGE, Scope.TABLE
_META_KEY = b"m"
_BYTES = 4 << 20
_BACKLOG_S = 60
_CLOCKS_S = 600
"""By so much sooner than gc_grace_seconds a tombstone is not believed any more, as clocks differ."""
_FIRST_US = 10_000_000
"""An event is taken to have been written by so much before it was appended, where it is the first there is."""
_ALWAYS = 1 << 62


class RowMerge:
    """The rows of one place in one batch. Raises HelenusError TABLE_UNSUPPORTED for a table with counters.

    `partition` is the topic's. `gc_grace_s`: for how long Cassandra keeps tombstones. `patience_s`: after which time a
    read shows all that was written before. `markers`: whether delete markers are on the data topic, where the rows of
    their scope that live follow them. `is_whole`: whether all rows of before are known, and since `proven`: how many
    disturbances the place had when they were. Else a row of which nothing is known is read, or said to be gone.
    `has_snapshots`: whether there is a snapshot after a disturbance. `id_now` gives the table's id as all nodes have
    it, which `table` may be behind.

    `copies` counts events that were known, `outdated` those of a table that had this name before or that a TRUNCATE
    dropped, `unchanged` others of which no row shows anything. `light` and `celled` are the nodes from which changes of
    a row came without their cells, and with them; `heard` are nodes of which copies came, too.
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
        proven: int = 0,
        has_snapshots: bool = True,
    ) -> None:
        counters = [column.name for column in table.values if column.type.name == "counter"]
        if counters:
            what = f"state=rows can't keep counters, as of column {counters[0]}: the log has shards of them, not values"
            raise HelenusError(Kind.TABLE_UNSUPPORTED, what, table.full_name, "use state=none or state=keys")
        self._table, self._codec, self._store, self._gc_grace = table, codec, store, gc_grace_s
        self._grace_here = max(gc_grace_s, LEAST_GRACE_S)
        self._reports = ReplicaReports(codec, bool(table.clustering))
        of_scopes = {_ROW: table.regulars, _STATIC: table.statics}
        self._covers, _ = covering(table)
        self._kept = RowStore(table, codec, store, self._grace_here)
        self._showing = RowImages(table, self._kept, partition)
        self._requests = ReadRequests(self._kept, partition, patience_s)
        self._scopes = ScopeMerge(table, self._kept, self._showing, self._requests, markers, has_snapshots)
        self._check, self._decode_cells = TableCheck(table), cell_decoder(table.values)
        self._patience_s, self._id_now = patience_s, id_now
        self._whole_since = proven if is_whole else -1
        self._lists = frozenset(c.name for c in table.values if c.type.multicell and c.type.name == "list")
        self._readings = {scope: self._reading(scope, columns) for scope, columns in of_scopes.items()}
        self.copies = self.outdated = self.unchanged = 0
        self.light, self.celled, self.heard = set[str](), set[str](), set[str]()
        self.next_due: float | None = None

    def _reading(self, scope: Scope, columns: Sequence[Column]) -> ReadMerge:
        names = {column.name for column in columns}
        schema = bytes.fromhex(self._table.schema_id)
        return ReadMerge(scope, schema, names, self._lists & names, self._table.dropped_at, self._patience_s)

    @property
    def waiting(self) -> int:
        """How many times are noted at which a row expires, is forgotten, or is to be read."""
        return self._kept.calendar.waiting()

    @property
    def count(self) -> int:
        """How many rows are kept, with those that are deleted and not forgotten yet."""
        return self._kept.history.count

    @property
    def disturbances(self) -> int:
        """How many truncations, gaps and losses of events there were."""
        return self._kept.history.disturbances

    @property
    def _is_whole(self) -> bool:
        return self._whole_since >= self._kept.history.disturbances

    def take(self, events: Iterable[Event], now: float, has_lost: bool = False) -> Changes:
        """Do a batch, at its time, s since the epoch; to be read to its end. `has_lost`: events before these are lost.
        Raises SchemaChanged for events of a newer table than this one, and ValueError for a store that a newer version
        wrote.
        """
        remaining = iter(events)
        first = next(remaining, None)
        yield from self._begin(int(now), int(now) if first is None else first.timestamp // 1000)
        self._kept.history.disturbances += has_lost
        yield from self._due()
        if self._is_whole and self._kept.history.swept < self._kept.history.disturbances:
            yield from self._scopes.sweep()
        chunk: list[Event] = []
        size = 0
        for event in chain(() if first is None else (first,), remaining):
            chunk.append(event)
            size += len(event.value or b"")
            if len(chunk) == AT_ONCE or size > _BYTES:
                yield from self._take(chunk)
                chunk, size = [], 0
        yield from self._take(chunk)
        history = self._kept.history
        history.now = self._kept.now
        for node in self.light | self.celled | self.heard:
            history.hear(node, self._is_whole)
        self._store.put_many({_META_KEY: history.dumps()})
        self._kept.calendar.save()
        self.next_due = self._kept.calendar.next_due()

    def _begin(self, now: int, read_to: int) -> Changes:
        """`read_to`: when the first event was appended. In a backlog an hour of events is an hour for tombstones, too:
        what comes late within it must meet them.
        """
        (meta,), self._kept.now = self._store.get_many([_META_KEY]), now
        if meta is not None:
            history = self._kept.history = PartitionHistory.loads(meta)
            self._kept.now = max(now, history.now)  # what was said to have expired stays so
        else:
            # What was deleted before the first event is not known.
            self._kept.history.raise_horizon(read_to * 1_000_000 - _FIRST_US)
        self._kept.purged_to = read_to if self._kept.now - read_to > _BACKLOG_S else self._kept.now
        table = self._kept.history.table
        if table != self._table.id.bytes:
            if self._id_now is None or self._id_now() != self._table.id:  # one may come back WITH ID
                self._check.check_age(table)
            yield from self._scopes.forget(filter_key=self._can_be)

    def _take(self, events: Sequence[Event]) -> Changes:
        reports: list[ReplicaReport | MergedChange] = []
        for event in events:
            try:
                reports.append(self._reports.of(event))
            except Outgrown:
                self.outdated += 1
            except Malformed as error:
                reports.append(not_mergeable(event, POISON, str(error)))
        self._kept.fetch(r.name for r in reports if type(r) is ReplicaReport)
        self.heard |= {node.decode() for node in {r.node for r in reports if type(r) is ReplicaReport} if node}
        self._prefetch_partitions(reports)
        for report in reports:
            if isinstance(report, MergedChange):
                self.unchanged += report.op == GAP
                self._kept.history.disturbances += report.op == GAP
                yield report
                continue
            if self._is_copy(report):
                self.copies += 1
                continue
            others, is_shown = self.copies + self.outdated, False
            self._showing.cause = report.mutation or report.event
            try:
                for merged in self._merge(report):
                    is_shown |= merged.op != ASK
                    yield merged
            except Malformed as error:
                is_shown = True
                yield not_mergeable(report.event, POISON, str(error))
            self.unchanged += not is_shown and self.copies + self.outdated == others
        self._showing.cause = None
        self._kept.save()
        self._kept.let_go()
        self._showing.forget_statics()

    def _prefetch_partitions(self, reports: Sequence[ReplicaReport | MergedChange]) -> None:
        """Read the partitions of these events at once, but for copies, which most events are."""
        keys = [r.key for r in reports if type(r) is ReplicaReport and r.key and not self._is_copy(r)]
        if self._kept.has_partitions:
            self._kept.fetch_partitions(key for key in keys if self._can_be(key))

    def _is_copy(self, report: ReplicaReport) -> bool:
        """Whether it is among the last mutations of a row, since something of it was taken away."""
        if report.mutation is None or report.name[:1] == OF_PARTITION:
            return False
        row = self._kept.rows.get(report.name)
        if row is not None:
            return report.mutation in row.seen
        raw = self._kept.raw.get(report.name)
        return raw is not None and has_seen(raw, report.mutation)

    def _is_of_before(self, change: Change) -> bool:
        """Return whether an answer, or an event that asks again, was made before a disturbance."""
        is_request = change.digest is None and change.node is None
        is_answer = is_read(change) or (change.origin is Origin.LOG and change.cells is None)
        return is_request and is_answer and change.part != self._kept.history.disturbances

    def _merge(self, report: ReplicaReport) -> Changes:
        change = report.change or _parsed(report.event, bool(self._kept.history.truncations))
        if change.scope is _TABLE:
            yield from self._truncate(change, report.event)
            return
        standing = self._kept.history.standing(change, self._is_whole)
        cells = None if change.cells is None else self._decode_cells(change.cells, change.scope)
        if standing is Standing.DROPPED or (cells is not None and not self._check.is_of_table(cells)):
            self.outdated += 1
            return
        if change.scope is _PARTITION or change.scope is _RANGE:
            yield from self._delete(report, change, cells, standing)
        elif standing is Standing.BEHIND or self._is_of_before(change):
            yield from self._prove(report.name, self._kept.row(report.name))
        else:
            yield from self._merge_row(report, change, cells)

    def _truncate(self, change: Change, event: Event) -> Changes:
        time = change.write_time if change.write_time is not None else event.timestamp * 1000
        place = change.segment, change.position
        reported = self._kept.history.truncate(change.node, place, time, self._is_whole)
        if reported is TruncationReport.KNOWN:
            self.copies += 1
        elif reported is TruncationReport.FIRST:
            yield from self._scopes.truncate(time, event)

    def _delete(self, report: ReplicaReport, change: Change, cells: Cells | None, standing: Standing) -> Changes:
        """A delete of a partition, or of a range."""
        event, key = report.event, report.key
        deletion = cells.deletion if cells is not None else None
        if deletion is None:
            if change.write_time is None:
                yield self._requests.for_event(event)
                return
            deletion = Deletion(change.write_time, min(max(0, event.timestamp // 1000), LAST_SECOND))
        if not self._kept.has_partitions:
            if standing is Standing.BEHIND:
                yield from self._prove(report.name, self._kept.row(report.name))
            else:
                yield from self._merge_row(report, change, Cells(b"", b"", {}, deletion=deletion))
            return
        bounds = (change.start, change.end) if change.scope is _RANGE else None
        if bounds is not None:
            check_bounds(self._codec, self._kept.home(key)[1], bounds)
        if standing is Standing.BEHIND:
            yield from self._scopes.doubt(key, bounds, deletion.write_time)
            return
        deleted = self._scopes.delete(key, change.scope, bounds, deletion, event)
        if deleted is None:
            self.copies += 1
        else:
            yield from deleted

    def _prove(self, name: bytes, row: CellRow) -> Changes:
        """Have a row read, whatever was logged of it."""
        request = self._requests.prove(name, row)
        self._kept.put(name, row, self._kept.home(name[1:])[0])
        if request is not None:
            yield request

    def _merge_row(self, report: ReplicaReport, change: Change, cells: Cells | None) -> Changes:
        event, name, key, mutation = report[:4]
        if change.node is not None:
            (self.light if cells is None else self.celled).add(change.node)
        may_have_lived = not self._is_whole and not self._kept.knows(name)
        row = self._kept.row(name)
        is_unknown = not self._is_whole and self._showing.show(name, row) is None  # a tombstone is not all there was
        home = self._kept.home(key)[0]
        if cells is None or (is_unknown and change.scope is not _PARTITION and not is_read(change)):
            yield from self._ask(report, change, row, is_unknown)
            return
        before, was_kept = self._showing.show(name, row), not row.is_empty()
        if is_read(change):
            changed, is_unproven = self._merge_read(row, name, home, change, cells), False
            in_doubt = row.ended(self._kept.now)
        else:
            floor, doubts = self._doubts(row, name, home, event.timestamp // 1000)
            merge = row.merge(cells, floor, self._table.dropped_at, self._lists, doubts)
            changed, in_doubt, is_unproven = merge
            if changed:
                in_doubt |= self._requests.is_in_doubt(row)
                row.proven = row.proven if was_kept else self._kept.history.disturbances
        if not (changed or in_doubt or is_unproven):
            self.copies += 1
            return
        if mutation is not None and not is_unproven:
            row.saw(mutation)
        request = self._requests.prove(name, row) if is_unproven else None
        self._kept.put(name, row, home)
        merged = self._showing.said(name, key, before, event, change.write_time, may_have_lived)
        if merged is not None:
            yield merged
        if request is not None:
            yield request
        elif in_doubt and not is_unproven:
            yield self._requests.for_event(event)

    def _ask(self, report: ReplicaReport, change: Change, row: CellRow, is_unknown: bool) -> Changes:
        """Have the row of an event read, as it has no cells or nothing is known of the row."""
        if is_unknown and change.scope is _ROW and self._table.statics:
            statics = self._requests.for_statics(self._kept.home(report.key)[0])
            if statics is not None:
                yield statics  # it is answered first: the row's record has them
        if change.origin is Origin.REPAIR:
            # What the state has is known to be wrong: this read is the last word, unless an event comes in between.
            row.read_at = self._kept.now
            self._kept.put(report.name, row, self._kept.home(report.key)[0])
        elif change.origin is Origin.STATE:
            # It could not be read, or another connector's state asks.
            self._requests.plan(row)
            self._kept.put(report.name, row, self._kept.home(report.key)[0])
            return
        yield self._requests.for_event(report.event)

    def _doubts(self, row: CellRow, name: bytes, home: bytes, logged: int) -> tuple[int, Doubts]:
        """Up to which write time deletions of the partition and of ranges take a row, and where that is in doubt.

        What was `logged`, s since the epoch, while Cassandra kept a tombstone is hidden by it, also when that is
        purged: a compaction keeps a tombstone while there is something older.
        """
        history = self._kept.history
        soft_before = logged - self._gc_grace + _CLOCKS_S
        floor = firm = NEVER
        if self._kept.has_partitions:
            partition, clustering = self._kept.partition(home), self._kept.clustering(name)
            floor = partition.floor(clustering, self._covers)
            firm = floor if floor == NEVER else partition.floor(clustering, self._covers, soft_before)
        if row.proven < history.disturbances and not row.is_empty():
            soft_before = _ALWAYS  # a TRUNCATE may have dropped its tombstones
        return floor, Doubts(history.horizon, soft_before, firm, logged)

    def _merge_read(self, row: CellRow, name: bytes, home: bytes, change: Change, cells: Cells) -> bool:
        """Merge what a read found; False if that changes nothing. The last word lifts deletions that would hide it."""
        reading, read = self._readings[_STATIC if name[:1] == OF_STATIC else _ROW], RowRead.from_change(change, cells)
        history, floor = self._kept.history, NEVER
        partition = self._kept.partition(home) if self._kept.has_partitions else None
        if partition is not None:
            floor = partition.floor(self._kept.clustering(name), self._covers)
        if reading.is_last(row, read) and cells.cells:
            history.raise_horizon(row.lift(cells.cells))
            oldest = min(cell.write_time for cell in cells.cells)
            if partition is not None and oldest <= floor:
                history.raise_horizon(partition.lift(self._kept.clustering(name), self._covers, oldest))
                self._kept.changed_partitions[home] = None
                floor = partition.floor(self._kept.clustering(name), self._covers)
        changed = reading.merge(row, read, floor, self._kept.now)
        if row.proven < history.disturbances and not row.is_empty():
            row.proven, changed = history.disturbances, True
        return changed

    def _due(self) -> Changes:
        """What expired, what can be forgotten, and what is to be read."""
        history = self._kept.history
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
                    history.raise_horizon(partition.purge(self._kept.purged_to, self._grace_here))
                    self._kept.changed_partitions[name[1:]] = None
            for name in of_rows:
                yield from self._row_due(name)
            self._kept.save()
            self._kept.let_go()

    def _row_due(self, name: bytes) -> Changes:
        row = self._kept.row(name)
        if not 0 < row.armed <= self._kept.now:
            return
        before = self._showing.of(name).shown(row, row.armed - 1)
        in_doubt = row.is_to_be_read(row.armed - 1, self._kept.now)
        row.armed = 0
        self._kept.history.raise_horizon(row.purge(self._kept.purged_to, self._grace_here))
        self._kept.put(name, row, self._kept.home(name[1:])[0])
        merged = self._showing.said(name, name[1:], before, None, None)
        if merged is not None:
            yield merged
        if in_doubt:
            yield self._requests.for_row(name)

    def _can_be(self, key: bytes) -> bool:
        """Whether a key is one of this table: one that was recreated with another key may have left its names."""
        try:
            self._kept.home(key)
        except Malformed:
            return False
        return True


def _parsed(event: Event, has_position: bool) -> Change:
    """The change of an event of our agents; with its position in the log if that counts, which takes longer."""
    if has_position:
        return decode(event.value or b"")
    match = match_own_format(event.value or b"")
    assert match is not None
    return parse_match(match)
