"""Which tables are followed, and for how long."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace

import pytest
from agent.writer import table_of
from hypothesis import given
from hypothesis import strategies as st

from helenus_agent.commitlog.decoder import UnknownSchema
from helenus_agent.node.tables import KnownTables, Stamp
from helenus_schemas.cql.table import Table


def updated(tables: KnownTables, *known_tables: Table, newest: int = 10) -> tuple[list[str], list[str], list[str]]:
    report = tables.update({t.id: t for t in known_tables}, (), newest)
    return (
        [t.full_name for t in report.added],
        [t.full_name for t, _ in report.refused],
        [t.full_name for t in report.retired],
    )


def index(tables: KnownTables, table: Table) -> int:
    return tables.plans[table.id.bytes].index


A = table_of("a", "pk int pk, v int")
B = table_of("b", "pk int pk, v int")
PLAIN = table_of("plain", "pk int pk, v int", cdc=False)


def test_tables_with_cdc_are_followed() -> None:
    tables = KnownTables()
    assert updated(tables, A, PLAIN) == (["ks.a"], [], [])
    assert updated(tables, A, PLAIN, B) == (["ks.b"], [], [])
    assert updated(tables, A, PLAIN, B) == ([], [], [])
    assert [index(tables, t) for t in (A, PLAIN, B)] == [0, -1, 1]
    assert tables.followed_ids == [A.id, B.id]


def test_an_unchanged_table_keeps_its_plan() -> None:
    tables = KnownTables()
    updated(tables, A, B)
    plan = tables.plans[A.id.bytes]
    wider = table_of("b", "pk int pk, v int, w int")
    updated(tables, A, wider)
    assert tables.plans[A.id.bytes] is plan
    assert b"w" in tables.plans[B.id.bytes].columns
    assert tables.followed == [A, wider]


def test_patterns_that_match_no_table() -> None:
    """Such as one with a slip in it: what it is to exclude would be published in silence."""
    excluded = (r"ks\.plian", r"KS\.PLAIN", r"ks\.plain", r"ks\.(a|b)")
    tables = KnownTables((r"ks\..*", r"kss\..*"), excluded, cells=(r"zz\.q",))
    updated(tables, A, PLAIN)
    assert list(tables.unmatched_patterns()) == [
        ("table.include.list", r"kss\..*", "ks.a"),
        ("table.exclude.list", r"ks\.plian", "ks.plain"),
        ("table.exclude.list", r"KS\.PLAIN", "ks.plain"),
        ("cells.include.list", r"zz\.q", ""),
    ]
    assert not list(KnownTables().unmatched_patterns())


def test_lists_of_tables() -> None:
    other = table_of("a", "pk int pk, v int", keyspace="other")
    for include, exclude, wanted in (
        ((), (), ["ks.a", "ks.b", "other.a"]),
        ((r"ks\..*",), (), ["ks.a", "ks.b"]),
        ((r"ks\.a", r"other\..*"), (), ["ks.a", "other.a"]),
        (("a",), (), []),
        ((), (r".*\.a",), ["ks.b"]),
        ((r"ks\..*",), (r"ks\.b",), ["ks.a"]),
    ):
        tables = KnownTables(include, exclude)
        assert updated(tables, A, B, other)[0] == wanted
    assert tables.plans[B.id.bytes].reason == "excluded"


def test_a_key_without_avro_form_is_refused_once() -> None:
    tables = KnownTables()
    odd = table_of("odd", "pk 'x.Y' pk, v int")
    assert updated(tables, odd, A) == (["ks.a"], ["ks.odd"], [])
    assert updated(tables, table_of("odd", "pk 'x.Y' pk, v int, w int"), A) == ([], [], [])
    assert tables.plans[odd.id.bytes].reason == "unsupported_key"


def test_a_table_that_loses_cdc_is_followed_to_the_end_of_the_existing_segments() -> None:
    tables = KnownTables()
    updated(tables, A, B)
    off = replace(A, cdc=False)
    assert updated(tables, off, B, newest=10) == ([], [], ["ks.a"])
    assert updated(tables, replace(table_of("a", "pk int pk, v int, w int"), cdc=False), B, newest=12) == ([], [], [])
    tables.retire_before(10)
    assert index(tables, A) == 0
    tables.retire_before(11)
    assert index(tables, A) == -1
    assert tables.followed_ids == [B.id]
    # It may come back, with the same place.
    assert updated(tables, A, B) == ([], [], [])
    assert index(tables, A) == 0


def test_rewind_follows_retired_tables_again() -> None:
    tables = KnownTables()
    updated(tables, A)
    updated(tables, replace(A, cdc=False), newest=10)
    tables.retire_before(11)
    tables.rewind()
    assert index(tables, A) == 0
    tables.retire_before(11)
    tables.forget_retired()
    tables.rewind()
    assert index(tables, A) == -1


@pytest.mark.parametrize("with_cdc", [True, False])
def test_a_rewind_keeps_what_the_schema_said_since(with_cdc: bool) -> None:
    tables = KnownTables()
    updated(tables, A)
    updated(tables, replace(A, cdc=False), newest=10)
    tables.retire_before(11)
    now = replace(A, cdc=True) if with_cdc else table_of("a", "pk text pk, v int", id=8)
    updated(tables, now, newest=11)
    tables.rewind()
    tables.retire_before(12)
    # With CDC again it stays followed; recreated with another key, the old one's events would not fit its topic.
    assert index(tables, now) >= 0
    assert (index(tables, A) >= 0) == with_cdc


def test_a_table_that_lost_cdc_while_the_agent_was_down() -> None:
    tables = KnownTables(before=[PLAIN.id, uuid.uuid4()])
    assert updated(tables, PLAIN, newest=10) == (["ks.plain"], [], ["ks.plain"])
    tables.retire_before(11)
    assert index(tables, PLAIN) == -1
    assert updated(tables, table_of("plain", "pk int pk, v int, w int", cdc=False)) == ([], [], [])
    assert index(tables, PLAIN) == -1


def test_a_table_that_has_cdc_again() -> None:
    tables = KnownTables()
    assert tables.update({A.id: A}, (), 10).resumed == []
    tables.update({A.id: replace(A, cdc=False)}, (), 10)
    assert tables.paused == {A.id}
    for run in (tables, KnownTables(paused=[A.id])):
        assert run.update({A.id: A}, (), 12).resumed == [A]
        assert run.paused == set()
        assert run.update({A.id: A}, (), 12).resumed == []
    # One that is excluded from now on is a gap when it is included again, and none before.
    excluding = KnownTables(exclude=[r"ks\.a"], before=[A.id])
    assert excluding.update({A.id: A}, (), 12).resumed == []
    assert excluding.paused == {A.id}
    assert KnownTables(paused=excluding.paused).update({A.id: A}, (), 12).resumed == [A]
    never_followed = KnownTables(exclude=[r"ks\.a"])
    never_followed.update({A.id: A}, (), 12)
    assert never_followed.paused == set()
    # One that is excluded meanwhile, or dropped, is none of our business.
    assert KnownTables(exclude=[r"ks\.a"], paused=[A.id]).update({A.id: A}, (), 12).resumed == []
    tables = KnownTables(paused=[A.id])
    tables.update({B.id: B}, (), 12)
    assert tables.paused == set()


def dropped(tables: KnownTables, *known_tables: Table, newest: int = 10) -> list[str]:
    return [str(t.id) for t in tables.update({t.id: t for t in known_tables}, (), newest).dropped]


def test_a_dropped_table_is_followed_to_the_end_of_the_existing_segments() -> None:
    for history in ((), (A,)):
        tables = KnownTables(history=history, before=[A.id])
        if not history:
            updated(tables, A, B)
        assert dropped(tables, B, newest=10) == [str(A.id)]
        assert dropped(tables, B, newest=12) == []
        tables.retire_before(10)
        assert tables.followed[index(tables, A)] == A
        tables.retire_before(11)
        assert index(tables, A) == -1
        assert tables.plans[A.id.bytes].reason == "dropped_table"
        assert tables.followed_ids == [B.id]


def test_a_recreated_table() -> None:
    tables = KnownTables()
    updated(tables, A)
    same = table_of("a", "pk int pk, other text", id=7)
    assert updated(tables, same) == (["ks.a"], [], [])
    assert (index(tables, A), index(tables, same)) == (0, 1)
    # What the old one has left would be no key of the new one.
    for columns in ("pk text pk, v int", "pk int pk, c int ck", "id int pk, v int"):
        tables = KnownTables()
        updated(tables, A)
        recreated = table_of("a", columns, id=8)
        assert updated(tables, recreated) == (["ks.a"], [], [])
        assert (index(tables, A), index(tables, recreated)) == (-1, 1)
        assert tables.plans[A.id.bytes].reason == "dropped_table"
        assert tables.followed_ids == [recreated.id]
        updated(tables, recreated)
        tables.retire_before(99)
        assert tables.plans[A.id.bytes].reason == "dropped_table"


def test_recreated_long_after_the_drop() -> None:
    tables = KnownTables()
    updated(tables, A)
    updated(tables)
    assert index(tables, A) == 0
    updated(tables, table_of("a", "pk text pk, v int", id=8))
    assert tables.plans[A.id.bytes].reason == "dropped_table"


def test_saved_tables() -> None:
    """All that may share a mutation with a followed table, as long as the log may name it."""
    tables = KnownTables()
    elsewhere = table_of("x", "pk int pk, v int", keyspace="other", cdc=False)
    updated(tables, A, PLAIN, elsewhere)
    assert tables.remembered == [A, PLAIN]
    updated(tables, A, elsewhere, newest=10)
    assert tables.remembered == [A, PLAIN]
    restored = KnownTables(before=[A.id], history=[A, PLAIN])
    assert updated(restored, A) == (["ks.a"], [], [])
    assert restored.knows(UnknownSchema(PLAIN.id.bytes))
    assert index(restored, PLAIN) == -1
    tables.retire_before(11)
    assert tables.remembered == [A]
    assert tables.knows(UnknownSchema(PLAIN.id.bytes))


def test_a_table_that_a_torn_read_left_out_is_followed_again() -> None:
    tables = KnownTables()
    updated(tables, A, B)
    updated(tables, B, newest=10)
    updated(tables, A, B, newest=10)
    tables.retire_before(99)
    assert index(tables, A) == 0


def test_views_and_the_schema() -> None:
    tables = KnownTables()
    view = uuid.uuid4()
    schema = table_of("tables", "pk text pk, v int", cdc=False, keyspace="system_schema")
    tables.update({schema.id: schema}, (view,), 0)
    assert tables.plans[view.bytes].is_known
    assert tables.plans[view.bytes].index == -1
    assert tables.plans[schema.id.bytes].schema


def test_giving_up() -> None:
    tables = KnownTables()
    updated(tables, A)
    stranger = UnknownSchema(bytes(16))
    assert not tables.knows(stranger)
    tables.give_up(stranger)
    assert not tables.plans[bytes(16)].is_known
    column = UnknownSchema(A.id.bytes, b"u")
    assert not tables.knows(column)
    assert tables.knows(UnknownSchema(A.id.bytes, b"v"))
    assert (tables.name(stranger), tables.name(column)) == (None, "ks.a")
    tables.give_up(column)
    assert str(column) == f"table {A.id.hex}, column u"


def test_compact_table_with_hidden_columns_is_refused() -> None:
    compact = replace(A, hides_columns=True)
    tables = KnownTables()
    assert updated(tables, compact, B) == (["ks.b"], ["ks.a"], [])
    assert tables.plans[A.id.bytes].reason == "unsupported_table"
    assert updated(tables, replace(compact, columns=(*A.columns, B.columns[1])), B) == ([], [], [])
    assert updated(tables, A, B) == (["ks.a"], [], [])
    assert index(tables, A) >= 0


Read = tuple[Table, Stamp, int | None]
"""What a read of the schema has of the table, with the time of an ALTER that came while it was read."""


def read_of(history: list[Table], steps: list[int]) -> Read:
    """A read that looks at the table four times, in the order in which the agent does: when it was altered, its
    definition, its options, and when it was altered. Each has the table as it is after so many of its ALTERs.
    """
    before, definition, options, after = steps
    stamp = Stamp(before, str(history[options].cdc))
    return history[definition], stamp, after if after != before else None


def reads_of(rng: random.Random, history: list[Table]) -> list[Read]:
    """Some reads one after the other, of which the last one is not disturbed."""
    steps, reads = 0, []
    while steps < len(history) - 1:
        places = [min(steps + rng.choice((0, 0, 0, 1, 2, 5)), len(history) - 1)]
        for _ in range(3):
            places.append(min(places[-1] + rng.choice((0, 0, 0, 1, 1, 3)), len(history) - 1))
        steps = places[-1]
        reads.append(read_of(history, places))
    last = len(history) - 1
    return [read_of(history, [0] * 4), *reads, read_of(history, [last] * 4)]


def resumed(reads: list[Read]) -> int:
    """How often a table counts as one that was without CDC."""
    tables, resumed_count = KnownTables(), 0
    for table, stamp, meanwhile in reads:
        late = {} if meanwhile is None else {table.id: meanwhile}
        resumed_count += len(tables.update({table.id: table}, (), 10, {table.id: stamp}, late).resumed)
    return resumed_count


@given(st.integers(0, 1 << 32), st.integers(1, 12))
def test_a_table_that_is_altered_while_it_is_read_was_never_without_cdc(seed: int, alters: int) -> None:
    """Each ALTER adds a column."""
    columns = [f"v{number} int" for number in range(alters)]
    history = [table_of("a", ", ".join(["pk int pk", *columns[:number]]), id=7) for number in range(alters + 1)]
    assert resumed(reads_of(random.Random(seed), history)) == 0


@given(st.integers(0, 1 << 32), st.integers(1, 4))
def test_a_table_that_was_without_cdc_for_a_moment_is_noticed(seed: int, flips: int) -> None:
    """However its ALTERs fall between the statements that read the schema."""
    history = [A, *[replace(A, cdc=False), A] * flips]
    reads = reads_of(random.Random(seed), history)
    assert 1 <= resumed(reads) <= flips
