"""The thread that fetches a query's batches from Java: no Spark, a Java that answers."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]

from helenus_connector.query import handover
from helenus_connector.query.handover import start_query

LIMIT_S = 60


class Java:
    """A query, whose Java answers each call of `next` with a batch's number, or raises."""

    def __init__(self, *answers: int | Exception) -> None:
        self.context, self.writer = MagicMock(), MagicMock()
        self.query = self.writer.format.return_value.option.return_value.start.return_value
        java = self.context._jvm.helenus.BatchHandover.return_value
        self.next, self.abandon = java.next, java.abandon
        self.next.side_effect, self.abandon.return_value = answers, False

    def serve(self, process: Callable[[handover.MicroBatch], None] = lambda _: None) -> None:
        start_query(self.context, self.writer, process)
        for thread in threading.enumerate():
            if thread.name == "batches":
                thread.join(LIMIT_S)
                assert not thread.is_alive()


def no_descriptors() -> Py4JNetworkError:
    failure = Py4JNetworkError("An error occurred while trying to connect to the Java server")
    failure.__cause__ = OSError(errno.EMFILE, "Too many open files")
    return failure


def test_batches_are_served_once_there_are_descriptors_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the error of a batch is not lost. Without a server, a query would wait for ever."""
    monkeypatch.setattr(handover, "_RETRY_S", 0.0)
    batches: list[int] = []

    def process(batch: handover.MicroBatch) -> None:
        batches.append(batch.number)
        if batch.number:
            raise ValueError(f"of batch {batch.number}")

    java = Java(no_descriptors(), 0, 1, no_descriptors(), -1)
    java.serve(process)
    assert batches == [0, 1]
    errors = [call.args[1] for call in java.next.call_args_list]
    assert ["of batch 1" in (error or "") for error in errors] == [False, False, False, True, True]
    assert not java.query.stop.called


@pytest.mark.parametrize("failure", [Py4JError("java.lang.InterruptedException"), ValueError("no answer of Java's")])
@pytest.mark.parametrize("stops", [True, False])
def test_a_query_without_a_server_is_stopped(stops: bool, failure: Exception) -> None:
    """So that who watches it sees that; if Java has ended, there is nothing to stop."""
    java = Java(failure)
    java.query.stop.side_effect = java.abandon.side_effect = None if stops else Py4JError("Java has ended")
    java.serve()
    assert java.query.stop.called


def test_a_batch_whose_end_java_did_not_hear_of_ends_its_query() -> None:
    """By the error: to stop the query would wait for the end of the batch."""
    java = Java(0, ValueError("no answer of Java's"))
    java.abandon.return_value = True
    java.serve()
    ((reason,), _) = java.abandon.call_args
    assert "ValueError: no answer of Java's" in reason
    assert not java.query.stop.called


def test_a_query_that_gets_no_thread_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    java = Java()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        java.serve()
    assert java.query.stop.called
