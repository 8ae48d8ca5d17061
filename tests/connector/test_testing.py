"""What is offered to tests of others: it does what it stands for, and fails when it is asked to."""

from __future__ import annotations

from pathlib import Path

import pytest

import helenus_connector
from helenus_connector.testing.log import FaultyLog, MemoryLog
from helenus_schemas.errors import HelenusError, Kind

FULL = HelenusError(Kind.APPEND_FAILED, "full")


def test_no_module_of_the_connector_imports_it() -> None:
    modules = Path(helenus_connector.__file__ or "").parent.rglob("*.py")
    users = [path for path in modules if path.parent.name != "testing" and "connector.testing" in path.read_text()]
    assert users == []


def test_records_are_acknowledged_by_a_flush() -> None:
    log = MemoryLog({"a": 2})
    assert (log.create("a", 5, {}), log.create("b", 1, {"x": "y"}), log.configs) == (2, 1, {"b": {"x": "y"}})
    log.extend("a", 1, [(b"k", b"v"), (b"k", None)])
    assert [record.value for record in log.records("a")] == [b"v", None]
    assert log.acknowledged == []
    log.flush(1)
    assert log.acknowledged == log.appended
    log.append("b", 0, None, b"v")
    log.close()
    log.flush(1)
    assert len(log.acknowledged) == 2


def test_records_that_a_real_log_would_refuse() -> None:
    log = MemoryLog({"a": 2})
    with pytest.raises(AssertionError):
        log.append("a", 2, b"k", b"v")
    log.largest = 3
    with pytest.raises(HelenusError) as error:
        log.append("a", 1, b"k", b"v", [("h", b"v")])
    assert (error.value.kind, log.appended) == (Kind.RECORD_TOO_LARGE, [])


@pytest.mark.parametrize("call", ["cluster", "topics", "create", "declare", "append", "extend", "flush"])
def test_every_call_fails_on_request(call: str) -> None:
    memory = MemoryLog()
    log = FaultyLog(memory)
    log.append("a", 0, b"k", b"v")
    arguments = {"create": ("a", 1, {}), "declare": ("a", None), "append": ("a", 0, b"k", b"v"), "flush": (1,)}
    arguments["extend"] = ("a", 0, [(b"k", b"v")])
    log.fail("append" if call == "extend" else call, FULL, times=2)
    for _ in range(2):
        with pytest.raises(HelenusError):
            getattr(log, call)(*arguments.get(call, ()))
    getattr(log, call)(*arguments.get(call, ()))
    assert len(memory.waiting) == {"append": 2, "extend": 2, "flush": 0}.get(call, 1)
    assert memory.acknowledged == [], "a flush that fails drops what it holds"


def test_calls_of_one_topic_fail_until_it_is_mended() -> None:
    log = FaultyLog(MemoryLog())
    log.fail("append", FULL, times=None, topics=["a"])
    for _ in range(3):
        log.append("b", 0, b"k", b"v")
        with pytest.raises(HelenusError):
            log.append("a", 0, b"k", b"v")
    log.mend()
    log.append("a", 0, b"k", b"v")
    log.fail("flush", FULL, times=None, topics=["a"])
    with pytest.raises(HelenusError):
        log.flush(1)
    log.append("b", 0, b"k", b"v")
    log.flush(1)
    assert [record.topic for record in log.log.acknowledged] == ["b"]
