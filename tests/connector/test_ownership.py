"""Offsets belong to a connector's name, as in Kafka Connect: no Spark, no servers."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.connectors import Connectors
from helenus_connector.control.offsets import alter, claim, offsets, reset
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import durable
from helenus_schemas.settings.properties import ConfigError

CONFIG = {"keyspace": "ks", "table": "t", "output.format": "json"}
TOPIC = "events-ks.t"
FIRST = {"0": 5, "1": 0}


class Run:
    """A worker that is started again and again on one `checkpoint.dir`; what Spark would do to it is written there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.batch = 0
        self.away = self.is_missing = False
        self.restart()

    def restart(self) -> None:
        settings = {"bootstrap.servers": "h:1", "checkpoint.dir": str(self.directory)}
        self.connectors = Connectors(WorkerSettings.from_properties(settings, "worker"), self.earliest)
        self.connectors.load({})

    def earliest(self, topics: Sequence[str]) -> dict[str, dict[str, int]]:
        if self.away:
            raise HelenusError(Kind.BROKER_UNREACHABLE, "Kafka: no answer")
        return {} if self.is_missing else {topic: dict(FIRST) for topic in topics}

    def put(self, name: str, group: str = "default", **more: str) -> None:
        keys = {key.replace("_", "."): value for key, value in more.items()}
        self.connectors.put(name, {**CONFIG, "data.topic": f"data-{name}", "query.group": group, **keys})

    def start(self, name: str) -> bool:
        (task,) = self.connectors.all()[name].tasks.values()
        claimed = claim(self.connectors, [task])
        if task.error is not None:
            raise task.error
        return claimed == [task]

    def position(self, name: str) -> dict[str, int]:
        """Where it goes on."""
        where = (
            self.connectors.held_positions(self.connectors.all()[name].settings.query_group).read_offsets().get(TOPIC)
        )
        return dict(where or FIRST)

    def read(self, name: str, events: int) -> None:
        """A batch of its events is done."""
        group = self.connectors.all()[name].settings.query_group
        held_positions, ends = (
            self.connectors.held_positions(group),
            {p: offset + events for p, offset in self.position(name).items()},
        )
        assert held_positions.release(TOPIC, ends, held_positions.epoch(TOPIC))
        self.batch += 1
        line = json.dumps({"tick": 0, "topics": {TOPIC: ends}})
        for kind, text in (("offsets", f"v1\n{{}}\n{line}"), ("commits", "v1\n{}")):
            (self.directory / group / kind).mkdir(parents=True, exist_ok=True)
            (self.directory / group / kind / str(self.batch)).write_text(text)
        held_positions.begin_batch()


def test_a_new_name_begins_at_the_first_event_and_an_old_one_where_it_was(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.put("a")
    assert run.start("a")
    run.read("a", 10)
    run.connectors.delete("a")
    run.put("b")
    assert offsets(run.connectors, "b") == {}, "those that are there are not its own"
    assert run.start("b")
    assert run.position("b") == FIRST
    run.read("b", 3)
    run.connectors.delete("b")
    run.restart()
    run.put("a")
    assert run.start("a")
    assert run.position("a") == {"0": 15, "1": 10}
    assert offsets(run.connectors, "a") == {TOPIC: {0: 15, 1: 10}}
    run.read("a", 1)
    run.connectors.delete("a")
    run.put("b")
    run.start("b")
    assert run.position("b") == {"0": 8, "1": 3}


def test_what_an_earlier_version_left_goes_on(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.put("a")
    run.read("a", 10)
    assert not (tmp_path / "default/owners").exists()
    run.restart()
    assert run.start("a")
    assert run.position("a") == {"0": 15, "1": 10}
    (tmp_path / "default/owners").write_text("damaged")
    run.restart()
    assert run.start("a")
    assert run.position("a") == {"0": 15, "1": 10}


def test_a_broker_that_is_away_and_a_topic_that_is_missing_are_waited_for(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.put("a")
    run.start("a")
    run.read("a", 10)
    run.connectors.delete("a")
    run.put("b")
    run.away = True
    with pytest.raises(HelenusError, match="no answer"):
        run.start("b")
    run.away, run.is_missing = False, True
    assert not run.start("b")
    run.is_missing = False
    assert run.start("b")
    assert run.position("b") == FIRST


def test_an_operator_s_offsets_are_the_connector_s_own(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.put("a")
    run.start("a")
    run.read("a", 10)
    run.connectors.delete("a")
    run.put("b")
    run.connectors.set_wanted("b", "STOPPED")
    alter(run.connectors, "b", {TOPIC: {0: 7}})
    assert run.start("b")
    assert run.position("b")["0"] == 7
    reset(run.connectors, "b")
    assert run.start("b")
    assert run.position("b") == FIRST


def test_rows_that_are_kept_are_of_one_connector(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.put("a", "rows", state="rows")
    run.start("a")
    run.read("a", 10)
    run.connectors.delete("a")
    run.put("b", "rows", state="rows")
    with pytest.raises(HelenusError, match=r"are of the connector a, .*set another query\.group") as error:
        run.start("b")
    assert (error.value.kind, error.value.where) == (Kind.STATE, str(tmp_path / "rows"))
    run.put("c", "fresh", state="rows")
    assert run.start("c")
    run.connectors.delete("b")
    run.put("a", "rows", state="rows")
    assert run.start("a")


@given(seed=st.integers(0, 1 << 32))
def test_each_name_goes_on_where_it_stood(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Any order of what is made, moved to another group, read, deleted, and of restarts: against one position for each
    name and group, which a connector takes along.
    """
    rng, run = random.Random(seed), Run(tmp_path_factory.mktemp("owned"))
    positions: dict[tuple[str, str], dict[str, int]] = {}
    groups: dict[str, str] = {}
    for _ in range(40):
        name, group = rng.choice("abc"), rng.choice(("default", "g", "h"))
        action = rng.choice(("put", "put", "start", "read", "read", "delete", "restart"))
        if action == "put":
            before = groups.get(name)
            if before is not None:
                run.connectors.set_wanted(name, "STOPPED")
            try:
                run.put(name, group)
            except ConfigError:  # another one reads the topic there
                assert group in {group_of_other for other, group_of_other in groups.items() if other != name}
                continue
            finally:
                if before is not None:
                    run.connectors.set_wanted(name, "RUNNING")
            if before not in (None, group) and (name, str(before)) in positions:
                positions[name, group] = dict(positions[name, str(before)])
            groups[name] = group
        elif action == "restart":
            run.restart()
        elif name not in groups:
            continue
        elif action == "delete":
            run.connectors.delete(name)
            del groups[name]
        else:
            key = name, groups[name]
            assert run.start(name)
            position = positions.get(key, FIRST)
            assert run.position(name) == position
            if action == "read":
                run.read(name, events := rng.randrange(1, 9))
                positions[key] = {p: offset + events for p, offset in position.items()}


def test_hundreds_of_tables_are_claimed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each save is synced to the disk."""
    saves: list[object] = []
    monkeypatch.setattr(durable, "save", lambda *arguments: saves.append(arguments[0]))
    run = Run(tmp_path)
    run.put("a", table=",".join(f"t{number}" for number in range(300)), data_topic="data-${table}")
    tasks = [*run.connectors.all()["a"].tasks.values()]
    for _ in range(2):
        assert len(claim(run.connectors, tasks)) == 300
    assert saves == [tmp_path / "default/owners"]
