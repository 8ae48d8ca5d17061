"""The rows of a topic partition, merged from the cells of its events: the operator of `state=rows`.

    UPDATE t SET v = 2 WHERE k = 7, by three replicas → one RowChange "u", with the row before and after, and no more

Each event is merged by Cassandra's rules (`_cell_merge`), in any order, however often it comes. What Cassandra does not
decide by write times is read: an event that a TRUNCATE may have dropped (`_topic_partition_history`), and what a
tombstone hides that may have been purged (`_cell_rules`). The result depends on the store, the events, the table's
definition, whether the nodes are of Cassandra 3.x, and the time of the batch. A batch first processes what expired, in
the order of time (`_due_rows`), so that `before` is the row as it was last published; then it merges the events
(`_row_merger`, and `_scopes` for deletes of more than a row).

    store key                    value
    r key, s key of partition    a row, static columns (`_row.CellRow`)
    p key of partition           its deletions, and its last page (`_partition.PartitionState`)
    g u32 page, key of partition a full page of its rows' keys
    m                            the state of the logs (`_topic_partition_history.TopicPartitionHistory`)
    c…                           the calendar of what expires, can be forgotten, or is to be read
Keys are those of events, in Avro. Tables without clustering columns have no partitions: theirs are rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from uuid import UUID

from helenus_connector.gate.event_content import check_bounds
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.merged_change import GapEvent, MergedChange, PoisonEvent, ReadRequest
from helenus_connector.state.rows._cell_merge import MergeResult
from helenus_connector.state.rows._cell_rules import clamp_time, estimate_deletion
from helenus_connector.state.rows._due_rows import DueRows
from helenus_connector.state.rows._ordinary_merge import OrdinaryMerger
from helenus_connector.state.rows._read_requests import ReadRequests
from helenus_connector.state.rows._replica_reports import ReplicaReport, ReplicaReports
from helenus_connector.state.rows._row import CellRow
from helenus_connector.state.rows._row_bytes import has_seen
from helenus_connector.state.rows._row_image import RowImages
from helenus_connector.state.rows._row_merger import RowMerger
from helenus_connector.state.rows._row_read import is_read
from helenus_connector.state.rows._row_store import NAMES_AT_ONCE, PARTITION_PREFIX, RowStore
from helenus_connector.state.rows._row_values import cell_decoder
from helenus_connector.state.rows._scopes import ScopeMerger
from helenus_connector.state.rows._table_check import TableCheck
from helenus_connector.state.rows._topic_partition_history import Standing, TopicPartitionHistory, TruncationReport
from helenus_connector.state.store.keyed_store import KeyedStore
from helenus_schemas.codec.key import KeyCodec, Outgrown
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.cells import Cells
from helenus_schemas.event.change import Change, Origin, Scope
from helenus_schemas.event.own_format import parse_match
from helenus_schemas.event.wire import decode

Changes = Iterator[MergedChange]
PATIENCE_S = 60
"""As `settle.min.age.ms` is, unless it is set."""
GC_GRACE_S = 864_000
"""For how long Cassandra keeps tombstones, unless the table says otherwise: ten days."""
MIN_GRACE_S = 86_400
"""For how long tombstones are kept here at least: events that an agent reports up to a day late need no read."""
_ROW, _PARTITION, _RANGE, _TABLE = Scope.ROW, Scope.PARTITION, Scope.RANGE, Scope.TABLE
_META_KEY = b"m"
_CHUNK_BYTES = 4 << 20
"""Events are merged in chunks of up to so many bytes: their rows are in memory together."""
_BACKLOG_S = 60
"""A batch whose first event is older than this is one of a backlog. While a query keeps up, events are seconds old, and
clocks differ by less than the rest. A batch that is taken for one of a backlog purges tombstones later, and no more.
"""
_FIRST_US = 10_000_000
"""The first event of a state is taken to have been written at most this much before it was appended: Cassandra syncs
its commit log every ten seconds by default, and agents read what is synced. So the first events lie above the horizon,
and are merged without a read. If one took longer, its row is read without need.
"""


class TopicPartitionMerger:
    """The rows of one topic partition in one batch. Raises HelenusError TABLE_UNSUPPORTED for a table with counters.

    `partition` is the topic's. `gc_grace_s`: for how long Cassandra keeps tombstones. `patience_s`: after which time a
    read shows all that was written before. `markers`: whether delete markers are on the data topic, where the live rows
    of their scope follow them. `trusts_absence`: whether a row that is not in the store was not there before, as long
    as the partition has no more than `proven_up_to` disturbances. Else such a row is unknown: it is read, or said to be
    gone. `has_snapshots`: whether there is a snapshot after a disturbance. `id_now` gives the table's id as all nodes
    have it, which `table` may be behind. `is_cassandra_3`: whether the nodes are of 3.x, which decide otherwise between
    two cells of one write time (`_cell_rules.wins`).

    Each event is counted in one way at most. `copies`: it changes nothing in the state, as it was merged before, or as
    newer writes hide it. `outdated`: it is of a table that had this name before, or a TRUNCATE dropped it. `unchanged`:
    it gives no record for another reason: its row is to be read first, say, or it is a gap.

    `nodes_without_cells` and `nodes_with_cells` are the nodes from which changes of a row came without their cells, and
    with them; `reporting_nodes` also those from which only copies came.
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
        trusts_absence: bool = True,
        id_now: Callable[[], UUID] | None = None,
        proven_up_to: int = 0,
        has_snapshots: bool = True,
        is_cassandra_3: bool = False,
    ) -> None:
        counters = [column.name for column in table.values if column.type.name == "counter"]
        if counters:
            reason = (
                f"state=rows can't keep counters, as of column {counters[0]}: the log has shards of them, not values"
            )
            raise HelenusError(Kind.TABLE_UNSUPPORTED, reason, table.full_name, "use state=none or state=keys")
        self._table, self._codec, self._store = table, codec, store
        grace_here = max(gc_grace_s, MIN_GRACE_S)
        self._reports = ReplicaReports(codec, bool(table.clustering))
        self._row_store = RowStore(table, codec, store, grace_here)
        self._images = RowImages(table, self._row_store, partition)
        self._requests = ReadRequests(self._row_store, partition, patience_s)
        self._row_merger = RowMerger(table, self._row_store, gc_grace_s, patience_s, is_cassandra_3)
        self._scopes = ScopeMerger(table, self._row_store, self._images, self._requests, markers, has_snapshots)
        self._due_rows = DueRows(self._row_store, self._images, self._requests, grace_here, self._is_valid_key)
        self._check, self._decode_cells = TableCheck(table), cell_decoder(table.values)
        self._ordinary = OrdinaryMerger(table, self._row_store, self._check, partition, grace_here)
        self._id_now = id_now
        self._proven_up_to = proven_up_to if trusts_absence else -1
        self.copies = self.outdated = self.unchanged = 0
        self.nodes_without_cells, self.nodes_with_cells = set[str](), set[str]()
        self.reporting_nodes = set[str]()
        self.next_due: float | None = None

    @property
    def calendar_entry_count(self) -> int:
        """Number of entries in the calendar: times at which something of a row expires, can be purged, or is to be
        read.
        """
        return self._row_store.calendar.count_waiting()

    @property
    def row_count(self) -> int:
        """Number of rows in the store, with those that are deleted and not forgotten yet."""
        return self._row_store.history.row_count

    @property
    def disturbances(self) -> int:
        """Number of truncations, gaps and losses of events."""
        return self._row_store.history.disturbances

    @property
    def _trusts_absence(self) -> bool:
        """Return whether all rows are known, and there was no disturbance since."""
        return self._proven_up_to >= self._row_store.history.disturbances

    def take(self, events: Iterable[Event], now: float, has_lost: bool = False) -> Changes:
        """Merge a batch at its time, s since the epoch. The caller reads the changes to their end. `has_lost`: events
        before these are lost. Raises SchemaChanged for events of a newer table than this one, and ValueError for a
        store that a newer version wrote.
        """
        remaining = iter(events)
        first = next(remaining, None)
        yield from self._load_history(int(now), int(now) if first is None else first.timestamp // 1000)
        self._row_store.history.disturbances += has_lost
        yield from self._due_rows.process()
        if self._trusts_absence and self._row_store.history.swept_up_to < self._row_store.history.disturbances:
            yield from self._scopes.request_unproven_reads()
        chunk: list[Event] = []
        size = 0
        for event in chain(() if first is None else (first,), remaining):
            chunk.append(event)
            size += len(event.value or b"")
            if len(chunk) == NAMES_AT_ONCE or size > _CHUNK_BYTES:
                yield from self._merge_chunk(chunk)
                chunk, size = [], 0
        yield from self._merge_chunk(chunk)
        self.copies += self._ordinary.copies
        self.unchanged += self._ordinary.unchanged
        history = self._row_store.history
        history.now = self._row_store.now
        self.nodes_with_cells |= {node.decode() for node in self._ordinary.nodes}
        for node in self.nodes_without_cells | self.nodes_with_cells | self.reporting_nodes:
            history.note_node(node, self._trusts_absence)
        self._store.put_many({_META_KEY: history.dumps()})
        self._row_store.calendar.save()
        self.next_due = self._row_store.calendar.next_due()

    def _load_history(self, now: int, first_appended_at: int) -> Changes:
        """Load the partition's history, and forget all rows if the table was recreated.

        In a backlog tombstones age with the events and not with the clock: a batch may hold hours of events, and a late
        write among them must still meet the tombstone that hides it. So the purge clock stands at the first event.
        """
        (meta,), self._row_store.now = self._store.get_many([_META_KEY]), now
        if meta is not None:
            history = self._row_store.history = TopicPartitionHistory.loads(meta)
            self._row_store.now = max(now, history.now)  # time never goes back: what expired stays so
        else:
            # What was deleted before the first event is not known.
            self._row_store.history.raise_horizon(first_appended_at * 1_000_000 - _FIRST_US)
        is_backlog = self._row_store.now - first_appended_at > _BACKLOG_S
        self._row_store.purge_clock = first_appended_at if is_backlog else self._row_store.now
        table_id = self._row_store.history.table_id
        if table_id != self._table.id.bytes:
            # An older id is a node's that has not heard of the new table yet, unless all nodes have it: CREATE TABLE
            # … WITH ID brings a dropped table back with its old id.
            if self._id_now is None or self._id_now() != self._table.id:
                self._check.check_age(table_id)
            yield from self._scopes.forget_all_rows(filter_key=self._is_valid_key)

    def _merge_chunk(self, events: Sequence[Event]) -> Changes:
        reports = self._parse_reports(events)
        self._row_store.fetch_rows(r.name for r in reports if type(r) is ReplicaReport)
        nodes = {r.node for r in reports if type(r) is ReplicaReport}
        self.reporting_nodes |= {node.decode() for node in nodes if node}
        self._prefetch_partitions(reports)
        ordinary = self._ordinary
        ordinary.follow(self._trusts_absence)
        number = 0
        while number < len(reports):
            run_end, ordinary_changes = ordinary.merge_run(reports, number)
            yield from ordinary_changes
            if run_end > number:
                number = run_end
                continue
            report = reports[number]
            number += 1
            if not isinstance(report, ReplicaReport):
                if isinstance(report, GapEvent):
                    self.unchanged += 1
                    self._row_store.history.disturbances += 1
                    ordinary.follow(self._trusts_absence)
                yield report
                continue
            if self._is_copy(report):
                self.copies += 1
                continue
            # An event that gives no change, and is counted as nothing else, is `unchanged`.
            counted_before, is_shown = self.copies + self.outdated, False
            self._images.cause = report.mutation or report.event
            try:
                for merged in self._merge_report(report):
                    is_shown |= not isinstance(merged, ReadRequest)
                    yield merged
            except Malformed as error:
                is_shown = True
                yield PoisonEvent(report.event, str(error))
            self.unchanged += not is_shown and self.copies + self.outdated == counted_before
            ordinary.follow(self._trusts_absence)
        self._images.cause = None
        self._row_store.save()
        self._row_store.release_all()
        self._images.forget_statics()

    def _parse_reports(self, events: Sequence[Event]) -> list[ReplicaReport | GapEvent | PoisonEvent]:
        """Return a report of each event, unless it can't be merged. Leave out outgrown ones."""
        reports: list[ReplicaReport | GapEvent | PoisonEvent] = []
        for event in events:
            try:
                reports.append(self._reports.for_event(event))
            except Outgrown:
                self.outdated += 1
            except Malformed as error:
                reports.append(PoisonEvent(event, str(error)))
        return reports

    def _prefetch_partitions(self, reports: Sequence[ReplicaReport | GapEvent | PoisonEvent]) -> None:
        """Read the partitions of these events at once, but for copies, which most events are."""
        if self._row_store.has_partitions:
            keys = [r.key for r in reports if type(r) is ReplicaReport and r.key and not self._is_copy(r)]
            self._row_store.fetch_partitions(key for key in keys if self._is_valid_key(key))

    def _is_copy(self, report: ReplicaReport) -> bool:
        """Return whether a report is among the mutations that were merged last, since something of the row was
        deleted.
        """
        if report.mutation is None or report.name[:1] == PARTITION_PREFIX:
            return False
        row = self._row_store.rows.get(report.name)
        if row is not None:
            return report.mutation in row.recent_mutations
        row_bytes = self._row_store.row_bytes.get(report.name)
        return row_bytes is not None and has_seen(row_bytes, report.mutation)

    def _precedes_disturbance(self, change: Change) -> bool:
        """Return whether an answer to a read request, or a request that was appended once more, was requested before
        the last disturbance: it may show what that dropped.

        Answers and requests are events that `pipeline._cell_requests` made. They use three fields of a Change for their
        own ends: `part` is the number of disturbances when the read was requested. `segment` and `position` of an
        answer are as of `RowRead.from_change`; the `segment` of a request that is appended once more is when the key
        was requested first, ms since the epoch.
        """
        is_made_here = change.digest is None and change.node is None  # no agent reports it
        is_repeated_request = change.origin is Origin.LOG and change.cells is None
        is_answer = is_read(change) or is_repeated_request
        return is_made_here and is_answer and change.part != self._row_store.history.disturbances

    def _merge_report(self, report: ReplicaReport) -> Changes:
        change = _parse_change(report, bool(self._row_store.history.truncations))
        if change.scope is _TABLE:
            yield from self._merge_truncation(change, report.event)
            return
        standing = self._row_store.history.judge_log_position(change, self._trusts_absence)
        cells = None if change.cells is None else self._decode_cells(change.cells, change.scope)
        if standing is Standing.DROPPED or (cells is not None and not self._check.is_of_table(cells)):
            self.outdated += 1
            return
        if change.scope is _PARTITION or change.scope is _RANGE:
            yield from self._merge_deletion(report, change, cells, standing)
        elif standing is Standing.BEHIND or self._precedes_disturbance(change):
            yield from self._request_proof(report.name, self._row_store.get_row(report.name))
        else:
            yield from self._merge_row(report, change, cells)

    def _merge_truncation(self, change: Change, event: Event) -> Changes:
        time = change.write_time if change.write_time is not None else clamp_time(event.timestamp * 1000)
        log_position = change.segment, change.position
        reported = self._row_store.history.truncate(change.node, log_position, time, self._trusts_absence)
        if reported is TruncationReport.KNOWN:
            self.copies += 1
        elif reported is TruncationReport.FIRST:
            yield from self._scopes.truncate(time, event)
        # FOLLOWING: the rows were deleted with the first report. The history has counted this one as a disturbance, and
        # noted that its node caught up.

    def _merge_deletion(
        self, report: ReplicaReport, change: Change, cells: Cells | None, standing: Standing
    ) -> Changes:
        """Merge a delete of a partition, or of a range."""
        event, key = report.event, report.key
        deletion = cells.deletion if cells is not None else None
        if deletion is None:
            # A delete of many rows needs no cells: its write time says all.
            if change.write_time is None:
                # No read can say what it deleted. The stage refuses this request, and names the setting to mend.
                yield self._requests.for_event(event)
                return
            deletion = estimate_deletion(change.write_time, event.timestamp // 1000)
        if not self._row_store.has_partitions:
            # The table has no clustering columns: the partition is one row, which can be read as any other.
            if standing is Standing.BEHIND:
                yield from self._request_proof(report.name, self._row_store.get_row(report.name))
            else:
                yield from self._merge_row(report, change, Cells(b"", b"", {}, deletion=deletion))
            return
        bounds = (change.start, change.end) if change.scope is _RANGE else None
        if bounds is not None:
            check_bounds(self._codec, self._row_store.resolve_key(key)[1], bounds)
        if standing is Standing.BEHIND:
            yield from self._scopes.request_scope_reads(key, bounds, deletion.write_time)
            return
        deleted = self._scopes.delete(key, change.scope, bounds, deletion, event)
        if deleted is None:
            self.copies += 1
        else:
            yield from deleted

    def _request_proof(self, name: bytes, row: CellRow) -> Changes:
        """Have a row read, whatever was logged of it."""
        request = self._requests.request_proof(name, row)
        self._row_store.put_row(name, row, self._row_store.resolve_key(name[1:])[0])
        if request is not None:
            yield request

    def _merge_row(self, report: ReplicaReport, change: Change, cells: Cells | None) -> Changes:
        """Merge a change of one row, or of a partition's static columns."""
        event, name, key, mutation = report[:4]
        if change.node is not None:
            (self.nodes_without_cells if cells is None else self.nodes_with_cells).add(change.node)
        # Nothing of the row is stored. It may be on the data topic, so a record is published even if it does not live.
        may_have_lived = not self._trusts_absence and not self._row_store.has_row(name)
        row, partition_key = self._row_store.get_row(name), self._row_store.resolve_key(key)[0]
        # No live row is stored. Tombstones may be, so this is wider: it may have other columns in Cassandra.
        is_unknown = not self._trusts_absence and self._images.last_shown(name, row) is None
        # The delete of a partition that is one row (`_merge_deletion`) leaves no column of which a read could tell.
        if cells is None or (is_unknown and change.scope is not _PARTITION and not is_read(change)):
            yield from self._request_read(report, change, row, is_unknown)
            return
        before = self._images.last_shown(name, row)
        result = self._merge_into_row(report, change, cells, row, partition_key)
        if not any(result):
            self.copies += 1  # or older than what is stored, which looks the same
            return
        if mutation is not None and not result.is_unproven:
            row.remember_mutation(mutation)
        request = self._requests.request_proof(name, row) if result.is_unproven else None
        self._row_store.put_row(name, row, partition_key)
        merged = self._images.record_change(name, key, before, event, change.write_time, may_have_lived)
        if merged is not None:
            yield merged
        if request is not None:
            yield request
        elif result.in_doubt and not result.is_unproven:
            yield self._requests.for_row(name) if change.scope is _PARTITION else self._requests.for_event(event)

    def _merge_into_row(
        self, report: ReplicaReport, change: Change, cells: Cells, row: CellRow, partition_key: bytes
    ) -> MergeResult:
        """Merge the cells of a read or of a mutation into a row."""
        if is_read(change):
            changed = self._row_merger.merge_read(row, report.name, partition_key, change, cells)
            has_lost_guess = row.drop_expired_guess(self._row_store.now)
            return MergeResult(changed, has_lost_guess)
        was_empty, logged_at = row.is_empty(), report.event.timestamp // 1000
        result = self._row_merger.merge_mutation(row, report.name, partition_key, cells, logged_at)
        if not result.changed:
            return result
        if was_empty:
            row.proven_up_to = self._row_store.history.disturbances
        self._requests.postpone_read(row)
        in_doubt = result.in_doubt or row.is_guess(self._row_store.now)
        return MergeResult(True, in_doubt, result.is_unproven)

    def _request_read(self, report: ReplicaReport, change: Change, row: CellRow, is_unknown: bool) -> Changes:
        """Have the row of an event read, as it has no cells or nothing is known of the row."""
        if is_unknown and change.scope is _ROW and self._table.statics:
            statics = self._requests.for_statics(self._row_store.resolve_key(report.key)[0])
            if statics is not None:
                yield statics  # it is answered first: the row's record has them
        if change.origin is Origin.REPAIR:
            # The stored row is known to be wrong: this read is the last word, unless an event comes in between.
            row.reread_at = self._row_store.now
            self._row_store.put_row(report.name, row, self._row_store.resolve_key(report.key)[0])
        elif change.origin is Origin.STATE:
            # It could not be read, or another connector's state asks.
            self._requests.plan_read(row)
            self._row_store.put_row(report.name, row, self._row_store.resolve_key(report.key)[0])
            return
        yield self._requests.for_event(report.event)

    def _is_valid_key(self, key: bytes) -> bool:
        """Return whether a key is one of this table: one that was recreated with another key may have left its
        names.
        """
        try:
            self._row_store.resolve_key(key)
        except Malformed:
            return False
        return True


def _parse_change(report: ReplicaReport, has_position: bool) -> Change:
    """Parse the change of a report; with its position in the log if that counts, which takes longer."""
    if report.match is None:
        assert report.change is not None
        return report.change
    return decode(report.event.value or b"") if has_position else parse_match(report.match)
