"""The agent's work: read, decode, append; then flush, save, and take away what is done with. In this order only.

Everything since the last saved position can be read again. So whatever fails on the way to the broker, the agent goes
back to that position and does it again: nothing is lost, some may arrive twice.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import structlog
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_when_event_set, wait_exponential, wait_random
from tenacity.nap import sleep_using_event

from helenus_agent import metrics
from helenus_agent.commitlog.decoder import Batch, Unknown, decode
from helenus_agent.commitlog.segment import Corrupt, Segment, parse_name
from helenus_agent.config import CDC_OFF, AgentSettings, commit_log_directory
from helenus_agent.delivery.outbox import Outbox
from helenus_agent.delivery.refused_topics import RefusedTopics
from helenus_agent.node import saved_tables
from helenus_agent.node.cassandra import Cassandra, Node
from helenus_agent.node.drops import Drops
from helenus_agent.node.offline import SavedNode
from helenus_agent.node.tables import Report, Tables
from helenus_agent.node.truncations import Truncations
from helenus_agent.positions import Mark, Place, Positions
from helenus_agent.segments import gaps
from helenus_agent.segments.follow import Follow
from helenus_agent.segments.headroom import Headroom
from helenus_agent.segments.transfer import Transfer, move
from helenus_agent.state import State, quarantine
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import Action, HelenusError, Kind
from helenus_schemas.service.failpoints import reach
from helenus_sinks.log import Log, TopicError

_PIECE = 1 << 20  # bytes of log that are decoded at once
_EVENTS = 4096  # and changes, at which a piece ends early
_LIST = 0.5  # s between two listings of cdc_raw
_ASK = 60.0  # s between two looks at the node's settings
_COMMIT = 0.25  # s between two commits of events
_COMMIT_QUIET = 10.0  # s between two that only save how far a log without events is read
_FLUSH = 10.0  # s without an acknowledgement after which what was appended is appended again
_FLUSH_LAST = 5.0  # the same at the end
_AGAIN = (1.0, 60.0)  # s until a transfer that failed is tried again: at first, at most
_log = structlog.get_logger(__name__)


def may_pass(error: BaseException) -> bool:
    """True for what waiting may mend: a server that is away."""
    return isinstance(error, HelenusError) and error.action is Action.RETRY


class Agent:
    """Moves changes from one node's cdc_raw to a Log. One thread runs it; `ready` may be asked by another.

    `drained`: it was to drain, and there was nothing left to read.
    """

    def __init__(
        self,
        settings: AgentSettings,
        directory: Path,
        cassandra: Cassandra | SavedNode,
        log: Log,
        state: State,
        positions: Positions,
        transfer: Transfer,
    ) -> None:
        self._settings = settings
        self._cassandra = cassandra
        self._outbox = Outbox(log, settings)
        self._state = state
        self._positions = positions
        self._transfer = transfer
        self._node = positions.host_id
        self._quarantine = quarantine(state.directory)
        for path in self._quarantine.glob("*.log"):
            number = (parse_name(path.name) or (0, 0))[1]
            if number in positions.segments:
                gaps.quarantined(positions, path)  # killed before that was saved
            positions.finish(number)
        self._remembered = saved_tables.load(state.directory)
        self._tables = Tables(
            settings.table_include_list,
            settings.table_exclude_list,
            positions.followed_ids,
            positions.paused_ids,
            *self._remembered,
            refused=positions.refused_ids,
        )
        self._others: tuple[uuid.UUID, ...] = ()
        self._others_saved: tuple[uuid.UUID, ...] = ()
        self._truncations = Truncations(positions)
        self._drops = Drops(positions)
        self._tables.unemitted_drops = self._drops.waiting
        self._reached = positions.reached
        self._headroom = Headroom()
        self._follow = Follow(directory, positions, settings.read_mode)
        self._listed = 0.0
        self._committed = 0.0
        self._moved = False
        self._first = positions.first
        self._oldest: float | None = None
        self._schema_is_old = True
        self._not_durable: set[str] = set()
        self._trouble: str | None = "the agent is starting"
        self._transfer_error: str | None = None
        self._refused = RefusedTopics()
        self._transfer_wait = 0.0
        self._transfer_at = 0.0
        self._drains = self.drained = False
        self._asked = 0.0
        self._unseen = 0
        self._read_unlinked: set[int] = set()
        metrics.OLDEST.set_function(self._age)

    def start(self) -> None:
        """Learn the schema, make the topics, list the segments. Raises HelenusError, and may be called again then."""
        deleted = self._positions.deletes
        node = self._ask_node()
        if node.has_cdc is False:
            if self._positions.listed:
                self._state.save(self._positions)
            raise HelenusError(Kind.CDC_DISABLED, "the node runs with cdc_enabled: false", str(node.host_id), CDC_OFF)
        self._follow.refresh()
        if self._first and (deleted or not node.blocks_writes):
            gaps.check_deleted(self._positions, self._first, [segment.id for segment in self._follow.segments])
        self._first = 0  # what is lost is told once
        self._count_unseen(started=False)
        if self._follow.commit_log is None:
            _log.info("commitlog.not_seen", then="what something else deletes in cdc_raw can't be read from there")
        try:
            self._learn()
        except HelenusError:
            self._rewind()
            with contextlib.suppress(HelenusError):
                self._follow.next()  # how long what is there waits already
            raise
        self._trouble = None
        if not self._tables.followed:
            _log.warning("tables.none", advice="ALTER TABLE ... WITH cdc = true; the agent waits for one")

    def ready(self) -> str | None:
        """Why the agent is not healthy, None if it is."""
        if self._trouble:
            return self._trouble
        if self._positions.cdc_off and not isinstance(self._cassandra, SavedNode):
            return "the node runs with cdc_enabled: false, so nothing it writes gets out: set it to true and restart it"
        if told := self._transfer_error or self._refused.told:
            return told
        count, where = self._quarantined()
        return f"{count} segments could not be read wholly, see {where}" if count else None

    def run(self, stop: threading.Event, drain: bool = False) -> None:
        """Work until told to stop; to `drain`, until all that there is is read and acknowledged. Raises HelenusError
        for what no retry will mend.
        """
        self._drains = drain
        retrying = Retrying(
            retry=retry_if_exception(may_pass),
            wait=wait_exponential(0.2, 10) + wait_random(0, 0.2),
            sleep=sleep_using_event(stop),
            stop=stop_when_event_set(stop),
            before_sleep=self._failed,
            reraise=True,
        )
        try:
            while not stop.is_set():
                retrying(self._work, stop)
            self._commit(_FLUSH_LAST)
        except HelenusError as error:
            if not stop.is_set() or not (may_pass(error) or isinstance(error, TopicError)):
                raise
            _log.warning("agent.unacknowledged", error=str(error), then="it is read again at the next start")
        finally:
            self._follow.close()

    def step(self) -> bool:
        """Read one piece, if there is one, and append what it holds. False if there is nothing to do."""
        now = time.monotonic()
        if now - self._listed > _LIST:
            self._listed = now
            self._follow.refresh()
            self._headroom.watch(self._follow.size)
            self._count_unseen()
            metrics.QUARANTINED.set(self._quarantined()[0])
        if now - self._asked > _ASK:
            with contextlib.suppress(HelenusError):  # it is away: that is told where it is needed
                self._ask_node()
        if self._schema_is_old or self._cassandra.changed():
            self._learn()
        if not self._outbox.is_open or (self._refused.told and self._refused.is_due):
            self._open()
        self._tell()
        segment = self._follow.next()
        if segment is None:
            self._emit_drops(self._drops.waiting)  # what they logged is read
            if not self._outbox.waiting:
                self._oldest = None
            return False
        self._emit_drops(self._tables.retire_before(segment.id))
        self._read(segment, _PIECE)
        reach("agent.after-append")
        return True

    def commit(self) -> bool:
        """Have all that is appended acknowledged and saved, if it is time; True if so."""
        now = time.monotonic()
        since = now - self._committed
        taken = self._follow.finished and now >= self._transfer_at
        due = self._outbox.waiting or taken or (self._moved and since > _COMMIT_QUIET)
        if not due or since < _COMMIT:
            return False
        self._commit(_FLUSH)
        return True

    def _work(self, stop: threading.Event) -> None:
        """A cycle; if a topic alone is refused in it, its table is left out, and the next one reads it all again."""
        try:
            self._cycle(stop)
        except TopicError as error:
            if may_pass(error):
                raise
            metrics.RETRIES.labels(error.kind.value).inc()
            self._rewind()
            if error.kind is Kind.RECORD_TOO_LARGE and self._outbox.isolate_too_large(error.topic):
                return
            refused = [table for table in self._tables.followed_now if self._outbox.topic(table) == error.topic]
            if not refused and not self._leave_drops(error.topic):
                raise
            self._leave_out([(table, error) for table in refused])

    def _cycle(self, stop: threading.Event) -> None:
        """Work up to the next commit."""
        while not stop.is_set():
            worked = self.step()
            if self.commit():
                self._trouble = None
                return
            if not worked:
                if not self._outbox.waiting:
                    self._trouble = None
                    if self._drains and all(segment.is_stable for segment in self._follow.segments):
                        self._report_unreadable()
                        self.drained = True
                        stop.set()
                        return
                time.sleep(self._settings.poll_interval_ms / 1000)  # a fraction of what stop.wait costs

    def _report_unreadable(self) -> None:
        """All is read. Without its node nothing is added any more: a segment of which nothing could be read, and that
        is not blank, is corrupt.
        """
        if not isinstance(self._cassandra, SavedNode):
            return
        for segment in self._follow.segments:
            if not segment.started and not segment.bad and segment.holds_bytes():
                gaps.corrupt(segment, segment.position, "bytes, but no header or no sync marker", segment.left)

    def _read(self, segment: Segment, most: int) -> None:
        """Read so many bytes at most, append what they hold, and go on behind it."""
        try:
            live, padded = segment.live, segment.padded
            data, base, final = segment.read(most)
        except FileNotFoundError:
            segment.bad = True  # deleted under us: the next listing tells what that means
            segment.skip()
            return
        except Corrupt as error:
            gaps.corrupt(segment, segment.position, str(error), segment.unread[0].end - segment.position)
            segment.skip()
            return
        except OSError as error:
            raise HelenusError(Kind.CDC_DIRECTORY, f"cannot read: {error.strerror}", str(segment.path)) from None
        cut = self._truncations.cut(segment.id, base, base + len(data))
        if cut:
            data, final = data[: cut - base], False
        batch = decode(data, base, final, self._tables.plans, self._node, segment.id, _EVENTS, live, padded)
        self._take(segment, batch)
        if batch.broken:
            segment.skip()
            return
        place = segment.id, base + batch.next
        segment.advance(base + batch.next)
        self._reached = max(self._reached, place)
        if batch.unknown is not None:
            self._ask(batch.unknown, place)
        elif cut and not batch.next:
            self._reached = max(self._reached, (segment.id, cut))  # it is within an entry: then it is told before
        elif batch.schema:
            self._learn()
        elif not batch.next and not live:
            self._read(segment, most * 2)  # an entry larger than the piece

    def _take(self, segment: Segment, batch: Batch) -> None:
        """Append what was decoded, and count it."""
        if waiting := self._drops.waiting:
            successors = self._tables.successors(waiting)
            self._emit_drops({successors[change[0]] for change in batch.changes if change[0] in successors})
        for index, error in self._outbox.append(batch):
            gaps.too_large(self._positions, self._tables.followed[index], error)
        if (
            segment.unlinked
            and batch.changes
            and segment.id not in self._read_unlinked
            and self._follow.misses(segment)
        ):
            self._read_unlinked.add(segment.id)
            gaps.unlinked(segment.id, segment.path)
        self._oldest = segment.since if self._oldest is None else min(self._oldest, segment.since)
        metrics.MUTATIONS.inc(batch.mutations)
        for reason, count in Counter(batch.skipped).items():
            metrics.SKIPPED.labels(reason).inc(count)
        for table in self._tables.followed_now if "malformed_key" in batch.skipped else ():
            plan = self._tables.plans[table.id.bytes]
            if plan.malformed:
                gaps.malformed(self._positions, table, plan.malformed, segment.id)
                plan.malformed = 0
        for position, what in batch.problems:
            ends = batch.broken and (position, what) == batch.problems[-1]
            gaps.corrupt(segment, position, what, segment.unread[0].end - position if ends else 0)
        self._moved = True

    def _ask(self, unknown: Unknown, place: Place) -> None:
        """Ask Cassandra for what the decoder met there and does not know."""
        self._learn()
        if not self._tables.knows(unknown):
            segment, position = place
            told = {"segment": segment, "position": position, "what": str(unknown), "table": self._tables.name(unknown)}
            _log.warning("schema.unknown", **told)
            self._tables.give_up(unknown)

    def _tell(self) -> None:
        """Append what concerns whole tables and is due: truncations that reading has come to, and gaps."""
        notices = self._truncations.due(self._reached)
        metrics.TRUNCATIONS.inc(len(notices))
        if self._positions.gaps:
            notices += gaps.due(self._positions, self._tables.followed_ids, self._reached)
        for notice in notices:
            self._outbox.tell(self._tables.index(notice.table), notice, self._node)

    def _emit_drops(self, tables: Collection[uuid.UUID]) -> None:
        """Append that these were dropped, of those that are to be told, to the topics of their names."""
        if not tables or not self._drops.waiting:
            return
        places = {table: index for index, table in self._tables.successors(tables).items()}
        for notice in self._drops.due(tables, self._reached):
            self._outbox.tell(places.get(notice.table, self._tables.index(notice.table)), notice, self._node)

    def _leave_drops(self, topic: str) -> bool:
        """A topic is refused: pass over the drops that it was to be told of. True if there are some."""
        waiting = self._drops.waiting
        of_it = [d for d in waiting if self._outbox.topic(self._tables.followed[self._tables.index(d)]) == topic]
        for dropped in of_it:
            self._drops.leave(dropped)
        return bool(of_it)

    def _commit(self, timeout: float) -> None:
        started = time.monotonic()
        self._outbox.flush(timeout)
        reach("agent.after-flush")
        metrics.FLUSH.observe(time.monotonic() - started)
        finished = self._follow.finished
        for segment in self._follow.segments + finished:
            if segment.started or segment.indexed or segment.unlinked:
                self._positions.segments[segment.id] = Mark(segment.position, segment.indexed, segment.bad)
        for segment in finished:
            if not segment.bad:
                self._positions.finish(segment.id)
        self._positions.followed = [str(table) for table in self._tables.followed_ids]
        self._positions.paused = [str(table) for table in self._tables.paused]
        self._positions.refused = [str(table) for table in self._tables.refused]
        self._positions.reached = self._reached
        self._truncations.acknowledged()
        self._drops.acknowledged()
        gaps.acknowledged(self._positions)
        self._state.save(self._positions)
        self._tables.acknowledged()
        reach("agent.after-save")
        self._tables.unemitted_drops = self._drops.waiting
        self._remember()
        self._outbox.done(self._tables.followed)
        self._moved = False
        self._oldest = None
        if finished and time.monotonic() >= self._transfer_at:
            self._take_away_all(finished)
        if self._positions.segments:
            newest = max(self._positions.segments)
            metrics.POSITION_SEGMENT.set(newest)
            metrics.POSITION_OFFSET.set(self._positions.segments[newest].offset)
        self._committed = time.monotonic()

    def _take_away_all(self, finished: list[Segment]) -> None:
        """Take these away and out of the list. What fails stays in it and costs the others nothing."""
        self._transfer_error = None
        for segment in list(finished):
            try:
                self._take_away(segment)
            except HelenusError as error:
                if not may_pass(error):
                    raise
                self._transfer_error = str(error)
                metrics.RETRIES.labels(error.kind.value).inc()
                _log.error("segment.not_taken", path=str(segment.path), error=str(error), then="it is tried again")
            else:
                finished.remove(segment)
        first, most = _AGAIN
        self._transfer_wait = min(max(first, self._transfer_wait * 2), most) if self._transfer_error else 0.0
        self._transfer_at = time.monotonic() + self._transfer_wait

    def _take_away(self, segment: Segment) -> None:
        segment.close()
        try:
            if segment.bad and segment.path.exists() and not segment.unlinked:
                path = move(segment.path, self._quarantine)
                self._positions.finish(segment.id)
                gaps.quarantined(self._positions, path)
            elif segment.bad:
                self._positions.finish(segment.id)
                gaps.lost(self._positions, segment.id, segment.position, str(segment.path.parent))
            elif segment.unlinked:
                _log.info("segment.done", segment=segment.id)  # the file is the node's
            else:
                self._transfer(segment.path)
                _log.info("segment.done", segment=segment.id)
        except OSError as error:
            raise HelenusError(
                Kind.CDC_DIRECTORY, f"cannot take the segment away: {error.strerror}", str(segment.path)
            ) from None
        metrics.DONE.inc()

    def _ask_node(self) -> Node:
        """Ask the node for its settings: it may have been restarted with others, or JMX has changed them."""
        self._asked = time.monotonic()
        node = self._cassandra.node()
        self._headroom.set(node.raw_limit, node.blocks_writes)
        metrics.RAW_LIMIT.set(node.raw_limit or 0)
        before = self._positions.cdc_off, self._positions.deletes
        gaps.cdc_is_on(self._positions, node.has_cdc)
        self._positions.deletes = not node.blocks_writes
        if (self._positions.cdc_off, self._positions.deletes) != before:
            self._moved, self._committed = True, 0.0  # saved with the next commit: now
        # While CDC is off nothing is linked, and what is logged is not asked for.
        config, raw = self._settings.cassandra_config, self._follow.directory
        off = self._positions.cdc_off
        self._follow.commit_log = None if off else commit_log_directory(config, raw, node.settings)
        return node

    def _count_unseen(self, started: bool = True) -> None:
        """Segments that were never listed are a gap if something else deletes unread ones, or the node does."""
        count, self._follow.unseen = self._follow.unseen, 0
        metrics.UNSEEN.inc(count)
        self._unseen += count
        if self._unseen and (self._read_unlinked or (count and started and self._positions.deletes)):
            gaps.unseen(self._positions, self._unseen)
            self._unseen = 0

    def _learn(self) -> None:
        """Ask for the schema and go by it from here on."""
        self._schema_is_old = True
        if self._outbox.waiting:
            # Should Cassandra not answer, asking is done again, and what was appended so far is not.
            self._commit(_FLUSH)
        self._ask_node()
        schema = self._cassandra.schema()
        self._follow.refresh()
        report = self._tables.update(schema.tables, schema.views, self._follow.newest, schema.stamps)
        self._report(report)
        self._others = self._tables.others
        silent = {table.keyspace for table in self._tables.followed_now} & set(schema.not_durable)
        for keyspace in silent - self._not_durable:
            _log.warning("keyspace.not_durable", keyspace=keyspace, advice="durable_writes = false: no log, no events")
        self._not_durable = silent
        remembered = {table.id for table in self._tables.remembered + report.dropped}
        self._drops.learn(report.dropped, schema.tables, schema.stamps, remembered)
        self._tables.unemitted_drops = self._drops.waiting
        if report.resumed or report.dropped or report.added_again:
            self._state.save(self._positions)  # before what they were found by is forgotten
        self._remember()
        if report.retired:
            self._moved, self._committed = True, 0.0  # that they are paused is saved with the next commit: now
        self._open()
        self._truncations.learn(schema.truncations, self._tables.followed_ids, self._follow.oldest, self._reached)
        self._schema_is_old = False
        self._tell()

    def _open(self) -> None:
        """Make sure of the topics that events may go to; tables whose topics are refused are left out."""
        if self._refused.is_due:
            self._admit()
        tables = [*self._tables.followed_now, *self._tables.without_successors(self._drops.waiting)]
        self._leave_out(self._outbox.open((self._tables.index(table.id), table) for table in tables))

    def _leave_out(self, refused: list[tuple[Table, HelenusError]]) -> None:
        """Pass over what the log holds of these tables, until their topics take something again.

        Raises the first one's error if no other table is left: then it costs nobody to wait until that is mended.
        """
        for table, _ in refused:
            self._tables.refuse(table.id)
            self._truncations.leave(table.id)
            self._leave_drops(self._outbox.topic(table))
        if refused and not self._tables.followed_now:
            raise refused[0][1]
        for table, why in refused:
            self._refused.add(table, why)
        if refused:
            self._refused.wait()
        self._refused.show(self._tables.refused_now)

    def _admit(self) -> None:
        """Follow tables again whose topics take the news that they have a gap. Raises as `_leave_out`."""
        refused = self._tables.refused_now
        if not refused:
            return
        if self._outbox.waiting:
            self._commit(_FLUSH)
        failed: list[tuple[Table, HelenusError]] = []
        for table in refused:
            notice = gaps.of_refused(table.id, self._reached)
            try:
                self._outbox.probe(self._tables.index(table.id), table, notice, self._node, _FLUSH)
            except HelenusError as error:
                failed.append((table, error))
                if may_pass(error):
                    break  # the broker is away: the others would wait for it as well
                continue
            self._outbox.done(self._tables.followed)
            self._tables.admit(table.id)
            self._truncations.follow(table.id, self._follow.oldest, self._reached)
            self._refused.remove(table)
            gaps.refused_ended(table.full_name)
            self._moved, self._committed = True, 0.0  # that it has been told is saved with the next commit: now
        self._leave_out(failed)

    def _remember(self) -> None:
        """Keep what tables look like, should they be dropped while no agent runs."""
        remembered = self._tables.remembered, self._tables.stamps
        if remembered != self._remembered or self._others != self._others_saved:
            saved_tables.save(self._state.directory, *remembered, self._others)
            self._remembered, self._others_saved = remembered, self._others

    def _report(self, report: Report) -> None:
        for table, why in report.refused:
            _log.error("table.refused", table=table.full_name, why=why, advice="its changes are counted as skipped")
        for table in report.retired:
            _log.warning("table.retired", table=table.full_name, advice="what it logged with cdc = true still gets out")
        for table in report.added:
            _log.info("table.followed", table=table.full_name, id=str(table.id))
        for table in report.dropped:
            _log.warning(
                "table.dropped", table=table.full_name, id=str(table.id), then="what it logged gets out, then that"
            )
        for table, column in report.added_again:
            gaps.added_again(self._positions, table.id, table.full_name, column)
        for table in report.resumed:
            gaps.resumed(self._positions, table.id, table.full_name)

    def _failed(self, retry: RetryCallState) -> None:
        error = retry.outcome.exception() if retry.outcome else None
        if not isinstance(error, HelenusError):
            return
        self._trouble = str(error)
        metrics.RETRIES.labels(error.kind.value).inc()
        wait = round(retry.next_action.sleep, 1) if retry.next_action else 0.0
        _log.warning("agent.retry", kind=error.kind.value, error=str(error), attempt=retry.attempt_number, wait_s=wait)
        self._rewind()

    def _rewind(self) -> None:
        """Forget what may not have arrived: it is read again."""
        with contextlib.suppress(HelenusError):
            self._outbox.flush(0)
        self._outbox.waiting.clear()
        self._outbox.forget_topics()
        self._reached = self._positions.reached
        self._tables.rewind()
        self._truncations.rewind()
        self._drops.rewind()
        gaps.rewind(self._positions)
        self._oldest = self._unsent_since()  # it still waits, however often it is read again
        self._follow.rewind()

    def _quarantined(self) -> tuple[int, str]:
        bad = [s for s in self._follow.segments if s.bad]
        held = sum(1 for _ in self._quarantine.glob("*.log"))
        return len(bad) + held, str(bad[0].path if bad else self._quarantine)

    def _age(self) -> float:
        since = self._unsent_since()
        return 0.0 if since is None else max(0.0, time.time() - since)

    def _unsent_since(self) -> float | None:
        return min((t for t in (self._oldest, self._follow.waiting_since) if t is not None), default=None)
