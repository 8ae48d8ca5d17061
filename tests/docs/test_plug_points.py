"""The examples of docs/plug-points.md, as they are there: each runs where its setting names it."""

from __future__ import annotations

import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from agent.fakes import FakeCassandra, FakeLog, Raw, write_of
from agent.test_agent import TABLE
from agent.test_resend import resend_from, sent_keys, settings_of

from helenus_agent.resend.source_choice import open_source
from helenus_agent.segments.transfer import transfer_of

PAGE = Path(__file__).parents[2] / "docs" / "plug-points.md"
EXAMPLES = dict(re.findall(r'```python\n"""([\w/]+\.py)"""\n(.*?)```', PAGE.read_text(), re.DOTALL))


@pytest.fixture(autouse=True)
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The examples' modules, which can be imported."""
    packages = set()
    for name, code in EXAMPLES.items():
        path = tmp_path / "modules" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
        packages.add(name.split("/")[0])
    monkeypatch.syspath_prepend(tmp_path / "modules")
    yield
    for name in [name for name in sys.modules if name.split(".")[0] in packages]:
        del sys.modules[name]


@pytest.fixture
def raw(tmp_path: Path) -> Raw:
    raw = Raw(tmp_path / "cdc_raw")
    raw.segment(10)
    raw.write(10, *(write_of(TABLE, key) for key in range(50)))
    raw.index(10, complete=True)
    return raw


def test_a_tar_file_as_a_source(tmp_path: Path, raw: Raw) -> None:
    with tarfile.open(tmp_path / "node1.tar", "w") as tar:
        tar.add(raw.path, "node1")
    named = {"segment_source": "archives.tar:TarSource", "segment_source_config_path": str(tmp_path / "node1.tar")}
    source, log = open_source(settings_of(tmp_path, **named)), FakeLog()
    resent = resend_from(source, FakeCassandra(TABLE), log, settings_of(tmp_path))
    source.close()
    assert sent_keys(log) == list(range(50))
    assert [segment.problems for segment in resent] == [[]]


def test_what_is_uploaded_is_sent_again(tmp_path: Path, raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it was killed between any two steps."""
    monkeypatch.setenv("ARCHIVE_URL", "memory://plug-points")
    path, store = raw.find(10), fsspec.filesystem("memory")
    transfer = transfer_of("archives.upload:Upload", None)
    try:
        store.pipe_file(f"/plug-points/{path.name}", b"half of")
        transfer(path)
        assert raw.names == []
        transfer(path)
        log = FakeLog()
        source = open_source(settings_of(tmp_path, segment_source="memory://plug-points"))
        resend_from(source, FakeCassandra(TABLE), log, settings_of(tmp_path))
        assert sent_keys(log) == list(range(50))
    finally:
        store.rm("/plug-points", recursive=True)
