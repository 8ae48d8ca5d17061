"""The agent's loop: read, decode, append; then flush, save, and remove what is fully processed. In this order only.

    1 list      the segments in cdc_raw, twice a second; once when quiet     SegmentQueue.refresh
    2 learn     the schema, when it changed; make sure of the topics         FollowedTables.learn, open
    3 emit      truncations that are reached, and gaps                       FollowedTables.emit
    4 read      a piece of the oldest segment that has something to read     Segment.read
    5 decode    its mutations into events                                    decode
    6 append    them to their topics                                         Outbox.append
    7 commit    flush: the broker acknowledges; save the positions; then remove segments that are read to their end

Everything since the last saved position can be read again. So whatever fails on the way to the broker, the agent goes
back to that position and repeats: nothing is lost, some events may arrive twice.
"""

from __future__ import annotations

import contextlib
import threading
import time
from functools import partial
from pathlib import Path

import structlog
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_when_event_set, wait_exponential, wait_random

from helenus_agent import metrics
from helenus_agent.commitlog.decoder import DecodedBatch, decode
from helenus_agent.commitlog.entries import last_entry
from helenus_agent.commitlog.segment import Segment
from helenus_agent.commitlog.segment_header import Corrupt
from helenus_agent.config import AgentSettings
from helenus_agent.decoded_batches import count_batch, unmarked_batches
from helenus_agent.delivery.change_spans import ChangeSpans
from helenus_agent.delivery.outbox import Outbox
from helenus_agent.followed_tables import FollowedTables
from helenus_agent.look_pauses import LookPauses
from helenus_agent.node.cassandra import Cassandra
from helenus_agent.node.offline import SavedNode
from helenus_agent.node_directories import CDC_OFF
from helenus_agent.positions import Positions, SegmentMark
from helenus_agent.segments import gaps
from helenus_agent.segments.removal import Removal
from helenus_agent.segments.segment_queue import SegmentQueue
from helenus_agent.segments.transfer import Transfer
from helenus_agent.state import StateDirectory, quarantine
from helenus_agent.state_store.state_store import StateStore
from helenus_agent.transient import may_pass
from helenus_schemas import errors
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.names import counted
from helenus_schemas.service import descriptors
from helenus_schemas.service.failpoints import reach
from helenus_sinks.log import Log, TopicError

_PIECE = 1 << 20  # bytes of log that are decoded at once
_EVENTS = 4096  # events at which a piece ends early
_LIST, _LIST_QUIET = 0.5, 1.0  # s between two listings of cdc_raw: each takes what some looks take
_COMMIT = 0.25  # s between two commits of events
_COMMIT_QUIET = 10.0  # s between two that only save how far a log without events is read
_FLUSH = 10.0  # s without an acknowledgement after which what was appended is appended again
_FLUSH_LAST = 5.0  # the same at the end
STARTING = "the agent is starting"
"""Why an agent is not healthy at first."""
_log = structlog.get_logger(__name__)


class Agent:
    """Moves changes from one node's cdc_raw to a Log. One thread runs it; another may call `ready`.

    `drained`: everything in cdc_raw is read and acknowledged, as `run` was asked to.
    """

    def __init__(
        self,
        settings: AgentSettings,
        directory: Path,
        cassandra: Cassandra | SavedNode,
        log: Log,
        state: StateDirectory,
        positions: Positions,
        transfer: Transfer,
        spans: ChangeSpans | None = None,
        store: StateStore | None = None,
    ) -> None:
        self._settings = settings
        self._spans = spans
        self._offline = isinstance(cassandra, SavedNode)
        self._state = state
        self._store = store
        self._positions = positions
        self._outbox = Outbox(log, settings)
        may_remove = None if store is None else store.may_remove
        self._removal = Removal(transfer, quarantine(state.directory), positions, may_remove)
        self._queue = SegmentQueue(directory, positions)
        self._followed = FollowedTables(settings, cassandra, self._outbox, self._queue, state, positions, self._commit)
        self._first = positions.first
        self._listed_at = 0.0
        self._committed_at = 0.0
        self._has_progress = False
        self._pauses = LookPauses(settings.poll_interval_ms / 1000)
        self._oldest: float | None = None
        self._trouble: str | None = STARTING
        self._is_draining, self.drained, self._unseen = False, False, 0
        self._is_ahead = False  # the last piece came after the last marker
        self._is_current = False  # the last look found nothing, and nothing waits for a marker
        self._read_unlinked: set[int] = set()
        metrics.OLDEST.set_function(self._oldest_age)

    def start(self) -> None:
        """Learn the schema, open the topics, list the segments. Raises HelenusError, and may be called again then."""
        deleted = self._positions.deletes
        node = self._followed.ask_node()
        if node.has_cdc is False:
            if self._positions.listed:
                self._save(has_events=False)
                self._copy_state()
            raise HelenusError(Kind.CDC_DISABLED, "the node runs with cdc_enabled: false", str(node.host_id), CDC_OFF)
        self._queue.refresh()
        if self._first and (deleted or not node.blocks_writes):
            gaps.check_deleted(self._positions, self._first, [segment.id for segment in self._queue.segments])
        self._first = 0  # a loss is reported once
        self._count_unseen(started=False)
        if self._queue.commit_log is None:
            _log.info("commitlog.not_seen", then="segments that something else deletes in cdc_raw can't be read there")
        try:
            self._followed.learn()
        except HelenusError:
            self._rewind()
            with contextlib.suppress(HelenusError):
                self._queue.next()  # since when unread data waits, for the metric
            raise
        self._trouble = None
        if not self._followed.tables.followed:
            _log.warning("tables.none", advice="ALTER TABLE ... WITH cdc = true; the agent waits for one")

    def ready(self) -> str | None:
        """Return why the agent is not healthy, None if it is."""
        if self._trouble:
            return self._trouble
        if self._positions.cdc_off and not self._offline:
            advice = "set it to true and restart it"
            return f"the node runs with cdc_enabled: false, so nothing that it writes is published: {advice}"
        if trouble := self._removal.error or self._followed.refused.summary or self._followed.transactional.summary:
            return trouble
        count, where = self._removal.count_quarantined(self._queue.segments)
        return f"{counted(count, 'segment')} could not be read wholly, see {where}" if count else None

    @property
    def table_names(self) -> tuple[str, ...]:
        """Return the names of the tables that are followed."""
        return tuple(table.full_name for table in self._followed.tables.followed_now)

    def run(self, stop: threading.Event, drain: bool = False) -> None:
        """Work until `stop`; with `drain`, until everything in cdc_raw is read and acknowledged.

        Raises HelenusError for what no retry will mend.
        """
        self._is_draining = drain
        retrying = Retrying(
            retry=retry_if_exception(may_pass),
            wait=wait_exponential(0.2, 10) + wait_random(0, 0.2),
            sleep=partial(self._followed.learn_meanwhile, stop),
            stop=stop_when_event_set(stop),
            before_sleep=self._handle_failure,
            reraise=True,
        )
        try:
            while not stop.is_set():
                retrying(self._run_cycle, stop)
            self._commit(_FLUSH_LAST)
        except HelenusError as error:
            if not stop.is_set() or not (may_pass(error) or isinstance(error, TopicError)):
                raise
            _log.warning("agent.unacknowledged", error=str(error), then="read again at the next start")
        finally:
            self._queue.close()

    def close(self) -> None:
        """Close the files of segments: also if it never ran."""
        self._queue.close()

    def step(self) -> bool:
        """Read one piece, if there is one, and append its events. False if there is nothing to do."""
        # 1 list
        if self._must_list():
            self._listed_at = time.monotonic()
            self._list_segments()
        # 2 learn
        if self._followed.must_ask_node:
            with contextlib.suppress(HelenusError):  # the node is away: reported where it is needed
                self._followed.ask_node()
        if self._followed.must_learn(rarely=self._is_current):
            self._followed.learn()
        if not self._outbox.is_open or (self._followed.refused.summary and self._followed.refused.is_due):
            self._followed.open()
        # 3 emit
        self._followed.emit()
        # 4 read
        segment = self._queue.next()
        plans = self._followed.tables.plans
        for ended, batch in unmarked_batches(self._positions, plans, self._queue.finished, _EVENTS):
            self._append_batch(ended, batch, time.time_ns())
        self._is_current = segment is None and self._queue.is_current()
        if segment is None:
            self._followed.emit_all_drops()
            if not self._outbox.waiting:
                self._oldest = None
            return False
        self._followed.enter_segment(segment.id)
        self._is_ahead = segment.live
        self._read_piece(segment, _PIECE)
        reach("agent.after-append")
        return True

    def commit(self) -> bool:
        """Have all that is appended acknowledged and saved, if it is time; True if so."""
        if not self._must_commit():
            return False
        self._commit(_FLUSH)
        return True

    def _must_commit(self) -> bool:
        now = time.monotonic()
        since = now if self._followed.must_save else now - self._committed_at
        finished = self._removal.is_due and self._has_removable
        quiet = (self._has_progress and since > _COMMIT_QUIET) or self._followed.must_save
        return bool(self._outbox.waiting or finished or quiet) and since >= _COMMIT

    def _run_cycle(self, stop: threading.Event) -> None:
        """Run a cycle. If it fails for one topic alone, its tables are left out, and the next cycle reads all again."""
        try:
            self._cycle(stop)
        except TopicError as error:
            if may_pass(error):
                raise
            metrics.RETRIES.labels(error.kind.value).inc()
            self._rewind()
            if error.kind is Kind.RECORD_TOO_LARGE and self._outbox.isolate_too_large(error.topic):
                return
            if not self._followed.leave_out_topic(error.topic, error):
                raise

    def _cycle(self, stop: threading.Event) -> None:
        """Work up to the next commit."""
        while not stop.is_set():
            worked = self.step()
            if self.commit():
                self._trouble = None
                return
            if worked and self._is_ahead:
                # The next entry is written right now: one by one they would take a whole core.
                self._sleep_while_idle(stop)
            elif not worked:
                if not self._outbox.waiting:
                    self._trouble = None
                    if self._is_draining and all(segment.is_stable for segment in self._queue.segments):
                        self._report_unreadable()
                        self.drained = True
                        stop.set()
                        return
                self._sleep_while_idle(stop)

    def _sleep_while_idle(self, stop: threading.Event) -> None:
        """Sleep until there may be something to do. After a while without any, a look reads only what follows the
        markers, until something does, the schema has changed, or cdc_raw is to be listed.
        """
        self._outbox.send_lingering()
        while True:
            reads_ahead, may_be_long = self._queue.mode == "eager", not self._outbox.waiting
            time.sleep(self._pauses.pause_s(time.monotonic(), reads_ahead, may_be_long))  # less CPU than stop.wait
            is_told = self._followed.must_learn(rarely=self._is_current)
            if stop.is_set() or self._must_list() or self._must_commit() or is_told or self._queue.has_news():
                return

    def _must_list(self) -> bool:
        now = time.monotonic()
        return now - self._listed_at > (_LIST_QUIET if self._pauses.is_quiet(now) else _LIST)

    def _list_segments(self) -> None:
        """List cdc_raw, and see how full it is."""
        if self._store is not None:
            self._store.check()
        self._queue.refresh()
        self._followed.headroom.watch(self._queue.size)
        self._count_unseen()
        metrics.QUARANTINED.set(self._removal.count_quarantined(self._queue.segments)[0])

    def _read_piece(self, segment: Segment, max_bytes: int) -> None:
        """Read so many bytes at most, append the events in them, and advance."""
        try:
            live, padded = segment.live, segment.padded
            data, base, final = self._queue.read(segment, max_bytes)
        except FileNotFoundError:
            segment.bad = True  # deleted meanwhile: the next listing says what that means
            segment.skip()
            return
        except Corrupt as error:
            gaps.report_corrupt(segment, segment.position, str(error), segment.unread[0].end - segment.position)
            segment.skip()
            return
        except OSError as error:
            raise HelenusError(Kind.CDC_DIRECTORY, f"cannot read: {error.strerror}", str(segment.path)) from None
        truncation_position = self._followed.truncations.first_within(segment.id, base, base + len(data))
        if truncation_position:
            data, final = data[: truncation_position - base], False
        plans, node = self._followed.tables.plans, self._positions.host_id
        # 5 decode
        read_ns = time.time_ns()
        batch = decode(data, base, final, plans, node, segment.id, segment.version, _EVENTS, live, padded)
        # 6 append
        self._append_batch(segment, batch, read_ns)
        if live and (batch.schema or batch.unknown is not None):
            # The node logs a change of the schema before it applies it: it has by the time of a marker, as a rule.
            segment.hold(base + (last_entry(data, batch.next) if batch.schema else batch.next))
            return
        if batch.broken:
            segment.skip()
            return
        log_position = segment.id, base + batch.next
        segment.advance(base + batch.next)
        self._followed.reached = max(self._followed.reached, log_position)
        if batch.unknown is not None:
            self._followed.learn_unknown(batch.unknown, log_position)
        elif truncation_position and not batch.next:
            # The truncation lies within an entry: its event goes before that one.
            self._followed.reached = max(self._followed.reached, (segment.id, truncation_position))
        elif batch.schema:
            entry = data[last_entry(data, batch.next) : batch.next]
            self._followed.learn_schema_at(log_position, entry, segment.version)
        elif not batch.next and not live:
            self._read_piece(segment, max_bytes * 2)  # an entry larger than the piece

    def _append_batch(self, segment: Segment, batch: DecodedBatch, read_ns: int) -> None:
        """Append the events of a batch; count and report its problems."""
        self._followed.emit_drops_before(batch.changes)
        tables = self._followed.tables
        too_large = self._outbox.append(batch)
        for index, error in too_large:
            gaps.report_too_large(self._positions, tables.followed[index], error)
        if self._spans is not None:
            self._spans.note_appended(batch.changes, tables.followed, read_ns, {index for index, _ in too_large})
        is_first = segment.unlinked and segment.id not in self._read_unlinked
        if is_first and batch.changes and self._queue.is_unlinked(segment):
            self._read_unlinked.add(segment.id)
            gaps.report_unlinked(segment.id, segment.path)
        self._oldest = segment.since if self._oldest is None else min(self._oldest, segment.since)
        count_batch(self._positions, tables, segment, batch)
        self._has_progress = True
        self._pauses.note_read(len(batch.changes))

    def _commit(self, timeout: float) -> None:
        """Commit, step 7: flush, save, remove."""
        started = time.monotonic()
        has_events = bool(self._outbox.waiting)
        self._outbox.flush(timeout)
        reach("agent.after-flush")
        metrics.FLUSH.observe(time.monotonic() - started)
        if self._spans is not None:
            self._spans.finish()
        finished = self._queue.finished
        for segment in self._queue.segments + finished:
            if segment.started or segment.indexed or segment.unlinked:
                self._positions.segments[segment.id] = SegmentMark(segment.position, segment.indexed, segment.bad)
        self._positions.finish_all([segment.id for segment in finished if not segment.bad])
        self._followed.note_positions()
        self._save(has_events)
        reach("agent.after-save")
        self._followed.forget_acknowledged()
        self._copy_state()
        self._outbox.confirm_all(self._followed.tables.followed)
        self._has_progress = False
        self._oldest = None
        if finished and self._removal.is_due:
            self._removal.remove(finished)
        if self._positions.segments:
            newest = max(self._positions.segments)
            metrics.POSITION_SEGMENT.set(newest)
            metrics.POSITION_OFFSET.set(self._positions.segments[newest].offset)
        self._committed_at = time.monotonic()

    def _save(self, has_events: bool) -> None:
        if self._store is not None:
            self._store.stamp(self._positions, has_events)
        self._state.save(self._positions)

    def _copy_state(self) -> None:
        if self._store is not None:
            self._store.note_finished([segment.id for segment in self._queue.finished], self._positions.version)
            self._store.offer(self._positions)

    @property
    def _has_removable(self) -> bool:
        """Return whether a finished segment may leave cdc_raw, or is to be saved as finished before it may."""
        store, finished = self._store, self._queue.finished
        return bool(finished) if store is None else any(store.is_removal_due(segment.id) for segment in finished)

    def _report_unreadable(self) -> None:
        """Report segments with bytes of which nothing could be read as corrupt, when all is read offline: nothing is
        added any more.
        """
        if not self._offline:
            return
        for segment in self._queue.segments:
            if not segment.started and not segment.bad and segment.holds_bytes():
                gaps.report_corrupt(
                    segment, segment.position, "bytes, but no header or no sync marker", segment.remaining_bytes
                )

    def _count_unseen(self, started: bool = True) -> None:
        """Report segments that were never listed as a gap if something else deletes unread ones, or the node does."""
        count, self._queue.unseen = self._queue.unseen, 0
        metrics.UNSEEN.inc(count)
        self._unseen += count
        if self._unseen and (self._read_unlinked or (count and started and self._positions.deletes)):
            gaps.report_unseen(self._positions, self._unseen)
            self._unseen = 0

    def _handle_failure(self, retry: RetryCallState) -> None:
        error = retry.outcome.exception() if retry.outcome else None
        if error is not None and descriptors.are_exhausted(error):
            error = HelenusError(Kind.STATE, errors.reason(error), advice=descriptors.ADVICE)
        if not isinstance(error, HelenusError):
            return
        self._trouble = str(error)
        metrics.RETRIES.labels(error.kind.value).inc()
        wait_s = round(retry.next_action.sleep, 1) if retry.next_action else 0.0
        _log.warning(
            "agent.retry", kind=error.kind.value, error=str(error), attempt=retry.attempt_number, wait_s=wait_s
        )
        with descriptors.exhaustion_tolerated():  # the next attempt fails by it again, and goes back then
            self._rewind()

    def _rewind(self) -> None:
        """Go back to the saved positions: what may not have arrived is read again."""
        with contextlib.suppress(HelenusError):
            self._outbox.flush(0)
        self._outbox.waiting.clear()
        self._outbox.forget_topics()
        if self._spans is not None:
            self._spans.drop()
        self._followed.rewind()
        self._oldest = self._unsent_since()  # it waits since then, however often it is read again
        self._queue.rewind()

    def _oldest_age(self) -> float:
        since = self._unsent_since()
        return 0.0 if since is None else max(0.0, time.time() - since)

    def _unsent_since(self) -> float | None:
        return min((t for t in (self._oldest, self._queue.waiting_since) if t is not None), default=None)
