"""Records of a group, appended in its order, plain and compiled: what is ordinary, and what takes its own way."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import twice
from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.interfaces import resolved_key as interface
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import Record
from helenus_connector.pipeline import _publisher
from helenus_connector.pipeline._image_digest import digest_of_record
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Scope

SOURCE = Path(_publisher.__file__).with_name("_publisher.py")
MOST = 5


@pytest.fixture(scope="module", params=["plain", "compiled"])
def module(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return twice.plain(SOURCE) if request.param == "plain" else twice.compiled(SOURCE, tmp_path_factory)


class Log:
    """Takes records of up to so many bytes, unless it is away."""

    def __init__(self, is_away: bool = False) -> None:
        self.taken: list[tuple[str, int, Record]] = []
        self.is_away = is_away

    def append(self, topic: str, partition: int, key: bytes, value: bytes | None, headers: Any) -> None:
        if self.is_away:
            raise HelenusError(Kind.APPEND_FAILED, "away")
        if value is not None and len(value) > MOST:
            raise HelenusError(Kind.RECORD_TOO_LARGE, "too large")
        self.taken.append((topic, partition, Record(key, value, headers)))


class Shape:
    """Makes an ordinary record of each key but those of one byte."""

    def rows(self, group: list[ResolvedKey]) -> list[Record | None]:
        return [None if len(key.key) == 1 else Record(key.key, b"v" * (key.partition + 3), []) for key in group]


def publishing(module: ModuleType, own: list[ResolvedKey]) -> Any:
    versions = SimpleNamespace(
        current=SimpleNamespace(shape=Shape(), topic="data", table=SimpleNamespace(full_name="t"))
    )
    undeliverable = SimpleNamespace(bury_key=lambda log, key, failure: own.append(key))
    return module.Publisher(versions, SimpleNamespace(ordinary_append=lambda log: log.append), undeliverable)


@st.composite
def resolved(draw: st.DrawFn) -> ResolvedKey:
    key = ResolvedKey("events", draw(st.integers(0, 3)), draw(st.binary(min_size=1, max_size=3)), (), Scope.ROW)
    key.newest = draw(st.none() | st.integers(-5, 5))
    key.is_confirmed, key.is_released = draw(st.booleans()), draw(st.integers(0, 5)) == 0
    key.last_digest = b"digest" if draw(st.integers(0, 5)) == 0 else None
    key.failure = HelenusError(Kind.POISON_EVENT, "its own way")  # what is not ordinary ends there
    return key


@given(group=st.lists(resolved(), max_size=8), newest_before=st.none() | st.integers(-2, 2))
def test_a_group(module: ModuleType, group: list[ResolvedKey], newest_before: int | None) -> None:
    announced: list[ResolvedKey] = []
    own: list[ResolvedKey] = []
    log, outcome = Log(), BatchOutcome(records=2, newest_write_time=newest_before)
    batch = SimpleNamespace(note_publishing=announced.extend, note_failure=None)
    publishing(module, own).publish(log, batch, group, outcome)
    ordinary = [key for key in group if len(key.key) > 1 and key.last_digest is None and not key.is_released]
    small = [key for key in ordinary if key.partition + 3 <= MOST]
    records = [Record(key.key, b"v" * (key.partition + 3), []) for key in small]
    assert [id(key) for key in announced] == [id(key) for key in ordinary]
    assert [id(key) for key in own] == [id(key) for key in group if not any(key is other for other in small)]
    assert log.taken == [("data", key.partition, record) for key, record in zip(small, records, strict=True)]
    written = [time for time in (newest_before, *(key.newest for key in small)) if time is not None]
    assert outcome == BatchOutcome(records=2 + len(small), newest_write_time=max(written, default=None))
    assert [key.published for key in group] == [any(key is other for other in small) for key in group]
    for key, record in zip(small, records, strict=True):
        assert (key.records, key.digest) == (1, b"" if key.is_confirmed else digest_of_record(record))


def test_a_log_that_is_away(module: ModuleType) -> None:
    key = ResolvedKey("events", 0, b"key", (), Scope.ROW)
    batch = SimpleNamespace(note_publishing=list, note_failure=None)
    with pytest.raises(HelenusError, match="away"):
        publishing(module, []).publish(Log(is_away=True), batch, [key], BatchOutcome())
    assert not key.published


def test_what_is_resolved_is_the_same_plain_and_compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    source = Path(interface.__file__).with_name("resolved_key.py")
    for form in (twice.plain(source), twice.compiled(source, tmp_path_factory)):
        key = form.ResolvedKey("t", 1, b"k", (b"v",), Scope.ROW, None, 3)
        assert (key.topic, key.partition, key.key, key.values, key.scope, key.parts) == (
            "t", 1, b"k", (b"v",), Scope.ROW, 3,
        )  # fmt: skip
        nothing = (
            "bounds event newest write_time expires before after read_rows last_digest failure cells op written"
        ).split()
        assert [getattr(key, name) for name in nothing] == [None] * len(nothing)
        no = "continues is_confirmed is_released published dead_lettered".split()
        assert [getattr(key, name) for name in no] == [False] * len(no)
        assert (key.events, key.records, key.digest, key.is_read) == (0, 0, b"", True)
        key.cells = b"cells"
        assert not key.is_read
        key.written = written_cells = object()
        assert key.written is written_cells
        key.read_rows = lambda keys: iter([keys])
        assert list(key.rows()) == [key]
