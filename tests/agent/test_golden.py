"""What a real Cassandra wrote comes to what its statements say."""

from __future__ import annotations

import gzip
import json
from types import ModuleType

from agent import golden
from agent.golden import NODE, STATEMENTS, read

from helenus_schemas import change


def test_statements(decoder: ModuleType) -> None:
    tables, views, _ = golden.load()
    followed = [t for t in tables.values() if t.cdc]
    by_name = {t.name: t for t in followed}
    changes, skipped, mutations = read(decoder, followed, tables, views)
    expected = [e for _, some in STATEMENTS for e in some]
    told = [(followed[index], partition, key, change.decode(value)) for index, partition, key, value in changes]

    assert len(told) == len(expected)
    for (table, _, key, found), want in zip(told, expected, strict=True):
        assert (table.name, found.scope.name) == (want.table, want.scope)
        assert key == golden.expected_key(by_name[want.table], want.key)
        assert (found.part, found.parts) == (want.part, want.parts)
        assert want.time is None or found.write_time == want.time
        assert found.write_time is not None
        assert (found.expires_at is not None) == want.expires
        assert found.node == NODE
        assert (found.start, found.end) == (want.start, want.end)
    assert sorted(skipped) == ["unknown_table"]
    assert mutations > len(STATEMENTS)


def test_every_table_can_be_walked(decoder: ModuleType) -> None:
    """All tables of the node followed, its own system tables too: what is skipped elsewhere is decoded here."""
    tables, views, _ = golden.load()
    followed = list(tables.values())
    changes, _, _ = read(decoder, followed, tables, views)
    assert {followed[index].keyspace for index, *_ in changes} >= {"system", "system_schema", "g"}


def test_events_stay_the_same(decoder: ModuleType) -> None:
    """Byte for byte what they were when the golden segments were recorded: others read them."""
    tables, views, _ = golden.load()
    followed = [t for t in tables.values() if t.cdc]
    changes, _, _ = read(decoder, followed, tables, views)
    with gzip.open(golden.EVENTS, "rt") as file:
        assert golden.events_json(followed, changes) == json.load(file)
