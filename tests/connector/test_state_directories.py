"""States that the workers of a group share: what a leader copies from one that still writes, and what it removes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from connector.test_group import Topic, leader
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.checkpoint import latest_committed
from helenus_connector.group import _state_copy
from helenus_connector.group._state_copy import Moving, copy_state
from helenus_connector.group.state_directories import (
    StateDirectories,
    StateName,
    check_state_directory,
    find_latest,
)
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings.properties import ConfigError

ROWS = StateName(("rows", "shop/orders", "merged"), "", "state.about")
KEYS = StateName(("keys", ".hidden"), "query", "about")
STORES = ("state/0/0/default", "state/0/1/default")
RETAINED = 10


class FormerLeader:
    """Writes to a state as Spark does, one file at a time."""

    def __init__(self, directory: Path, checkpoint: str) -> None:
        self.directory, self.spark = directory, directory / checkpoint
        self.steps = self._steps()

    def _steps(self) -> Iterator[None]:
        self.write(self.spark / "metadata", "id")
        yield
        for batch in range(10_000):
            self.write(self.spark / f"offsets/{batch}", str(batch))
            yield
            for store in STORES:
                version = batch + 1
                self.write(self.spark / store / f"{version}.changelog", "")
                yield
                if version % 4 == 0:  # of before: maintenance is late
                    self.write(self.spark / store / f"SSTs/{version - 1}.sst", "")
                    yield
                    self.write(self.spark / store / f"{version - 1}.zip", f"{version - 1}.sst")
                    yield
            self.write(self.spark / f"commits/{batch}", "")
            yield
            self.write(self.directory / "state.about", str(batch))
            yield
            yield from self._remove(batch)

    def _remove(self, batch: int) -> Iterator[None]:
        for store in STORES:
            oldest = batch + 1 - RETAINED
            needed = max((v for v in self.versions(store, ".zip") if v <= oldest), default=0)
            for suffix, last in ((".changelog", needed), (".zip", needed - 1)):
                for version in self.versions(store, suffix):
                    if version <= last:
                        (self.spark / store / f"{version}{suffix}").unlink()
                        if suffix == ".zip":
                            (self.spark / store / f"SSTs/{version}.sst").unlink()
                        yield
        for part in ("offsets", "commits"):
            (self.spark / part / str(batch - RETAINED)).unlink(missing_ok=True)
            yield

    def versions(self, store: str, suffix: str) -> list[int]:
        return [int(path.name.removesuffix(suffix)) for path in (self.spark / store).glob(f"*{suffix}")]

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.tmp")
        new.write_text(text)
        new.replace(path)

    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            next(self.steps)


def check_copy(copy: Path, checkpoint: str) -> int:
    """A copy is what a killed worker leaves behind. Returns its last committed batch."""
    spark = copy / checkpoint
    committed = latest_committed(spark)
    offsets = {int(path.name) for path in (spark / "offsets").glob("*")}
    assert max(offsets, default=-1) <= committed + 1
    assert committed < 0 or committed in offsets
    identity = copy / "state.about"
    assert not identity.exists() or int(identity.read_text()) <= committed
    for store in STORES:
        logs = {int(path.stem) for path in (spark / store).glob("*.changelog")}
        snapshots = {int(path.stem): path.read_text() for path in (spark / store).glob("*.zip")}
        assert max([*logs, *snapshots], default=0) <= committed + 1
        assert all((spark / store / "SSTs" / name).exists() for name in snapshots.values())
        assert any({*range(begin + 1, committed + 2)} <= logs for begin in (0, *snapshots))
    assert not [path for path in copy.rglob("*") if path.name.endswith(".tmp")]
    return committed


@settings(max_examples=60, deadline=None)
@example(74, [0, 1, 0, 3, 0, 0, 1], "")
@given(st.integers(0, 400), st.lists(st.integers(0, 9), min_size=1, max_size=40), st.sampled_from(["", "query"]))
def test_a_copy_of_a_state_that_is_written(
    tmp_path_factory: pytest.TempPathFactory, before: int, pauses: list[int], checkpoint: str
) -> None:
    """Whenever each file is copied, the copy is that of one moment, or it is none."""
    directory = tmp_path_factory.mktemp("state")
    former, copy, turns = FormerLeader(directory / "1", checkpoint), directory / "2", iter(pauses * 1000)
    former.go_on(1 + before)
    link = _state_copy._link

    def slow_link(source: Path, target: Path) -> None:
        former.go_on(next(turns))
        link(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_state_copy, "_link", slow_link)
        try:
            copy_state(former.directory, copy, checkpoint)
        except Moving:
            assert [path.name for path in directory.iterdir()] == ["1"]
            return
    committed = check_copy(copy, checkpoint)
    former.go_on(500)
    assert check_copy(copy, checkpoint) == committed, "what the former leader does changes nothing"


def test_metadata_names_the_files_of_the_copy(tmp_path: Path) -> None:
    """Spark reads schemas by whole paths, and the former directory may be gone, or mounted elsewhere."""
    former = FormerLeader(tmp_path / "1", "")
    former.go_on(60)
    metadata = tmp_path / "1" / "state/0/_metadata/v2/3"
    schema = "/state/0/_stateSchema/default/0_a"
    former.write(metadata, f'v1\n{{"storeName":"default","paths":["file:/mnt/x{schema}","/y{schema}"],"z":"/z"}}')
    former.write(metadata.with_name(".3.crc"), "")
    copy_state(former.directory, copy := tmp_path / "2", "")
    text = f'v1\n{{"storeName":"default","paths":["file:{copy}{schema}","{copy}{schema}"],"z":"/z"}}'
    assert (copy / "state/0/_metadata/v2/3").read_text() == text
    assert "/mnt/x/" in metadata.read_text()
    assert not list(copy.rglob(".3.crc"))


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    former = FormerLeader(tmp_path / "1", "")
    former.go_on(100)
    copy_state(former.directory, tmp_path / "2", "")
    assert check_copy(tmp_path / "2", "") >= 0


class SharedTopic(Topic):
    """The group's topic, of the leader that is the last one to lead. `fails` says how often its writes do."""

    leaders = 0

    def __init__(self, former: SharedTopic | None = None) -> None:
        super().__init__({} if former is None else former.content)
        self.successor: SharedTopic | None = None
        self.fails = False
        if former is not None:
            former.successor = self

    def update(self, change: Any) -> None:
        if not change(self.content):
            return
        if self.successor is not None:
            raise HelenusError(Kind.NOT_OWNER, "another worker leads", "topic")
        if self.fails:
            raise HelenusError(Kind.BROKER_UNREACHABLE, "no answer", "topic")
        super().update(change)


def settings_of(root: Path, number: int, shared: bool = True) -> WorkerSettings:
    keys = {"bootstrap.servers": "h:1", "checkpoint.dir": str(root / f"own-{number}"), "group.id": "workers"}
    if shared:
        (root / "shared").mkdir(exist_ok=True, mode=0o700)
        keys["state.checkpoint.dir"] = str(root / "shared")
    return WorkerSettings.from_properties(keys, "worker")


def states(root: Path, number: int, topic: SharedTopic, shared: bool = True) -> StateDirectories:
    return StateDirectories(settings_of(root, number, shared), topic, leader(number))  # type: ignore[arg-type]


def write_state(directory: Path, state: StateName, text: str = "of") -> None:
    FormerLeader(directory, state.checkpoint).go_on(40)
    (directory / state.identity).write_text(text)


@pytest.mark.parametrize("state", [ROWS, KEYS])
def test_each_leader_has_the_state_of_the_one_before(tmp_path: Path, state: StateName) -> None:
    topic, local = SharedTopic(), tmp_path / "local"
    first = states(tmp_path, 1, topic)
    home = first.take(state, local)
    assert (home.loss, home.is_copy) == ("", False)
    write_state(home.directory, state)
    first.keep(state)
    assert first.take(state, local).directory == home.directory, "a query that starts again goes on"
    second = states(tmp_path, 2, topic := SharedTopic(topic))
    copy = second.take(state, local)
    assert (copy.loss, copy.is_copy) == ("", True)
    assert (copy.directory / state.identity).read_text() == "of"
    assert home.directory.exists(), "until the topic says where the state is"
    second.keep(state)
    assert not home.directory.exists()
    assert find_latest(settings_of(tmp_path, 3), state, None) == copy.directory


def test_a_former_leader_that_wakes_up(tmp_path: Path) -> None:
    """At any step of its own takeover: it removes nothing, and what it copies is nobody's."""
    first_topic = SharedTopic()
    first = states(tmp_path, 1, first_topic)
    write_state(original := first.take(ROWS, tmp_path).directory, ROWS)
    first.keep(ROWS)
    hung_topic = SharedTopic(first_topic)
    hung = states(tmp_path, 2, hung_topic)
    hung.take(ROWS, tmp_path)  # and hangs, before it says so
    third_topic = SharedTopic(hung_topic)
    third = states(tmp_path, 3, third_topic)
    home = third.take(ROWS, tmp_path)
    with pytest.raises(HelenusError, match="another worker leads"):
        hung.keep(ROWS)
    assert original.exists()
    third.keep(ROWS)
    assert not original.exists()
    hung_again = hung.take(ROWS, tmp_path)  # from a directory that is gone
    assert hung_again.loss
    write_state(hung_again.directory, ROWS, "damage")
    with pytest.raises(HelenusError, match="another worker leads"):
        hung.keep(ROWS)
    fourth = states(tmp_path, 4, SharedTopic(third_topic))
    assert (fourth.take(ROWS, tmp_path).directory / ROWS.identity).read_text() == "of"
    assert (home.directory / ROWS.identity).read_text() == "of"
    fourth.keep(ROWS)
    assert len(list((tmp_path / "shared" / "workers").glob("*-*/rows/*/*"))) == 1


def test_a_copy_that_was_not_kept_is_made_anew(tmp_path: Path) -> None:
    """Its former leader may have published more since."""
    topic = SharedTopic()
    first = states(tmp_path, 1, topic)
    write_state(original := first.take(ROWS, tmp_path).directory, ROWS)
    first.keep(ROWS)
    second = states(tmp_path, 2, topic := SharedTopic(topic))
    second.take(ROWS, tmp_path)
    topic.fails = True
    with pytest.raises(HelenusError, match="no answer"):
        second.keep(ROWS)
    topic.fails = False
    (original / ROWS.identity).write_text("later")
    assert (second.take(ROWS, tmp_path).directory / ROWS.identity).read_text() == "later"


def test_a_state_that_is_lost(tmp_path: Path) -> None:
    """Each is announced once, though not at the same time; and so is one whose directory an operator removed."""
    topic = SharedTopic()
    first = states(tmp_path, 1, topic)
    for state in (ROWS, KEYS):
        write_state(first.take(state, tmp_path).directory, state)
        first.keep(state)
    shutil.rmtree(tmp_path / "shared")
    second = states(tmp_path, 2, SharedTopic(topic))
    for _ in range(2):
        with pytest.raises(HelenusError, match="nothing of the leaders before, as one that is not mounted") as error:
            second.take(ROWS, tmp_path)
    assert error.value.kind is Kind.CONFIG
    assert error.value.advice.endswith("make this an empty file, and the states of the group begin anew")
    assert error.value.where.endswith("directory.id")
    Path(error.value.where).touch()
    for state in (ROWS, KEYS):
        home = second.take(state, tmp_path)
        assert "the directory of the leader before, 1-" in home.loss
        write_state(home.directory, state)
        second.keep(state)
        assert second.take(state, tmp_path).loss == ""
    shutil.rmtree(second.take(ROWS, tmp_path).directory)
    assert second.take(ROWS, tmp_path).loss == "its directory was removed"


def test_another_directory_is_refused(tmp_path: Path) -> None:
    topic = SharedTopic()
    first = states(tmp_path, 1, topic)
    write_state(first.take(ROWS, tmp_path).directory, ROWS)
    first.keep(ROWS)
    (tmp_path / "shared").rename(tmp_path / "right")
    other = states(tmp_path, 1, SharedTopic())
    other.take(ROWS, tmp_path)
    second = states(tmp_path, 2, topic := SharedTopic(topic))
    with pytest.raises(HelenusError, match="another directory than that of the leader before") as error:
        second.take(ROWS, tmp_path)
    assert error.value.kind is Kind.CONFIG
    without = states(tmp_path, 3, topic := SharedTopic(topic), shared=False)
    with pytest.raises(HelenusError, match=r"state\.checkpoint\.dir is not set"):
        without.take(ROWS, tmp_path)
    shutil.rmtree(tmp_path / "shared")
    with pytest.raises(HelenusError, match="no such directory"):
        second.take(ROWS, tmp_path)
    (tmp_path / "right").rename(tmp_path / "shared")
    assert states(tmp_path, 4, SharedTopic(topic)).take(ROWS, tmp_path).is_copy


@pytest.mark.parametrize("state", [ROWS, KEYS])
def test_a_worker_of_before_brings_its_state(tmp_path: Path, state: StateName) -> None:
    """Alone, or of a group without the setting: as long as no other worker had it."""
    local, topic = tmp_path / "local", SharedTopic()
    write_state(local, state)
    alone = states(tmp_path, 1, topic, shared=False)
    assert (alone.take(state, local).directory, alone.take(state, local).loss) == (local, "")
    alone.keep(state)
    shared = states(tmp_path, 2, topic := SharedTopic(topic))
    assert (shared.take(state, local).directory / state.identity).read_text() == "of"
    elsewhere = states(tmp_path, 3, SharedTopic(topic))
    assert "on the disk of the worker h:8083" in elsewhere.take(state, tmp_path / "empty").loss
    without = states(tmp_path, 3, SharedTopic(topic), shared=False)
    assert "on the disk of the worker h:8083" in without.take(state, tmp_path / "empty").loss


def test_a_directory_that_is_not_mounted(tmp_path: Path) -> None:
    worker = settings_of(tmp_path, 1)
    check_state_directory(worker)
    (tmp_path / "shared").rmdir()
    with pytest.raises(HelenusError, match="no such directory"):
        check_state_directory(worker)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(HelenusError, match="all users may write"):
        check_state_directory(worker)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [({"group.id": ""}, "without group.id"), ({"state.checkpoint.dir": "/c/state"}, "it is in checkpoint.dir")],
)
def test_directories_that_no_group_shares(keys: dict[str, str], reason: str) -> None:
    own = {"bootstrap.servers": "h:1", "checkpoint.dir": "/c", "group.id": "g", "state.checkpoint.dir": "/s"}
    with pytest.raises(ConfigError, match=reason):
        WorkerSettings.from_properties({**own, **keys}, "worker")
