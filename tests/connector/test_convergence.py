"""Keys are confirmed rightly though replicas are late, lose hints, are repaired, and are read before they show a write.

Three replicas of a simulated cluster take random writes; each logs before its memtable shows it, and its agent's event
comes when it comes. Real gate, stage, cache and keys that wait read and publish, and are killed at every point. When
all is quiet, the last record of every key is the row.
"""

from __future__ import annotations

import heapq
import itertools
import json
import pickle
import random
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helenus_connector.cassandra_rows.row_reader import UnreadReason
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.image import Image, TimedColumns
from helenus_connector.interfaces.resolver import SchemaChanged
from helenus_connector.pipeline import _table_version as version
from helenus_connector.pipeline import stage
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.pipeline.stage import Stage
from helenus_connector.reread import (
    _batch,
    _evidence,
    _marker_reads,
    _read_pass,
    _read_turns,
    _row_answers,
    resolver,
)
from helenus_connector.reread._proof import required_replicas
from helenus_connector.testing.cassandra import Host, MemoryReader, MemorySession
from helenus_connector.testing.log import MemoryLog
from helenus_connector.unconfirmed.files import begins
from helenus_connector.unconfirmed.keys import UnconfirmedKeys
from helenus_connector.unconfirmed.unproven_changes import unpack_changes
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Change, Effect, column_bit
from helenus_schemas.event.wire import encode

TABLE = Table(
    "ks",
    "t",
    uuid.UUID(int=1),
    (Column("k", parse("int"), "partition_key", 0), Column("v", parse("bigint")), Column("w", parse("bigint"))),
    cdc=True,
)
TIMED = TimedColumns.from_columns(TABLE.regulars, [])
NODES = [str(uuid.UUID(int=n)) for n in (1, 2, 3)]
TOPIC = "events-ks.t"
Row = dict[str, tuple[int, "int | None"]]
"""Cells by column: write time, value. `del` is the row's deletion."""


class Died(Exception):
    """A worker that was killed."""


class Cluster:
    """Three replicas of rows, a clock, and what is still to happen. `events` is the topic: timestamp s, key, value.
    Somebody may set the connector's clock: `set_by` so many seconds. `lateness`, in s, is of memtables.

    The next reads meet the replicas in `met`, later ones any. `repairs` says that reads do.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1_000_000.0
        self.rows: list[dict[int, Row]] = [{}, {}, {}]
        self.down: set[int] = set()
        self.met: list[list[int]] = []
        self.repairs = True
        self.events: list[tuple[float, bytes, bytes]] = []
        self.statements = 0
        self.set_by = 0.0
        self.lateness: tuple[float, ...] = (0, 0, 0.9)
        self.says_effects = True
        self._logged = [0, 0, 0]
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._codec = KeyCodec(TABLE)

    def time(self) -> float:
        return self.now + self.set_by

    def monotonic(self) -> float:
        return self.now

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._later, (self.now + seconds, next(self._numbers), action))

    def pass_by(self, seconds: float) -> None:
        until = self.now + seconds
        while self._later and self._later[0][0] <= until:
            self.now, _, action = heapq.heappop(self._later)
            action()
        self.now = until

    @property
    def is_quiet(self) -> bool:
        return not self._later

    def write(self, key: int) -> None:
        """A write at ONE: at least one replica has it at once, others by a hint, or never."""
        # Clients' clocks differ, and some set times of their own.
        time, cells = int((self.now + self.random.choice((0, 0, 0, -2, 60))) * 1e6) + next(self._numbers), {}
        for column in self.random.choice((["v"], ["w"], ["v", "w"], ["del"])):
            cells[column] = (time, None if column == "del" else time)
        digest = self._digest()
        replicas = self.random.sample(range(3), 3)
        if self.random.random() < 0.2:
            # All have it at once and none shows it yet, but all show what comes after it.
            later, later_column = self._digest(), self.random.choice("vw")
            for replica in replicas:
                self.log(replica, key, cells, digest, shown_after=max(self.lateness))
                self.log(replica, key, {later_column: (time + 1, time + 1)}, later)
            next(self._numbers)
            return
        self._logs(replicas[0], key, cells, digest)
        for replica in replicas[1:]:
            chance = self.random.random()
            if chance < 0.4:
                self._logs(replica, key, cells, digest)
            elif chance < 0.6:
                delay = self.random.uniform(0, 20)
                self.after(delay, lambda r=replica: self._logs(r, key, cells, digest))  # type: ignore[misc]

    def repair(self, key: int) -> None:
        """One replica sends its row to another, which logs it under a new digest, older though it may be."""
        source, target = self.random.sample(range(3), 2)
        if row := self.rows[source].get(key):
            self.log(target, key, dict(row), self._digest(), self.random.uniform(0, 3), self.late())

    def row(self, key: int, replicas: Iterable[int] = range(3)) -> Row:
        merged: Row = {}
        for replica in replicas:
            _merge(merged, self.rows[replica].get(key, {}))
        return merged

    def read(self, key: int, consistency: int) -> Image | None:
        """A read of as many replicas as the level says, which repairs them if they differ."""
        alive = [r for r in range(3) if r not in self.down]
        wanted = required_replicas(consistency, 3)
        if len(alive) < wanted:
            raise HelenusError(Kind.CASSANDRA_READ, "not enough replicas")
        chosen = self.met.pop(0) if self.met else self.random.sample(alive, wanted)
        row = self.row(key, chosen)
        digest = self._digest()
        for replica in chosen if self.repairs else ():
            if self.rows[replica].get(key, {}) != row:
                self.log(replica, key, dict(row), digest, self.random.uniform(0, 3))
        return image(row)

    def _digest(self) -> str:
        return f"{next(self._numbers):032x}"

    def log(
        self, replica: int, key: int, cells: Row, digest: str, event_after: float = 0, shown_after: float = 0
    ) -> None:
        """A replica logs a write; its event and its memtable follow."""

        def show() -> None:
            _merge(self.rows[replica].setdefault(key, {}), cells)

        self._logged[replica] += 1
        change = Change(
            digest,
            NODES[replica],
            segment=1,
            position=self._logged[replica],
            write_time=max(t for t, _ in cells.values()),
            effect=effect(cells) if self.says_effects else 0,
        )
        event = (self._codec.encode((struct.pack(">i", key),)), encode(change))
        self.after(event_after, lambda: self.events.append((self.now, *event)))
        if shown_after:
            self.after(shown_after, show)
        else:
            show()

    def _logs(self, replica: int, key: int, cells: Row, digest: str) -> None:
        self.log(replica, key, cells, digest, self.random.choice((0, 0, 0.3, 3)), self.late())

    def late(self) -> float:
        """How much later than the log a memtable shows a write: somewhere up to one of `lateness`."""
        return self.random.choice(self.lateness) * self.random.uniform(0.5, 1)


def effect(cells: Row) -> int:
    """What an agent says of a write."""
    if len({time for time, _ in cells.values()}) > 1:
        return 0
    effects = Effect.GONE if "del" in cells else 0
    for column in cells:
        effects |= 0 if column == "del" else Effect.LIVE | column_bit(column)
    return int(effects)


def _merge(row: Row, cells: Row) -> None:
    for column, cell in cells.items():
        if column not in row or row[column][0] < cell[0]:
            row[column] = cell


def image(row: Row) -> Image | None:
    deleted = row.get("del", (-1, None))[0]
    live = {c: row[c] for c in ("v", "w") if c in row and row[c][0] > deleted}
    if not live:
        return None
    values = tuple(struct.pack(">q", live[c][1]) if c in live else None for c in ("v", "w"))
    times = [live[c][0].to_bytes(8, "big", signed=True) if c in live else None for c in ("v", "w")]
    return Image(values, max(t for t, _ in live.values()), times, TIMED)


class Connector:
    """The driver's and the worker's part of a connector, without Spark."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.log = MemoryLog()
        self.directory = directory
        self.offset = 0
        self.restarts = -1
        self.most_awaited = 0
        self.dying: Callable[[], None] = lambda: None
        self.totals = BatchOutcome()
        self.settings = ConnectorSettings.from_properties(
            {"name": "n", "keyspace": "ks", "table": "t", "output.format": "key-value-json"}, "test"
        )
        self.restart()

    def restart(self) -> None:
        """A new driver, some time later: it has the checkpoint's offset and file, and steps back."""
        self.restarts += 1
        self.unconfirmed = UnconfirmedKeys(
            {TOPIC: 2.0}, {TOPIC: 30.0}, self.directory / "unconfirmed", self.cluster.monotonic
        )
        since = begins(self.directory / "unconfirmed")(TOPIC, self.settings.settle_replay_ms / 1000, 0.0)
        if self.restarts:
            self.cluster.pass_by(self.cluster.random.choice((5, 200)))
        self.unconfirmed.load(self.cluster.now)
        while self.offset and self.cluster.events[self.offset - 1][0] >= since:
            self.offset -= 1
        run = self.directory / str(len(list(self.directory.iterdir())))
        run.mkdir()
        self.stage = Stage(self.settings, MemorySession([*map(Host, NODES)], {"ks": 3}), self.log, run)  # type: ignore[arg-type]

    def batch(self, size: int, dies_at: str | None = None) -> None:
        slice_taken = self.cluster.events[self.offset : self.offset + size]
        events = [Event(TOPIC, 0, self.offset + i, int(t * 1000), k, v) for i, (t, k, v) in enumerate(slice_taken)]
        first = True
        # As between driver and task: nothing is shared. An attempt has what the one before had.
        handed_out = pickle.dumps(self.unconfirmed.select_due(self.cluster.time(), 1000))
        while True:
            stage.reach = self._deadly(dies_at if first else None)  # type: ignore[attr-defined]
            try:
                due_keys = pickle.loads(handed_out)
                self.most_awaited = max([self.most_awaited, *(len(unpack_changes(p.awaited)) for p in due_keys)])
                outcome = pickle.loads(pickle.dumps(self.stage.run(events, due_keys, trust_images=first)))
                break
            except Died:
                first = False
            except HelenusError:
                first = False
                self.cluster.down.clear()
            self.cluster.pass_by(1)
        self.unconfirmed.apply(outcome.done, outcome.waiting, self.cluster.time(), outcome.places)
        self.unconfirmed.save(self.cluster.now, [TOPIC])
        self.offset += len(events)
        for name in ("read", "published", "unchanged", "confirmed", "keys_read", "contradicted"):
            setattr(self.totals, name, getattr(self.totals, name) + getattr(outcome, name))

    @property
    def records(self) -> list[tuple[bytes, bytes | None]]:
        """Keys and values of the data topic."""
        return [(record.key or b"", record.value) for record in self.log.appended]

    def _deadly(self, point: str | None) -> Callable[[str], None]:
        def reach(name: str) -> None:
            if name == point:
                self.dying()
                raise Died

        return reach


class Reader(MemoryReader):
    """Reads what the replicas have that it meets."""

    def __init__(self, cluster: Cluster, table: Table) -> None:
        super().__init__({}, table)
        self.cluster = cluster

    def read_rows(self, keys: Iterable[Key], consistency: int) -> Iterator[tuple[Key, Image | UnreadReason | None]]:
        for key in keys:
            self.statements += 1
            try:
                yield key, self.cluster.read(int.from_bytes(key[0] or b"", "big"), consistency)
            except HelenusError as error:
                yield key, UnreadReason(error, True)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int], tuple[Cluster, Connector]]:
    monkeypatch.setattr(
        version,
        "read_definition",
        lambda session, settings, known_version=None, version_request=None: None if known_version else (1, TABLE),
    )
    monkeypatch.setattr(stage, "reach", lambda name: None)

    def make(seed: int) -> tuple[Cluster, Connector]:
        cluster = Cluster(seed)
        for module in (_read_pass, _batch, _evidence, _marker_reads, _read_turns, _row_answers):
            monkeypatch.setattr(module, "time", cluster)
        monkeypatch.setattr(resolver, "RowReader", lambda session, table, settings: Reader(cluster, table))
        directory = tmp_path / str(seed)
        directory.mkdir()
        return cluster, Connector(cluster, directory)

    return make


def confirm_all(cluster: Cluster, connector: Connector) -> None:
    cluster.down.clear()
    for step in range(1000):
        if cluster.is_quiet and not len(connector.unconfirmed) and connector.offset == len(cluster.events):
            return
        cluster.pass_by(0.5 if step < 200 else 2)
        connector.batch(1000)
    raise AssertionError(f"keys wait for ever: {connector.unconfirmed.select_due(1e12, 1000)}")


def shown(value: Image | None) -> dict[str, int | None] | None:
    if value is None:
        return None
    return {c: None if b is None else struct.unpack(">q", b)[0] for c, b in zip("vw", value.values, strict=True)}


LATENESS: dict[str, tuple[float, ...]] = {
    "as a rule": (0, 0, 0.9),
    "seconds": (0, 1.5, 3.5),
    "a flush": (0, 6, 12),
    "minutes": (0, 1, 30, 240),
}
"""How late memtables are: from what is usual to far more than any timeout."""


@pytest.mark.parametrize("lateness", LATENESS)
@pytest.mark.parametrize("seed", [s if s < 4 else pytest.param(s, marks=pytest.mark.long) for s in range(60)])
def test_the_last_record_of_every_key_is_its_row(simulated: Any, seed: int, lateness: str) -> None:
    cluster, connector = simulated(seed)
    cluster.lateness = LATENESS[lateness]
    chance = cluster.random
    keys = range(12)
    pauses = (0.01, 0.1, 0.5, 3) if seed % 2 else (0.1, 3, 15)
    for _ in range(50):
        for _ in range(chance.randrange(4)):
            cluster.write(chance.choice(keys))
        if chance.random() < 0.1:
            cluster.repair(chance.choice(keys))
        if chance.random() < 0.1:
            cluster.down = {chance.randrange(3)} if chance.random() < 0.8 else set()
        if chance.random() < 0.1:
            cluster.set_by = chance.choice((0, -4000, 4000, -5, 5))
        cluster.pass_by(chance.choice(pauses))
        dies = chance.choice((None, None, None, "connector.after-flush", "connector.after-mark"))
        connector.batch(chance.choice((1, 3, 20, 100)), dies)
        if chance.random() < 0.05:
            connector.restart()
    confirm_all(cluster, connector)
    published = {json.loads(key)["k"]: value and json.loads(value) for key, value in connector.records}
    assert published == {key: shown(image(cluster.row(key))) for key in published}
    assert published.keys() == {k for row in cluster.rows for k in row}
    totals = connector.totals
    if not connector.restarts:
        assert totals.read == totals.published + totals.unchanged + totals.confirmed
    for column, key in itertools.product("vw", keys):
        shown_values = [json.loads(v)[column] for k, v in connector.records if v and json.loads(k)["k"] == key]
        values = [v for v in shown_values if v is not None]
        assert values == sorted(values), f"an older {column} after a newer one"


@pytest.mark.parametrize("seed", [s if s < 4 else pytest.param(s, marks=pytest.mark.long) for s in range(10)])
def test_a_write_later_than_every_limit_is_counted(simulated: Any, seed: int) -> None:
    """Ten times longer is not for ever: a memtable that is hours late gives a wrong record, and is counted."""
    cluster, connector = simulated(seed)
    start = int(cluster.now * 1e6)
    for replica in range(3):
        cluster.rows[replica][1] = {"v": (start - 10, 1)}
        late = cluster.random.choice((1000, 100_000))
        cluster.log(
            replica, 1, {"v": (start, 5)}, "1" * 32, event_after=cluster.random.choice((0, 5)), shown_after=late
        )
    for _ in range(900):
        cluster.pass_by(1)
        connector.batch(10)
    assert (last(connector), len(connector.unconfirmed)) == (1, 0)
    assert connector.totals.contradicted == 1


def last(connector: Connector) -> Any:
    value = connector.records[-1][1]
    return value and json.loads(value)["v"]


def test_a_read_that_comes_before_the_memtable_has_the_row(simulated: Any) -> None:
    cluster, connector = simulated(0)
    for replica in range(3):
        cluster.log(replica, 1, {"v": (int(cluster.now * 1e6), 5)}, "1" * 32, shown_after=0.9)
    cluster.pass_by(0)
    connector.batch(10)
    assert last(connector) is None, "it was read too early"
    assert len(connector.unconfirmed) == 1
    confirm_all(cluster, connector)
    assert last(connector) == 5
    assert connector.totals.keys_read == 2


@pytest.mark.parametrize("before", [0, 10**15])
def test_a_later_write_of_another_column_proves_nothing_of_an_earlier_one(simulated: Any, before: int) -> None:
    """The row shows the time of the later write, or has one in the future all along, and the earlier one not yet."""
    cluster, connector = simulated(0)
    start = int(cluster.now * 1e6)
    for replica in range(3):
        cluster.rows[replica][1] = {"w": (start + before, 6)}
        cluster.log(replica, 1, {"v": (start, 5)}, "1" * 32, shown_after=0.9)
        cluster.log(replica, 1, {"w": (start + 1, 6)}, "2" * 32)
    cluster.pass_by(0)
    connector.batch(10)
    assert last(connector) is None, "it was read too early"
    confirm_all(cluster, connector)
    assert last(connector) == 5


def test_writes_of_several_columns_are_proven_by_one_read(simulated: Any) -> None:
    """Each shows its own time, also where clocks differ: nothing is read again."""
    cluster, connector = simulated(0)
    start = int(cluster.now * 1e6)
    for replica in range(3):
        cluster.log(replica, 1, {"v": (start, 5)}, "1" * 32)
        cluster.log(replica, 1, {"w": (start - 10, 6)}, "2" * 32)
    cluster.pass_by(0)
    connector.batch(10)
    assert (len(connector.unconfirmed), connector.totals.keys_read) == (0, 1)


def test_a_key_written_all_the_time_does_not_accumulate(simulated: Any) -> None:
    """What a read proves is confirmed, though the last write of the key is not."""
    cluster, connector = simulated(0)
    for i in range(400):
        for replica in range(3):
            cluster.log(replica, 1, {"v": (int(cluster.now * 1e6), i)}, f"{i:032x}", event_after=0.3 * replica)
        cluster.pass_by(0.1)
        connector.batch(100)
    assert connector.most_awaited < 50
    confirm_all(cluster, connector)
    assert last(connector) == 399
    assert connector.totals.keys_read < 450


def test_the_image_of_another_read_is_not_taken_for_the_unconfirmed_one(simulated: Any) -> None:
    """W1 is published and waits, W2's read meets replicas without W1: when W1's read shows the first image again, that
    is not what was published last.
    """
    cluster, connector = simulated(0)
    cluster.repairs = False
    start = int(cluster.now * 1e6)
    for replica in range(3):
        cluster.rows[replica][1] = {"v": (start - 10, 1), "w": (start - 10, 2)}
    cluster.log(0, 1, {"v": (start, 5)}, "1" * 32)
    cluster.pass_by(0)
    cluster.met = [[0, 1], [1, 2]]
    connector.batch(10)
    for replica in range(3):
        cluster.log(replica, 1, {"w": (start + 1, 2)}, "2" * 32)
    cluster.pass_by(0.5)
    connector.batch(10)
    assert [json.loads(value)["v"] for _, value in connector.records] == [5, 1]
    confirm_all(cluster, connector)
    assert last(connector) == 5


def test_a_value_that_changes_there_and_back_while_a_worker_dies(simulated: Any) -> None:
    """v1 is published and waits; v2 is published by a batch that dies; the row is v1 again when that is done again."""
    cluster, connector = simulated(0)
    start = int(cluster.now * 1e6)

    def write(number: int, value: int) -> None:
        cluster.log(0, 1, {"v": (start + number, value)}, str(number) * 32)
        cluster.pass_by(0)

    write(1, 1)
    cluster.rows[1] = cluster.rows[2] = cluster.rows[0]  # reads find it; one node reports it
    connector.batch(10)
    cluster.pass_by(3)
    connector.dying = lambda: write(3, 1)
    cluster.rows[0][1]["v"] = (start + 2, 2)
    connector.batch(0, "connector.after-flush")
    assert [json.loads(v)["v"] for _, v in connector.records] == [1, 2, 1]
    confirm_all(cluster, connector)
    assert last(connector) == 1


def test_a_value_that_changes_there_and_back_during_an_alter(simulated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """v1 is published and waits; v2 is, by an attempt that the schema ends; the row is v1 again at the next."""
    cluster, connector = simulated(0)
    start = int(cluster.now * 1e6)

    def write(number: int, value: int) -> None:
        cluster.log(0, 1, {"v": (start + number, value)}, str(number) * 32)
        cluster.pass_by(0)

    write(1, 1)
    cluster.rows[1] = cluster.rows[2] = cluster.rows[0]
    connector.batch(10)
    cluster.pass_by(3)
    cluster.rows[0][1]["v"] = (start + 2, 2)
    read, ended = Reader.read_rows, []

    def read_rows(self: Reader, keys: Iterable[Key], consistency: int) -> Iterator[tuple[Key, Image | None]]:
        yield from read(self, keys, consistency)
        if not ended:
            ended.append(True)
            write(3, 1)
            raise SchemaChanged

    monkeypatch.setattr(Reader, "read_rows", read_rows)
    connector.batch(0)
    assert [json.loads(v)["v"] for _, v in connector.records if v] == [1, 2, 1]


def test_a_write_on_an_unavailable_replica_alone_survives_a_restart(simulated: Any) -> None:
    cluster, connector = simulated(0)
    cluster.log(0, 1, {"v": (int(cluster.now * 1e6), 5)}, "1" * 32)
    cluster.down = {0}
    cluster.pass_by(0)
    for _ in range(30):
        connector.batch(10)
        cluster.pass_by(5)
    assert last(connector) is None
    connector.restart()
    confirm_all(cluster, connector)
    assert last(connector) == 5
