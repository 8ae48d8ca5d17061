"""One mutation as different replicas log it gives the same events, digest included: whatever flags and epochs a node of
Cassandra 6.0 has put in, and however many rows a coordinator counted.
"""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

from agent.strategies import mutations
from agent.test_decoder import NODE, SEGMENT, plans
from agent.test_fuzz import plainly, slow
from agent.writer import Update, entry, flagged_mutation, mutation, with_row_counts
from hypothesis import given
from hypothesis import strategies as st

from helenus_schemas.event import wire

EPOCHS = st.one_of(st.integers(0, 200), st.integers(0, 2**64 - 1))


def decode(decoder: ModuleType, version: int, base: int, payload: bytes, updates: list[Update]) -> Any:
    tables = {update.table.id: update.table for update in updates}
    table_plans = plans(decoder, *tables.values())
    return decoder.decode(entry(payload), base, True, table_plans, NODE, SEGMENT, version, 10**6)


@slow
@given(batches=mutations(), data=st.data())
def test_the_same_events_as_an_older_node_gives(
    decoder: ModuleType, batches: list[list[Update]], data: st.DataObject
) -> None:
    for updates in batches:
        older, epochs = mutation(*updates), [data.draw(EPOCHS) for _ in updates]
        newer = flagged_mutation(data.draw(st.integers(0, 255)), epochs, *updates)
        batch = decode(decoder, 9, 100, newer, updates)
        # A position is where an entry ends: they end at the same.
        wanted = decode(decoder, 8, 100 + len(newer) - len(older), older, updates)
        assert batch.problems == []
        assert batch.changes == wanted.changes
        assert (batch.skipped, batch.mutations, batch.next) == (wanted.skipped, 1, len(newer) + 12)


@slow
@given(batches=mutations(), data=st.data())
def test_damage_is_found_alike_in_both_forms(
    plain: ModuleType, compiled: ModuleType, batches: list[list[Update]], data: st.DataObject
) -> None:
    updates = batches[0]
    payload = bytearray(flagged_mutation(0, [data.draw(EPOCHS) for _ in updates], *updates))
    position = data.draw(st.integers(0, len(payload) - 1))
    payload[position] = data.draw(st.integers(0, 255))
    end = data.draw(st.one_of(st.just(len(payload)), st.integers(1, len(payload))))
    damaged = bytes(payload[:end])
    read = [plainly(decode(decoder, 9, 0, damaged, updates)) for decoder in (plain, compiled)]
    assert read[0] == read[1]


def test_a_mutation_that_ends_in_its_flags(decoder: ModuleType) -> None:
    batch = decoder.decode(entry(b"\0\1" + bytes(8)), 0, True, {}, NODE, SEGMENT, 9, 10)
    assert batch.problems == [(0, "an update that is cut off")]


@slow
@given(batches=mutations(), data=st.data())
def test_row_estimates_are_no_part_of_the_digest(
    decoder: ModuleType, batches: list[list[Update]], data: st.DataObject
) -> None:
    """A coordinator counts rows that a deletion of the same mutation hides; a replica that serialises it anew has none.
    Also of a table that is not followed, behind one that is.
    """
    for updates in batches:
        estimated = [replace(u, estimate=data.draw(st.integers(0, 2**40))) for u in updates]
        tables = {update.table.id: update.table for update in updates}
        followed = {updates[0].table.id}
        digests = set()
        for written in (estimated, with_row_counts(estimated)):
            table_plans = {
                table.id.bytes: decoder.plan_table(table, 0 if table.id in followed else -1)
                for table in tables.values()
            }
            for version, payload in ((8, mutation(*written)), (9, flagged_mutation(1, [7] * len(written), *written))):
                batch = decoder.decode(entry(payload), 0, True, table_plans, NODE, SEGMENT, version, 10**6)
                assert batch.problems == []
                digests |= {wire.decode(value).digest for *_, value in batch.changes}
        assert len(digests) <= 1
