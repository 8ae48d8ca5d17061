"""A batch that takes long: what it appends is committed on the way, or brokers would abort its transaction."""

from __future__ import annotations

from pathlib import Path

import pytest
from connector.staged import CLUSTERED, NODE, Staged

from helenus_connector.interfaces.image import Image
from helenus_connector.testing.log import MemoryLog
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.event.change import Change


def test_a_stage_lets_the_log_commit_after_each_group_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(MemoryLog, "keep_short", lambda *_: calls.append("keep_short"))
    flush = MemoryLog.flush
    monkeypatch.setattr(MemoryLog, "flush", lambda log, timeout: calls.append("flush") or flush(log, timeout))
    stage = Staged(CLUSTERED, tmp_path, monkeypatch)
    key = (bytes(4), bytes(4))
    stage.live[key] = Image((bytes(4),), 1)
    change = Change("0" * 32, NODE, write_time=1, segment=1, position=0)
    assert stage.run(change, KeyCodec(CLUSTERED).encode(key)).records == 1
    assert calls == ["keep_short", "flush"]
