"""Copies of lists under faults that a real server does not show at will: answers that are lost, lists that change."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pytest
from cassandra import InvalidRequest, OperationTimedOut, Unauthorized, WriteTimeout
from cassandra.cluster import NoHostAvailable
from connector.test_replicate_statements import ROW, STATEMENTS, TABLE, cells
from tenacity import wait_random_exponential

from helenus_connector.replicate import _requests
from helenus_connector.replicate._cluster_table import ClusterTable, RowImage, RowKey
from helenus_connector.replicate._list_copies import ListCopier
from helenus_connector.replicate._requests import Patience, RequestSender, request_error
from helenus_connector.replicate.replicator import begin_patiently
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.cells import Cell, read_path

Element = tuple[bytes, int]


@dataclass
class Side:
    """A cluster with one list: what is read of it, next by next; what is written to it goes by Cassandra's rules."""

    elements: list[Element] = field(default_factory=list)
    deleted: int = -1
    table: Any = TABLE

    def read(self, keys: Sequence[RowKey], level: str = "") -> dict[RowKey, RowImage]:
        assert list(keys) == [ROW]
        assert not level
        live = [(value, written) for value, written in self.elements if written > self.deleted]
        read_cells = [Cell("l", written, value, read_path(n)) for n, (value, written) in enumerate(live)]
        return {ROW: RowImage(cells(*read_cells), 0)} if read_cells else {}

    def write(self, statement: Any) -> None:
        """Replace or extend the list, or delete it."""
        text, values = statement.prepared_statement.query_string, statement.values
        (written,) = struct.unpack(">q", values[0])
        if text.startswith("DELETE"):
            self.deleted = max(self.deleted, written)
            return
        self.deleted = max(self.deleted, written - 1)
        data = values[2]
        self.elements += [(data[8 + 8 * n : 12 + 8 * n], written) for n in range(struct.unpack(">i", data[:4])[0])]

    @property
    def live(self) -> list[bytes]:
        return [value for value, written in self.elements if written > self.deleted]


@pytest.mark.parametrize("once", [False, True])
def test_a_cluster_that_does_not_answer_while_definitions_are_read_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, once: bool
) -> None:
    monkeypatch.setattr(wait_random_exponential, "__call__", lambda *_: 0.0)
    failures = [HelenusError(Kind.CASSANDRA_WRITE, "timeout", "t")] * 3
    made: Any = object()

    def begin() -> Any:
        if failures:
            raise failures.pop()
        return made

    assert begin_patiently(begin, once) is made
    with pytest.raises(HelenusError, match="no such table"):
        begin_patiently(partial(_raise, HelenusError(Kind.TABLE_MISSING, "there is no such table", "t")), once)


def _raise(error: HelenusError) -> Any:
    raise error


def integer(value: int) -> bytes:
    return struct.pack(">i", value)


def copier(source: Side, target: Side, send: Any) -> ListCopier:
    return ListCopier(cast("ClusterTable", source), cast("ClusterTable", target), STATEMENTS, send)


def copy(source: Side, target: Side, write_time: int) -> int:
    def send(statements: Sequence[Any]) -> None:
        for statement in statements:
            target.write(statement)

    return copier(source, target, send).copy({(ROW, "l"): write_time})


def test_a_list_is_written_with_the_time_of_its_change() -> None:
    source, target = Side([(integer(1), 5), (integer(2), 7)]), Side()
    assert copy(source, target, 7) == 1
    assert target.elements == [(integer(1), 7), (integer(2), 7)]
    assert copy(source, target, 7) == 0, "once more it is equal"


def test_an_equal_time_gets_one_above_the_copys() -> None:
    source, target = Side([(integer(1), 7), (integer(2), 7)]), Side([(integer(1), 7)])
    copy(source, target, 7)
    assert target.live == source.live
    assert target.elements[-1][1] == 8


def test_a_list_that_is_gone_is_deleted_even_if_its_copy_is_newer() -> None:
    target = Side([(integer(1), 9)])
    copy(Side(), target, 7)
    assert (target.live, target.deleted) == ([], 10)


def test_a_tombstone_that_nobody_sees_is_passed_by() -> None:
    source, target = Side([(integer(1), 5)]), Side(deleted=20)
    copy(source, target, 5)
    assert target.live == source.live


def test_a_write_whose_answer_is_lost_adds_nothing_twice() -> None:
    source, target = Side([(integer(1), 5)]), Side()
    effects = iter([2, 0, 1])  # a coordinator tries again by itself; a write is lost; the third takes effect

    def send(statements: Sequence[Any]) -> None:
        for statement in list(statements) * next(effects):
            target.write(statement)

    copier(source, target, send).copy({(ROW, "l"): 5})
    assert target.live == source.live
    assert next(effects, None) is None


def test_a_list_that_changes_all_the_time_is_copied_as_it_was() -> None:
    source, target = Side([(integer(1), 5)]), Side()

    def send(statements: Sequence[Any]) -> None:
        for statement in statements:
            target.write(statement)
        source.elements.append((integer(len(source.elements)), 6))

    assert copier(source, target, send).copy({(ROW, "l"): 5}) == 1
    assert target.live == [integer(1)]


def test_a_list_that_never_gets_equal_is_an_error() -> None:
    with pytest.raises(HelenusError, match="lists that were copied 8 times") as raised:
        copier(Side([(integer(1), 5)]), Side(), lambda statements: None).copy({(ROW, "l"): 5})
    assert raised.value.kind is Kind.CASSANDRA_WRITE


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OperationTimedOut(), Kind.CASSANDRA_WRITE),
        (WriteTimeout("slow", write_type=0), Kind.CASSANDRA_WRITE),
        (NoHostAvailable("all away", {}), Kind.CASSANDRA_WRITE),
        (Unauthorized("no MODIFY"), Kind.CASSANDRA_AUTH),
        (InvalidRequest("Undefined column name w"), Kind.SCHEMA_BEHIND),
        (InvalidRequest("unconfigured table t"), Kind.SCHEMA_BEHIND),
        (InvalidRequest("Guardrail maximum_timestamp"), Kind.TABLE_UNSUPPORTED),
    ],
)
def test_an_error_has_the_kind_of_its_cause(error: Exception, kind: Kind) -> None:
    assert request_error(error, "target shop.t").kind is kind


def sent(monkeypatch: pytest.MonkeyPatch, answers: list[list[Any]], once: bool) -> tuple[list[Any], list[int]]:
    """Send three statements, whose results come from `answers`; returns the rows, and how many each attempt had."""
    sizes: list[int] = []

    def execute(session: object, requests: list[Any], **options: object) -> list[tuple[bool, Any]]:
        sizes.append(len(requests))
        return [(not isinstance(result, Exception), result) for result in answers.pop(0)]

    monkeypatch.setattr(_requests, "execute_concurrent", execute)
    sender = RequestSender(object(), "target shop.t", Patience(once, lambda seconds: None))
    return sender.send(["a", "b", "c"]), sizes


def test_only_what_failed_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = OperationTimedOut()
    answers = [[["x"], slow, slow], [slow, ["z"]], [["y"]]]
    assert sent(monkeypatch, answers, once=False) == ([["x"], ["y"], ["z"]], [3, 2, 1])


def test_once_gives_up_after_some_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = OperationTimedOut()
    with pytest.raises(HelenusError, match="did not answer"):
        sent(monkeypatch, [[slow] * 3 for _ in range(9)], once=True)


def test_a_refusal_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HelenusError) as raised:
        sent(monkeypatch, [[OperationTimedOut(), Unauthorized("no MODIFY"), []]], once=False)
    assert raised.value.kind is Kind.CASSANDRA_AUTH


def test_what_expires_is_made_each_time_that_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a target that was away would have it for as long again."""
    sent_statements: list[Any] = []
    answers = [[(False, OperationTimedOut()), (True, [])], [(True, [])]]

    def execute(session: object, requests: list[Any], **options: object) -> list[tuple[bool, Any]]:
        sent_statements.extend(statement for statement, _ in requests)
        return answers.pop(0)

    monkeypatch.setattr(_requests, "execute_concurrent", execute)
    made = iter(["with TTL 60", "expired"])
    RequestSender(object(), "target shop.t", Patience(wait=lambda seconds: None)).send([lambda: next(made), "b"])
    assert sent_statements == ["with TTL 60", "b", "expired"]
