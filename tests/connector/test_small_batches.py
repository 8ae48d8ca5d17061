"""Small batches: a process of the worker's own does them, and none that it may not have."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.query import _process_connection
from helenus_connector.query import small_batches as module
from helenus_connector.query.batch_parts import TaskRanges, TopicRanges
from helenus_connector.query.small_batches import SmallBatches, ask
from helenus_schemas.errors import HelenusError, Kind

MOST = 100
WAIT_S = 60.0


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_START_AFTER_S", 0.0)
    monkeypatch.setattr(module, "_PAUSE_S", 0.2)
    monkeypatch.setattr(_process_connection, "_GRACE_S", 0.1)


def settings(**more: str) -> WorkerSettings:
    properties = {"bootstrap.servers": "h:1", "checkpoint.dir": "c", "small.batch.events": str(MOST), **more}
    return WorkerSettings.from_properties(properties, "worker")


@pytest.fixture
def batches() -> Iterator[SmallBatches]:
    batches = SmallBatches(settings())
    yield batches
    batches.close()


def parts(*events: int) -> list[TaskRanges]:
    return [TaskRanges([TopicRanges((), "fail", 0, events=number)], number) for number in events]


def process_and_sizes(tasks: Iterator[TaskRanges]) -> Iterator[int]:
    yield os.getpid()
    for task in tasks:
        yield task.most_bytes


def fail(error: Exception, _: Iterator[TaskRanges]) -> Iterator[int]:
    raise error


def end(_: Iterator[TaskRanges]) -> Iterator[int]:
    os.kill(os.getpid(), signal.SIGKILL)
    yield 0


def wait_for(file: Path, _: Iterator[TaskRanges]) -> Iterator[int]:
    file.touch()
    time.sleep(WAIT_S)
    yield 0


def answer_at_length(_: Iterator[TaskRanges]) -> Iterator[bytes]:
    """More than a socket takes while nobody reads."""
    yield bytes(1 << 26)


def run(batches: SmallBatches, function: Any, *events: int, waiting: int = 0, is_wanted: bool = True) -> Any:
    return batches.run(parts(*events), function, waiting, lambda: is_wanted)


def run_when_ready(batches: SmallBatches, function: Any = process_and_sizes) -> Any:
    until = time.monotonic() + WAIT_S
    while (results := run(batches, function, 3, 4)) is None and time.monotonic() < until:
        time.sleep(0.05)
    return results


def test_one_process_does_all_parts_of_one_batch_after_the_other(batches: SmallBatches) -> None:
    first, *sizes = run_when_ready(batches)
    assert first != os.getpid()
    assert sizes == [3, 4]
    assert run(batches, process_and_sizes, 5) == [first, 5]


def test_a_batch_of_many_events_or_many_that_wait_is_a_job(batches: SmallBatches) -> None:
    process, *_ = run_when_ready(batches)
    assert run(batches, process_and_sizes, MOST - 1, 2) is None
    assert run(batches, process_and_sizes, 1, waiting=MOST) is None
    assert run(batches, process_and_sizes, MOST - 1, waiting=1) == [process, MOST - 1]


@pytest.mark.parametrize(
    "more", [{"small.batch.events": "0"}, {"spark.master": "spark://h:7077", "spark.authenticate": "false"}]
)
def test_a_worker_without_it_has_no_process(more: dict[str, str]) -> None:
    batches = SmallBatches(settings(**more))
    assert [run(batches, process_and_sizes, 1) for _ in range(3)] == [None] * 3
    assert batches._process is None


@pytest.mark.parametrize("size", [1 << 16, 1 << 26])
def test_a_request_that_is_not_sent_at_once_is_a_job(batches: SmallBatches, size: int) -> None:
    """A process that was stopped would hold up what sends it, and so the end of the worker."""
    process, *_ = run_when_ready(batches)
    os.kill(process, signal.SIGSTOP)
    assert run(batches, partial(fail, KeyError(bytes(size))), 1) is None
    os.kill(process, signal.SIGCONT)
    assert run(batches, process_and_sizes, 5) == [process, 5]


def test_a_process_that_was_stopped_holds_up_no_end(batches: SmallBatches) -> None:
    process, *_ = run_when_ready(batches)
    os.kill(process, signal.SIGSTOP)
    with pytest.raises(HelenusError, match="the query ends"):
        run(batches, process_and_sizes, 1, is_wanted=False)
    assert not Path(f"/proc/{process}").exists()


def test_one_that_is_stopped_in_the_middle_of_its_answer_holds_up_no_end(batches: SmallBatches) -> None:
    process, *_ = run_when_ready(batches)
    assert batches._process is not None
    original, stopped = batches._process._receive, []

    def stop_after_first() -> bytes:
        data = original()
        if not stopped:
            os.kill(process, signal.SIGSTOP)
            stopped.append(process)
        return data

    batches._process._receive = stop_after_first  # type: ignore[method-assign]
    with pytest.raises(HelenusError, match="the query ends"):
        batches.run(parts(1), answer_at_length, 0, lambda: not stopped)
    assert not Path(f"/proc/{process}").exists()


def test_a_large_answer_is_whole(batches: SmallBatches) -> None:
    run_when_ready(batches)
    assert run(batches, answer_at_length, 1) == [bytes(1 << 26)]


class Answers:
    """Answers questions by their length in zeros, after it has begun."""

    def __init__(self, answer: Any = None) -> None:
        self.begun = 0
        self._answer = answer or (lambda question: bytes(len(question) + 1))

    def begin(self) -> None:
        self.begun += 1

    def answer(self, question: bytes) -> bytes:
        assert self.begun == 1
        return bytes(self._answer(question))


def ask_at_length(_: Iterator[TaskRanges]) -> Iterator[int]:
    """More than a socket takes, both ways."""
    for size in (0, 3, 1 << 25):
        yield len(ask(bytes(size)))


def test_questions_are_answered_in_between_however_long(batches: SmallBatches) -> None:
    process, *_ = run_when_ready(batches)
    answers = Answers()
    results = batches.run(parts(1), ask_at_length, 0, lambda: True, answers)
    assert (results, answers.begun) == ([1, 4, (1 << 25) + 1], 1)
    assert run(batches, process_and_sizes, 5) == [process, 5]


def test_who_answers_begins_with_no_batch_that_is_a_job(batches: SmallBatches) -> None:
    run_when_ready(batches)
    answers = Answers()
    assert batches.run(parts(MOST + 1), ask_at_length, 0, lambda: True, answers) is None
    assert answers.begun == 0


def test_a_start_waits_for_no_batch(batches: SmallBatches, tmp_path: Path) -> None:
    """A worker that gets another connector meanwhile has other things to do."""
    run_when_ready(batches)
    wanted = threading.Event()
    wanted.set()

    def run_until_unwanted() -> None:
        with pytest.raises(HelenusError, match="the query ends"):
            batches.run(parts(1), partial(wait_for, tmp_path / "begun"), 0, wanted.is_set)

    thread = threading.Thread(target=run_until_unwanted)
    thread.start()
    while not (tmp_path / "begun").exists():
        time.sleep(0.01)
    batches.start()
    assert thread.is_alive()
    wanted.clear()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_what_answering_raises_ends_the_batch_and_the_process(batches: SmallBatches) -> None:
    process, *_ = run_when_ready(batches)

    def fail_to_answer(_: bytes) -> bytes:
        raise ValueError("a full disk")

    with pytest.raises(ValueError, match="a full disk"):
        batches.run(parts(1), ask_at_length, 0, lambda: True, Answers(fail_to_answer))
    assert not Path(f"/proc/{process}").exists()
    run_when_ready(batches)
    with pytest.raises(HelenusError, match="nobody answers"):
        run(batches, ask_at_length, 1)


def test_a_process_that_takes_no_answer_holds_up_no_end(batches: SmallBatches) -> None:
    process, *_ = run_when_ready(batches)
    stopped = []

    def stop_and_answer(_: bytes) -> bytes:
        os.kill(process, signal.SIGSTOP)
        stopped.append(process)
        return bytes(1 << 26)

    with pytest.raises(HelenusError, match="the query ends"):
        batches.run(parts(1), ask_at_length, 0, lambda: not stopped, Answers(stop_and_answer))
    assert not Path(f"/proc/{process}").exists()


def test_none_is_started_before_a_worker_has_run_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_START_AFTER_S", 3600.0)
    batches = SmallBatches(settings())
    assert [run(batches, process_and_sizes, 1) for _ in range(2)] == [None] * 2
    assert batches._process is None


def test_a_batch_beside_that_of_another_query_is_a_job(batches: SmallBatches, tmp_path: Path) -> None:
    run_when_ready(batches)
    started, ended = tmp_path / "started", threading.Event()

    def run_long() -> None:
        with pytest.raises(HelenusError, match="the query ends"):
            batches.run(parts(1), partial(wait_for, started), 0, lambda: not started.exists())
        ended.set()

    thread = threading.Thread(target=run_long)
    thread.start()
    while not batches._in_use.locked():
        time.sleep(0.001)
    assert run(batches, process_and_sizes, 1) is None
    thread.join()
    assert ended.is_set(), "a batch that is not wanted any more ends within seconds"


@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        (end, Kind.BATCH_FAILED, "ended with status -9"),
        (partial(fail, HelenusError(Kind.NOT_OWNER, "another one has it", "t")), Kind.NOT_OWNER, "another one has it"),
        (partial(fail, KeyError("x")), Kind.BATCH_FAILED, "KeyError"),
    ],
)
def test_after_an_error_there_is_another_process(
    batches: SmallBatches, function: Any, kind: Kind, message: str
) -> None:
    """As of Spark's Python workers: it may still have what it has not published."""
    former, *_ = run_when_ready(batches)
    with pytest.raises(HelenusError, match=message) as error:
        run(batches, function, 1)
    assert error.value.kind is kind
    assert not Path(f"/proc/{former}").exists()
    assert run_when_ready(batches)[0] != former


def test_after_one_that_was_killed_between_batches_these_are_jobs(batches: SmallBatches) -> None:
    """Nothing was lost with it: no run of a query has to end for it."""
    former, *_ = run_when_ready(batches)
    os.kill(former, signal.SIGKILL)
    assert batches._process is not None
    assert batches._process._is_readable(WAIT_S), "the system says that it has ended"
    with capture_logs() as logs:
        assert run(batches, process_and_sizes, 1) is None
    assert [entry["event"] for entry in logs] == ["small_batches.away"]
    assert "ended with status -9" in logs[0]["reason"]
    assert run_when_ready(batches)[0] != former


@pytest.mark.parametrize("program", ["/nowhere/python", "/bin/false"])
def test_one_that_cannot_start_leaves_batches_to_spark(
    batches: SmallBatches, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    monkeypatch.setattr(module, "_PAUSE_S", 3600.0)
    with capture_logs() as logs:
        until = time.monotonic() + WAIT_S
        while not logs and time.monotonic() < until:
            assert run(batches, process_and_sizes, 1) is None
        assert [run(batches, process_and_sizes, 1) for _ in range(3)] == [None] * 3
    assert [entry["event"] for entry in logs] == ["small_batches.away"]


FORKS = """
import json, os, sys, test_small_batches as t, threading, time
from functools import partial
from helenus_connector.query import _process_connection, small_batches as module
from helenus_schemas.errors import HelenusError
module._START_AFTER_S = 0.0
batches = module.SmallBatches(t.settings())
batches.fork()
forked = batches._process
batches.start()
assert batches._process is forked, "one is enough"
process, *sizes = t.run(batches, t.process_and_sizes, 3, 4)  # the first batch: it is there
command = [open(f"/proc/{pid}/cmdline").read() for pid in (os.getpid(), process)]
files = [os.readlink(f"/proc/{process}/fd/{number}") for number in (0, 1, 2)]
report = {"sizes": sizes, "is_forked": command[0] == command[1], "session": os.getsid(process) == process,
    "input": files[0], "is_error": files[1] == files[2]}
try:
    t.run(batches, t.end, 1)
except HelenusError as error:
    report["error"] = str(error)
other, *_ = t.run_when_ready(batches)
report["is_program"] = _process_connection._MODULE in open(f"/proc/{other}/cmdline").read()
batches.close()
report["ended"] = [not os.path.exists(f"/proc/{pid}") for pid in (process, other)]
print(json.dumps(report))

threading.Thread(target=time.sleep, args=(0.5,)).start()
late = module.SmallBatches(t.settings())
late.fork()  # a fork would have its locks, and not the thread
print(json.dumps({"late": late._process is None}))
without = module.SmallBatches(t.settings(**{"small.batch.events": "0"}))
without.fork()
without.start()
print(json.dumps({"without": without._process is None, "are_taken": without.are_taken}))
"""


def test_it_is_forked_once_from_a_worker_that_has_no_threads_yet() -> None:
    """What fails then is done anew by a program: the worker has threads by then."""
    path = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    ended = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, env=path, timeout=WAIT_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    report, late, without = map(json.loads, ended.stdout.splitlines())
    assert "ended with status -9" in report.pop("error")
    assert report == {
        "sizes": [3, 4],
        "is_forked": True,
        "session": True,
        "input": "/dev/null",
        "is_error": True,
        "is_program": True,
        "ended": [True, True],
    }
    assert late == {"late": True}
    assert without == {"without": True, "are_taken": False}


def test_the_first_batch_waits_for_one_that_loads_its_modules(batches: SmallBatches) -> None:
    """Spark's Python workers would have to load the same."""
    batches.start()
    assert batches._process is not None
    assert not batches._process._is_ready
    process, *_ = run(batches, process_and_sizes, 1)
    assert process != os.getpid()


def test_no_batch_waits_long_for_one_that_does_not_come(
    batches: SmallBatches, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stuck = tmp_path / "python"
    stuck.write_text(f"#!/bin/sh\nexec sleep {WAIT_S}\n")
    stuck.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(stuck))
    batches.start()
    assert run(batches, process_and_sizes, 1, is_wanted=False) is None
    monkeypatch.setattr(module, "_LOADING_S", 0.1)
    batches.start()
    assert run(batches, process_and_sizes, 1) is None


@pytest.mark.parametrize("begin", ["fork", "start"])
def test_it_ends_with_the_worker(begin: str) -> None:
    """Also with one that is killed: what it wrote later might be outdated."""
    script = (
        "import time, test_small_batches as t, helenus_connector.query."
        f"small_batches as m\nbatches = m.SmallBatches(t.settings())\nbatches.{begin}()\n"
        "print(t.run_when_ready(batches)[0], flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", script]
    path = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=path) as worker:
        assert worker.stdout is not None
        process = int(worker.stdout.readline())
        worker.kill()
    until = time.monotonic() + WAIT_S
    while Path(f"/proc/{process}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{process}").exists()
