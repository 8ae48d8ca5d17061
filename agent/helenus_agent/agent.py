"""The agent's work: read, decode, append; then flush, save, and take away what is done with. In this order only.

Everything since the last saved position can be read again. So whatever fails on the way to the broker, the agent goes
back to that position and does it again: nothing is lost, some may arrive twice.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from pathlib import Path

import structlog
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_when_event_set, wait_exponential, wait_random
from tenacity.nap import sleep_using_event

from helenus_agent import metrics
from helenus_agent.config import AgentSettings
from helenus_agent.decoder import Batch, decode
from helenus_agent.discovery import Cassandra
from helenus_agent.follow import Follow
from helenus_agent.positions import Mark, Positions, State
from helenus_agent.segment import Corrupt, Segment, parse_name
from helenus_agent.tables import Tables
from helenus_agent.transfer import Transfer, quarantine
from helenus_schemas import names
from helenus_schemas.errors import Action, HelenusError, Kind
from helenus_schemas.failpoints import reach
from helenus_sinks.log import Log

try:
    from cassandra.cmurmur3 import murmur3
except ImportError:  # a driver built without its extensions
    from cassandra.murmur3 import murmur3

_PIECE = 1 << 20  # bytes of log that are decoded at once
_EVENTS = 4096  # and changes, at which a piece ends early
_LIST = 0.5  # s between two listings of cdc_raw
_COMMIT = 0.25  # s between two commits of events
_COMMIT_QUIET = 10.0  # s between two that only save how far a log without events is read
_FLUSH = 30.0  # s that the broker has to acknowledge
_FLUSH_LAST = 5.0  # the same at the end
_log = structlog.get_logger()


class Agent:
    """Moves changes from one node's cdc_raw to a Log. One thread runs it; `ready` may be asked by another."""

    def __init__(
        self,
        settings: AgentSettings,
        directory: Path,
        cassandra: Cassandra,
        log: Log,
        state: State,
        positions: Positions,
        transfer: Transfer,
    ) -> None:
        self._settings = settings
        self._cassandra = cassandra
        self._sink = log
        self._state = state
        self._positions = positions
        self._transfer = transfer
        self._node = positions.host_id
        self._quarantine = state.directory / "quarantine"
        for path in self._quarantine.glob("*.log"):
            positions.finish((parse_name(path.name) or (0, 0))[1])
        self._tables = Tables(settings.table_include_list, settings.table_exclude_list, positions.followed_ids)
        self._topics: list[tuple[str, int]] = []
        self._follow = Follow(directory, positions)
        self._listed = 0.0
        self._committed = 0.0
        self._appended: Counter[int] = Counter()
        self._moved = False
        self._oldest: float | None = None
        self._schema_is_old = True
        self._not_durable: set[str] = set()
        self._trouble: str | None = "the agent is starting"
        metrics.OLDEST.set_function(self._age)

    def start(self) -> None:
        """Learn the schema, make the topics, list the segments. Raises HelenusError."""
        self._follow.refresh()
        self._learn()
        self._trouble = None
        if not self._tables.followed:
            _log.warning("tables.none", advice="ALTER TABLE ... WITH cdc = true; the agent waits for one")

    def ready(self) -> str | None:
        """Why the agent is not healthy, None if it is."""
        if self._trouble:
            return self._trouble
        count, where = self._quarantined()
        return f"{count} segments could not be read wholly, see {where}" if count else None

    def run(self, stop: threading.Event) -> None:
        """Work until told to stop. Raises HelenusError for what no retry will mend."""
        retrying = Retrying(
            retry=retry_if_exception(lambda e: isinstance(e, HelenusError) and e.action is Action.RETRY),
            wait=wait_exponential(0.2, 10) + wait_random(0, 0.2),
            sleep=sleep_using_event(stop),
            stop=stop_when_event_set(stop),
            before_sleep=self._failed,
            reraise=True,
        )
        try:
            while not stop.is_set():
                retrying(self._cycle, stop)
            self._commit(_FLUSH_LAST)
        except HelenusError as error:
            if not stop.is_set() or error.action is not Action.RETRY:
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
            metrics.QUARANTINED.set(self._quarantined()[0])
        if self._schema_is_old or self._cassandra.changed():
            self._learn()
        segment = self._follow.next()
        if segment is None:
            return False
        self._tables.reach(segment.id)
        self._read(segment, _PIECE)
        reach("agent.after-append")
        return True

    def commit(self) -> bool:
        """Have all that is appended acknowledged and saved, if it is time; True if so."""
        since = time.monotonic() - self._committed
        due = self._appended or self._follow.finished or (self._moved and since > _COMMIT_QUIET)
        if not due or since < _COMMIT:
            return False
        self._commit(_FLUSH)
        return True

    def _cycle(self, stop: threading.Event) -> None:
        """Work up to the next commit."""
        while not stop.is_set():
            worked = self.step()
            if self.commit():
                self._trouble = None
                return
            if not worked:
                if not self._appended:
                    self._trouble = None
                time.sleep(self._settings.poll_interval_ms / 1000)  # a fraction of what stop.wait costs

    def _read(self, segment: Segment, most: int) -> None:
        try:
            data, base, final = segment.read(most)
        except FileNotFoundError:
            segment.bad = True  # deleted under us: the next listing tells what that means
            segment.skip()
            return
        except Corrupt as error:
            self._problem(segment, segment.position, str(error))
            segment.skip()
            return
        except OSError as error:
            raise HelenusError(Kind.CDC_DIRECTORY, f"cannot read: {error.strerror}", str(segment.path)) from None
        batch = decode(data, base, final, self._tables.plans, self._node, segment.id, _EVENTS)
        self._append(batch)
        self._oldest = segment.since if self._oldest is None else min(self._oldest, segment.since)
        metrics.MUTATIONS.inc(batch.mutations)
        for reason, count in Counter(batch.skipped).items():
            metrics.SKIPPED.labels(reason).inc(count)
        for position, what in batch.problems:
            self._problem(segment, position, what)
        self._moved = True
        if batch.broken:
            segment.skip()
            return
        segment.advance(base + batch.next)
        if batch.unknown is not None:
            self._learn()
            if not self._tables.knows(batch.unknown):
                _log.warning("schema.unknown", segment=segment.id, position=base + batch.next, what=str(batch.unknown))
                self._tables.give_up(batch.unknown)
        elif batch.schema:
            self._learn()
        elif not batch.next:
            self._read(segment, most * 2)  # an entry larger than the piece

    def _append(self, batch: Batch) -> None:
        append = self._sink.append
        topics = self._topics
        last_key, last_index, partition = b"", -1, 0
        topic = ""
        for index, partition_key, key, value in batch.changes:
            if partition_key != last_key or index != last_index:
                last_key, last_index = partition_key, index
                topic, partitions = topics[index]
                partition = names.partition(murmur3(partition_key), partitions)
            append(topic, partition, key, value)
        self._appended.update(change[0] for change in batch.changes)

    def _commit(self, timeout: float) -> None:
        started = time.monotonic()
        self._sink.flush(timeout)
        reach("agent.after-flush")
        metrics.FLUSH.observe(time.monotonic() - started)
        finished = self._follow.finished
        for segment in self._follow.segments + finished:
            if segment.started or segment.indexed:
                self._positions.segments[segment.id] = Mark(segment.position, segment.indexed, segment.bad)
        for segment in finished:
            if not segment.bad:
                self._positions.finish(segment.id)
        self._positions.followed = [str(table) for table in self._tables.followed_ids]
        self._state.save(self._positions)
        reach("agent.after-save")
        for index, count in self._appended.items():
            metrics.EVENTS.labels(self._tables.followed[index].full_name).inc(count)
        self._appended.clear()
        self._moved = False
        self._oldest = None
        for segment in finished:
            self._take_away(segment)
        finished.clear()
        if self._positions.segments:
            newest = max(self._positions.segments)
            metrics.POSITION_SEGMENT.set(newest)
            metrics.POSITION_OFFSET.set(self._positions.segments[newest].offset)
        self._committed = time.monotonic()

    def _take_away(self, segment: Segment) -> None:
        segment.close()
        try:
            if segment.bad and segment.path.exists():
                path = quarantine(segment.path, self._quarantine)
                self._positions.finish(segment.id)
                _log.error("segment.quarantined", path=str(path))
            elif segment.bad:
                self._positions.finish(segment.id)
                metrics.LOST.inc()
                _log.error("segment.lost", path=str(segment.path), position=segment.position)
            else:
                self._transfer(segment.path)
                _log.info("segment.done", segment=segment.id)
        except OSError as error:
            raise HelenusError(
                Kind.CDC_DIRECTORY, f"cannot take the segment away: {error.strerror}", str(segment.path)
            ) from None
        metrics.DONE.inc()

    def _learn(self) -> None:
        """Ask for the schema and go by it from here on."""
        self._schema_is_old = True
        if self._appended:
            # Should Cassandra not answer, asking is done again, and what was appended so far is not.
            self._commit(_FLUSH)
        schema = self._cassandra.schema()
        report = self._tables.update(schema.tables, schema.views, self._follow.newest)
        for table, why in report.refused:
            _log.error("table.refused", table=table.full_name, why=why, advice="its changes are counted as skipped")
        for table in report.retired:
            _log.warning("table.retired", table=table.full_name, advice="what it logged with cdc = true still gets out")
        for table in report.added:
            _log.info("table.followed", table=table.full_name, id=str(table.id))
        silent = {table.keyspace for table in self._tables.followed} & set(schema.not_durable)
        for keyspace in silent - self._not_durable:
            _log.warning("keyspace.not-durable", keyspace=keyspace, advice="durable_writes = false: no log, no events")
        self._not_durable = silent
        self._make_topics()
        self._schema_is_old = False

    def _make_topics(self) -> None:
        settings = self._settings
        config = {
            "cleanup.policy": "delete",
            "retention.ms": str(settings.topic_retention_ms),
            **settings.topic_config,
        }
        for table in self._tables.followed[len(self._topics) :]:
            topic = names.topic(settings.topic_prefix, table.keyspace, table.name)
            partitions = self._sink.create(topic, settings.topic_partitions, config)
            self._topics.append((topic, partitions))
            _log.info("topic.ready", topic=topic, partitions=partitions)

    def _failed(self, retry: RetryCallState) -> None:
        error = retry.outcome.exception() if retry.outcome else None
        if not isinstance(error, HelenusError):
            return
        self._trouble = str(error)
        metrics.RETRIES.labels(error.kind.value).inc()
        wait = round(retry.next_action.sleep, 1) if retry.next_action else 0.0
        _log.warning("agent.retry", kind=error.kind.value, error=str(error), attempt=retry.attempt_number, wait_s=wait)
        # What may not have arrived is forgotten here and read again.
        with contextlib.suppress(HelenusError):
            self._sink.flush(0)
        self._appended.clear()
        self._oldest = None
        self._follow.rewind()

    def _problem(self, segment: Segment, position: int, what: str) -> None:
        segment.bad = True
        metrics.PROBLEMS.inc()
        _log.error("segment.corrupt", path=str(segment.path), position=position, error=what)

    def _quarantined(self) -> tuple[int, str]:
        bad = [s for s in self._follow.segments if s.bad]
        held = sum(1 for _ in self._quarantine.glob("*.log"))
        return len(bad) + held, str(bad[0].path if bad else self._quarantine)

    def _age(self) -> float:
        since = min((t for t in (self._oldest, self._follow.waiting_since) if t is not None), default=None)
        return 0.0 if since is None else max(0.0, time.time() - since)
