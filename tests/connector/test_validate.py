"""`helenus-connector validate`: all that is wrong with any file, at once, and no secret told."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from helenus_connector.cli import main

WORKER = "bootstrap.servers=k:9092\ncheckpoint.dir=/tmp/none\nproducer.sasl.password=hunter2\n"
TABLE = "name=a\nkeyspace=shop\ntable=orders\noutput.format=json\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in {"worker": WORKER, "a": TABLE, "same": TABLE}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def validate(*files: str) -> Result:
    return CliRunner().invoke(main, ["validate", *files])


def test_valid_files(here: Path) -> None:
    done = validate("worker", "a")
    assert (done.exit_code, done.stdout) == (0, "worker is valid\na is valid\n")


def test_the_errors_of_all_files(here: Path) -> None:
    (here / "worker").write_text(WORKER + "listeners=8083\nprodcer.sasl.password=hunter2\n")
    (here / "a").write_text(TABLE + "cassandra.pasword=hunter2\nmax.batch.size=many\nqery.consistency=ONE\n")
    done = validate("worker", "a", "absent")
    assert done.exit_code == 2
    first, *lines = done.stderr.splitlines()
    assert first.startswith("helenus-connector: 6 properties are wrong")
    for told in (
        "worker: listeners=8083: give one listener",
        "worker: prodcer.sasl.password=*****: unknown property, did you mean producer.sasl.password?",
        "a: cassandra.pasword=*****: unknown property, did you mean cassandra.password?",
        "a: max.batch.size=many: Input should be a valid integer",
        "a: qery.consistency=ONE: unknown property, did you mean query.consistency?",
        "absent: cannot read the properties file",
    ):
        assert [line for line in lines if line.startswith(f"  {told}")], told
    assert "hunter2" not in done.output


def test_two_files_with_one_name(here: Path) -> None:
    done = validate("worker", "a", "same")
    assert done.exit_code == 2
    assert done.stderr.startswith("helenus-connector: name=a: a has the same (same)")
