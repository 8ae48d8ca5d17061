"""What a Python worker of Spark keeps between its tasks, since it is dear to make: one home for all kinds of tasks.

| kept | by | closed or made again |
|---|---|---|
| Cassandra session | server and login | after `forget` |
| Log of records | run; an events topic whose table has one of its own | the latter, when the topic left its group |
| Log of records where Kafka fences writers | query | the query was started again |
| Log of events | worker | never |
| stage, reader, decoder, definition | a name of the task's own | for another version, as of altered settings |

A Log's `close` drops what was not flushed, and the next append opens it again: so a task closes a Log that is kept.

`forget` closes a session with all that reads by it, `drop` what is not needed any more, as of tables that left their
query. So tasks have no tables of their own of what they keep. The brokers' clients for reading are kept in
`helenus_connector.log`, which other processes use too.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pyspark import TaskContext

from helenus_connector.cassandra_rows.raw_rows import RawProtocolHandler, row_factory
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.run_directory import use
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.plan import QueryPlan
from helenus_connector.log.choice import data_log, events_log, own_by_epoch, owned_data_log
from helenus_connector.schema_registration.choice import record_schemas
from helenus_connector.shape.encoding.record_schemas import RecordSchemas
from helenus_connector.shape.encoding.registry import registry_memory
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.cassandra import connect
from helenus_sinks.kafka.owned_log import OwnedKafkaLog
from helenus_sinks.kafka.owners import Made, RecordsOwner
from helenus_sinks.log import Log

T = TypeVar("T")
Name = tuple[str, ...]
"""The name of an object: its kind, and then what else it is of."""
_RECONNECT_AFTER_S = 30.0
"""A session finds restarted nodes by itself, within seconds; with a new one, stages and statements are made again."""


@dataclass(frozen=True, slots=True)
class _Reused:
    """An object that is reused. `server` is that of the session by which it reads, if it does."""

    value: Any
    version: object
    server: object

    def close(self) -> None:
        if (close := getattr(self.value, "close", None)) is not None:
            close()


_lock = threading.RLock()
"""Held while the tables below change and objects are closed; not while one is made, which may wait for a server."""
_sessions: dict[object, Any] = {}
_failing_since: dict[object, float] = {}
"""Since when each read by a session has failed, monotonic s."""
_reused: dict[Name, _Reused] = {}
_forgotten: Counter[object] = Counter()
"""How many times each server's session was forgotten."""


@dataclass(slots=True)
class _MakeLock:
    """The lock under which the object of one name is made, and how many threads hold it or wait for it."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    users: int = 0


_make_locks: dict[object, _MakeLock] = {}


@contextmanager
def _made_once(name: object) -> Iterator[None]:
    """Let one thread at a time make the object of a name: others that ask for it wait. Making one may take seconds, as
    a connect does, for which threads that ask for other objects do not wait.
    """
    with _lock:
        make_lock = _make_locks.setdefault(name, _MakeLock())
        make_lock.users += 1
    try:
        with make_lock.lock:
            yield
    finally:
        with _lock:
            make_lock.users -= 1
            if not make_lock.users:
                del _make_locks[name]


def session_for(settings: ConnectorSettings) -> Any:
    """Return this process's session, whose rows of user tables are CQL bytes. Raises as `connect`."""
    server = settings.server
    with _made_once(("session", server)):
        session = _sessions.get(server)
        if session is None:
            session = connect(settings, protocol_handler=RawProtocolHandler, row_factory=row_factory, metadata=True)
            with _lock:
                _sessions[server] = session
        return session


@contextmanager
def noted_read(settings: ConnectorSettings) -> Iterator[None]:
    """Note whether reads by this process's session succeed. It is forgotten if none did for a while: by now all nodes
    may have other addresses, which the driver learns from the nodes alone.
    """
    try:
        yield
    except HelenusError as error:
        if error.kind is Kind.CASSANDRA_READ and _has_failed_for_long(settings.server):
            forget(settings)
        raise
    _failing_since.pop(settings.server, None)


def _has_failed_for_long(server: object) -> bool:
    now = time.monotonic()
    return now - _failing_since.setdefault(server, now) >= _RECONNECT_AFTER_S


def forget(settings: ConnectorSettings) -> None:
    """Close this process's session and all that reads by it: the next `session_for` connects again."""
    server = settings.server
    with _lock:
        _failing_since.pop(server, None)
        _forgotten[server] += 1
        session = _sessions.pop(server, None)
        with suppress(Exception):  # what can't be closed is forgotten all the same, and hides no error of a read
            _drop([name for name, reused in _reused.items() if reused.server == server])
    if session is not None:
        with suppress(Exception):
            session.cluster.shutdown()


def data_log_for(plan: QueryPlan, settings: ConnectorSettings) -> Log:
    """Return the run's Log of a table's records. Its events topic has one of its own, or shares that of most tables.
    Where Kafka fences writers, all tables of a query share one. A task flushes or closes it before it ends. Raises as
    `data_log`, and NotOwner.
    """
    if isinstance(plan.owner, RecordsOwner):
        producers = OwnedProducers(plan.worker, plan.directory, plan.group, plan.owner, bool(plan.exactly_once))
        return owned_log_for(producers, Made(settings.name, settings.events))
    log: Log = find(separate_log_name(plan, settings.events)) or reuse(
        ("data log", plan.directory, ""), None, lambda: data_log(plan.worker)
    )
    if plan.owner is not None:
        own_by_epoch(log, plan.owner.epochs[settings.events])
    return log


@dataclass(frozen=True)
class OwnedProducers:
    """The producers of an `owner`, a run of a query of this `group`. `directory` is the worker's run's. With
    `whole_batches` each of their transactions is a whole batch.
    """

    worker: WorkerSettings
    directory: str
    group: str
    owner: RecordsOwner
    whole_batches: bool


def check_owners(plan: QueryPlan, tables: Collection[ConnectorSettings]) -> None:
    """Ask at once who owns the records of tables that are new to this process: for each by itself `data_log_for` needs
    another client. What goes wrong it says again, for the tables that it concerns.
    """
    if isinstance(plan.owner, RecordsOwner) and len(tables) > 1:
        producers = OwnedProducers(plan.worker, plan.directory, plan.group, plan.owner, bool(plan.exactly_once))
        with suppress(HelenusError):
            _owned_log_of(producers).check_together([Made(table.name, table.events) for table in tables])


def owned_log_for(producers: OwnedProducers, made: Made) -> OwnedKafkaLog:
    """Return the Log of this process's producer, for these records. Raises as `data_log`, and NotOwner."""
    log = _owned_log_of(producers)
    log.own(made)
    return log


def _owned_log_of(producers: OwnedProducers) -> OwnedKafkaLog:
    name = "owned log", producers.directory, producers.group
    former: _OwnedLog | None = find(name)
    is_replaced = former is not None and former.log.is_replaced
    if is_replaced:
        drop(lambda other: other == name)
    owned: _OwnedLog = reuse(name, producers.owner, partial(_owned_log, producers, is_replaced))
    return owned.log


def refuse_repetition(plan: QueryPlan) -> None:
    """Raise HelenusError(BATCH_FAILED) in a task that Spark repeats: on a cluster, or of topics that are published
    exactly once. The former attempt may still run, on an executor that is cut off, and may have committed what it
    published: the next run of the query fences it, and learns from the broker what it did.
    """
    is_once = not plan.exactly_once.keys().isdisjoint(plan.connectors)
    if plan.owner is not None and (not plan.worker.is_local or is_once):
        refuse_second_attempt(plan.group)


def refuse_second_attempt(group: str) -> None:
    """Raise HelenusError(BATCH_FAILED) in a task that Spark repeats."""
    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        raise HelenusError(Kind.BATCH_FAILED, "a process was lost with a task of this batch", group)


class _OwnedLog:
    """The Log of this process's producer of a run, with the lock on its number."""

    def __init__(self, log: OwnedKafkaLog, lock: int) -> None:
        self.log = log
        self._lock = lock

    def close(self) -> None:
        self.log.close()
        os.close(self._lock)


def _owned_log(producers: OwnedProducers, is_replaced: bool) -> _OwnedLog:
    """Make the Log of a producer whose number no other process on this host has. One on another host may have it: the
    later one fences the other, whose Log `is_replaced` then by one with a number at random.
    """
    context, owner = TaskContext.get(), producers.owner
    first = 0 if context is None else context.partitionId()
    if is_replaced:
        first = random.randrange(owner.producers)
    directory = use(Path(producers.directory))
    for turn in range(owner.producers):
        number = (first + turn) % owner.producers
        lock = os.open(directory / f"{owner.run}-{number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        return _OwnedLog(owned_data_log(producers.worker, owner, number, producers.whole_batches), lock)
    problem = f"all {owner.producers} producers of this run are in use on this host"
    raise HelenusError(Kind.BATCH_FAILED, problem, str(directory))


def separate_data_log(plan: QueryPlan, topic: str) -> None:
    """Let an events topic have the shared Log of records for its own, unless it has one already: it knows that the
    table's data topic takes smaller records than others. Does nothing where Kafka fences writers: a process has one
    producer then.
    """
    if isinstance(plan.owner, RecordsOwner):
        return
    own_name, shared_name = separate_log_name(plan, topic), ("data log", plan.directory, "")
    with _lock:
        if own_name not in _reused:
            _reused[own_name] = _reused.pop(shared_name)


def separate_log_name(plan: QueryPlan, topic: str) -> Name:
    """Return the name of the Log of records that an events topic has for its own, in its group."""
    return "data log", plan.directory, plan.group, topic


def events_log_for(worker: WorkerSettings) -> Log:
    """Return the Log of events. A task flushes or closes it before it ends. Raises as `events_log`."""
    return reuse(_events_log_name(worker), None, lambda: events_log(worker))


def used_events_log(worker: WorkerSettings) -> Log | None:
    """Return the Log of events, or None if this process has appended none yet."""
    log: Log | None = find(_events_log_name(worker))
    return log


def _events_log_name(worker: WorkerSettings) -> Name:
    return "events log", str(worker.checkpoint_dir)


def reuse(name: Name, version: object, make: Callable[[], T], settings: ConnectorSettings | None = None) -> T:
    """Return this process's object of a name. If there is none of this `version`, close the one of another version, and
    `make` it. `settings` are those of the session by which it reads, if it does. What has a method `close` is closed.
    """
    server = None if settings is None else settings.server
    with _made_once(name):
        while True:
            with _lock:
                reused = _reused.get(name)
                if reused is None or reused.version != version:
                    _drop([name] if reused is not None else [])  # before: if `make` raises, it must not be closed again
                    reused = None
                times_forgotten = _forgotten[server]
            if reused is not None:
                value: T = reused.value
                return value
            made = make()
            with _lock:
                if server is None or _forgotten[server] == times_forgotten:
                    _reused[name] = _Reused(made, version, server)
                    return made
            # Another thread closed the session by which this object would read.
            with suppress(Exception):
                _Reused(made, version, server).close()


def find(name: Name) -> Any | None:
    """Return this process's object of a name, of whichever version, or None."""
    reused = _reused.get(name)
    return None if reused is None else reused.value


def drop(is_dropped: Callable[[Name], bool]) -> None:
    """Close the objects whose names are to be dropped, and forget them."""
    with _lock:
        _drop([name for name in _reused if is_dropped(name)])


def _drop(names: list[Name]) -> None:
    """Forget these objects, and close them: all of them, also where one raises."""
    with ExitStack() as closing:
        for name in reversed(names):  # which are closed last to first
            closing.callback(_reused.pop(name).close)


def count(kind: str) -> int:
    """Return how many objects of a kind this process keeps."""
    return sum(name[0] == kind for name in list(_reused))


class StageParts(NamedTuple):
    """What a table's stage is made of. `directory` is its group's on this host."""

    session: Any
    directory: Path
    settings: ConnectorSettings
    worker: WorkerSettings

    def schemas(self, log: Log, memory: Path) -> RecordSchemas | None:
        """Return the schemas of its records, None if the brokers keep them; `memory` is as in `Registry`."""
        if log.keeps_schemas:
            return None
        return record_schemas(self.worker, self.settings, memory, registry_memory(self.worker.checkpoint_dir))


def stage_name(plan: QueryPlan, topic: str) -> Name:
    """Return the name of an events topic's stage. It is of a group: another one may read the same topic for another
    sink.
    """
    return "stage", plan.directory, plan.group, topic


def stage_for(plan: QueryPlan, settings: ConnectorSettings, epoch: int, make: Callable[[StageParts], T]) -> T:
    """Return this process's stage for a table, made again when its settings or its epoch changed. Raises as
    `session_for` and `make`.
    """

    def make_stage() -> T:
        directory = use(Path(plan.directory)) / plan.group
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return make(StageParts(session_for(settings), directory, settings, plan.worker))

    return reuse(stage_name(plan, settings.events), (epoch, settings), make_stage, settings)


def end_with_parent() -> None:
    """Have the kernel kill this process, a Python worker of Spark's, when its parent ends: later writes of it might be
    outdated. Does nothing outside of a task.
    """
    if TaskContext.get() is not None:
        kill_with_parent()


def kill_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends."""
    pr_set_pdeathsig = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
