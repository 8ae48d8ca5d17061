"""Marks of batches: which parts of a repeated batch are published, and when a state is older than its marks."""

from __future__ import annotations

from pathlib import Path

import pytest

from helenus_connector.journal._positions import BatchMark, GroupPosition, _position, to_mark
from helenus_connector.journal.batch_marks import BatchMarks, MarkedBatch, find_marks
from helenus_connector.state.rows._operator import MergeRules

STATE, TOPIC = "5ba1", "events-ks.t"


def checkpoint(tmp_path: Path, planned: int, committed: int) -> Path:
    """A checkpoint of which these batches are the last."""
    for folder, last in (("offsets", planned), ("commits", committed)):
        (tmp_path / folder).mkdir(parents=True)
        for number in range(max(0, last - 2), last + 1):
            (tmp_path / folder / str(number)).touch()
    return tmp_path


def marked(**batches: int) -> dict[str, dict[str, GroupPosition]]:
    """Positions of partitions, `p0` and so on, each with the mark of a batch."""
    marks = {name[1:]: BatchMark(STATE, batch) for name, batch in batches.items()}
    return {TOPIC: {number: GroupPosition(100, 0, 1, mark=mark) for number, mark in marks.items()}}


def test_a_mark_is_read_as_it_was_committed() -> None:
    (committed,) = to_mark({(TOPIC, 3): 17}, BatchMark(STATE, 41))
    assert (committed.topic, committed.partition, committed.offset) == (TOPIC, 3, 17)
    position = _position(committed.offset, committed.metadata)
    assert position.mark == BatchMark(STATE, 41)
    assert (position.offset, position.epoch, position.is_loose) == (17, None, True), "no journal is believed then"


@pytest.mark.parametrize(
    "metadata", ["", "{}", '{"v":1,"epoch":0,"at":5}', '{"v":1,"epoch":0,"at":5,"state":"a"}', "["]
)
def test_positions_of_others_have_no_mark(metadata: str) -> None:
    assert _position(5, metadata).mark is None


def test_of_a_repeated_batch_the_parts_that_are_marked_are_left_out(tmp_path: Path) -> None:
    marks = find_marks(marked(p0=7, p1=6, p2=7), STATE, checkpoint(tmp_path, planned=7, committed=6))
    assert marks.batch(7) == MarkedBatch(STATE, 7, frozenset({(TOPIC, 0), (TOPIC, 2)}))
    assert marks.batch(8) == MarkedBatch(STATE, 8)


def test_places_that_another_state_or_a_later_batch_has_are_overtaken(tmp_path: Path) -> None:
    positions = marked(p0=6, p1=8, p2=7)
    positions[TOPIC]["3"] = GroupPosition(1, mark=BatchMark("another", 2))
    assert find_marks(positions, STATE, checkpoint(tmp_path, planned=7, committed=6)).overtaken == {
        (TOPIC, 1),
        (TOPIC, 3),
    }


def test_of_a_batch_that_is_done_nothing_is_left_out(tmp_path: Path) -> None:
    marks = find_marks(marked(p0=7, p1=7), STATE, checkpoint(tmp_path, planned=7, committed=7))
    assert marks.batch(8) == MarkedBatch(STATE, 8)


def test_a_state_that_is_older_than_its_marks_is_known(tmp_path: Path) -> None:
    """As of a copy that was restored: its next batch would be another one than was published under that number."""
    assert find_marks(marked(p0=8, p1=7), STATE, checkpoint(tmp_path / "a", planned=7, committed=7)).newest == 8
    assert find_marks(marked(p0=8, p1=7), STATE, checkpoint(tmp_path / "b", planned=8, committed=7)).newest is None


def test_a_state_that_begins_says_which_one_was_before(tmp_path: Path) -> None:
    marks = find_marks(marked(p0=8), "another", checkpoint(tmp_path, planned=-1, committed=-1))
    assert marks == BatchMarks(
        "another",
        None,
        frozenset(),
        former_state=STATE,
        overtaken=frozenset({(TOPIC, 0)}),
        other_states=frozenset({STATE}),
    )
    assert find_marks({}, STATE, tmp_path).former_state is None
    assert find_marks(marked(p0=0), STATE, checkpoint(tmp_path / "x", 0, 0)).former_state is None


def test_rules_are_the_same_after_a_way_through_an_offset() -> None:
    rules = MergeRules(60, markers=False, trusts_absence=True, has_snapshots=False, proven_up_to={0: 3, 11: 1})
    assert MergeRules.from_json(rules.to_json()) == rules
