"""Who leads a group, on a real Pulsar."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from patience import eventually

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.group._leader import Leader
from helenus_connector.group.pulsar_membership import PulsarMembership
from helenus_connector.group.shared_topic import SharedTopic
from helenus_schemas.errors import HelenusError, Kind
from helenus_stack.stack import Stack

pytestmark = pytest.mark.integration


class Member:
    """A worker's membership, and its topic."""

    def __init__(self, worker: WorkerSettings) -> None:
        self.hangs = threading.Event()
        self.membership = PulsarMembership(worker, lambda: None, lambda: True)
        self.topic = SharedTopic(worker, self.membership.take_epoch)
        turn: Callable[[], None] = self.membership._turn

        def turn_unless_hanging() -> None:
            while self.hangs.is_set():
                time.sleep(0.05)
            turn()

        self.membership._turn = turn_unless_hanging  # type: ignore[method-assign]
        self.topic.create()

    def await_begin(self) -> Leader:
        eventually(lambda: self.membership.may_begin, "it is to lead", every=0.05)
        leader = self.topic.lead(uuid.uuid4().hex, dict)
        self.membership.note_begun(leader)
        return leader

    def close(self) -> None:
        self.hangs.clear()
        self.membership.leave()
        self.topic.close()


@pytest.fixture
def make(only_pulsar: Stack, tmp_path: Path) -> Iterator[Callable[[int], list[Member]]]:
    name = f"workers-{uuid.uuid4().hex[:8]}"
    with ExitStack() as stack:

        def members(count: int) -> list[Member]:
            made = []
            for number in range(count):
                own = {"log": "pulsar", "checkpoint.dir": str(tmp_path), "group.id": name, "session.timeout.ms": "3000"}
                own["listeners"] = f"http://127.0.0.1:{9000 + number}"
                worker = WorkerSettings.from_properties({**only_pulsar.status().pulsar(), **own}, "worker")
                made.append(Member(worker))
                stack.callback(made[-1].close)
            return made

        yield members


def one_begins(members: list[Member]) -> tuple[Member, Leader]:
    """Wait until one is to lead, and have it lead."""

    def chosen() -> Member | None:
        return next((member for member in members if member.membership.may_begin), None)

    member: Member = eventually(chosen, "one is to lead", every=0.05)
    return member, member.await_begin()


def test_one_leads_and_is_replaced_when_it_leaves_or_hangs(make: Callable[[int], list[Member]]) -> None:
    members = make(3)
    for member in members:
        member.membership.join()
    leader, note = one_begins(members)
    others = [member for member in members if member is not leader]
    eventually(lambda: all(other.membership.leader() == note for other in others), "they know who leads")
    time.sleep(5)
    assert leader.membership.leads
    assert not any(other.membership.may_begin or other.membership.leads for other in others)

    leader.hangs.set()
    second, second_note = one_begins(others)
    assert second_note.number == note.number + 1
    assert leader.membership.leads, "it does not know yet"
    with pytest.raises(HelenusError) as failure:
        leader.topic.update(lambda _: {"late": 1})
    assert failure.value.kind is Kind.NOT_OWNER
    leader.hangs.clear()
    eventually(lambda: not leader.membership.leads, "its next sign is refused")
    with pytest.raises(HelenusError, match="another worker leads the group"):
        leader.membership.take_epoch("any")

    second.membership.leave()
    (third,) = [other for other in others if other is not second]
    assert third.await_begin().number == note.number + 2
    assert "late" not in third.topic.values()


def test_a_member_that_begins_alone_after_all_have_left(make: Callable[[int], list[Member]]) -> None:
    (first,) = make(1)
    first.membership.join()
    number = first.await_begin().number
    first.topic.update(lambda _: {"a": 1})
    first.close()
    (later,) = make(1)
    later.membership.join()
    assert later.await_begin().number == number + 1
    assert later.topic.values()["a"] == 1
