"""When a read is proven, and how pending keys wait."""

from pathlib import Path

from cassandra import ConsistencyLevel as CL  # noqa: N817
from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.settle import Awaited, Pending, PendingKeys, Report, block_for, level, proven


@given(
    rf=st.integers(1, 9),
    nodes=st.integers(1, 9),
    cl=st.sampled_from([CL.LOCAL_ONE, CL.LOCAL_QUORUM, CL.QUORUM, CL.ALL]),
    shown=st.none() | st.integers(0, 9),
    written=st.none() | st.integers(0, 9),
    age=st.floats(0, 9),
)
def test_a_proven_read_met_a_reporting_replica_after_its_write(
    rf: int, nodes: int, cl: int, shown: int | None, written: int | None, age: float
) -> None:
    is_proven = proven(Report(nodes, written, 100.0), cl, rf, 100.0 + age, shown, 1.0)
    overlaps = nodes + block_for(cl, rf) > rf
    visible = (shown is not None and written is not None and shown >= written) or (100.0 + age) - 100.0 >= 1.0
    assert is_proven == (overlaps and visible)


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([CL.LOCAL_ONE, CL.LOCAL_QUORUM]))
def test_the_level_of_a_second_read_is_enough(rf: int, nodes: int, cl: int) -> None:
    chosen = level(cl, min(nodes, rf), rf)
    assert min(nodes, rf) + block_for(chosen, rf) > rf
    assert chosen in (cl, CL.ALL)


def pending(
    key: bytes, change: bytes = b"c", copies: int = 0, attempts: int = 0, image: bytes | None = None
) -> Pending:
    return Pending("t", 0, key, 0, {change: Awaited(change, None, 0.0)}, image, copies, attempts)


def test_keys_wait_their_time_and_longer_each_time() -> None:
    keys = PendingKeys({"t": 2.0}, {"t": 30.0}, Path("/nowhere"))
    keys.apply([], [pending(b"a")], now=100.0)
    assert keys.next_due() == 102.0
    assert keys.due(101.9) == []
    assert [p.key for p in keys.due(102.0)] == [b"a"]
    keys.apply([], [pending(b"a", attempts=1)], now=102.0)
    assert keys.next_due() == 106.0
    keys.apply([], [pending(b"a", attempts=30)], now=106.0)
    assert keys.next_due() == 166.0


def test_a_resolved_key_is_forgotten() -> None:
    keys = PendingKeys({"t": 2.0}, {"t": 30.0}, Path("/nowhere"))
    keys.apply([], [pending(b"a")], now=100.0)
    keys.apply(keys.due(102.0), [], now=102.0)
    assert (len(keys), keys.next_due()) == (0, None)


def test_later_changes_and_copies_of_a_waiting_key_share_its_read() -> None:
    keys = PendingKeys({"t": 2.0}, {"t": 30.0}, Path("/nowhere"))
    keys.apply([], [pending(b"a", b"c1", image=b"old")], now=100.0)
    keys.apply([], [pending(b"a", b"c1", copies=2), pending(b"a", b"c2", copies=1, image=b"new")], now=101.0)
    (held,) = keys.due(102.0)
    assert set(held.awaited) == {b"c1", b"c2"}
    assert (held.copies, held.image) == (3, b"new")
    assert keys.counts("t") == (1, 3)


def test_what_waits_longer_than_a_restart_steps_back_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "pending"
    keys = PendingKeys({"t": 2.0, "gone": 2.0}, {"t": 30.0, "gone": 30.0}, file)
    keys.apply([], [Pending("t", 1, b"old", 3, copies=4, attempts=5, since=100.0)], now=150.0)
    keys.apply([], [Pending("t", 1, b"new", 0, since=149.0), Pending("gone", 0, b"k", 0, since=1.0)], now=150.0)
    keys.save(150.0, ["t"])
    later = PendingKeys({"t": 2.0}, {"t": 30.0}, file)
    later.load(200.0)
    (held,) = later.due(202.0)
    assert (held.name, held.scope, held.copies, held.image) == (("t", 1, b"old", None), 3, 0, None)
    assert [a.seen for a in held.awaited.values()] == [200.0], "its proof begins anew"
    later.apply([held], [], 203.0)
    later.save(203.0, ["t"])
    again = PendingKeys({"t": 2.0}, {"t": 30.0}, file)
    again.load(204.0)
    assert again.due(999.0) == []
    again.use({"gone": 2.0}, {"gone": 30.0})
    assert [p.topic for p in again.due(999.0)] == ["gone"], "kept for a connector that pauses"
