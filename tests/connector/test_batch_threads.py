"""The thread that fetches a query's batches from Java: no Spark, a Java that answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest

from helenus_connector.query import handover
from helenus_connector.query.handover import start_query

LIMIT_S = 60


class Java:
    """A query, whose Java answers each call of `next` with a batch's number, or raises."""

    def __init__(self, *answers: int | Exception) -> None:
        self.context, self.writer = MagicMock(), MagicMock()
        self.query = self.writer.start.return_value
        self.next = self.context._jvm.helenus.BatchHandover.return_value.next
        self.next.side_effect = answers

    def serve(self, process: Callable[[handover.MicroBatch], None] = lambda _: None) -> None:
        start_query(self.context, self.writer, process)
        for thread in threading.enumerate():
            if thread.name == "batches":
                thread.join(LIMIT_S)
                assert not thread.is_alive()


def test_a_query_that_gets_no_thread_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    java = Java()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        java.serve()
    assert java.query.stop.called
