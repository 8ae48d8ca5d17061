"""Batches of few events with `state=rows`, in the driver and in the process: what is left to a job, and what fails."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helenus_connector.query.batch_parts import TaskRanges, note_planned
from helenus_connector.query.placed_reader import PlacedRow
from helenus_connector.state.rows import _small_batch
from helenus_connector.state.rows._small_batch import SmallRowsBatches, do_batch

END = '{"tick": 4, "topics": {}}'


class Stores:
    """Notes what is done with the stores."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.error: Exception | None = None

    def commit(self) -> int:
        self.calls.append("commit")
        if self.error is not None:
            raise self.error
        return 77

    def abort(self) -> None:
        self.calls.append("abort")


class Runs:
    """Small batches whose results are given."""

    def __init__(self) -> None:
        self.results: list[Any] | None = []
        self.count = 0

    def run(self, *_: Any) -> list[Any] | None:
        self.count += 1
        return self.results


def batches_of(directory: Path, noted: dict[str, Any] | None) -> tuple[SmallRowsBatches, Runs, Stores, Any]:
    """One of a checkpoint whose batch 9 ends at `END`, of which the planner noted that it ends elsewhere."""
    (directory / "offsets").mkdir()
    (directory / "offsets" / "9").write_text(f"v1\n{END}")
    file = directory / "parts"
    if noted is not None:
        note_planned(file, noted, [TaskRanges([], 1)])
    runs, stores = Runs(), Stores()
    small: Any = SmallRowsBatches(runs, stores, directory)  # type: ignore[arg-type]
    return small, runs, stores, lambda: small.run(SimpleNamespace(parts_file=file), None, None, 9, lambda: True)


def test_a_batch_is_committed_once_it_is_done(tmp_path: Path) -> None:
    small, runs, stores, run = batches_of(tmp_path, {"tick": 4, "topics": {}})
    runs.results = ["done"]
    assert (run(), stores.calls, small.state_bytes) == (["done"], ["commit"], 77)


@pytest.mark.parametrize("noted", [None, {"tick": 3, "topics": {}}])
def test_what_is_not_noted_of_this_batch_is_a_job(tmp_path: Path, noted: dict[str, Any] | None) -> None:
    _, runs, stores, run = batches_of(tmp_path, noted)
    assert (run(), runs.count, stores.calls) == (None, 0, [])


def test_a_batch_that_the_process_does_not_take_opens_no_store(tmp_path: Path) -> None:
    _, runs, stores, run = batches_of(tmp_path, {"tick": 4, "topics": {}})
    runs.results = None
    assert (run(), stores.calls) == (None, [])


def test_after_a_large_one_all_are_jobs_for_a_while(tmp_path: Path) -> None:
    _, runs, stores, run = batches_of(tmp_path, {"tick": 4, "topics": {}})
    runs.results = [None]
    assert (run(), stores.calls, runs.count) == (None, ["abort"], 1)
    assert (run(), stores.calls, runs.count) == (None, ["abort"], 1)


def test_a_commit_that_fails_fails_the_batch(tmp_path: Path) -> None:
    _, runs, stores, run = batches_of(tmp_path, {"tick": 4, "topics": {}})
    runs.results, stores.error = ["done"], ValueError("No space left on device")
    with pytest.raises(ValueError, match="No space left"):
        run()
    assert stores.calls == ["commit", "abort"]


def test_few_events_that_are_large_are_left_to_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is merged or published, however much there is: it is not read to its end."""
    events, read = bytes(1 << 20), list[int]()

    def endless(*_: Any) -> Any:
        for turn in range(20_000):
            read.append(turn)
            yield PlacedRow(5, turn, None, events)

    monkeypatch.setattr(_small_batch, "read_places", endless)
    settings: Any = SimpleNamespace(events="events-ks.t")
    plan: Any = None
    assert list(do_batch(plan, settings, None, 9, iter([TaskRanges([], 1)]))) == [None]
    assert len(read) == 17
