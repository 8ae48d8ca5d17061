"""The time of a record is never made up: it is a write time of its key's changes, also when the key is read again.

Changes without cells, of one node of three, are published, wait, and are read again and again; in some histories the
gate verifies them first. A reader that goes by the times alone, whatever the order, ends with the rows that live.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from cassandra.metadata import SimpleStrategy
from connector.celled import AS_JSON
from connector.staged import DATA, EVENTS, Staged, int32, table

from helenus_connector.gate.waiting import WaitingChanges, WaitingLimits
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.gate import NOTHING_WAITS
from helenus_connector.interfaces.image import Image
from helenus_connector.reread import resolver
from helenus_connector.testing.cassandra import Host, MemoryReader
from helenus_connector.unconfirmed.keys import UnconfirmedKeys
from helenus_schemas.event.change import Bound, Change, Effect, Scope, column_bit
from helenus_schemas.event.wire import encode

T = 1_700_000_000_000_000
TABLE = table(("a", "int", "partition_key"), ("c", "int", "clustering"), ("s", "int", "static"))
NODES = [f"00000000-0000-0000-0000-00000000000{n}" for n in (1, 2, 3)]
K, ROWS = int32(1), range(4)
FORMS = {
    "debezium": AS_JSON,
    "debezium-cassandra": {**AS_JSON, "output.format": "debezium-cassandra"},
    "cep44": {**AS_JSON, "output.format": "cep44"},
}
GONE, LIVE = int(Effect.GONE | Effect.DELETES), int(Effect.LIVE)


class Partition:
    """A partition as Cassandra has it: everything is decided by write times."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.deleted: dict[int, int] = {}
        self.ranges: list[tuple[int, int]] = []  # from which row on, when
        self.static = self.gone = -1

    def lives(self) -> dict[int, int]:
        """When each row that lives was written."""
        live_rows = {}
        for c, time in self.rows.items():
            gone = [
                self.gone,
                self.deleted.get(c, -1),
                *(deleted_at for first, deleted_at in self.ranges if c >= first),
            ]
            if time > max(gone):
                live_rows[c] = time
        return live_rows

    @property
    def static_at(self) -> int | None:
        return self.static if self.static > self.gone else None


class Reader(MemoryReader):
    """Reads the one partition."""

    partition: Partition

    def read_statics(self, key: Any, consistency: int) -> Image | None:
        static_at = self.partition.static_at
        return None if static_at is None else Image((int32(1), None), static_at)

    def read_range(self, key: Any, bounds: Any, consistency: int) -> Any:
        for key_of, image in self.live.items():
            if bounds is None or bounds[0] is None or key_of[1] >= bounds[0].values[0]:
                yield key_of, image


class History:
    """Random changes of a partition, in any order of their times, and what becomes of their keys."""

    def __init__(self, seed: int, form: str, directory: Path, monkeypatch: pytest.MonkeyPatch, gated: bool) -> None:
        self.random = random.Random(seed)
        more = {"tombstones.on.delete": "false", **FORMS[form]}
        if gated:
            more |= {"gate": "local_quorum", "gate.timeout.ms": "1000"}
        self.staged = Staged(TABLE, directory, monkeypatch, **more)
        self.staged.session.hosts[:] = [Host(node) for node in NODES]
        keyspace = self.staged.session.cluster.metadata.keyspaces["ks"]
        keyspace.replication_strategy = SimpleStrategy({"replication_factor": "3"})
        self.partition = Partition()
        Reader.partition = self.partition
        monkeypatch.setattr(resolver, "RowReader", lambda session, table, settings: Reader(self.staged.live, table))
        self.waiting = WaitingChanges(directory / "gate.waiting", lambda: self.now)
        self.waiting.use({EVENTS: WaitingLimits.from_settings(self.staged.stage.settings)})
        self.keys = UnconfirmedKeys({EVENTS: 1.0}, {EVENTS: 60.0}, directory / "unconfirmed")
        self.now, self.offset = 1000.0, 0
        self.times: set[int] = set()
        self.markers: set[int] = set()

    def change(self) -> Event:
        """A change, which the partition has at once."""
        time = T + self.random.randrange(100_000)
        self.times.add(time)
        c = self.random.choice(ROWS)
        kind = self.random.choice(("write", "write", "write", "delete", "partition", "range", "static", "static"))
        key, scope, effect, bounds = (K, int32(c)), Scope.ROW, LIVE | int(Effect.ROW), {}
        if kind == "write":
            self.partition.rows[c] = max(self.partition.rows.get(c, -1), time)
            effect |= column_bit("v")
        elif kind == "delete":
            self.partition.deleted[c] = max(self.partition.deleted.get(c, -1), time)
            effect = GONE
        elif kind == "static":
            self.partition.static = max(self.partition.static, time)
            key, scope, effect = (K, None), Scope.STATIC, LIVE | column_bit("s")
        elif kind == "partition":
            self.partition.gone = max(self.partition.gone, time)
            key, scope, effect = (K, None), Scope.PARTITION, GONE
        else:
            self.partition.ranges.append((c, time))
            key, scope, effect = (K, None), Scope.RANGE, int(Effect.DELETES)
            bounds = {"start": Bound(True, (int32(c),)), "end": None}
        if kind in ("partition", "range"):
            self.markers.add(time)
        self.staged.live.clear()
        for number, live_at in self.partition.lives().items():
            self.staged.live[K, int32(number)] = Image((None, int32(number)), live_at)
        self.offset += 1
        digest = f"{self.offset:032x}"
        made = Change(digest, NODES[0], scope=scope, segment=1, position=self.offset, write_time=time, effect=effect)
        made = made._replace(**bounds)
        return Event(EVENTS, 0, self.offset, 1000, self.staged.codec.encode(key), encode(made))

    def batch(self, *events: Event) -> None:
        waits = self.waiting.hand_out(100).get(EVENTS, NOTHING_WAITS)
        due_keys = self.keys.select_due(self.now, 100)
        outcome = self.staged.stage.run(events, due_keys, False, gate_waits=waits)
        self.waiting.apply(EVENTS, outcome.at_gate, self.now, self.now)
        self.waiting.tick(EVENTS, self.now)
        self.keys.apply(outcome.done, outcome.waiting, self.now, outcome.places)
        self.now += 5.0

    def run(self) -> list[Any]:
        for _ in range(self.random.randrange(1, 12)):
            self.batch(*(self.change() for _ in range(self.random.randrange(4))))
        for _ in range(6):
            self.batch()
        return self.staged.records_of(DATA)


def time_of(form: str, value: Any) -> int:
    return int(value["timestampMicros"] if form == "cep44" else value["source"]["ts_us"])


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(n, marks=pytest.mark.long) for n in range(6, 60))])
def test_each_time_is_of_a_change(
    seed: int, form: str, gated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(seed, form, tmp_path, monkeypatch, gated)
    records = [record for record in history.run() if record[1] is not None]
    assert {time_of(form, value) for _, value in records} <= history.times, "of nothing else, such as a clock"
    deleted = {"cep44": ("DELETE_PARTITION", "DELETE_RANGE")}.get(form, ("d", "r"))
    for record in history.staged.appended:
        value = json.loads(record.value or b"null")
        if "scope" in dict(record.headers or ()) and value and value.get("op", value.get("operationType")) in deleted:
            assert time_of(form, value) in history.markers, "not of static columns, which may be newer"


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("seed", [*range(10), *(pytest.param(n, marks=pytest.mark.long) for n in range(10, 120))])
def test_a_reader_that_goes_by_times_has_the_rows_that_live(
    seed: int, gated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(seed, "debezium", tmp_path, monkeypatch, gated)
    history.run()
    seen = Partition()
    for record in history.staged.appended:
        key, value = json.loads(record.key or b""), json.loads(record.value or b"")
        write_time, headers = time_of("debezium", value), dict(record.headers or ())
        if "scope" in headers and "start" in headers:
            seen.ranges.append((json.loads(headers["start"])["values"]["c"], write_time))
        elif "scope" in headers:
            seen.gone = max(seen.gone, write_time)
        elif key["c"] is None:
            seen.static = max(seen.static, write_time)
        elif value["op"] == "d":
            seen.deleted[key["c"]] = max(seen.deleted.get(key["c"], -1), write_time)
        else:
            seen.rows[key["c"]] = max(seen.rows.get(key["c"], -1), write_time)
    assert seen.lives() == history.partition.lives()
    assert seen.static_at == history.partition.static_at
