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
        return [None if len(one.key) == 1 else Record(one.key, b"v" * (one.partition + 3), []) for one in group]


def publishing(module: ModuleType, own: list[ResolvedKey]) -> Any:
    versions = SimpleNamespace(
        current=SimpleNamespace(shape=Shape(), topic="data", table=SimpleNamespace(full_name="t"))
    )
    undeliverable = SimpleNamespace(bury_key=lambda log, one, failure: own.append(one))
    return module.Publisher(versions, SimpleNamespace(), undeliverable)


@st.composite
def resolved(draw: st.DrawFn) -> ResolvedKey:
    one = ResolvedKey("events", draw(st.integers(0, 3)), draw(st.binary(min_size=1, max_size=3)), (), Scope.ROW)
    one.newest = draw(st.none() | st.integers(-5, 5))
    one.is_confirmed, one.is_released = draw(st.booleans()), draw(st.integers(0, 5)) == 0
    one.last_digest = b"digest" if draw(st.integers(0, 5)) == 0 else None
    one.failure = HelenusError(Kind.POISON_EVENT, "its own way")  # what is not ordinary ends there
    return one


@given(group=st.lists(resolved(), max_size=8), known=st.none() | st.integers(-2, 2))
def test_a_group(module: ModuleType, group: list[ResolvedKey], known: int | None) -> None:
    announced: list[ResolvedKey] = []
    own: list[ResolvedKey] = []
    log, outcome = Log(), BatchOutcome(records=2, newest_write_time=known)
    batch = SimpleNamespace(note_publishing=announced.extend, note_failure=None)
    publishing(module, own).publish(log, batch, group, outcome)
    ordinary = [one for one in group if len(one.key) > 1 and one.last_digest is None and not one.is_released]
    small = [one for one in ordinary if one.partition + 3 <= MOST]
    records = [Record(one.key, b"v" * (one.partition + 3), []) for one in small]
    assert [id(one) for one in announced] == [id(one) for one in ordinary]
    assert [id(one) for one in own] == [id(one) for one in group if not any(one is other for other in small)]
    assert log.taken == [("data", one.partition, record) for one, record in zip(small, records, strict=True)]
    written = [time for time in (known, *(one.newest for one in small)) if time is not None]
    assert outcome == BatchOutcome(records=2 + len(small), newest_write_time=max(written, default=None))
    assert [one.published for one in group] == [any(one is other for other in small) for one in group]
    for one, record in zip(small, records, strict=True):
        assert (one.records, one.digest) == (1, b"" if one.is_confirmed else digest_of_record(record))


def test_a_log_that_is_away(module: ModuleType) -> None:
    one = ResolvedKey("events", 0, b"key", (), Scope.ROW)
    batch = SimpleNamespace(note_publishing=list, note_failure=None)
    with pytest.raises(HelenusError, match="away"):
        publishing(module, []).publish(Log(is_away=True), batch, [one], BatchOutcome())
    assert not one.published


def test_what_is_resolved_is_the_same_plain_and_compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    source = Path(interface.__file__).with_name("resolved_key.py")
    for form in (twice.plain(source), twice.compiled(source, tmp_path_factory)):
        one = form.ResolvedKey("t", 1, b"k", (b"v",), Scope.ROW, None, 3)
        assert (one.topic, one.partition, one.key, one.values, one.scope, one.parts) == (
            "t", 1, b"k", (b"v",), Scope.ROW, 3,
        )  # fmt: skip
        nothing = (
            "bounds event newest write_time expires before after read_rows last_digest failure cells op written"
        ).split()
        assert [getattr(one, name) for name in nothing] == [None] * len(nothing)
        no = "continues is_confirmed is_released published dead_lettered".split()
        assert [getattr(one, name) for name in no] == [False] * len(no)
        assert (one.events, one.records, one.digest, one.is_read) == (0, 0, b"", True)
        one.cells = b"cells"
        assert not one.is_read
        one.written = said = object()
        assert one.written is said
        one.read_rows = lambda of: iter([of])
        assert list(one.rows()) == [one]
