"""Mistakes around the command: what is not installed, and where a worker can't write. One line, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from helenus_connector.cli import main

EXTRAS = "pyspark pyarrow pandas fastavro rich starlette uvicorn httpx authlib cachetools pulsar trustme cryptography"
AGENT_ONLY = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS!r}.split()))
from {{module}} import main
main()
"""
WORKER = "bootstrap.servers=127.0.0.1:1\ncheckpoint.dir={}\nlisteners=http://127.0.0.1:0\n"
TABLE = "name=a\nkeyspace=shop\ntable=orders\nvalue.converter.schema.registry.url=http://127.0.0.1:1\n"


def agent_only(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", AGENT_ONLY.format(module=module), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("command", ["run", "validate", "schemas", "top"])
def test_the_connector_where_only_the_agent_is_installed(tmp_path: Path, command: str) -> None:
    (tmp_path / "worker").write_text(WORKER.format(tmp_path / "checkpoint"))
    (tmp_path / "table").write_text(TABLE)
    files = [] if command == "top" else [str(tmp_path / "worker"), str(tmp_path / "table")]
    ended = agent_only("helenus_connector.cli", command, *files)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
    assert "pip install '.[connector]'" in ended.stderr


@pytest.mark.parametrize(
    ("program", "missing"),
    [
        ("agent", "google_crc32c"),  # it writes by itself, without Pulsar's client
        ("worker", "pulsar"),
        ("worker", "google_crc32c"),
        ("worker's data", "pulsar"),
    ],
)
def test_pulsar_where_its_extra_is_not_installed(tmp_path: Path, program: str, missing: str) -> None:
    """`validate` finds what the start would refuse."""
    (tmp_path / "cdc_raw").mkdir()
    agent = f"state.dir={tmp_path}/state\ncdc.raw.dir={tmp_path}/cdc_raw\nlog=pulsar\n"
    key = "data.log" if program == "worker's data" else "log"
    text = agent if program == "agent" else f"{WORKER.format(tmp_path)}{key}=pulsar\n"
    (tmp_path / "file").write_text(f"{text}pulsar.service.url=pulsar://b:6650\n")
    command = f"import sys\nsys.modules[{missing!r}] = None\nfrom helenus_{{}}.cli import main\nmain()"
    module = "agent" if program == "agent" else "connector"
    ended = subprocess.run(
        [sys.executable, "-c", command.format(module), "validate", str(tmp_path / "file")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
    assert missing in ended.stderr
    assert "pip install '.[pulsar]'" in ended.stderr


def test_help_where_only_the_agent_is_installed() -> None:
    assert agent_only("helenus_connector.cli", "--help").returncode == 0


def test_the_stack_where_only_the_agent_is_installed() -> None:
    ended = agent_only("helenus_stack.command", "status")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
    assert "pip install . ./compose" in ended.stderr


@pytest.mark.parametrize("command", ["run", "validate"])
@pytest.mark.parametrize("fault", ["file", "below a file", "not writable"])
def test_a_checkpoint_directory_that_cannot_be_made(tmp_path: Path, fault: str, command: str) -> None:
    """As where /var/lib is root's, and the worker is not."""
    if (fault, command, os.getuid()) == ("not writable", "validate", 0):
        pytest.skip("root may write everywhere but in /proc, and only a try shows that")
    checkpoint = tmp_path / "place"
    if fault == "not writable":
        if os.getuid() == 0:
            checkpoint = Path("/proc/none")
        else:
            checkpoint.mkdir(mode=0o500)
    else:
        checkpoint.touch()
        checkpoint = checkpoint / "checkpoint" if fault == "below a file" else checkpoint
    (tmp_path / "worker").write_text(WORKER.format(checkpoint))
    (tmp_path / "table").write_text(TABLE)
    result = CliRunner().invoke(main, [command, str(tmp_path / "worker"), str(tmp_path / "table")])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
    assert str(checkpoint) in result.stderr
    assert "checkpoint.dir" in result.stderr
    assert "create it, owned by the user" in result.stderr


@pytest.mark.parametrize("command", ["run", "validate", "replay", "rebuild"])
def test_certificates_without_the_protocol_that_uses_them(tmp_path: Path, command: str) -> None:
    """It would send everything in the clear."""
    (tmp_path / "worker").write_text(WORKER.format(tmp_path / "checkpoint") + f"kafka.ssl.ca.location={__file__}\n")
    (tmp_path / "table").write_text(TABLE)
    result = CliRunner().invoke(main, [command, str(tmp_path / "worker"), str(tmp_path / "table")])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
    assert "kafka.security.protocol: set it to SSL or SASL_SSL: ssl.* is not used without it" in result.stderr
