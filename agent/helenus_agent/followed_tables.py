"""Which tables the agent follows: it learns the schema from the node, opens their topics, and appends the events that
concern whole tables (TRUNCATE, DROP, gaps).

A table whose topic the broker refuses is left out, and the others go on. Its topic is tried again with a gap event.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping

import structlog

from helenus_agent import metrics
from helenus_agent.commitlog.decoder import UnknownSchema
from helenus_agent.config import AgentSettings
from helenus_agent.delivery.outbox import Outbox
from helenus_agent.delivery.refused_topics import RefusedTopics
from helenus_agent.node import saved_tables
from helenus_agent.node.cassandra import Cassandra, Node
from helenus_agent.node.drops import Drops
from helenus_agent.node.logged_columns import SCHEMA_COLUMNS, SCHEMA_TABLES, read_logged_columns, to_column
from helenus_agent.node.offline import SavedNode
from helenus_agent.node.tables import KnownTables, SchemaUpdate
from helenus_agent.node.transactional import TransactionalTables
from helenus_agent.node.truncations import Truncations
from helenus_agent.node_directories import commit_log_directory
from helenus_agent.positions import LogPosition, Positions, is_numbered, is_renamed
from helenus_agent.segments import gaps
from helenus_agent.segments.headroom import Headroom
from helenus_agent.segments.segment_queue import SegmentQueue
from helenus_agent.state import StateDirectory
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType
from helenus_schemas.errors import Action, HelenusError
from helenus_schemas.service import descriptors

_ASK_S = 60.0  # s between two looks at the node's settings
_FLUSH_S = 10.0  # s for the acknowledgement of what is appended, before Cassandra or a refused topic is asked
_LEARN_S = 1.0  # s between two looks at the schema before an attempt is repeated
_log = structlog.get_logger(__name__)


class FollowedTables:
    """The followed tables and their topics. Raises HelenusError.

    `reached`: up to where the log is read. `must_save`: something has to be saved with a commit now. `commit` is called
    where everything that is appended has to be acknowledged first.
    """

    def __init__(
        self,
        settings: AgentSettings,
        cassandra: Cassandra | SavedNode,
        outbox: Outbox,
        follow: SegmentQueue,
        state: StateDirectory,
        positions: Positions,
        commit: Callable[[float], None],
    ) -> None:
        self._settings = settings
        self._cassandra = cassandra
        self._outbox = outbox
        self._queue = follow
        self._state = state
        self._positions = positions
        self._commit = commit
        self._saved = saved_tables.load(state.directory)
        self._noted_ids: list[uuid.UUID] | None = None
        self._other_tables: tuple[uuid.UUID, ...] = ()
        self._other_tables_saved: tuple[uuid.UUID, ...] = ()
        self._is_outdated = True
        self._written_positions: dict[int, int] = {}  # how far segments were, when the schema was learned
        self._asked_at = 0.0
        self._renamed_to = ""
        self._not_durable: set[str] = set()
        self._unmatched: set[tuple[str, str]] = set()  # patterns that were warned of
        self.reached = positions.reached
        self.must_save = False
        self.headroom = Headroom()
        self.tables = KnownTables(
            settings.table_include_list,
            settings.table_exclude_list,
            positions.followed_ids,
            positions.paused_ids,
            *self._saved,
            refused=positions.refused_ids,
            cells=settings.cells_include_list,
        )
        self.truncations = Truncations(positions)
        self.transactional = TransactionalTables(positions, settings.transactional_tables)
        self.refused = RefusedTopics()
        self._drops = Drops(positions)
        self.tables.unemitted_drops = self._drops.pending

    # The node and its schema.

    @property
    def must_ask_node(self) -> bool:
        """Return whether it is time to ask the node for its settings again."""
        return time.monotonic() - self._asked_at > _ASK_S

    def must_learn(self, rarely: bool = False) -> bool:
        """Return whether the schema has to be learned: it never was, that failed, or the node has changed it. The node
        is asked `rarely` while the log has been read up to now: there a change of the schema shows at once.
        """
        self._is_outdated = self._is_outdated or self._cassandra.changed(rarely)  # which says it once
        return self._is_outdated

    def ask_node(self) -> Node:
        """Ask the node for its settings: it may have been restarted with others, or JMX has changed them."""
        self._asked_at = time.monotonic()
        node = self._cassandra.node()
        self.headroom.set(node.raw_limit, node.blocks_writes)
        metrics.RAW_LIMIT.set(node.raw_limit or 0)
        before = self._positions.cdc_off, self._positions.deletes
        gaps.note_cdc_state(self._positions, node.has_cdc)
        self._positions.deletes = not node.blocks_writes
        self._note_host_id(node)
        if (self._positions.cdc_off, self._positions.deletes) != before:
            self.must_save = True
        # While CDC is off nothing is linked into cdc_raw, and what is logged is not wanted.
        config, raw = self._settings.cassandra_config, self._queue.directory
        off = self._positions.cdc_off
        self._queue.commit_log = None if off else commit_log_directory(config, raw, node.settings)
        self._set_read_mode(node)
        return node

    def _set_read_mode(self, node: Node) -> None:
        mode = self._settings.read_mode
        if mode == "auto":
            mode = "eager" if node.shows_entries else "marker"
        if mode != self._queue.mode:
            self._queue.mode = mode
            _log.info("log.read_mode", mode=mode)

    def _note_host_id(self, node: Node) -> None:
        host_id = str(node.host_id)
        self._renamed_to = host_id if is_renamed(self._positions.host_id, host_id) else ""
        if self._renamed_to:
            self.must_save = True
        elif is_numbered(host_id) and host_id == self._positions.host_id:
            self._positions.cluster = node.cluster

    def learn(self) -> None:
        """Ask for the schema and use it from here on."""
        self._is_outdated = True
        if self._outbox.waiting:
            # If Cassandra does not answer, only the question is repeated, not what was appended so far.
            self._commit(_FLUSH_S)
        written = self._queue.written_positions()
        self.ask_node()
        schema = self._cassandra.schema()
        self._queue.refresh()
        newest, meanwhile = self._queue.newest, schema.altered_meanwhile
        tables = self.transactional.learn(schema.tables, schema.transactional, self.tables.is_included)
        report = self.tables.update(tables, schema.views, newest, schema.stamps, meanwhile)
        self._report(report)
        self._warn_of_patterns()
        self._other_tables = self.tables.other_ids
        not_durable = {table.keyspace for table in self.tables.followed_now} & set(schema.not_durable)
        for keyspace in not_durable - self._not_durable:
            _log.warning("keyspace.not_durable", keyspace=keyspace, advice="durable_writes = false: no log, no events")
        self._not_durable = not_durable
        remembered = {table.id for table in self.tables.remembered + report.dropped}
        self._drops.learn(report.dropped, schema.tables, schema.stamps, remembered)
        self.tables.unemitted_drops = self._drops.pending
        if report.resumed or report.dropped or report.added_again:
            self._state.save(self._positions)  # before the state that they were found by is replaced
        self._save_tables()
        if report.retired:
            self.must_save = True  # that they are paused
        self.open()
        self.truncations.learn(schema.truncations, self.tables.followed_ids, self._queue.oldest, self.reached)
        self._is_outdated, self._written_positions = False, written
        self.emit()

    def learn_meanwhile(self, stop: threading.Event, seconds: float) -> None:
        """Wait before another attempt after a failed one, and follow the schema meanwhile, however long the broker is
        away: of a table that is dropped by then, nobody could say any more which columns it had got.
        """
        deadline = time.monotonic() + seconds
        while (remaining_s := deadline - time.monotonic()) > 0 and not stop.wait(min(remaining_s, _LEARN_S)):
            # What fails, the next attempt meets, too.
            with contextlib.suppress(HelenusError), descriptors.exhaustion_tolerated():
                if self.must_learn():
                    self.learn()

    def learn_schema_at(self, log_position: LogPosition, entry: bytes, version: int) -> None:
        """Learn the schema, as the `entry` of a mutation of it ends here, in a segment of this `version`. One that was
        in the log when the schema was learned shows nothing new: a node's first start logs dozens. Still the node is
        asked, since it logs a mutation before it applies it.
        """
        segment, position = log_position
        if position > self._written_positions.get(segment, 0) or not self._cassandra.is_as_learned():
            self.learn()
        if self.tables.dropped_ids or isinstance(self._cassandra, SavedNode):
            self._widen_tables(log_position, entry, version)

    def _widen_tables(self, log_position: LogPosition, entry: bytes, version: int) -> None:
        """Take over what a mutation of the schema says of tables that no node describes: of dropped ones, and of all
        tables of a dead node.
        """
        schema_tables = self.tables.schema_tables
        if not {SCHEMA_TABLES, SCHEMA_COLUMNS} <= schema_tables.keys():
            return
        try:
            logged = read_logged_columns(entry, version, self.tables.plans, schema_tables)
        except ValueError as error:  # without it, entries that name such a column can't be read
            segment, position = log_position
            _log.warning("schema.not_read", segment=segment, position=position, error=str(error))
            return
        columns: dict[uuid.UUID, list[Column]] = {}
        altered_at = max((each.time for each in logged), default=0)
        udts: dict[str, Mapping[str, CqlType]] = {}
        is_offline, dropped_ids = isinstance(self._cassandra, SavedNode), self.tables.dropped_ids
        for each in logged:
            if each.table not in dropped_ids and not is_offline:
                continue
            if each.keyspace not in udts:
                udts[each.keyspace] = self._cassandra.udts(each.keyspace)
            if (column := to_column(each, udts[each.keyspace])) is not None:
                columns.setdefault(each.table, []).append(column)
        widened = {
            table_id: names for table_id in columns if (names := self._widen(table_id, columns[table_id], altered_at))
        }
        for table_id, names in widened.items():
            reason = "it was dropped since" if table_id in dropped_ids else "the node is dead"
            _log.info("table.widened", id=str(table_id), columns=names, reason=f"it was altered, and {reason}")
        if widened and is_offline:
            self.learn()
        elif widened:
            self._save_tables()

    def _widen(self, table_id: uuid.UUID, columns: Iterable[Column], altered_at: int) -> list[str]:
        """Give a table the columns that the log says it got. Return the names of those that are new or changed."""
        if table_id in self.tables.dropped_ids:
            return self.tables.widen(table_id, columns)
        return self._cassandra.widen(table_id, columns, altered_at) if isinstance(self._cassandra, SavedNode) else []

    def learn_unknown(self, unknown: UnknownSchema, log_position: LogPosition) -> None:
        """Learn the schema: the decoder met something that it does not know."""
        self.learn()
        if not self.tables.knows(unknown):
            segment, position = log_position
            name = self.tables.name(unknown)
            _log.warning("schema.unknown", segment=segment, position=position, what=str(unknown), table=name)
            self.tables.give_up(unknown)

    # Events that concern whole tables.

    def emit(self) -> None:
        """Append truncations that reading has reached, and gaps."""
        notices = self.truncations.take_due(self.reached)
        metrics.TRUNCATIONS.inc(len(notices))
        if self._positions.gaps:
            notices += gaps.take_due(self._positions, self.tables.followed_ids, self.reached)
        for notice in notices:
            self._outbox.append_notice(self.tables.index(notice.table), notice, self._positions.host_id)

    def emit_all_drops(self) -> None:
        """Append all drops: everything that the dropped tables logged is read."""
        self._emit_drops(self._drops.pending)

    def emit_drops_before(self, changes: Iterable[tuple[int, bytes, bytes, bytes]]) -> None:
        """Append the drops of tables whose recreated namesakes have one of these changes: they share a topic."""
        if waiting := self._drops.pending:
            successors = self.tables.successors(waiting)
            self._emit_drops({successors[change[0]] for change in changes if change[0] in successors})

    def enter_segment(self, segment: int) -> None:
        """Begin this segment: tables that it can't name any more retire, and their drops are appended."""
        self._emit_drops(self.tables.retire_before(segment))

    def _emit_drops(self, tables: Collection[uuid.UUID]) -> None:
        if not tables or not self._drops.pending:
            return
        indexes = {table: index for index, table in self.tables.successors(tables).items()}
        for notice in self._drops.take_due(tables, self.reached):
            index = indexes.get(notice.table, self.tables.index(notice.table))
            self._outbox.append_notice(index, notice, self._positions.host_id)

    # Topics, and those that the broker refuses.

    def open(self) -> None:
        """Make sure that the topics exist. Tables whose topics are refused are left out."""
        if self.refused.is_due:
            self._retry_refused()
        tables = [*self.tables.followed_now, *self.tables.without_successors(self._drops.pending)]
        self._leave_out(self._outbox.open((self.tables.index(table.id), table) for table in tables))

    def leave_out_topic(self, topic: str, error: HelenusError) -> bool:
        """Leave out the tables of a topic that is refused. False if none of them was followed or dropped.

        Raises the error if no other table is left.
        """
        refused = [table for table in self.tables.followed_now if self._outbox.topic(table) == topic]
        if not refused and not self._ignore_drops(topic):
            return False
        self._leave_out([(table, error) for table in refused])
        return True

    def _leave_out(self, refused: list[tuple[Table, HelenusError]]) -> None:
        """Skip these tables' changes until their topics accept records again.

        Raises the first one's error if no other table is left: then no other waits until it is mended.
        """
        for table, _ in refused:
            self.tables.refuse(table.id)
            self.truncations.ignore(table.id)
            self._ignore_drops(self._outbox.topic(table))
        if refused and not self.tables.followed_now:
            raise refused[0][1]
        for table, why in refused:
            self.refused.add(table, why)
        if refused:
            self.refused.postpone()
        self.refused.update(self.tables.refused_now)

    def _ignore_drops(self, topic: str) -> bool:
        """Forget drops that were to be appended to a refused topic. True if there are some."""
        drops = [d for d in self._drops.pending if self._topic_of(d) == topic]
        for dropped in drops:
            self._drops.ignore(dropped)
        return bool(drops)

    def _topic_of(self, table: uuid.UUID) -> str:
        return self._outbox.topic(self.tables.followed[self.tables.index(table)])

    def _retry_refused(self) -> None:
        """Follow tables again whose topics accept a gap event. Raises as `_leave_out`."""
        refused = self.tables.refused_now
        if not refused:
            return
        if self._outbox.waiting:
            self._commit(_FLUSH_S)
        failed: list[tuple[Table, HelenusError]] = []
        for table in refused:
            notice = gaps.refused_topic_notice(table.id, self.reached)
            try:
                self._outbox.probe(self.tables.index(table.id), table, notice, self._positions.host_id, _FLUSH_S)
            except HelenusError as error:
                failed.append((table, error))
                if error.action is Action.RETRY:
                    break  # the broker is away: the others would wait for it as well
                continue
            self._outbox.confirm_all(self.tables.followed)
            self.tables.admit(table.id)
            self.truncations.follow(table.id, self._queue.oldest, self.reached)
            self.refused.remove(table)
            gaps.report_topic_accepted(table.full_name)
            self.must_save = True  # that its gap is reported
        self._leave_out(failed)

    # What is saved with the positions.

    def note_positions(self) -> None:
        """Note in the positions, to be saved, that all that was appended is acknowledged.

        A node that has a new host id takes it over here alone: no event of before is appended again with it, and the
        connector counts a node once for each mutation.
        """
        if self._renamed_to:
            _log.warning("node.renamed", before=self._positions.host_id, node=self._renamed_to)
            self._positions.host_id, self._renamed_to = self._renamed_to, ""
        followed_ids = self.tables.followed_ids
        if followed_ids != self._noted_ids:  # of a thousand tables, to write them takes a while
            self._noted_ids, self._positions.followed = followed_ids, [str(table) for table in followed_ids]
        self._positions.paused = [str(table) for table in self.tables.paused]
        self._positions.refused = [str(table) for table in self.tables.refused]
        self._positions.reached = self.reached
        self.truncations.note_emitted()
        self._drops.confirm_emitted()
        gaps.forget_acknowledged(self._positions)

    def forget_acknowledged(self) -> None:
        """Forget what was needed to go back to the previous positions: the new ones are saved."""
        self.tables.forget_retired()
        self.tables.unemitted_drops = self._drops.pending
        self._save_tables()
        self.must_save = False

    def rewind(self) -> None:
        """Go back to the saved positions."""
        self.reached = self._positions.reached
        self.tables.rewind()
        self.truncations.rewind()
        self._drops.rewind()
        gaps.rewind(self._positions)

    def _save_tables(self) -> None:
        """Save the tables' definitions: one may be dropped while no agent runs."""
        tables = self.tables.remembered
        remembered = tables, self.tables.stamps_of(tables)
        if remembered != self._saved or self._other_tables != self._other_tables_saved:
            saved_tables.save(self._state.directory, *remembered, self._other_tables)
            self._saved, self._other_tables_saved = remembered, self._other_tables

    def _warn_of_patterns(self) -> None:
        """Log each pattern once that matches no table: if it is to exclude one, that table is published."""
        for key, pattern, near in self.tables.unmatched_patterns():
            if (key, pattern) not in self._unmatched:
                self._unmatched.add((key, pattern))
                _log.warning("tables.unmatched", key=key, pattern=pattern, similar=near or None)

    def _report(self, report: SchemaUpdate) -> None:
        for table, why in report.refused:
            _log.error("table.refused", table=table.full_name, why=why, advice="its changes are counted as skipped")
        for table in report.retired:
            then = "what it logged with cdc = true is still published"
            _log.warning("table.retired", table=table.full_name, then=then)
        for table in report.added:
            _log.info("table.followed", table=table.full_name, id=str(table.id))
        for table in report.dropped:
            then = "what it logged is published, then the drop"
            _log.warning("table.dropped", table=table.full_name, id=str(table.id), then=then)
        for table, column in report.added_again:
            gaps.report_readded_column(self._positions, table.id, table.full_name, column)
        for table in report.resumed:
            gaps.report_resumed(self._positions, table.id, table.full_name)
