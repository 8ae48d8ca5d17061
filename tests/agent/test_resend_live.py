"""`helenus-agent resend` with a real Cassandra and a real Kafka: what an agent archived is sent again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agent.test_live import MAIN, Live, live, servers

from helenus_schemas.event import wire

__all__ = ["live", "servers"]  # fixtures

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ROWS = 3000


def test_an_archive_is_sent_again(live: Live, tmp_path: Path) -> None:
    """The events are those of before but for their cells, also after an ALTER; a dropped table's are not sent."""
    archive = tmp_path / "archive"
    live.table("archived")
    live.table("archived_and_dropped")
    more = {"segment_transfer": "archive", "segment_archive_dir": str(archive), "cells_include_list": r"live\..*"}
    agent = live.start(**more)
    live.insert("archived_and_dropped", 0, 10)
    count = 0
    while len(list(archive.glob("*.log"))) < 2:  # a segment ends when it is full, and all in it is flushed
        assert count < 20 * ROWS, live.out.read_text()
        live.insert("archived", count, count + ROWS)
        count += ROWS
        live.arrive("archived", count)
        live.stack.nodetool("flush")
    live.session.execute("ALTER TABLE live.archived ADD w int")
    live.session.execute("DROP TABLE live.archived_and_dropped")
    assert live.stop(agent) == 0
    before = live.events("events-live.archived")
    files = {path.name: path.read_bytes() for path in archive.iterdir()}
    saved = (tmp_path / "state/positions.json").read_bytes()

    def resend(*arguments: str, **properties: str) -> tuple[int, str]:
        path = tmp_path / "agent.properties"
        own = "".join(f"{key.replace('_', '.')}={value}\n" for key, value in properties.items())
        (tmp_path / "resend.properties").write_text(path.read_text() + own)
        command = [sys.executable, "-c", MAIN, "resend", str(tmp_path / "resend.properties"), *arguments]
        process = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return process.returncode, process.stdout + process.stderr

    def sent_since(count: int) -> list[tuple[bytes, Any]]:
        return [(key, wire.decode(value)) for key, value in live.events("events-live.archived")[count:]]

    code, output = resend()
    assert code == 0, output
    assert output.count(" events") == len(list(archive.glob("*.log")))
    resent = sent_since(len(before))
    assert resent
    sent_first = {(key, change.segment, change.position) for key, change in sent_since(0)[: len(before)]}
    assert {(key, change.segment, change.position) for key, change in resent} <= sent_first
    assert all(change.cells is None for _, change in resent)
    newest = max(archive.glob("*.log")).name
    code, output = resend(newest, "--offline", segment_source=f"file://{archive}")
    assert code == 0, output
    assert {change.segment for _, change in sent_since(len(before) + len(resent))} == {int(newest.split("-")[2][:-4])}
    assert {path.name: path.read_bytes() for path in archive.iterdir()} == files
    assert (tmp_path / "state/positions.json").read_bytes() == saved
