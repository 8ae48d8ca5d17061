"""Spark's Python processes connect before they import anything: the `sitecustomize` of `query/python_path`."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

import helenus_connector.query

DIRECTORY = Path(helenus_connector.query.__file__).parent / "python_path"
SECRET = "geheim ü"
LIMIT_S = 60
"""No test waits for this: it is how long a process gets that does not connect at all."""
SLOW = """
import os, time
while not os.path.exists(os.environ["CONNECTED"]):
    time.sleep(0.05)
"""
"""A package whose import takes until the process has connected."""
RUNNER = """
import json, os, sys
from pyspark.util import local_connect_and_auth
own = os.environ.get("PYTHON_WORKER_FACTORY_SOCK_PATH") or int(os.environ["PYTHON_WORKER_FACTORY_PORT"])
file, _ = local_connect_and_auth(own, os.environ.get("PYTHON_WORKER_FACTORY_SECRET"))
file.write(json.dumps({"path": sys.path, "chained": os.environ.get("CHAINED")}).encode() + b"\\n")
file.flush()
"""


def environment(tmp_path: Path, listening: socket.socket, *path: Path) -> dict[str, str]:
    where = {"PYTHON_WORKER_FACTORY_SOCK_PATH": str(tmp_path / "socket")}
    if listening.family == socket.AF_INET:
        port = str(listening.getsockname()[1])
        where = {"PYTHON_WORKER_FACTORY_PORT": port, "PYTHON_WORKER_FACTORY_SECRET": SECRET}
    own = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return {**own, **where, "CONNECTED": str(tmp_path / "connected"), "PYTHONPATH": os.pathsep.join(map(str, path))}


def listen(tmp_path: Path, family: socket.AddressFamily) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.bind(str(tmp_path / "socket") if family == socket.AF_UNIX else ("127.0.0.1", 0))
    listening.listen()
    listening.settimeout(LIMIT_S)
    return listening


def accept(listening: socket.socket) -> socket.socket:
    """As Spark does it: over TCP the process has to know the secret."""
    connection, _ = listening.accept()
    connection.settimeout(LIMIT_S)
    if listening.family == socket.AF_INET:
        with connection.makefile("rb") as file:
            (length,) = struct.unpack("!i", file.read(4))
            assert file.read(length).decode() == SECRET
        connection.sendall(struct.pack("!i", 2) + b"ok")
    return connection


@pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET])
def test_a_process_connects_before_it_imports_pyspark(tmp_path: Path, family: socket.AddressFamily) -> None:
    """PySpark is one here whose import ends when the connection is there, as on a machine without any CPU left."""
    for package, text in (("pyspark", SLOW), ("pyspark/runner", ""), ("other", "")):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(text)
    (tmp_path / "pyspark/util.py").write_text("def local_connect_and_auth(*_): raise SystemExit('a second time')\n")
    (tmp_path / "pyspark/runner/__main__.py").write_text(RUNNER)
    (tmp_path / "other/sitecustomize.py").write_text("import os\nos.environ['CHAINED'] = 'yes'\n")
    with listen(tmp_path, family) as listening:
        variables = environment(tmp_path, listening, tmp_path, DIRECTORY, tmp_path / "other")
        command = [sys.executable, "-m", "pyspark.runner"]
        process = subprocess.Popen(command, env=variables, cwd=tmp_path / "other", stderr=subprocess.PIPE)
        try:
            with accept(listening) as connection:
                (tmp_path / "connected").touch()
                first_line = connection.makefile("rb").readline()
            _, errors = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
            process.wait()
    assert (process.returncode, errors) == (0, b"")
    assert b'"chained": "yes"' in first_line, "another sitecustomize still counts"
    assert str(DIRECTORY).encode() not in first_line


@pytest.mark.parametrize("module", ["source_runner", "transform_with_state_driver_worker"])
def test_spark_s_own_runners_take_the_connection(tmp_path: Path, module: str) -> None:
    """They send their process id over it first."""
    full = {"source_runner": "python_streaming_source_runner"}.get(module, module)
    with listen(tmp_path, socket.AF_UNIX) as listening:
        variables = environment(tmp_path, listening, DIRECTORY)
        command = [sys.executable, "-m", f"pyspark.sql.streaming.{full}"]
        process = subprocess.Popen(command, env=variables, stderr=subprocess.DEVNULL)
        try:
            with accept(listening) as connection:
                assert struct.unpack("!i", connection.makefile("rb").read(4)) == (process.pid,)
                listening.setblocking(False)
                with pytest.raises(BlockingIOError):
                    listening.accept()
        finally:
            process.kill()
            process.wait()


def test_pyspark_is_imported_from_where_it_is_compiled(tmp_path: Path) -> None:
    """Spark puts its zip file first."""
    home = Path(pyspark.__file__).parent
    archives = sorted((home / "python/lib").glob("*.zip"))
    assert archives, "else there is nothing to leave out"
    variables = {**os.environ, "SPARK_HOME": str(home), "PYTHONPATH": os.pathsep.join(map(str, [*archives, DIRECTORY]))}
    process = subprocess.run(
        [sys.executable, "-c", "import py4j, pyspark; print(pyspark.__file__, py4j.__file__)"],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ".zip" not in process.stdout
    elsewhere = {**variables, "SPARK_HOME": str(tmp_path)}
    lists = subprocess.run(
        [sys.executable, "-c", "import sys; print(sys.path)"], env=elsewhere, capture_output=True, text=True, check=True
    )
    assert str(archives[0]) in lists.stdout, "a Spark that is unpacked elsewhere has it there alone"


def test_others_are_left_alone(tmp_path: Path) -> None:
    """A process that is not awaited connects nowhere, though it has the variables of one that is."""
    with listen(tmp_path, socket.AF_UNIX) as listening:
        variables = environment(tmp_path, listening, DIRECTORY)
        subprocess.run([sys.executable, "-c", "pass"], env=variables, check=True)
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()


def test_without_a_listener_pyspark_says_so(tmp_path: Path) -> None:
    with listen(tmp_path, socket.AF_UNIX) as listening:
        variables = environment(tmp_path, listening, DIRECTORY)
    command = [sys.executable, "-m", "pyspark.sql.streaming.python_streaming_source_runner"]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "CANNOT_OPEN_SOCKET" in ended.stderr


PARENT = """
import os, signal, time
import sitecustomize

signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as PySpark has it
child = os.fork()
if not child:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
sitecustomize.end_without_children(0.1)
while True:
    time.sleep(60)
"""


def test_what_asked_about_a_source_ends_without_children() -> None:
    """Spark starts another one when it asks again; as long as there is a child, it may be in use."""
    variables = {**os.environ, "PYTHONPATH": str(DIRECTORY)}
    with subprocess.Popen([sys.executable, "-c", PARENT], env=variables, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            child = int(process.stdout.readline())
            assert child > 0
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
            os.kill(child, signal.SIGKILL)
            assert process.wait(LIMIT_S) == -signal.SIGTERM
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("arguments", "ends"),
    [
        (["pyspark.daemon", "pyspark.sql.worker.lookup_data_sources"], True),
        (["pyspark.daemon", "pyspark.worker"], False),
        (["helenus_connector.daemon", "pyspark.worker"], False),
        (["pyspark.sql.streaming.python_streaming_source_runner"], False),
    ],
)
def test_which_processes_end(arguments: list[str], ends: bool) -> None:
    """Of those that run tasks, the next one would load all modules again."""
    script = "import sitecustomize, sys; sys.orig_argv = sys.argv[1:]; print(sitecustomize.is_forked_for_questions())"
    shown = subprocess.run(
        [sys.executable, "-c", script, "python", "-m", *arguments],
        env={**os.environ, "PYTHONPATH": str(DIRECTORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip() == str(ends)
