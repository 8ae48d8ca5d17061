"""`bench chaos`: planted differences are found, and what is none is not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from agent.writer import table_of
from bench.chaos.compare import (
    compare_rows,
    expired_keys,
    find_disorder,
    find_missing,
    find_repeats,
    without_repeated_batches,
)
from bench.chaos.merge import MergedRows

from helenus_stack.compare import Key, Row, last_records
from helenus_stack.records import Record

TABLE = table_of("t", "k int pk, c int ck, s int static, v int, m map<text,int>, st set<int>, seq bigint")
COLUMNS = ("s", "v", "m", "st", "seq")


def record(k: int | None, c: int | None, value: dict[str, Any] | None, offset: int = 0, **headers: Any) -> Record:
    """A record of JSON; `after` of an envelope has all columns."""
    encoded = {name: v if isinstance(v, bytes) else str(v).encode() for name, v in headers.items()}
    return Record(0, offset, 1000 + offset, {"k": k, "c": c}, value, encoded, None, is_json=True)


def row(**values: Any) -> dict[str, Any]:
    return dict.fromkeys(COLUMNS) | values


def envelope(k: int, c: int | None, op: str, time: int, **more: Any) -> Record:
    """A change of `columns`, with what it `replaced` and `removed`, and headers."""
    written = {"columns": list(more.pop("columns", {})), "replaced": [], "removed": {}}
    columns = more.pop("values", {})
    written["columns"] = sorted({*columns, *more.get("removed", {}), *more.get("replaced", ())})
    written |= {name: more.pop(name) for name in ("replaced", "removed") if name in more}
    value = {"after": row(**columns), "source": {"ts_us": time}, "op": op, "written": None if op == "d" else written}
    return record(k, c, value, **more)


def kinds(of_topic: dict[Key, Row], of_table: dict[Key, Row]) -> list[str]:
    return [finding.kind for finding in compare_rows("m", of_topic, of_table)]


def merged(*records: Record) -> dict[Key, Row]:
    rows = MergedRows(TABLE)
    rows.take(records)
    return rows.shown()


def test_lost_stale_and_ghost() -> None:
    assert kinds({(1, 1): row(v=1)}, {(1, 1): row(v=1)}) == []
    assert kinds({}, {(1, 1): row(v=1)}) == ["lost"]
    assert kinds({(1, 1): row(v=1)}, {(1, 1): row(v=2)}) == ["stale"]
    assert kinds({(1, 1): row(v=1)}, {}) == ["ghost"]


def test_a_topic_without_its_last_record_is_found() -> None:
    records = [record(1, 1, row(v=1)), record(1, 1, row(v=2), 1)]
    of_table = {key: dict(values) for key, values in last_records(TABLE, records).items()}
    assert kinds(last_records(TABLE, records), of_table) == []
    assert kinds(last_records(TABLE, records[:1]), of_table) == ["stale"]


def test_only_what_expired_is_forgiven() -> None:
    records = [record(1, 1, row(v=1), expires=100), record(1, 2, row(v=1)), record(1, 3, row(v=1), expires=300)]
    assert expired_keys(TABLE, records, 200) == {(1, 1)}
    assert expired_keys(TABLE, [*records, record(1, 1, row(v=2), 9)], 200) == set()


def test_an_older_row_after_a_newer_one() -> None:
    in_order = [record(1, 1, row(seq=1)), record(1, 1, None, 1), record(1, 1, row(seq=2), 2), record(2, 1, row(seq=1))]
    assert find_disorder("m", TABLE, in_order) == []
    (finding,) = find_disorder("m", TABLE, [*in_order, record(1, 1, row(seq=1), 3)])
    assert (finding.kind, finding.key) == ("order", (1, 1))


def test_a_batch_that_was_published_whole_once_more() -> None:
    """Twice, even; a part of one, or an old record alone, is none."""
    first = [record(2, 1, row(seq=1), 0)]
    batch = [record(1, 1, row(seq=1), 1), record(1, 1, row(seq=5), 2), record(1, 2, None, 3)]
    after = [record(1, 1, row(seq=6), 9)]
    assert without_repeated_batches([*first, *batch, *batch, *batch, *after]) == [*first, *batch, *after]
    assert find_disorder("m", TABLE, without_repeated_batches([*first, *batch, *batch, *after])) == []
    # Meanwhile the table lost a column and got another one.
    values = [each.value and {"seq": each.value["seq"], "w": None} for each in batch]
    altered = [replace(each, value=v, headers={"schema_id": b"2"}) for each, v in zip(batch, values, strict=True)]
    assert without_repeated_batches([*first, *batch, *altered, *after]) == [*first, *batch, *after]
    for wrong in ([*batch, batch[0]], [*batch, *batch[:2]], [*batch, *after, *batch]):
        assert [f.kind for f in find_disorder("m", TABLE, without_repeated_batches(wrong))] == ["order"] * (
            1 + (wrong[-3:] == batch)
        )


def test_what_a_truncation_removed_may_be_followed_by_less() -> None:
    records = [record(1, 1, row(seq=2)), record(None, None, None, 1, scope=b"table"), record(1, 1, row(seq=1), 2)]
    assert find_disorder("m", TABLE, records) == []


def test_a_key_in_two_partitions() -> None:
    elsewhere = Record(1, 0, 1000, {"k": 1, "c": 1}, row(seq=3), {}, None, is_json=True)
    assert [f.kind for f in find_disorder("m", TABLE, [record(1, 1, row(seq=2)), elsewhere])] == ["misplaced"]


def test_a_repeated_change() -> None:
    records = [record(1, 1, row(v=1), digest="a"), record(1, 2, row(v=1), 1, digest="a"), record(1, 1, row(v=1), 2)]
    assert find_repeats("m", TABLE, records) == []
    repeated = record(1, 1, row(v=2), 3, digest="a")
    assert [f.kind for f in find_repeats("m", TABLE, [*records, repeated])] == ["repeated"]
    assert find_repeats("m", TABLE, [*records, repeated], {"a"}) == [], "a node logged it twice"
    tombstone = record(1, 1, None, 3, digest="a")
    assert find_repeats("m", TABLE, [*records, tombstone]) == []


def test_a_change_without_a_record() -> None:
    records = [envelope(1, 1, "u", 10, values={"v": 1})]
    assert find_missing("m", {10: "UPDATE"}, records) == []
    assert [f.kind for f in find_missing("m", {10: "UPDATE", 11: "DELETE"}, records)] == ["missing"]


def test_changes_make_the_row_in_any_order() -> None:
    changes = [
        envelope(1, 1, "c", 10, values={"v": 1, "m": {"a": 1}}, replaced=["m"]),
        envelope(1, 1, "u", 20, values={"m": {"b": 2}, "st": [1, 2]}),
        envelope(1, 1, "u", 30, removed={"m": ["a"], "st": ["1"]}),
        envelope(1, 1, "u", 5, values={"v": 9, "m": {"old": 0}}),
    ]
    expected = {(1, 1): {"v": 1, "m": (("b", 2),), "st": (2,), "seq": None}}
    assert merged(*changes) == merged(*reversed(changes)) == expected


def test_deletions_and_what_outlives_them() -> None:
    insert, update = envelope(1, 1, "c", 10, values={"v": 1}), envelope(1, 1, "u", 30, values={"v": 3})
    assert merged(insert, envelope(1, 1, "d", 20)) == {}
    assert merged(insert, envelope(1, 1, "d", 20), update)[1, 1]["v"] == 3
    assert merged(envelope(1, None, "d", 20, scope=b"partition"), insert) == {}
    bound = json.dumps({"inclusive": False, "values": {"c": 1}, "descending": []}).encode()
    assert merged(insert, envelope(1, None, "d", 20, scope=b"range", end=bound)) != {}
    assert merged(insert, envelope(1, None, "d", 20, scope=b"range", start=bound)) != {}
    inclusive = bound.replace(b"false", b"true")
    assert merged(insert, envelope(1, None, "d", 20, scope=b"range", end=inclusive)) == {}
    assert merged(insert, envelope(1, 1, "u", 20, values={"v": None}))[1, 1]["v"] is None
    assert merged(update, envelope(1, 1, "u", 40, values={"v": None})) == {}, "no INSERT wrote the row itself"


def test_a_static_column_is_its_partitions() -> None:
    assert merged(envelope(1, None, "u", 10, values={"s": 4})) == {(1, None): {"s": 4}}


def test_an_expired_insert_hides_the_one_before() -> None:
    first = envelope(1, 1, "c", 10, values={"v": 1})
    second = envelope(1, 1, "c", 20, values={"v": 2}, expires=100)
    assert merged(first, second) == {}
    assert merged(second, envelope(1, 1, "u", 30, values={"seq": 1}))[1, 1] == {
        "v": None,
        "m": None,
        "st": None,
        "seq": 1,
    }
