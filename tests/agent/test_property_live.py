"""The decoder on what a real node has written: against what the statements say, and Cassandra's own CommitLogReader.

Both are in one file, so that one process of tests records both.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from agent import golden
from agent.oracle.fold import Folded
from agent.oracle.reader import Record, decoded, followed, is_of_5_0, write_schema
from agent.oracle.recording import Recording
from agent.oracle.workload import KEYSPACE, Done, Expected

from helenus_schemas.event.change import Scope
from helenus_stack.cassandra import configuration
from helenus_stack.settings import Settings

pytestmark = [
    pytest.mark.integration,
    # The driver's event loop is ended by its own thread, which leaves warnings of no interest.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
# µs by which the driver's clock and Cassandra's, for conditions, may be ahead.
_AHEAD = 1_000_000


def test_every_statement_gives_the_expected_events(recording: Recording, decoder: ModuleType) -> None:
    names = {i: table.name for i, table in recording.tables.items() if table.keyspace == KEYSPACE}
    records = decoded(decoder, recording.tables, recording.views, recording.segments, 1 << 22)
    ours = (record for record in records if record.table in names)
    checked = 0
    for executed, records_of_operation in zip(recording.executed, _by_operation(ours, names), strict=True):
        if executed.expected is None:
            continue
        checked += 1
        where = f"{executed.operation}, seed {recording.seed}"
        wanted = sorted(executed.expected, key=_order)
        got = sorted(records_of_operation, key=lambda record: repr(_identity(names, record)))
        assert [_identity(names, r) for r in got] == [_expected_identity(e) for e in wanted], where
        for record, expected in zip(got, wanted, strict=True):
            _check_times(record, expected, executed, where)
        assert _are_numbered(records_of_operation), where
    assert checked > len(recording.executed) * 0.8


@pytest.mark.parametrize("piece_size", [1 << 16, 1 << 24])
def test_every_change_event_is_as_cassandra_reads_it(
    recording: Recording, decoder: ModuleType, piece_size: int
) -> None:
    """Record for record, field for field, in the log's order, whatever a read brings in at once."""
    decoded_records = list(decoded(decoder, recording.tables, recording.views, recording.segments, piece_size))
    for mine, record in zip(decoded_records, recording.records, strict=False):
        assert mine == record, f"{recording.tables[record.table].full_name}, seed {recording.seed}"
    assert len(decoded_records) == len(recording.records), f"seed {recording.seed}"


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in golden.RECORDINGS if name[0] < "9"])
def test_golden_segments_are_as_cassandra_reads_them(
    oracles: Any, compiled: ModuleType, tmp_path: Path, name: str
) -> None:
    """Of version 9 its reader wants the tables that were dropped, which a recording does not keep."""
    recording = golden.load(name)
    recording.unpack(tmp_path)
    segments = sorted(tmp_path.glob("*.log"))
    yaml = tmp_path / "cassandra.yaml"
    yaml.write_text(json.dumps(configuration(Settings(), 0, tmp_path / "node")))
    schema = write_schema(recording.tables.values(), "g")
    records = oracles("5.0").read(yaml, schema, segments, followed(recording.tables))
    assert list(decoded(compiled, recording.tables, recording.views, segments, 1 << 16)) == records
    assert sum(recording.tables[record.table].keyspace == "g" for record in records) == 41


def test_all_cells_of_a_key_fold_to_what_select_gives(recording: Recording, compiled: ModuleType) -> None:
    """Values, write times and TTLs, of every row there is."""
    compared = 0
    records = list(decoded(compiled, recording.tables, recording.views, recording.segments, 1 << 24))
    for table, selected in recording.selected.items():
        of_table = (record for record in records if record.table == table)
        folded = Folded(recording.tables[table], of_table, recording.version.startswith("3."))
        compared += folded.compare(selected)
    assert compared > 100, f"seed {recording.seed}"


def test_the_recording_has_something_of_everything(recording: Recording) -> None:
    seen = Counter((recording.tables[r.table].keyspace, r.scope) for r in recording.records)
    assert all(seen["o", scope] > 10 for scope in (Scope.ROW, Scope.STATIC, Scope.PARTITION, Scope.RANGE))
    if is_of_5_0(recording.tables):
        assert seen["system", Scope.ROW] > 10
        assert seen["system_schema", Scope.ROW] > 10
    ours = [r for r in recording.records if recording.tables[r.table].keyspace == "o"]
    assert any(r.parts > 3 for r in ours)
    assert any(r.expires_at for r in ours)
    assert any(r.write_time is not None and r.write_time < 0 for r in ours)


def _by_operation(records: Iterator[Record], names: dict[Any, str]) -> Iterator[list[Record]]:
    """The records before each row of `marks`."""
    records_of_operation: list[Record] = []
    number = 0
    for record in records:
        if names[record.table] == "marks":
            number += 1
            assert int.from_bytes(record.partition, "big") == number
            yield records_of_operation
            records_of_operation = []
        else:
            records_of_operation.append(record)


def _identity(names: dict[Any, str], record: Record) -> tuple[Any, ...]:
    return (names[record.table], record.scope, record.partition, record.clustering, record.start, record.end)


def _expected_identity(expected: Expected) -> tuple[Any, ...]:
    key = expected.partition
    partition = key[0] if len(key) == 1 else b"".join(len(k).to_bytes(2, "big") + k + b"\0" for k in key)
    return (expected.table, expected.scope, partition, expected.clustering, expected.start, expected.end)


def _order(expected: Expected) -> str:
    return repr(_expected_identity(expected))


def _check_times(record: Record, expected: Expected, executed: Done, where: str) -> None:
    assert record.write_time is not None, where
    if expected.time is not None:
        assert record.write_time == expected.time, where
    else:
        assert executed.first - _AHEAD <= record.write_time <= executed.last + _AHEAD, where
    if expected.ttl is None:
        assert record.expires_at is None, where
    else:
        assert record.expires_at is not None, where
        first, last = (time // 1_000_000 + expected.ttl for time in (executed.first, executed.last))
        assert first <= record.expires_at <= last, where


def _are_numbered(records: list[Record]) -> bool:
    """Whether the records of each mutation are its parts, in order, and share its digest."""
    mutations: dict[int, list[Record]] = {}
    for record in records:
        mutations.setdefault(record.position, []).append(record)
    return all(
        [(r.part, r.parts, r.digest) for r in of_mutation]
        == [(i, len(of_mutation), of_mutation[0].digest) for i in range(len(of_mutation))]
        for of_mutation in mutations.values()
    )
