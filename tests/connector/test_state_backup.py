"""The backup of a state on a file system that is no disk: whatever fails, what is restored is a state of one moment."""

from __future__ import annotations

import json
import random
import shutil
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from connector.stored_files import StoredFiles, away
from connector.test_group import leader
from connector.test_state_directories import KEYS, ROWS, FormerLeader, SharedTopic, check_copy, write_state
from hypothesis import given, settings
from hypothesis import strategies as st

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.checkpoint import latest_committed
from helenus_connector.group import _state_backup
from helenus_connector.group._hadoop_files import error_of_java
from helenus_connector.group._state_backup import StateBackup, restore
from helenus_connector.group.state_directories import StateDirectories, StateHome, StateName
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import durable
from helenus_schemas.settings.properties import ConfigError

WHERE = "s3a://lake/states/g/1-a/rows"
URL = "s3a://lake/states"


class Inline(Executor):
    """Calls at once, so that a test knows the order."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:  # type: ignore[override]
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Writer:
    """A leader with a state and its backup, which takes `pauses` of Spark's steps before each request."""

    def __init__(self, directory: Path, checkpoint: str, pauses: Iterator[int]) -> None:
        self.former = FormerLeader(directory, checkpoint)
        self.files = StoredFiles()
        self.files.before = self.before
        self.pauses = pauses
        self.is_away = lambda: False
        self.backup = StateBackup(self.files, WHERE, directory, checkpoint, Inline())

    def before(self, method: str, name: str) -> None:
        self.former.go_on(next(self.pauses))
        if self.is_away():
            away(method, name)

    def save(self) -> bool:
        try:
            self.backup.save()
        except HelenusError:
            return False
        return True


def restored(files: StoredFiles, target: Path, checkpoint: str = "") -> int | None:
    """Restore a backup as the next leader does, which nothing disturbs. Returns its last batch, None if there is
    none.
    """
    before, files.before = files.before, lambda method, name: None
    try:
        if not restore(files, WHERE, target, checkpoint, Inline()):
            return None
        return check_copy(target, checkpoint)
    finally:
        files.before = before


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 60),
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.sampled_from(["", "query"]),
    st.integers(0, 1 << 32),
    st.sampled_from([0.0, 0.02, 0.3]),
)
def test_what_is_restored_is_of_one_moment(
    tmp_path_factory: pytest.TempPathFactory, before: int, pauses: list[int], checkpoint: str, seed: int, faults: float
) -> None:
    """Spark writes while a backup is made, requests fail, and those that failed arrive late."""
    directory, dice = tmp_path_factory.mktemp("state"), random.Random(seed)
    writer = Writer(directory / "1", checkpoint, iter(pauses * 10_000))
    writer.former.go_on(1 + before)
    writer.is_away = lambda: dice.random() < faults
    newest = -2
    for turn in range(4):
        committed = latest_committed(writer.former.spark)
        if writer.save():
            newest = committed
        if dice.random() < 0.5:
            writer.files.let_arrive()
        batch = restored(writer.files, directory / f"copy-{turn}", checkpoint)
        assert batch is not None or newest == -2
        assert batch is None or batch >= newest, "what was there before a save returned is in it"
        writer.former.go_on(dice.randrange(60))


def test_obsolete_files_are_removed_later(tmp_path: Path) -> None:
    """A leader for months: its backup is no larger than its state, and the newest ten manifests are whole."""
    writer = Writer(tmp_path / "1", "", iter(lambda: 0, 1))
    writer.former.go_on(60)
    sizes = []
    for _ in range(40):
        assert writer.save()
        sizes.append(len(writer.files.content))
        writer.former.go_on(12)
    assert max(sizes[28:]) <= max(sizes[14:28]) + 5
    manifests = sorted(name for name in writer.files.content if "/manifests/" in name)
    assert len(manifests) == _state_backup._OBSOLETE_MANIFESTS + 1
    for number, manifest in reversed(list(enumerate(manifests))):
        assert restored(writer.files, tmp_path / f"copy-{number}") is not None
        del writer.files.content[manifest]


def test_only_what_is_new_is_written(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "1", "", iter(lambda: 0, 1))
    writer.former.go_on(60)
    assert writer.save()
    before = len(writer.files.uploads)
    assert writer.save()
    assert len(writer.files.uploads) == before + 1, "the manifest"
    assert len(writer.files.uploads) == len(set(writer.files.uploads)), "no name is written twice"


def test_a_repeated_batch_is_written_again(tmp_path: Path) -> None:
    """Spark writes other content under the name that it had: the backup of before keeps what it had."""
    writer = Writer(tmp_path / "1", "", iter(lambda: 0, 1))
    writer.former.go_on(60)
    batch = latest_committed(writer.former.spark)
    offsets = writer.former.spark / "offsets" / str(batch)
    assert writer.save()
    writer.former.write(offsets, "other")
    writer.files.before = lambda method, name: away(method, name) if "/manifests/" in name else None
    assert not writer.save()
    restored(writer.files, tmp_path / "2")
    assert (tmp_path / "2/offsets" / str(batch)).read_text() == str(batch)
    writer.files.before = lambda method, name: None
    assert writer.save()
    restored(writer.files, tmp_path / "3")
    assert (tmp_path / "3/offsets" / str(batch)).read_text() == "other"


def test_a_late_manifest_replaces_nothing(tmp_path: Path) -> None:
    """A client that gave up on a request may have sent it: it arrives once newer ones are there."""
    writer = Writer(tmp_path / "1", "", iter(lambda: 0, 1))
    writer.former.go_on(60)
    writer.is_away = lambda: True
    assert not writer.save()
    writer.is_away = lambda: False
    writer.former.go_on(60)
    committed = latest_committed(writer.former.spark)
    assert writer.save()
    writer.files.let_arrive()
    assert restored(writer.files, tmp_path / "2") == committed


def test_a_leader_that_removes_what_the_next_one_reads(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "1", "", iter(lambda: 0, 1))
    writer.former.go_on(60)
    assert writer.save()
    turns = iter(range(100))

    def go_on(method: str, name: str) -> None:
        if method == "download" and next(turns) == 5:
            writer.files.before = lambda method, name: None
            for _ in range(_state_backup._OBSOLETE_MANIFESTS + 2):
                writer.former.go_on(40)
                assert writer.save()

    writer.files.before = go_on
    assert restore(writer.files, WHERE, tmp_path / "2", "", Inline())
    assert check_copy(tmp_path / "2", "") == latest_committed(writer.former.spark)


def saved(tmp_path: Path) -> StoredFiles:
    writer = Writer(tmp_path / "1", "", iter(lambda: 0, 1))
    writer.former.go_on(60)
    assert writer.save()
    writer.former.go_on(60)
    assert writer.save()
    writer.files.before = lambda method, name: None
    return writer.files


def test_a_manifest_that_is_written_in_part(tmp_path: Path) -> None:
    """Its leader ended before it had published what it is of."""
    files = saved(tmp_path)
    newest = max(name for name in files.content if "/manifests/" in name)
    files.content[newest] = files.content[newest][:50]
    assert restored(files, tmp_path / "2") is not None
    assert restored(files, tmp_path / "3") < latest_committed(tmp_path / "1")  # type: ignore[operator]


def test_a_damaged_file(tmp_path: Path) -> None:
    files = saved(tmp_path)
    for name in [name for name in files.content if "/files/" in name]:
        files.content[name] += b"x"
    with pytest.raises(HelenusError, match="damaged: it has another size or checksum") as error:
        restored(files, tmp_path / "2")
    assert error.value.kind is Kind.STATE
    assert not (tmp_path / "2").exists()


def test_a_file_that_a_rule_of_the_bucket_removed(tmp_path: Path) -> None:
    files = saved(tmp_path)
    for name in [name for name in files.content if "/files/" in name]:
        del files.content[name]
    with pytest.raises(HelenusError, match="no rule of the bucket") as error:
        restored(files, tmp_path / "2")
    assert error.value.kind is Kind.BATCH_FAILED


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "", "a\0b"])
def test_a_manifest_that_names_a_place_outside(tmp_path: Path, path: str) -> None:
    """Who may write to the bucket gives a worker no file outside of its states."""
    files = StoredFiles()
    files.content[f"{WHERE}/files/0000000001"] = b"evil"
    manifest = durable.sealed(json.dumps({path: [1, 4, zlib.crc32(b"evil")]}), 1)
    files.content[f"{WHERE}/manifests/0000000001"] = manifest.encode()
    assert restored(files, tmp_path / "a/b/c") is None
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_a_state_that_is_gone_from_the_disk_replaces_no_backup(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "1", "", iter(lambda: 0, 1))
    writer.former.go_on(60)
    assert writer.save()
    committed = latest_committed(writer.former.spark)
    shutil.rmtree(tmp_path / "1")
    with pytest.raises(HelenusError, match="it comes from the backup") as error:
        writer.backup.save()
    assert error.value.kind is Kind.BATCH_FAILED
    assert restored(writer.files, tmp_path / "2") in (committed, committed - 1)


def test_a_quiet_state_is_saved_as_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(tmp_path / "1", "", iter(lambda: 0, 1))
    writer.former.go_on(60)
    while (writer.former.spark / f"offsets/{latest_committed(writer.former.spark) + 1}").exists():
        writer.former.go_on(1)
    assert writer.save()
    manifests = lambda: [name for name in writer.files.content if "/manifests/" in name]  # noqa: E731
    writer.backup.save_if_quiet()
    assert len(manifests()) == 1, "it was saved just now"
    monkeypatch.setattr(_state_backup, "_QUIET_S", 0.0)
    writer.backup.save_if_quiet()
    assert len(manifests()) == 1, "nothing is new"
    writer.former.go_on(30)
    writer.is_away = lambda: True
    writer.backup.save_if_quiet()  # the log says why not
    writer.is_away = lambda: False
    writer.backup.save_if_quiet()
    assert len(manifests()) == 2


# --- of a group ---


def settings_of(root: Path, number: int, url: str = URL) -> WorkerSettings:
    keys = {"bootstrap.servers": "h:1", "checkpoint.dir": str(root / f"own-{number}"), "group.id": "workers"}
    return WorkerSettings.from_properties({**keys, **({"state.checkpoint.dir": url} if url else {})}, "worker")


def states(root: Path, number: int, topic: SharedTopic, files: StoredFiles, url: str = URL) -> StateDirectories:
    return StateDirectories(settings_of(root, number, url), topic, leader(number), lambda spark, url: files)  # type: ignore[arg-type]


def content(home: StateHome, state: StateName) -> str:
    return (home.directory / state.identity).read_text()


@pytest.mark.parametrize("state", [ROWS, KEYS])
def test_each_leader_has_the_state_of_the_one_before(tmp_path: Path, state: StateName) -> None:
    topic, files, local = SharedTopic(), StoredFiles(), tmp_path / "local"
    first = states(tmp_path, 1, topic, files)
    home = first.take(state, local)
    assert (home.loss, home.is_copy) == ("", False)
    write_state(home.directory, state)
    first.keep(state)
    assert first.take(state, local).directory == home.directory, "a query that starts again goes on"
    (home.directory / state.identity).write_text("later")
    home.save()
    shutil.rmtree(tmp_path / "own-1")
    assert content(first.take(state, local), state) == "later", "a leader whose disk is lost goes on too"
    second = states(tmp_path, 2, topic := SharedTopic(topic), files)
    copy = second.take(state, local)
    assert (copy.loss, copy.is_copy, content(copy, state)) == ("", True, "later")
    assert any("/1-term 1/" in name for name in files.content), "until the topic says where the state is"
    second.keep(state)
    await_removal(files, "/1-term 1/")
    third = states(tmp_path, 2, SharedTopic(topic), files)
    third._name = "3-again"
    assert content(third.take(state, local), state) == "later"
    assert [path.name for path in (tmp_path / "own-2/states.local").iterdir()] == ["3-again"]


def await_removal(files: StoredFiles, part: str) -> None:
    for thread in threading.enumerate():
        if thread.name == "state-removal":
            thread.join()
    assert not [name for name in files.content if part in name]


def test_a_former_leader_that_wakes_up(tmp_path: Path) -> None:
    """It writes what nobody reads, and removes nothing."""
    first_topic, files = SharedTopic(), StoredFiles()
    first = states(tmp_path, 1, first_topic, files)
    write_state((home := first.take(ROWS, tmp_path)).directory, ROWS)
    first.keep(ROWS)
    second = states(tmp_path, 2, second_topic := SharedTopic(first_topic), files)
    second.take(ROWS, tmp_path)
    second.keep(ROWS)
    await_removal(files, "/1-term 1/")
    write_state(home.directory, ROWS, "damage")
    home.save()
    first.keep(ROWS)
    assert content(states(tmp_path, 3, SharedTopic(second_topic), files).take(ROWS, tmp_path), ROWS) == "of"


def test_a_store_that_is_away(tmp_path: Path) -> None:
    """At a start, in a batch and at a takeover: nothing begins anew, and it goes on once the store is back."""
    topic, files = SharedTopic(), StoredFiles()
    first = states(tmp_path, 1, topic, files)
    files.before = away
    with pytest.raises(HelenusError, match="not answered"):
        first.take(ROWS, tmp_path)
    files.before = lambda method, name: None
    home = first.take(ROWS, tmp_path)
    write_state(home.directory, ROWS)
    files.before = away
    with pytest.raises(HelenusError, match="not answered"):
        first.keep(ROWS)
    assert ROWS.key not in topic.content, "a state counts once its backup is there"
    files.before = lambda method, name: None
    first.take(ROWS, tmp_path)
    write_state(home.directory, ROWS)
    first.keep(ROWS)
    for method in ("list_names", "download"):
        second = states(tmp_path, 2, SharedTopic(topic), files)
        files.before = lambda called, name, method=method: away(called, name) if called == method else None  # type: ignore[misc]
        with pytest.raises(HelenusError, match="not answered"):
            second.take(ROWS, tmp_path)
        files.before = lambda method, name: None
        home = second.take(ROWS, tmp_path)
        assert (home.is_copy, home.loss, content(home, ROWS)) == (True, "", "of")


def test_a_login_that_expires_ends_no_connector(tmp_path: Path) -> None:
    """At the start it is a mistake; later it is repeated until somebody renews it."""

    def refuse(method: str, name: str) -> None:
        raise HelenusError(Kind.CONFIG, "the login is refused", name, "check it")

    topic, files = SharedTopic(), StoredFiles()
    first = states(tmp_path, 1, topic, files)
    write_state((home := first.take(ROWS, tmp_path)).directory, ROWS)
    first.keep(ROWS)
    (home.directory / ROWS.identity).write_text("later")
    files.before = refuse
    with pytest.raises(HelenusError, match="check it") as error:
        home.save()
    assert error.value.kind is Kind.BATCH_FAILED
    with pytest.raises(HelenusError, match="check it") as error:
        states(tmp_path, 2, SharedTopic(topic), files).take(ROWS, tmp_path)
    assert error.value.kind is Kind.BATCH_FAILED
    with pytest.raises(HelenusError, match="check it") as error:
        states(tmp_path, 2, SharedTopic(), files).take(ROWS, tmp_path)
    assert error.value.kind is Kind.CONFIG


def test_a_backup_that_is_lost(tmp_path: Path) -> None:
    topic, files = SharedTopic(), StoredFiles()
    first = states(tmp_path, 1, topic, files)
    write_state(first.take(ROWS, tmp_path).directory, ROWS)
    first.keep(ROWS)
    for name in [name for name in files.content if "1-term 1" in name]:
        del files.content[name]
    second = states(tmp_path, 2, SharedTopic(topic), files)
    assert "the directory of the leader before, 1-" in second.take(ROWS, tmp_path).loss


def test_another_bucket_is_refused(tmp_path: Path) -> None:
    topic, files, others = SharedTopic(), StoredFiles(), StoredFiles()
    first = states(tmp_path, 1, topic, files)
    write_state(first.take(ROWS, tmp_path).directory, ROWS)
    first.keep(ROWS)
    states(tmp_path, 1, SharedTopic(), others).take(ROWS, tmp_path)
    topic = SharedTopic(topic)
    with pytest.raises(HelenusError, match="another directory than that of the leader before") as error:
        states(tmp_path, 2, topic, others).take(ROWS, tmp_path)
    assert "s3a://lake/states/workers/directory.id" in str(error.value)
    emptied = StoredFiles()
    with pytest.raises(HelenusError, match="nothing of the leaders before"):
        states(tmp_path, 2, topic, emptied).take(ROWS, tmp_path)
    assert not emptied.content
    with pytest.raises(HelenusError, match=r"state\.checkpoint\.dir is not set"):
        states(tmp_path, 2, topic, others, url="").take(ROWS, tmp_path)
    assert states(tmp_path, 2, topic, files).take(ROWS, tmp_path).is_copy


def test_a_worker_of_before_brings_its_state(tmp_path: Path) -> None:
    local, topic, files = tmp_path / "local", SharedTopic(), StoredFiles()
    write_state(local, ROWS)
    alone = states(tmp_path, 1, topic, files, url="")
    alone.take(ROWS, local)
    alone.keep(ROWS)
    home = states(tmp_path, 2, topic := SharedTopic(topic), files).take(ROWS, local)
    assert (content(home, ROWS), home.loss) == ("of", "")


AWS = "software.amazon.awssdk.services.s3.model.S3Exception: "


@pytest.mark.parametrize(
    ("causes", "kind", "text"),
    [
        (["java.net.ConnectException: Connection refused"], Kind.BATCH_FAILED, "can't be reached"),
        (["java.io.EOFException: End of File Exception between local host is"], Kind.BATCH_FAILED, "can't be reached"),
        (
            ["org.apache.hadoop.fs.s3a.AWSClientIOException: x", "java.net.UnknownHostException: h"],
            Kind.BATCH_FAILED,
            "re",
        ),
        (["java.nio.file.AccessDeniedException: s3a://lake: Forbidden"], Kind.CONFIG, "the login is refused"),
        (["org.apache.hadoop.fs.s3a.AWSStatus500Exception: x"], Kind.BATCH_FAILED, "does not answer as it should"),
        (["org.apache.hadoop.fs.s3a.UnknownStoreException: s3a://lake/"], Kind.CONFIG, "no such bucket"),
        (["java.io.FileNotFoundException: Bucket does not exist", AWS + "NoSuchBucket"], Kind.CONFIG, "no such bucket"),
        (
            ["java.lang.RuntimeException: java.lang.ClassNotFoundException: Class org.S3A"],
            Kind.CONFIG,
            "no client for it",
        ),
        (
            ['org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "x"'],
            Kind.CONFIG,
            "no client",
        ),
        ([], Kind.BATCH_FAILED, "no reason given"),
    ],
)
def test_errors_of_java(causes: list[str], kind: Kind, text: str) -> None:
    error = error_of_java(causes, "s3a://lake/x")
    assert isinstance(error, HelenusError)
    assert error.kind is kind
    assert text in str(error)
    assert "state.checkpoint.dir" in str(error)
    assert "\n" not in str(error)


def test_a_missing_file_of_java() -> None:
    assert isinstance(error_of_java(["java.io.FileNotFoundException: No such file"], "x"), FileNotFoundError)


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("s3a://lake/helenus/", "s3a://lake/helenus"),
        ("s3a://lake", "s3a://lake"),
        ("hdfs://nn:8020/x", "hdfs://nn:8020/x"),
        ("hdfs:///x", "hdfs:///x"),
        ("abfss://c@account.dfs.core.windows.net/x", "abfss://c@account.dfs.core.windows.net/x"),
        ("file:///mnt/x", "/mnt/x"),
        ("/mnt/x", "/mnt/x"),
    ],
)
def test_what_the_setting_takes(tmp_path: Path, value: str, meant: str) -> None:
    worker = settings_of(tmp_path, 1, value)
    assert worker.state_checkpoint_dir == meant
    assert (worker.state_url is None) == ("://" not in meant)
    assert (worker.state_mount is None) == ("://" in meant)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("s3://lake/x", "s3a://bucket"),
        ("https://lake/x", "s3a://bucket"),
        ("s3a://key:hunter2@lake/x", "leave the login out"),
        ("s3a://key@lake/x", "leave the login out"),
        ("s3a://lake/a/../b", "leave out"),
        ("s3a://lake/a%20b", "leave out"),
        ("s3a://lake/a?x=1", "leave out"),
        ("s3a:///x", "give a path, or a URL"),
        ("s3a://", "give a path, or a URL"),
        ("file://host/x", "as a path"),
        ("~/x", "only shells know"),
        ("s3a:/lake", "give a path"),
    ],
)
def test_what_the_setting_refuses(tmp_path: Path, value: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as error:
        settings_of(tmp_path, 1, value)
    assert "hunter2" not in str(error.value)


def test_requests_that_had_not_begun_are_left_out() -> None:
    """A store that does not answer is not asked for each of a thousand files."""
    calls: list[int] = []

    def call(number: int) -> None:
        calls.append(number)
        raise HelenusError(Kind.BATCH_FAILED, "away")

    with ThreadPoolExecutor(2) as pool, pytest.raises(HelenusError, match="away"):
        _state_backup._call_all(pool, call, [(number,) for number in range(1000)])
    assert len(calls) < 1000
