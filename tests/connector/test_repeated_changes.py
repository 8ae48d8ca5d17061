"""A read that is repaired again and again does not cause reads without end, and nothing is lost by that.

Each read of a key finds replicas that differ, and writes the same old cells to some of them. These log that, and a
purgeable tombstone hides it: the next read finds the same. It ends when Cassandra compacts, at any time or never.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cassandra.metadata import SimpleStrategy
from connector.staged import DATA, EVENTS, Staged, int32, table

from helenus_connector.gate.waiting import WaitingChanges, WaitingLimits
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.gate import NOTHING_WAITS
from helenus_connector.interfaces.image import Image, TimedColumns
from helenus_connector.reread import resolver
from helenus_connector.testing.cassandra import Host, MemoryReader
from helenus_connector.unconfirmed.keys import UnconfirmedKeys
from helenus_schemas.event.change import Change, Effect, column_bit
from helenus_schemas.event.wire import encode

TABLE = table(("k", "int", "partition_key"))
NODES = [f"00000000-0000-0000-0000-00000000000{n}" for n in (1, 2, 3)]
HOUR = 3600.0
LONGEST_PAUSE_S = 300.0
WRITTEN = int(Effect.LIVE | Effect.ROW | column_bit("v"))
TIMED = TimedColumns.from_columns(TABLE.regulars, [])


def image(value: int, time: int) -> Image:
    return Image((int32(value),), time, [time.to_bytes(8, "big", signed=True)], TIMED)


class Flood:
    """A table whose keys in `torn` are repaired by each read: some nodes log the same bytes once more."""

    def __init__(self, seed: int, directory: Path, monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
        self.random = random.Random(seed)
        self.staged = Staged(TABLE, directory, monkeypatch, **more)
        self.staged.session.hosts[:] = [Host(node) for node in NODES]
        keyspace = self.staged.session.cluster.metadata.keyspaces["ks"]
        keyspace.replication_strategy = SimpleStrategy({"replication_factor": "3"})
        flood = self

        class Reader(MemoryReader):
            def read_rows(self, keys: Any, consistency: int) -> Any:
                keys_asked = list(keys)
                for key in keys_asked:
                    flood.is_read(key)
                yield from super().read_rows(keys_asked, consistency)

        monkeypatch.setattr(resolver, "RowReader", lambda session, table, settings: Reader(self.staged.live, table))
        self.settings = self.staged.stage.settings
        self.now = 1_000_000.0
        self.waiting = WaitingChanges(directory / "gate.waiting", lambda: self.now)
        self.waiting.use({EVENTS: WaitingLimits.from_settings(self.settings)})
        self.keys = UnconfirmedKeys({EVENTS: 1.0}, {EVENTS: 60.0}, directory / "unconfirmed")
        self.torn: dict[Any, list[tuple[str, int, list[str]]]] = {}
        self.log: list[tuple[float, Any, str, int, str]] = []
        self.reads: Counter[Any] = Counter()
        self.positions = itertools.count(1)
        self.paused: Counter[str] = Counter()
        self.read = self.outcomes = 0

    def is_read(self, key: Any) -> None:
        self.reads[key] += 1
        for digest, time, nodes in self.torn.get(key, ()):
            for node in nodes:
                self.log.append((self.now + self.random.random() * 0.1, key, digest, time, node))

    def write(self, key: Any, value: int, digest: str, nodes: list[str]) -> None:
        """A client's write, which is the newest."""
        time = int(self.now * 1e6)
        self.staged.live[key] = image(value, time)
        self.log += [(self.now, key, digest, time, node) for node in nodes]

    def batch(self) -> None:
        """All that the log has by now, and the keys that are due."""
        ready = sorted((entry for entry in self.log if entry[0] <= self.now), key=lambda entry: entry[0])
        self.log = [entry for entry in self.log if entry[0] > self.now]
        events = []
        for arrives_at, key, digest, time, node in ready:
            position = next(self.positions)
            change = Change(digest, node, segment=1, position=position, write_time=time, effect=WRITTEN)
            events.append(
                Event(EVENTS, 0, position, int(arrives_at * 1000), self.staged.codec.encode(key), encode(change))
            )
        self.waiting.tick(EVENTS, self.now)
        waits = self.waiting.hand_out(100).get(EVENTS, NOTHING_WAITS)
        due_keys = self.keys.select_due(self.now, 1000)
        if not (events or due_keys or waits.overdue):
            return
        outcome = self.staged.stage.run(events, due_keys, True, gate_waits=waits)
        self.waiting.apply(EVENTS, outcome.at_gate, self.now, self.now)
        self.keys.apply(outcome.done, outcome.waiting, self.now, outcome.places)
        self.paused.update(outcome.paused)
        self.read += outcome.read
        self.outcomes += sum(getattr(outcome, name) for name in ("published", "unchanged", "confirmed", "dropped"))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.batch()
            soonest = [entry[0] for entry in self.log]
            next_due = self.keys.next_due()
            soonest += [next_due] if next_due is not None else []
            gated = self.waiting.next_due(self.now)
            soonest += [gated] if gated is not None else []
            self.now = max(self.now + 0.05, min([*soonest, until]))

    def shown(self) -> dict[int, Any]:
        """The last record of each key."""
        return {key["k"]: value and value["v"] for key, value in self.staged.records_of(DATA)}


@pytest.mark.parametrize("gate", ["one", "local_quorum"])
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.long) for n in range(4, 40))])
def test_reads_do_not_feed_themselves(seed: int, gate: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For hours: one to three old mutations a key, of one or two nodes, while other keys are written as ever."""
    flood = Flood(seed, tmp_path, monkeypatch, gate=gate)
    chance = flood.random
    torn = [(int32(n),) for n in range(chance.randrange(1, 5))]
    digests = itertools.count(1)
    for key in torn:
        flood.torn[key] = [
            (f"{next(digests):032x}", 5 + n, chance.sample(NODES, chance.randrange(1, 3)))
            for n in range(chance.randrange(1, 4))
        ]
        flood.write(key, 1, f"{next(digests):032x}", NODES)
    # Nothing is delayed by it: other keys, and other changes of these.
    for hour in range(1, 4):
        flood.run(HOUR)
        for key in [*torn, (int32(100),)]:
            flood.write(key, hour, f"{next(digests):032x}", NODES)
            flood.batch()
        assert flood.shown() == {int.from_bytes(key[0], "big"): hour for key in [*torn, (int32(100),)]}
    mutations = {key: len(mutations_of_key) for key, mutations_of_key in flood.torn.items()}
    for key in torn:
        # Each change has its pauses: some short ones, and from then on one in five minutes at most.
        assert flood.reads[key] <= mutations[key] * (20 + 2 * 3 * HOUR / LONGEST_PAUSE_S), flood.reads
    if gate == "one":
        assert set(flood.paused) <= {
            node for mutations_of_key in flood.torn.values() for _, _, nodes in mutations_of_key for node in nodes
        }
        assert flood.paused
    # Compacted: it ends.
    flood.torn.clear()
    flood.run(HOUR)
    before = sum(flood.reads.values())
    flood.run(HOUR)
    assert sum(flood.reads.values()) == before
    assert not len(flood.keys)
    assert flood.read == flood.outcomes, "every event has an outcome"


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.long) for n in range(4, 40))])
def test_a_client_that_writes_the_same_bytes_again_loses_nothing(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same mutation, with its own timestamp, after a deletion that was purged: how often and when it likes."""
    flood = Flood(seed, tmp_path, monkeypatch)
    chance = flood.random
    key = (int32(7),)
    for _ in range(chance.randrange(1, 30)):
        flood.run(chance.choice((0.1, 5, 100, 1000)) * chance.random())
        if chance.random() < 0.4:
            flood.staged.live.pop(key, None)  # deleted, and all of that purged
            gone = Change(f"{chance.getrandbits(64):032x}", NODES[0], segment=1, position=next(flood.positions))
            gone = gone._replace(write_time=1, effect=int(Effect.GONE | Effect.DELETES))
            event = Event(EVENTS, 0, 0, int(flood.now * 1000), flood.staged.codec.encode(key), encode(gone))
            outcome = flood.staged.stage.run([event], (), True)
            flood.keys.apply(outcome.done, outcome.waiting, flood.now, outcome.places)
        value = chance.randrange(2)
        flood.staged.live[key] = image(value, 5 + value)
        flood.log += [(flood.now, key, f"{value:032x}", 5 + value, node) for node in NODES]
    flood.batch()
    flood.run(LONGEST_PAUSE_S + 10)
    assert flood.shown()[7] == json.loads(str(value))
