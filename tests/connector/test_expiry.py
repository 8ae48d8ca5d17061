"""When rows expire that no event says it of: those that a snapshot, or a repair, asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from connector.staged import CLUSTERED, NODE, Staged, int32, table

from helenus_connector.interfaces.image import Image
from helenus_connector.reread import resolver
from helenus_connector.testing.cassandra import MemoryReader
from helenus_schemas.codec.key import Key
from helenus_schemas.event.change import Change, Origin, Scope

SHARED = table(("a", "int", "partition_key"), ("c", "int", "clustering"), ("s", "int", "static"))


class Expiring(MemoryReader):
    """Rows whose cells expire, as far as that is asked for."""

    def read_row_lists(self, keys: Iterable[Key], consistency: int) -> Iterator[list[tuple[Key, Any]]]:
        for [(key, image)] in super().read_row_lists(keys, consistency):
            self.saw_ttl |= self.asks_ttl and image.expires is not None
            yield [(key, image if self.asks_ttl else image._replace(expires=None))]

    read_along_ring = read_row_lists

    def read_statics(self, key: Key, consistency: int) -> Image | None:
        return Image((int32(3), None), 5, expires=2_000_000_000 if self.asks_ttl else None)


@pytest.mark.parametrize("origin", [Origin.SNAPSHOT_FIRST, Origin.SNAPSHOT, Origin.REPAIR])
def test_a_row_that_was_there_before_says_when_it_expires(
    origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No event says that it does; from then on the rows are asked when they do, also after other changes."""
    staged = Staged(CLUSTERED, tmp_path, monkeypatch)
    monkeypatch.setattr(resolver, "RowReader", lambda session, table, settings: Expiring(staged.live, table))
    forever, soon = (int32(1), int32(1)), (int32(1), int32(2))
    staged.live = {forever: Image((int32(1),), 5), soon: Image((int32(1),), 5, expires=2_000_000_000)}
    snapshot_change, changed = Change(None, None, origin=origin), Change("0" * 32, NODE, write_time=5)

    def expires(change: Change, key: Key) -> bytes | None:
        staged.run(change, staged.codec.encode(key))
        return dict(staged.appended[-1].headers).get("expires")

    assert expires(changed, soon) is None, "nothing says so, and it is not asked for in vain"
    assert expires(snapshot_change, forever) is None
    staged.live[soon] = staged.live[soon]._replace(write_time=6)
    assert expires(changed._replace(digest="1" * 32, write_time=6), soon) is None, "of rows without TTL nothing follows"
    assert expires(snapshot_change, soon) == b"2000000000"
    staged.live[soon] = staged.live[soon]._replace(write_time=7)
    assert expires(changed._replace(digest="2" * 32, write_time=7), soon) == b"2000000000"


def test_a_marker_says_when_the_static_columns_that_it_shows_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = Staged(SHARED, tmp_path, monkeypatch)
    monkeypatch.setattr(resolver, "RowReader", lambda session, table, settings: Expiring({}, table))
    partition = staged.codec.encode((int32(1), None))
    static = Change("0" * 32, NODE, scope=Scope.STATIC, write_time=5, expires_at=2_000_000_000)
    deletion = Change("1" * 32, NODE, scope=Scope.PARTITION, write_time=4)
    for change in static, deletion:
        staged.run(change, partition)
        assert dict(staged.appended[-1].headers)["expires"] == b"2000000000"
    assert dict(staged.appended[-1].headers)["scope"] == b"partition"
