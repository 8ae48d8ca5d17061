"""The decoder against Cassandra's own CommitLogReader, on what a real node has just written."""

from __future__ import annotations

from collections import Counter
from types import ModuleType

import pytest
from agent.oracle.reader import decoded
from agent.oracle.recording import Recording

from helenus_schemas.event.change import Scope

pytestmark = [
    pytest.mark.integration,
    # The driver's event loop is ended by its own thread, which leaves warnings of no interest.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.parametrize("most", [1 << 16, 1 << 24])
def test_every_change_is_as_cassandra_reads_it(recording: Recording, decoder: ModuleType, most: int) -> None:
    """Record for record, field for field, in the log's order, whatever a read brings in at once."""
    found = list(decoded(decoder, recording.tables, recording.views, recording.segments, most))
    for mine, told in zip(found, recording.told, strict=False):
        assert mine == told, f"{recording.tables[told.table].full_name}, seed {recording.seed}"
    assert len(found) == len(recording.told), f"seed {recording.seed}"


def test_the_recording_has_something_of_everything(recording: Recording) -> None:
    seen = Counter((recording.tables[r.table].keyspace, r.scope) for r in recording.told)
    assert all(seen["o", scope] > 10 for scope in (Scope.ROW, Scope.STATIC, Scope.PARTITION, Scope.RANGE))
    assert seen["system", Scope.ROW] > 10
    assert seen["system_schema", Scope.ROW] > 10
    ours = [r for r in recording.told if recording.tables[r.table].keyspace == "o"]
    assert any(r.parts > 3 for r in ours)
    assert any(r.expires_at for r in ours)
    assert any(r.write_time is not None and r.write_time < 0 for r in ours)
