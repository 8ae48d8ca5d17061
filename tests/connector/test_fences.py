"""Locks and fences between workers, and between the starts of a query: real processes hold them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from helenus_connector.control import fences
from helenus_connector.control.fences import enter, fence, fence_all, owned
from helenus_schemas.errors import HelenusError, Kind

HOLD = """
import sys
from pathlib import Path
from helenus_connector.control.fences import enter, owned
with {what}:
    print("in", flush=True)
    sys.stdin.read()
"""


@contextmanager
def process(lock_code: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process within this context, until it is killed."""
    args = [sys.executable, "-c", HOLD.format(what=lock_code)]
    with subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"in\n"
            yield other
        finally:
            other.kill()


def test_a_checkpoint_belongs_to_one_worker(tmp_path: Path) -> None:
    with process(f"owned(Path({str(tmp_path)!r}), lambda: False)") as other:
        refused = pytest.raises(
            HelenusError,
            match=rf"another worker has this checkpoint\.dir: host .*process {other.pid}.*: two would undo",
        )
        with refused as error, owned(tmp_path, lambda: False):
            pass
        assert (error.value.kind, error.value.where) == (Kind.STATE, str(tmp_path))
        killed = threading.Timer(0.5, other.kill)
        killed.start()
        stood_by: list[str] = []

        @contextmanager
        def stand_by(reason: Callable[[], str]) -> Iterator[None]:
            stood_by.append(reason())
            yield
            stood_by.append("over")

        with capture_logs() as logs, owned(tmp_path, lambda: True, stand_by=stand_by):
            assert other.wait() < 0
            assert stood_by[1:] == ["over"], "its listener is free again"
        assert f"process {other.pid}" in stood_by[0]
        assert [entry["event"] for entry in logs] == ["worker.standby", "worker.took_over"]


def test_a_file_system_without_locks_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(fences.errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fences.fcntl, "flock", none)
    with capture_logs() as logs, owned(tmp_path, lambda: False):
        pass
    assert [entry["event"] for entry in logs] == ["checkpoint.not_locked"]


def test_a_checkpoint_that_cannot_be_created_is_our_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = pytest.raises(HelenusError, match=r"cannot write to checkpoint\.dir: Not a directory")
    with refused, owned(tmp_path / "file" / "below", lambda: False):
        pass


def test_a_query_starts_when_no_earlier_task_is_left(tmp_path: Path) -> None:
    checkpoint = tmp_path / "default"
    assert fence(checkpoint, lambda: False) == 1
    with process(f"enter(Path({str(checkpoint)!r}), 1)") as other:
        assert fence(checkpoint, lambda: True) is None, "stopped while it waits"
        began, killed = time.monotonic(), threading.Timer(0.5, other.kill)
        killed.start()
        assert fence(checkpoint, lambda: False) == 2
        assert other.wait() < 0
        assert time.monotonic() - began > 0.4


def test_an_earlier_task_does_not_begin_any_more(tmp_path: Path) -> None:
    checkpoint = tmp_path / "default"
    start = fence(checkpoint, lambda: False)
    assert start is not None
    with enter(checkpoint, start), enter(checkpoint, start):
        pass
    fence_all(tmp_path, lambda: False)
    with pytest.raises(HelenusError, match="started again"), enter(checkpoint, start):
        pass
    with enter(tmp_path / "not on this host", start):
        pass


def test_a_task_that_cannot_tell_whether_it_is_an_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = fence(tmp_path / "default", lambda: False)
    assert start is not None

    def open_none(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", open_none)
        with pytest.raises(HelenusError, match="Too many open files") as refused, enter(tmp_path / "default", start):
            pass
    assert refused.value.kind is Kind.BATCH_FAILED
