"""When a process searches for reference cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from helenus_connector.query import garbage


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(garbage, "_frozen", set())
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_what_is_there_is_exempt_once_for_each_key() -> None:
    garbage.freeze("a")
    exempt = gc.get_freeze_count()
    assert exempt > 1000
    assert gc.get_threshold()[0] == 400_000
    live_lists = [[] for _ in range(100)]  # type: ignore[var-annotated]
    garbage.freeze("a")
    assert gc.get_freeze_count() <= exempt
    garbage.freeze("b")
    assert gc.get_freeze_count() >= exempt + len(live_lists)


def test_the_driver_searches_earlier() -> None:
    """It makes few objects: what PySpark's calls leave in cycles would wait for most of an hour."""
    garbage.freeze("worker", garbage.DRIVER_SEARCH_AFTER)
    assert gc.get_threshold()[0] == 100_000
