"""At random: what is written comes out, and what is broken neither crashes nor differs between plain and compiled."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pytest
from agent.expected import events
from agent.strategies import mutations
from agent.test_decoder import NODE, SEGMENT, plans
from agent.writer import Cell, Complex, Marker, Row, Update, entry, mutation, table_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

slow = settings(
    max_examples=settings.default.max_examples * 3 // 10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
BASE = 4000


def decode(decoder: ModuleType, data: bytes, update_lists: list[list[Update]]) -> Any:
    tables = {u.table.id: u.table for updates in update_lists for u in updates}
    return decoder.decode(data, BASE, True, plans(decoder, *tables.values()), NODE, SEGMENT, 8, 10**9)


def plainly(batch: Any) -> Any:
    """A batch without its exception object, and without the words of a problem: they may differ."""
    unknown = batch.unknown and (batch.unknown.table, batch.unknown.column)
    return [*batch[:4], [position for position, _ in batch.problems], *batch[5:7], unknown]


@slow
@given(update_lists=mutations())
def test_round_trip(decoder: ModuleType, update_lists: list[list[Update]]) -> None:
    expected = []
    data = b""
    for updates in update_lists:
        data += entry(mutation(*updates))
        expected += events(updates, NODE, SEGMENT, BASE + len(data))
    batch = decode(decoder, data, update_lists)
    followed = [t.full_name for t in {u.table.id: u.table for us in update_lists for u in us}.values() if t.cdc]
    assert [(followed[i], partition, key, value) for i, partition, key, value in batch.changes] == expected
    assert (batch.problems, batch.broken, batch.unknown) == ([], False, None)
    assert (batch.next, batch.mutations) == (len(data), len(update_lists))
    assert batch.skipped == []


@slow
@given(update_lists=mutations(), data=st.data())
def test_damaged_mutations(
    plain: ModuleType, compiled: ModuleType, update_lists: list[list[Update]], data: st.DataObject
) -> None:
    """Damage under right CRCs: the grammar alone must catch it, the same way in both."""
    payload = bytearray(mutation(*update_lists[0]))
    for _ in range(data.draw(st.integers(1, 3))):
        kind = data.draw(st.integers(0, 3))
        position = data.draw(st.integers(0, len(payload) - 1))
        if kind == 0:
            payload[position] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == 1:
            payload[position] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFE, 0xFF]))
        elif kind == 2:
            payload = payload[: max(position, 1)]
        else:
            payload[position:position] = data.draw(st.binary(min_size=1, max_size=9))
    while len(payload) < 10:
        payload += b"\0"
    stream = entry(bytes(payload)) + entry(mutation(*update_lists[-1]))
    assert plainly(decode(plain, stream, update_lists)) == plainly(decode(compiled, stream, update_lists))


@slow
@given(update_lists=mutations(), data=st.data())
def test_damaged_sections(decoder: ModuleType, update_lists: list[list[Update]], data: st.DataObject) -> None:
    """Damage that a CRC sees: changes are missing and a problem is reported, or nothing is different."""
    stream = b"".join(entry(mutation(*updates)) for updates in update_lists)
    whole = decode(decoder, stream, update_lists)
    cut = stream[: data.draw(st.integers(0, len(stream)))]
    batch = decode(decoder, cut, update_lists)
    assert batch.changes == whole.changes[: len(batch.changes)]
    assert batch.problems or batch.next == len(cut)

    flipped = bytearray(stream)
    flipped[data.draw(st.integers(0, len(stream) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    batch = decode(decoder, bytes(flipped), update_lists)
    assert batch.problems
    assert all(change in whole.changes for change in batch.changes)


def rich() -> list[Update]:
    """A mutation with a bit of everything."""
    table = table_of("t", "pk int pk, p2 text pk, c1 int ck, c2 text ck, s list<int> static, v int, w text, x set<int>")
    other = table_of("u", "pk text pk, v int", cdc=False)
    cell = Cell(b"1234", time=5)
    rows = [
        Row((b"\0\0\0\1", b"two"), {"v": cell, "x": Complex([Cell(b"", path=b"1234")], (3, 4))}, time=9),
        Marker(7, (b"\0\0\0\1", b"two"), ((7, 8),)),
        Marker(5, (b"\0\0\0\1",), ((7, 8), (9, 10))),
        Marker(0, (), ((9, 10),)),
        Row((b"\0\0\0\2", b""), {"v": cell, "w": Cell(b"x" * 200, row_ttl=True)}, time=9, expires=(5, 6)),
        Row((b"\0\0\0\3", b"z"), deletion=(4, 5)),
    ]
    static = Row((), {"s": Complex([cell, cell])})
    key = b"\0\4\0\0\0\1\0\0\1x\0"
    return [Update(table, key, rows, static, (1, 2), 3), Update(other, b"k"), Update(table, key, rows[:1])]


@pytest.mark.parametrize(
    "seed", [seed if seed < 2 else pytest.param(seed, marks=pytest.mark.long) for seed in range(10)]
)
def test_many_small_damages(plain: ModuleType, compiled: ModuleType, seed: int) -> None:
    noise = random.Random(seed)
    whole = mutation(*rich())
    bad = (0, 1, 2, 4, 8, 127, 128, 254, 255)
    decoded = 0
    for _ in range(2_000):
        payload = bytearray(whole)
        for _ in range(noise.randrange(1, 4)):
            payload[noise.randrange(18, len(payload))] = noise.choice((*bad, noise.randrange(256)))
        stream = entry(bytes(payload))
        batches = [decode(m, stream, [rich()]) for m in (plain, compiled)]
        assert plainly(batches[0]) == plainly(batches[1])
        decoded += len(batches[0].changes)
    assert decoded
