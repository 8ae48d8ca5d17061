"""Tables that are new to a process are prepared several at a time, and worked on in order."""

from __future__ import annotations

import threading
from collections.abc import Callable

from helenus_connector.query._new_tables import prepare_ahead
from helenus_schemas.errors import HelenusError, Kind


def test_new_tables_are_prepared_together_and_yielded_in_order() -> None:
    """The second ends before the first: both run at once."""
    second_ended = threading.Event()
    prepared: list[str] = []

    def prepare(topic: str) -> Callable[[], None] | None:
        def run() -> None:
            if topic == "b":
                second_ended.set()
            elif topic == "a":
                assert second_ended.wait(30)
            prepared.append(topic)

        return None if topic == "known" else run

    yielded = []
    for topic in prepare_ahead(["known", "a", "b", *map(str, range(20))], prepare):
        assert topic == "known" or topic in prepared
        yielded.append(topic)
    assert yielded == ["known", "a", "b", *map(str, range(20))]
    assert prepared.index("b") < prepared.index("a")


def test_known_table_does_not_wait_for_new_ones() -> None:
    never = threading.Event()
    topics = prepare_ahead(["known", "new"], lambda topic: None if topic == "known" else lambda: _wait(never))
    assert next(topics) == "known"
    never.set()
    assert list(topics) == ["new"]


def test_failed_preparation_is_left_to_the_tables_own_run() -> None:
    def fail() -> None:
        raise HelenusError(Kind.REGISTRY_UNREACHABLE, "the registry does not answer", "here")

    assert list(prepare_ahead(["a", "b"], lambda _: fail)) == ["a", "b"]


def test_caller_that_leaves_early_waits_for_the_threads() -> None:
    """Nothing of a batch runs when its task has ended."""
    ended: list[str] = []
    topics = prepare_ahead([str(i) for i in range(9)], lambda topic: lambda: ended.append(topic))
    assert next(topics) == "0"
    topics.close()
    assert len(ended) == 8


def _wait(event: threading.Event) -> None:
    assert event.wait(30)
