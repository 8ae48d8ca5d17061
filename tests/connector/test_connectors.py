"""What an operator may do with connectors, and how their tasks fare: no Spark, no servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control import _connector_file
from helenus_connector.control import offsets as offsets_module
from helenus_connector.control.checkpoint import committed
from helenus_connector.control.connectors import Connectors, NotStopped, UnknownConnector
from helenus_connector.control.offsets import alter, offsets, reset
from helenus_connector.control.positions import HeldPositions, KnownPosition
from helenus_connector.control.status import Task
from helenus_connector.query.batch_metrics import note_failed_attempt
from helenus_connector.unconfirmed.files import begins
from helenus_connector.unconfirmed.unconfirmed_key import UnconfirmedKey
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings.properties import ConfigError

CONFIG = {"keyspace": "ks", "table": "t", "output.format": "json"}
TOPIC = "events-ks.t"


def earliest(topics: Sequence[str]) -> dict[str, dict[str, int]]:
    return {topic: {"0": 5, "1": 0} for topic in topics}


def connectors(directory: Path) -> Connectors:
    worker = WorkerSettings.from_properties({"bootstrap.servers": "h:1", "checkpoint.dir": str(directory)}, "worker")
    return Connectors(worker, earliest)


def running(all_connectors: Connectors, now: float = 0.0, group: str = "default") -> dict[str, Task]:
    for connector in all_connectors.all().values():
        for task in connector.tasks.values():
            task.ready = True
    return all_connectors.running_tasks(group, now)


def commit(directory: Path, batch: int, topics: dict[str, dict[str, int]]) -> None:
    """What Spark leaves of a batch that is done."""
    for name, text in (("offsets", "v1\n{}\n" + json.dumps({"tick": 0, "topics": topics})), ("commits", "v1\n{}")):
        (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / name / str(batch)).write_text(text)


def test_a_connector_runs_pauses_stops_and_is_deleted(tmp_path: Path) -> None:
    all_of = connectors(tmp_path)
    assert all_of.put("a", CONFIG)
    assert not all_of.put("a", CONFIG)
    assert all_of.names() == ["a"]
    assert list(running(all_of)) == [TOPIC]
    assert [(t.id, t.state) for t in all_of.status("a").tasks] == [(0, "RUNNING")]
    all_of.set_wanted("a", "PAUSED")
    assert (all_of.status("a").state, all_of.status("a").tasks[0].state) == ("PAUSED", "PAUSED")
    assert not running(all_of)
    all_of.set_wanted("a", "STOPPED")
    assert (all_of.status("a").state, all_of.status("a").tasks, all_of.tasks("a")) == ("STOPPED", [], [])
    all_of.set_wanted("a", "RUNNING")
    assert list(running(all_of)) == [TOPIC]
    all_of.delete("a")
    with pytest.raises(UnknownConnector):
        all_of.status("a")


def test_connectors_and_their_states_survive_a_restart(tmp_path: Path) -> None:
    before = connectors(tmp_path)
    before.put("a", {**CONFIG, "cassandra.password": "${env:NONE_SUCH}"} | {"cassandra.password": "s3cret"})
    before.set_wanted("a", "PAUSED")
    assert (tmp_path / "connectors.json").stat().st_mode & 0o077 == 0
    after = connectors(tmp_path)
    after.load({})
    assert after.config("a")["cassandra.password"] == "s3cret"
    assert after.status("a").state == "PAUSED"


def test_a_start_with_hundreds_of_files_saves_them_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time all are written, and synced: of two hundred it took a second of CPU, and more of waiting."""
    saved: list[list[str]] = []
    monkeypatch.setattr(_connector_file, "save", lambda _, configs: saved.append(sorted(configs)))
    connectors(tmp_path).load({name: {**CONFIG, "table": name} for name in ("a", "b", "c")})
    assert saved == [["a", "b", "c"]]


def test_a_changed_file_replaces_the_saved_configuration(tmp_path: Path) -> None:
    first = connectors(tmp_path)
    first.load({"a": CONFIG, "b": {**CONFIG, "table": "u"}})
    first.put("a", {**CONFIG, "tasks.max": "3"})
    reloaded = connectors(tmp_path)
    reloaded.load({"a": CONFIG})
    assert reloaded.config("a")["tasks.max"] == "3"
    assert reloaded.names() == ["a"], "a file that is not given any more takes its connector with it"
    other = connectors(tmp_path)
    other.load({"a": {**CONFIG, "tasks.max": "2"}})
    assert other.config("a")["tasks.max"] == "2"


def test_a_saved_connector_that_is_no_longer_valid_is_kept_aside(tmp_path: Path) -> None:
    before = connectors(tmp_path)
    before.put("a", CONFIG)
    before.put("b", {**CONFIG, "table": "u"})
    store = tmp_path / "connectors.json"
    store.write_text(store.read_text().replace('"table": "u"', '"table": "u", "no.key": "x"'))
    after = connectors(tmp_path)
    after.load({})
    after.set_wanted("a", "PAUSED")
    assert after.names() == ["a"]
    assert "no.key" in store.read_text(), "it is not lost"
    after.put("b", {**CONFIG, "table": "u"})
    assert "no.key" not in store.read_text()


def test_a_topic_is_for_one_connector_of_a_group(tmp_path: Path) -> None:
    all_of = connectors(tmp_path)
    all_of.put("a", CONFIG)
    with pytest.raises(ConfigError, match=r"connector a reads events-ks\.t already.* query.group and another data"):
        all_of.put("b", CONFIG)
    with pytest.raises(ConfigError, match=r"connector a reads events-ks\.t already.* query.group \(b\)"):
        all_of.put("b", {**CONFIG, "data.topic": "elsewhere"})
    all_of.put("b", {**CONFIG, "query.group": "other", "data.topic": "elsewhere"})
    assert [list(running(all_of, group=group)) for group in ("default", "other")] == [[TOPIC], [TOPIC]]


def test_a_data_topic_is_for_one_connector_of_the_worker(tmp_path: Path) -> None:
    """With two writers there is no order per key."""
    all_of = connectors(tmp_path)
    all_of.put("a", CONFIG)
    message = r"connector a writes data-ks\.t already; give one of them another data\.topic"
    for more in ({"query.group": "other"}, {"table": "u", "data.topic": "data-ks.t"}):
        with pytest.raises(ConfigError, match=message) as error:
            all_of.put("b", {**CONFIG, **more})
        assert [problem.key for problem in error.value.problems] == ["data.topic"]
        with pytest.raises(ConfigError, match=message):
            connectors(tmp_path / "other").load({"a": CONFIG, "b": {**CONFIG, **more}})
    assert all_of.names() == ["a"]
    all_of.put("b", {**CONFIG, "table": "u.*", "data.topic": "data-${keyspace}.${table}", "query.group": "other"})
    all_of.put("c", {**CONFIG, "table": "u1"})
    all_of.apply_scan("b", all_of.all()["b"].settings, {"u1": None, "u2": None})
    traces = {task.id: task.trace for task in all_of.status("b").tasks}
    assert "connector c writes data-ks.u1 already" in str(traces[0])
    assert traces[1] is None


def test_a_table_of_another_connector_stays_refused(tmp_path: Path) -> None:
    """A restart gives it no way in, and it keeps nobody else from anything."""
    all_of = connectors(tmp_path)
    all_of.put("a", CONFIG)
    pattern = {**CONFIG, "table": "t.*", "query.group": "other"}
    all_of.put("b", pattern)
    all_of.apply_scan("b", all_of.all()["b"].settings, {"t": None})
    for _ in range(2):
        assert "connector a writes data-ks.t already" in str(all_of.status("b").tasks[0].trace)
        all_of.put("a", {**CONFIG, "tasks.max": "2"})
        all_of.restart("b", only_failed=True)
        all_of.restart("b", task=0)
    all_of.put("b", {**pattern, "tasks.max": "2"})
    all_of.apply_scan("b", all_of.all()["b"].settings, {"t": None})
    assert "connector a writes data-ks.t already" in str(all_of.status("b").tasks[0].trace)
    all_of.delete("a")
    all_of.restart("b", only_failed=True)
    assert all_of.status("b").tasks[0].trace is None


def test_tables_that_match_join_and_one_failing_leaves_the_others(tmp_path: Path) -> None:
    all_of = connectors(tmp_path)
    all_of.put("a", {**CONFIG, "table": "t, u.*"})
    settings = all_of.all()["a"].settings
    missing = HelenusError(Kind.TABLE_MISSING, "there is no such table", "ks.t")
    all_of.apply_scan("a", settings, {"t": missing, "u1": None})
    all_of.apply_scan("a", settings, {"t": missing, "u1": None, "u2": None})
    states = all_of.status("a")
    assert [(t.id, t.state) for t in states.tasks] == [(0, "FAILED"), (1, "UNASSIGNED"), (2, "UNASSIGNED")]
    assert "there is no such table" in (states.tasks[0].trace or "")
    assert sorted(running(all_of)) == ["events-ks.u1", "events-ks.u2"]
    assert [config["table"] for config in all_of.tasks("a")] == ["t", "u1", "u2"]
    all_of.restart("a", only_failed=True)
    assert len(running(all_of)) == 3


def test_a_transient_error_is_retried_with_growing_delay(tmp_path: Path) -> None:
    all_of = connectors(tmp_path)
    all_of.put("a", {**CONFIG, "errors.retry.timeout": "60000"})
    (task,) = running(all_of).values()
    passing = HelenusError(Kind.CASSANDRA_READ, "timeout", "ks.t")
    pauses = []
    for attempt in range(6):
        task.note_failure(passing, 10.0 + attempt)
        pauses.append(task.retry_at - 10.0 - attempt)
        assert not all_of.running_tasks("default", 10.0 + attempt)
        assert all_of.running_tasks("default", task.retry_at)
    assert pauses[0] <= 0.5 < pauses[5] <= 10
    assert all_of.status("a").tasks[0].state == "RUNNING"
    task.note_failure(passing, 80.0)
    assert all_of.status("a").tasks[0].state == "FAILED", "errors.retry.timeout is over"
    all_of.restart("a", 0)
    task.note_success()
    assert running(all_of, 80.0)


def test_held_positions_override_those_that_spark_committed(tmp_path: Path) -> None:
    all_of = connectors(tmp_path)
    all_of.put("a", CONFIG)
    assert offsets(all_of, "a") == {}
    group = tmp_path / "default"
    commit(group, 9, {TOPIC: {"0": 7, "1": 8}, "another": {"0": 1}})
    commit(group, 10, {TOPIC: {"0": 17, "1": 8}})
    (group / "commits" / "10").unlink()
    assert offsets(all_of, "a") == {TOPIC: {0: 7, 1: 8}}
    all_of.held_positions("default").hold(TOPIC, {"1": 3})
    assert offsets(all_of, "a") == {TOPIC: {0: 7, 1: 3}}


def test_a_stopped_connector_is_moved_and_reset(tmp_path: Path) -> None:
    all_of = connectors(tmp_path)
    all_of.put("a", CONFIG)
    with pytest.raises(NotStopped):
        reset(all_of, "a")
    all_of.set_wanted("a", "STOPPED")
    alter(all_of, "a", {TOPIC: {1: 42}})
    assert offsets(all_of, "a") == {TOPIC: {0: 5, 1: 42}}
    alter(all_of, "a", {TOPIC: {1: None, 0: 9}})
    assert offsets(all_of, "a") == {TOPIC: {0: 9, 1: 0}}
    for wrong in ({TOPIC: {7: 1}}, {"events-ks.other": {0: 1}}, {TOPIC: {0: -4}}):
        with pytest.raises(HelenusError) as refused:
            alter(all_of, "a", wrong)
        assert refused.value.kind is Kind.CONFIG
    reset(all_of, "a")
    assert offsets(all_of, "a") == {TOPIC: {0: 5, 1: 0}}


def test_another_group_takes_the_position_along(tmp_path: Path) -> None:
    all_of = connectors(tmp_path)
    all_of.put("a", CONFIG)
    commit(tmp_path / "default", 3, {TOPIC: {"0": 7, "1": 8}})
    with pytest.raises(ConfigError, match="stop the connector"):
        all_of.put("a", {**CONFIG, "query.group": "slow"})
    all_of.set_wanted("a", "STOPPED")
    all_of.put("a", {**CONFIG, "query.group": "slow"})
    assert offsets(all_of, "a") == {TOPIC: {0: 7, 1: 8}}


def test_another_group_in_a_file_takes_the_position_along(tmp_path: Path) -> None:
    connectors(tmp_path).load({"a": CONFIG})
    commit(tmp_path / "default", 3, {TOPIC: {"0": 7, "1": 8}})
    after = connectors(tmp_path)
    after.load({"a": {**CONFIG, "query.group": "slow"}})
    assert offsets(after, "a") == {TOPIC: {0: 7, 1: 8}}


def test_a_released_position_counts_until_spark_commits(tmp_path: Path) -> None:
    group = tmp_path / "g"
    commit(group, 1, {TOPIC: {"0": 100}})
    held_positions = HeldPositions(group)
    held_positions.hold(TOPIC, {"0": 5})
    held_positions.begin_batch()
    held_positions.release(TOPIC, ["0"])
    assert held_positions.read_offsets() == {TOPIC: {"0": 5}}
    commit(group, 2, {TOPIC: {"0": 15}})
    held_positions.begin_batch()
    assert held_positions.read_offsets() == {TOPIC: {"0": 15}}


@pytest.mark.parametrize(
    ("log", "max_offset", "wrong"),
    [
        ("kafka", (1 << 63) - 1, [1 << 63, 1 << 127, -1]),
        ("pulsar", (1 << 127) - (1 << 31) - 1, [1 << 127, 7 << 64 | 1 << 31, -1]),
    ],
)
def test_an_offset_that_no_topic_can_have_is_refused(
    tmp_path: Path, log: str, max_offset: int, wrong: list[int]
) -> None:
    address = {"kafka": {"bootstrap.servers": "h:1"}, "pulsar": {"pulsar.service.url": "pulsar://h:1"}}[log]
    worker = WorkerSettings.from_properties({"log": log, **address, "checkpoint.dir": str(tmp_path)}, "worker")
    all_of = Connectors(worker, earliest)
    all_of.put("a", CONFIG, "STOPPED")
    alter(all_of, "a", {TOPIC: {0: max_offset}})
    for offset in wrong:
        with pytest.raises(HelenusError, match="no offset") as refused:
            alter(all_of, "a", {TOPIC: {0: offset}})
        assert refused.value.kind is Kind.CONFIG
    assert offsets(all_of, "a")[TOPIC][0] == max_offset


def test_the_range_of_an_earlier_batch_is_kept_unless_it_is_held(tmp_path: Path) -> None:
    held_positions = HeldPositions(tmp_path / "g")
    held_positions.hold("t", {"0": 3})
    held_positions.hold_unless_held("t", {"0": 9, "1": 7})
    assert held_positions.offsets() == {"t": {"0": 3, "1": 7}}


def test_held_positions_are_saved_and_released(tmp_path: Path) -> None:
    held_positions = HeldPositions(tmp_path / "g")
    held_positions.hold("t", {"0": 4, "1": 5})
    held_positions.release("t", ["0"])
    assert HeldPositions(tmp_path / "g").offsets() == {"t": {"1": 5}}
    held_positions.release("t", ["1", "2"])
    held_positions.release("unknown", ["0"])
    assert HeldPositions(tmp_path / "g").offsets() == {}
    assert held_positions.epoch("t") == 0
    held_positions.move("t", {"0": 4, "1": 0})
    assert (held_positions.epoch("t"), held_positions.offsets()) == (1, {"t": {"0": 4, "1": 0}})
    assert committed(tmp_path / "g") == {}


@pytest.mark.parametrize("kind", [Kind.TABLE_MISSING, Kind.CDC_DISABLED])
def test_a_scan_between_drop_and_create_fails_no_table_at_once(
    tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connector with patterns looks at all of its tables again and again."""
    clock = SimpleNamespace(seconds=1000.0, monotonic=lambda: clock.seconds)
    monkeypatch.setattr("helenus_connector.control.connectors.time", clock)
    all_of = connectors(tmp_path)
    all_of.put("a", {**CONFIG, "table": "t, log_.*"})
    settings = all_of.all()["a"].settings
    all_of.apply_scan("a", settings, {"t": None})
    task = running(all_of)[TOPIC]
    wrong = HelenusError(kind, "it is being made", "ks.t")
    for error, seconds, failed in ((wrong, 0, None), (None, 60, None), (wrong, 60, None), (wrong, 60, wrong)):
        clock.seconds += seconds
        all_of.apply_scan("a", settings, {"t": error})
        assert task.error is failed
        task.note_success()  # as batches without its events do
    all_of.restart("a", task.id)
    all_of.apply_scan("a", settings, {"t": wrong})
    assert task.error is wrong, "it does not run"


def test_a_table_that_a_pattern_matched_leaves_when_it_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once if its work failed for that, else after as long as it may be away to be recreated."""
    clock = SimpleNamespace(seconds=1000.0, monotonic=lambda: clock.seconds)
    monkeypatch.setattr("helenus_connector.control.connectors.time", clock)
    all_of = connectors(tmp_path)
    all_of.put("a", {**CONFIG, "table": "t, log_.*"})
    settings = all_of.all()["a"].settings
    there: dict[str, HelenusError | None] = dict.fromkeys(("t", "log_quiet", "log_busy", "log_stays"))
    all_of.apply_scan("a", settings, there)
    for task in running(all_of).values():
        task.ready = True
    busy = all_of.all()["a"].tasks["log_busy"]
    tables_left: dict[str, HelenusError | None] = {"t": None, "log_stays": None}
    for seconds, tables in ((0, 4), (29, 4), (2, 2)):
        clock.seconds += seconds
        all_of.apply_scan("a", settings, tables_left)
        assert len(all_of.all()["a"].tasks) == tables
    assert all_of.status("a").obstacle is None or "waits for" in str(all_of.status("a").obstacle)
    all_of.restart("a")
    assert [t.id for t in all_of.status("a").tasks] == [0, 3], "a restart brings back none that is not there"
    all_of.apply_scan("a", settings, there)
    assert [t.state for t in all_of.status("a").tasks] == ["UNASSIGNED"] * 4, "as it does when it is there again"
    assert all_of.all()["a"].tasks["log_busy"] is not busy
    busy_task = all_of.all()["a"].tasks["log_busy"]
    busy_task.ready = True
    busy_task.error = HelenusError(Kind.TABLE_MISSING, "there is no such table", "ks.log_busy")
    all_of.apply_scan("a", settings, {**tables_left, "log_quiet": None})
    assert sorted(all_of.all()["a"].tasks) == ["log_quiet", "log_stays", "t"]
    missing = HelenusError(Kind.TABLE_MISSING, "there is no such table", "ks.t")
    clock.seconds += 100
    for _ in range(2):
        all_of.apply_scan("a", settings, {"t": missing, "log_stays": None})
        clock.seconds += 100
    assert all_of.all()["a"].tasks["t"].error is missing, "one that is named is missed"


def waits(all_of: Connectors, group: str, since: float = 100.0) -> None:
    """A key of the topic that no read has proven, in a run that ended at 1000."""
    keys = all_of.unconfirmed_keys(group)
    keys.use({TOPIC: 2.0}, {TOPIC: 30.0})
    keys.apply([], [UnconfirmedKey(TOPIC, 1, b"k", 0, copies=3, since=since)], 990.0)
    keys.save(1000.0, [TOPIC])


@pytest.mark.parametrize("by", ["rest", "file", "a file of patterns"])
def test_another_group_takes_unconfirmed_keys_along(tmp_path: Path, by: str) -> None:
    """It steps back from when the group of before ended, not from now."""
    config = {**CONFIG, "table": "u, t|x"} if by == "a file of patterns" else CONFIG
    all_of = connectors(tmp_path)
    all_of.load({"a": config})
    if by == "a file of patterns":
        all_of.apply_scan("a", all_of.all()["a"].settings, {"u": None, "t": None})
    commit(tmp_path / "default", 3, {TOPIC: {"0": 7, "1": 8}})
    waits(all_of, "default")
    if by == "rest":
        all_of.set_wanted("a", "STOPPED")
        all_of.put("a", {**config, "query.group": "slow"})
        assert all_of.unconfirmed_keys("slow").counts(TOPIC) == (1, 3), "events have their outcome there"
    else:
        all_of = connectors(tmp_path)
        all_of.load({"a": {**config, "query.group": "slow"}})
    assert all_of.held_positions("slow").read_offsets() == {TOPIC: {"0": 7, "1": 8}}
    assert begins(tmp_path / "slow" / "unconfirmed")(TOPIC, 30.0, 5000.0) == 970.0
    stays = by == "a file of patterns"  # it may be another connector's
    assert all_of.unconfirmed_keys("default").counts(TOPIC) == (int(stays), 0)
    after = connectors(tmp_path)
    assert [after.unconfirmed_keys(group).counts(TOPIC)[0] for group in ("default", "slow")] == [int(stays), 1]


def test_another_group_takes_nothing_of_other_tables(tmp_path: Path) -> None:
    all_of = connectors(tmp_path)
    all_of.put("b", CONFIG)
    all_of.put("a", {**CONFIG, "table": "t|u"})
    all_of.apply_scan("a", all_of.all()["a"].settings, {"t": None, "u": None})
    commit(tmp_path / "default", 3, {TOPIC: {"0": 7, "1": 8}, "events-ks.u": {"0": 1}})
    waits(all_of, "default")
    all_of.set_wanted("a", "STOPPED")
    all_of.put("a", {**CONFIG, "table": "t|u", "query.group": "slow"})
    assert all_of.held_positions("slow").read_offsets() == {"events-ks.u": {"0": 1}}
    assert [all_of.unconfirmed_keys(group).counts(TOPIC)[0] for group in ("default", "slow")] == [1, 0]


MOVE = """
import sys; sys.path[:0] = [{tests!r}]
from pathlib import Path
from connector.test_connectors import CONFIG, connectors
all_of = connectors(Path({directory!r}))
all_of.load({{}})
all_of.put("a", {{**CONFIG, "query.group": "slow"}})
print("moved")
"""


@pytest.mark.parametrize(
    "dies_at",
    ["unconfirmed.keys-after-write", "unconfirmed.after-write", "held.after-write", "connectors.after-write:2", ""],
)
def test_killed_while_changing_its_group_it_keeps_its_unconfirmed_keys(tmp_path: Path, dies_at: str) -> None:
    before = connectors(tmp_path)
    before.put("a", CONFIG, "STOPPED")
    commit(tmp_path / "default", 3, {TOPIC: {"0": 7, "1": 8}})
    waits(before, "default")
    script = MOVE.format(tests=str(Path(__file__).parents[1]), directory=str(tmp_path))
    environment = {**os.environ, "HELENUS_FAILPOINT": dies_at}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=False)
    assert ended.returncode == (-signal.SIGKILL if dies_at else 0), ended.stderr
    after = connectors(tmp_path)
    after.load({})
    group = after.all()["a"].settings.query_group
    assert offsets(after, "a") == {TOPIC: {0: 7, 1: 8}}
    assert after.unconfirmed_keys(group).counts(TOPIC)[0] == 1
    assert begins(tmp_path / group / "unconfirmed")(TOPIC, 30.0, 5000.0) == 970.0


def test_a_group_is_changed_when_the_last_batch_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two would write the data topic, and the batch would leave keys to wait where nobody looks."""
    all_of = connectors(tmp_path)
    all_of.put("a", CONFIG)
    all_of.note_written_topics("default", ["data-ks.t"])
    all_of.set_wanted("a", "STOPPED")
    monkeypatch.setattr("helenus_connector.control.connectors._LAST_BATCH_S", 0.1)
    with pytest.raises(ConfigError, match="its last batch has not ended"):
        all_of.put("a", {**CONFIG, "query.group": "slow"})
    monkeypatch.setattr("helenus_connector.control.connectors._LAST_BATCH_S", 60.0)
    all_of.ending = True
    with pytest.raises(ConfigError, match="its last batch has not ended"):
        all_of.put("a", {**CONFIG, "query.group": "slow"})
    all_of.ending = False
    steps: list[str] = []

    def ends() -> None:
        waits(all_of, "default")
        steps.append("ended")
        all_of.note_written_topics("default", [])

    later = threading.Timer(0.2, ends)
    later.start()
    with all_of.lock:  # as a call over REST does
        all_of.put("a", {**CONFIG, "query.group": "slow"})
    later.join()
    assert steps == ["ended"]
    assert all_of.unconfirmed_keys("slow").counts(TOPIC) == (1, 3)


def test_a_data_topic_is_written_by_one_query_at_a_time(tmp_path: Path) -> None:
    """Also where a connector is deleted while its batch runs, and made in another group."""
    all_of = connectors(tmp_path)
    all_of.put("a", CONFIG)
    all_of.note_written_topics("default", ["data-ks.t"])
    all_of.delete("a")
    all_of.put("b", {**CONFIG, "query.group": "slow"})
    assert list(running(all_of, group="slow")) == []
    (task,) = all_of.status("b").tasks
    assert task.trace == "waits for the last batch of query.group default: it may write data-ks.t"
    all_of.note_written_topics("slow", [])
    assert list(running(all_of, group="slow")) == []
    all_of.note_written_topics("default", [])
    assert list(running(all_of, group="slow")) == [TOPIC]
    assert all_of.status("b").tasks[0].trace is None


def test_a_deleted_connector_of_a_file_stays_deleted(tmp_path: Path) -> None:
    """As what was changed over REST stays changed: until its file says something else, or somebody makes it again."""
    first = connectors(tmp_path)
    first.load({"a": CONFIG, "b": {**CONFIG, "table": "u"}})
    first.delete("a")
    for _ in range(2):
        restarted = connectors(tmp_path)
        with capture_logs() as logs:
            restarted.load({"a": CONFIG, "b": {**CONFIG, "table": "u"}})
        assert restarted.names() == ["b"]
        assert [entry["event"] for entry in logs] == ["connector.deleted"]
    restarted.put("a", {**CONFIG, "tasks.max": "2"})
    made = connectors(tmp_path)
    made.load({"a": CONFIG})
    assert made.config("a")["tasks.max"] == "2"
    made.delete("a")
    changed = connectors(tmp_path)
    changed.load({"a": {**CONFIG, "tasks.max": "3"}})
    assert (changed.names(), changed.status("a").state) == (["a"], "RUNNING")


def test_done_and_held_partitions_move_in_one_step(tmp_path: Path) -> None:
    """Between two a kill, or a full disk, would leave nothing that says that the rest was not read."""
    held_positions = HeldPositions(tmp_path / "g")
    held_positions.hold(TOPIC, {"0": 100, "1": 5})
    written: list[object] = []
    save = held_positions._save
    held_positions._save = lambda offsets: (written.append(offsets), save(offsets))[1]  # type: ignore[assignment, func-returns-value]
    assert held_positions.release(TOPIC, ["0", "1"], 0, {"0": 300})
    assert written == [{TOPIC: {"0": 300}}]
    assert HeldPositions(tmp_path / "g").read_offsets() == {TOPIC: {"0": 300}}


def test_a_damaged_file_of_held_positions_is_refused(tmp_path: Path) -> None:
    held_positions = HeldPositions(tmp_path / "g")
    held_positions.hold(TOPIC, {"0": 5})
    file = tmp_path / "g" / "held"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(HelenusError, match=r"held positions are damaged.*query\.group g") as error:
        HeldPositions(tmp_path / "g")
    assert (error.value.kind, error.value.where) == (Kind.STATE, str(file))


def test_half_written_files_of_spark_are_named(tmp_path: Path) -> None:
    commit(tmp_path / "default", 3, {TOPIC: {"0": 7}})
    (tmp_path / "default" / "offsets" / "3").write_text("")
    with pytest.raises(HelenusError, match="Spark's checkpoint is damaged") as error:
        HeldPositions(tmp_path / "default").read_offsets()
    assert error.value.kind is Kind.STATE


def test_a_full_disk_is_reported_as_our_error(tmp_path: Path) -> None:
    all_of = connectors(tmp_path)
    (tmp_path / "connectors.new").symlink_to("/dev/full")
    with pytest.raises(HelenusError, match="cannot save the connectors: No space left"):
        all_of.put("a", CONFIG)
    (tmp_path / "connectors.json").write_text("{")
    with pytest.raises(HelenusError, match="cannot read the connectors"):
        connectors(tmp_path).load({})


@pytest.mark.parametrize("kind", [Kind.TABLE_MISSING, Kind.CDC_DISABLED])
def test_a_task_resumes_when_its_table_exists_again(tmp_path: Path, kind: Kind) -> None:
    all_of = connectors(tmp_path)
    all_of.put("a", CONFIG)
    settings = all_of.all()["a"].settings
    all_of.apply_scan("a", settings, {"t": HelenusError(kind, "it is being recreated", "ks.t")})
    assert all_of.status("a").tasks[0].state == "FAILED"
    all_of.apply_scan("a", settings, {"t": None})
    assert all_of.status("a").tasks[0].trace is None
    assert TOPIC in running(all_of)
    all_of.all()["a"].tasks["t"].note_failure(HelenusError(Kind.POISON_EVENT, "not an event"), 0.0)
    all_of.apply_scan("a", settings, {"t": None})
    assert all_of.status("a").tasks[0].state == "FAILED", "for another reason"


def test_a_clock_that_is_set_back_delays_no_retry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after the start of a virtual machine, whose clock was a day ahead until NTP had set it."""
    all_of = connectors(tmp_path)
    all_of.put("a", CONFIG)
    task = running(all_of)[TOPIC]
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 86_400)
    note_failed_attempt(task, HelenusError(Kind.CASSANDRA_READ, "timed out", "ks.t"))
    monkeypatch.setattr(time, "time", clock)
    assert TOPIC not in running(all_of, time.monotonic())
    assert TOPIC in running(all_of, time.monotonic() + 1.0)


def test_the_time_to_recreate_a_table_counts_from_when_it_was_first_missed(tmp_path: Path) -> None:
    """Not from when a read timed out before, in the same row of failures."""
    all_of = connectors(tmp_path)
    all_of.put("a", CONFIG)
    task = running(all_of)[TOPIC]
    missing = HelenusError(Kind.TABLE_MISSING, "there is no such table", "ks.t")
    away = HelenusError(Kind.CASSANDRA_READ, "timed out")
    for error, seconds in ((away, 0), (away, 100), (missing, 101), (missing, 125), (away, 126), (missing, 140)):
        task.note_failure(error, seconds)
        assert task.error is None, seconds
        assert task.trouble is error
    task.note_failure(missing, 169)
    assert task.error is None
    task.note_failure(missing, 171)
    assert task.error is missing


def test_keys_of_partitions_that_are_gone_wait_no_longer(tmp_path: Path) -> None:
    """Nothing would read them again, and they would take other keys' turns for ever."""
    all_of = connectors(tmp_path)
    all_of.put("a", CONFIG, "STOPPED")
    commit(tmp_path / "default", 3, {TOPIC: {"0": 7, "1": 8, "2": 9}})
    keys = all_of.unconfirmed_keys("default")
    keys.use({TOPIC: 2.0}, {TOPIC: 30.0})
    keys.apply([], [UnconfirmedKey(TOPIC, p, b"k", 0, copies=3, since=100.0) for p in range(3)], 990.0)
    labels = {"connector": "a", "keyspace": "ks", "table": "t", "outcome": "outdated"}
    before = REGISTRY.get_sample_value("helenus_connector_events_total", labels) or 0.0
    reset(all_of, "a")
    assert offsets(all_of, "a") == {TOPIC: {0: 5, 1: 0}}
    assert keys.counts(TOPIC) == (2, 6)
    assert [p.partition for p in keys.select_due(2000.0, 9)] in ([0, 1], [1, 0])
    assert REGISTRY.get_sample_value("helenus_connector_events_total", labels) == before + 3


class Brokers:
    """The brokers' positions of one connector, in one topic."""

    def __init__(self, position: KnownPosition) -> None:
        self.position = position
        self.moves: list[tuple[dict[str, int], int]] = []

    def has(self, _: ConnectorSettings) -> bool:
        return True

    def read(self, _: ConnectorSettings, partitions: Mapping[str, int]) -> dict[str, KnownPosition]:
        return dict.fromkeys(partitions, self.position)

    def move(self, _: ConnectorSettings, topic: str, offsets: Mapping[str, int], epoch: int) -> None:
        assert topic == TOPIC
        self.moves.append((dict(offsets), epoch))


@pytest.mark.parametrize(
    ("local", "position", "offset", "epoch"),
    [
        ({}, KnownPosition({"0": 70, "1": 80}, 4), 80, 5),  # another worker ran it
        ({"0": 7, "1": 8}, KnownPosition({"0": 70, "1": 80}, 4), 80, 5),
        ({"0": 7, "1": 8}, KnownPosition({"0": 70, "1": 80}, None), 80, 1),  # set by Kafka's own tools
        ({}, KnownPosition({"0": 70, "1": 80}, None, is_loose=True), 80, 1),
        # What is past events that are held here is not believed: they would be lost.
        ({"0": 7, "1": 8}, KnownPosition({"0": 70, "1": 80}, None, is_loose=True), 8, 1),
    ],
)
def test_a_partition_is_moved_and_the_others_stay_where_the_brokers_have_them(
    tmp_path: Path, local: dict[str, int], position: KnownPosition, offset: int, epoch: int
) -> None:
    all_of, brokers = connectors(tmp_path), Brokers(position)
    all_of.broker_positions = brokers
    all_of.put("a", CONFIG, "STOPPED")
    if local:
        commit(tmp_path / "default", 1, {TOPIC: local})
    alter(all_of, "a", {TOPIC: {0: 42}})
    assert brokers.moves == [({"0": 42, "1": offset}, epoch)]
    assert all_of.held_positions("default").read_offsets()[TOPIC] == {"0": 42, "1": offset}


def test_a_move_of_before_is_later_than_the_brokers_position(tmp_path: Path) -> None:
    all_of = connectors(tmp_path)
    all_of.put("a", CONFIG, "STOPPED")
    alter(all_of, "a", {TOPIC: {0: 6, 1: 7}})
    all_of.broker_positions = Brokers(KnownPosition({"0": 70, "1": 80}, 0))
    alter(all_of, "a", {TOPIC: {0: 42}})
    assert all_of.held_positions("default").read_offsets()[TOPIC] == {"0": 42, "1": 7}


def test_a_move_waits_for_the_last_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would commit where it ends, after the move."""
    monkeypatch.setattr(offsets_module, "_LAST_BATCH_S", 0.3)
    all_of = connectors(tmp_path)
    all_of.put("a", CONFIG, "STOPPED")
    all_of.note_written_topics("default", [task.data for task in all_of.all()["a"].tasks.values()])
    with pytest.raises(HelenusError, match=r"last batch has not ended yet.*try again"):
        alter(all_of, "a", {TOPIC: {0: 42}})
    all_of.note_written_topics("default", ())
    alter(all_of, "a", {TOPIC: {0: 42}})
