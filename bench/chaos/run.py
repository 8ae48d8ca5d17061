"""One run of a plan: statements and faults side by side, then quiet, then the comparison."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from cassandra import ConsistencyLevel
from cassandra.query import SimpleStatement

from bench.chaos import faults
from bench.chaos.cluster import ChaosCluster
from bench.chaos.compare import Finding
from bench.chaos.fault_registry import KINDS
from bench.chaos.history import ExecutedStatement, clock
from bench.chaos.machine_faults import CLOCK_FAULTS, MOST_STEP_S
from bench.chaos.modes import MODES
from bench.chaos.plan import Plan, PlannedFault, PlannedStatement
from bench.chaos.quiet import wait_quiet
from bench.chaos.random_table import ALTERATIONS, DEFINITIONS
from bench.chaos.topic import check_topic
from helenus_stack.readers import reader

Say = Callable[[str], None]
_REPEAT_S = 180.0
"""So long a statement on a whole table is repeated, until it is done: half a TRUNCATE leaves replicas that differ for
ever.
"""
_SUPERVISION_S = 2.0
_READY_S = 10.0
"""With faults in several lanes, all agents and workers are seldom ready at once."""
_LATE_S = 5.0
"""A fault that begins so long after the last statement would disturb little."""
_AFTER_ALL_US = 600_000_000
"""After all write times, by more than clocks are stepped and statements are ahead."""


@dataclass
class ChaosResult:
    """What a run did and found."""

    statements: list[ExecutedStatement] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Those that happened, each with what it failed with, if it did."""
    restarts: int = 0
    """How often an agent or a worker ended by itself, and was started again."""
    records: int = 0
    expired: int = 0
    """Keys that differ because a TTL ended, as is documented."""
    unsure: int = 0
    """Rows of `resolver=none` not compared: a repair wrote cells of several write times at once."""
    relogged: int = 0
    """Second records of changes that a node had logged twice, as is documented."""
    findings: list[Finding] = field(default_factory=list)

    def summary(self) -> str:
        """Return the figures in two lines."""
        acknowledged = sum(statement.is_acknowledged for statement in self.statements)
        return (
            f"{len(self.faults)} faults, {len(self.statements)} statements ({acknowledged} acknowledged), "
            f"{self.records} records\n"
            f"{self.restarts} ended by themselves; {self.expired} keys expired, {self.unsure} rows unsure, "
            f"{self.relogged} logged twice; "
            f"{len(self.findings)} differences"
        )


class ChaosRun:
    """Runs a plan on a cluster, which it enters."""

    def __init__(self, plan: Plan, cluster: ChaosCluster, say: Say, verifies: bool = False) -> None:
        self.plan, self.say = plan, say
        self.result = ChaosResult()
        self._cluster, self._verifies = cluster, verifies
        self._lock = threading.Lock()
        self._last_time = 0
        self._is_over = threading.Event()
        self._is_given_up = threading.Event()
        self._under_fault: set[str] = set()
        self._schema_lock = threading.Lock()
        """Held while tables are altered, and while no table may be."""

    def execute(self) -> ChaosResult:
        """Start all, do what is planned, and compare. Raises StackError and TimeoutError if servers do not start."""
        with self._cluster as cluster:
            self.say("servers run; starting agents and workers")
            cluster.start_services(self.plan.tables)
            self.say(f"{len(self.plan.statements)} statements and {len(self.plan.faults)} faults begin")
            self._disturb(cluster)
            self._settle(cluster)
            self._compare(cluster)
        return self.result

    def _disturb(self, cluster: ChaosCluster) -> None:
        """Statements of each table in a thread, and faults of each lane in one; returns when all are over."""
        started = time.monotonic()
        by_mode = [[s for s in self.plan.statements if s.mode == mode] for mode in self.plan.tables]
        lanes: dict[str, list[PlannedFault]] = {}
        for fault in self.plan.faults:
            lanes.setdefault(KINDS[fault.name].lane, []).append(fault)
        supervisor = threading.Thread(target=self._supervise, args=(cluster,), daemon=True)
        supervisor.start()
        try:
            with ThreadPoolExecutor(len(by_mode) + len(lanes)) as pool:
                threads = [pool.submit(self._write, cluster, started, statements) for statements in by_mode]
                threads += [pool.submit(self._break, cluster, started, lane) for lane in lanes.values()]
                try:
                    for thread in threads:
                        thread.result()
                except BaseException:  # as of Ctrl-C: the others need not go on to the end
                    self._is_given_up.set()
                    raise
        finally:
            self._is_over.set()
            supervisor.join()
        self.result.statements.sort(key=lambda statement: statement.sent_at)

    def _write(self, cluster: ChaosCluster, started: float, statements: Sequence[PlannedStatement]) -> None:
        for planned in statements:
            if self._is_given_up.wait(max(0.0, started + planned.second - time.monotonic())):
                return
            if planned.statement.kind not in ALTERATIONS:
                self._execute_until_done(cluster.session_in(planned.data_center), planned)
                continue
            with self._schema_lock:
                self._execute_until_done(cluster.session, planned)
                if planned.statement.follow_up:
                    self._create_again(cluster, planned)

    def _create_again(self, cluster: ChaosCluster, planned: PlannedStatement) -> None:
        """Create a table that was dropped, until it is there: a node that does not know of the DROP creates none."""
        following = replace(planned, statement=planned.statement._replace(cql=planned.statement.follow_up))
        limit = time.monotonic() + _REPEAT_S
        while time.monotonic() < limit and not self._is_given_up.is_set():
            self._execute_until_done(cluster.session, following)
            time.sleep(2)
            with suppress(Exception):
                cluster.table(MODES[planned.mode])
                return

    def _execute_until_done(self, session: Any, planned: PlannedStatement) -> None:
        executed = self._execute_once(session, planned)
        limit = time.monotonic() + _REPEAT_S
        while not executed.is_acknowledged and planned.statement.kind in DEFINITIONS and time.monotonic() < limit:
            time.sleep(2)
            executed = self._execute_once(session, planned)

    def _execute_once(self, session: Any, planned: PlannedStatement) -> ExecutedStatement:
        """Send a statement, once: one that timed out may have been applied."""
        with self._lock:
            # Two each: a batch uses the next one too.
            self._last_time = max(self._last_time + 2, time.time_ns() // 1000)
            write_time = self._last_time + planned.statement.offset_us
        times = {"{ts}": write_time, "{ts1}": write_time + 1, "{ts_after_all}": write_time + _AFTER_ALL_US}
        cql = planned.statement.cql
        for name, time_us in times.items():
            cql = cql.replace(name, str(time_us))
        statement = SimpleStatement(cql, consistency_level=ConsistencyLevel.name_to_value[planned.level])
        sent_at, outcome = time.time(), ""
        try:
            session.execute(statement, timeout=60 if planned.statement.kind in DEFINITIONS else 10)
        except Exception as error:
            outcome = f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
        executed = ExecutedStatement(planned, cql, sent_at, write_time, outcome)
        with self._lock:
            self.result.statements.append(executed)
        return executed

    def _break(self, cluster: ChaosCluster, started: float, lane: Sequence[PlannedFault]) -> None:
        for number, planned in enumerate(lane):
            if time.monotonic() - started > self.plan.minutes * 60 + _LATE_S:
                self.say(f"         {len(lane) - number} faults left out: what came before took long")
                return
            if self._is_given_up.wait(max(0.0, started + planned.second - time.monotonic())):
                return
            if planned.patient:
                limit = time.monotonic() + _READY_S
                services = [s for s in cluster.services if s.name == planned.target] or cluster.services
                while time.monotonic() < limit and not all(service.is_ready() for service in services):
                    if self._is_given_up.wait(0.5):
                        return
            self.say(planned.line_at(time.monotonic() - started))
            happened = planned.line_at(time.monotonic() - started)
            self._under_fault.add(planned.target)
            try:
                schema_lock = self._schema_lock if KINDS[planned.name].keeps_schema else nullcontext()
                with schema_lock, faults.begin(cluster, planned):
                    self._is_given_up.wait(planned.lasting_s)
            except Exception as error:
                happened += f" ({type(error).__name__}: {str(error)[:200]})"
                self.say(f"         {planned.name} failed: {str(error).splitlines()[0][:60]}")
            finally:
                self._under_fault.discard(planned.target)
            with self._lock:
                self.result.faults.append(happened)

    def _supervise(self, cluster: ChaosCluster) -> None:
        """Start again what ended by itself, as systemd or Kubernetes do."""
        while not self._is_over.wait(_SUPERVISION_S):
            cluster.restart_missing_tables()
            cluster.check_connections()
            for service in cluster.services:
                if service.process.pid is None and service.name not in self._under_fault:
                    self.result.restarts += 1
                    last = (service.tail(1) or "-")[:60]
                    self.say(f"         {service.name} ended by itself: {last}")
                    service.start()

    def _settle(self, cluster: ChaosCluster) -> None:
        """Have everything run, what replicas missed come to them, and every connector be through its events."""
        self.say("faults are over; all start that do not run")
        try:
            cluster.revive()
            self.say("waiting for hints")
            cluster.wait_for_hints()
        except TimeoutError as error:  # what does not come back is a difference, too
            self.result.findings.append(Finding("-", "not ready", str(error)))
        if any(KINDS[fault.name].loses_hints for fault in self.plan.faults):
            self.say("hints were lost: repair")
            cluster.repair()
        ends = [s.sent_at + s.planned.statement.ttl_s + s.planned.statement.offset_us / 1e6 for s in self._with_ttl()]
        late_s = MOST_STEP_S if any(fault.name in CLOCK_FAULTS for fault in self.plan.faults) else 0
        time.sleep(max(0.0, max(ends, default=0.0) + late_s + 3 - time.time()))
        for topic, partition, offset, end in cluster.end_open_transactions():
            held_back = f"{end - offset} offsets of {topic}, partition {partition}, from {offset} on"
            self.say(f"the broker left a transaction open, which kept readers from {held_back}: ended it")
        self.say("waiting until each connector is through its events")
        self.result.findings += wait_quiet(cluster)

    def _with_ttl(self) -> list[ExecutedStatement]:
        return [s for s in self.result.statements if s.planned.statement.ttl_s or s.planned.statement.offset_us > 0]

    def _compare(self, cluster: ChaosCluster) -> None:
        self.result.findings += [Finding("-", "promise", complaint) for complaint in cluster.complaints]
        with closing(reader(cluster.status)) as topics:
            for mode in cluster.modes:
                statements = [s for s in self.result.statements if s.planned.mode == mode.name]
                try:
                    check = check_topic(cluster, topics, mode, statements, self._verifies)
                except Exception as error:  # the other topics are compared all the same
                    self.say(f"{mode.name}: not compared: {error}")
                    self.result.findings.append(Finding(mode.name, "not compared", f"{type(error).__name__}: {error}"))
                    continue
                self.result.records += check.records
                self.result.expired += check.expired
                self.result.unsure += check.unsure
                self.result.relogged += check.relogged
                self.result.findings += check.findings
                self.say(f"{mode.name}: {check.records} records, {len(check.findings)} differences")
                for finding, story in check.stories:
                    self.say("\n".join([f"  {finding}", *story]))


def stamped(line: str) -> str:
    """Return a line of progress with the time of day."""
    return f"{clock(time.time())[:8]}  {line}"
