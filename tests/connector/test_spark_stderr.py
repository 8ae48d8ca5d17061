"""Of what Spark's processes write to standard error, a Python trace is one line."""

from __future__ import annotations

import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from helenus_connector.query import spark_session
from helenus_connector.query._spark_stderr import StderrLine, StderrLines

DAEMON = """PySpark daemon failed to flush the output to the worker process:
Traceback (most recent call last):
  File "/x/pyspark/serializers.py", line 9, in load
    raise EOFError
EOFError

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/pyspark/daemon.py", line 93, in worker
    outfile.flush()
    ~~~~~~~~~~~~~^^
BrokenPipeError: [Errno 32] Broken pipe

after it
  indented
Streaming TransformWithState: pickled
"""


def test_a_trace_is_its_last_line_and_where_it_was_raised() -> None:
    lines = StderrLines()
    assert [picked for text in DAEMON.splitlines() if (picked := lines.pick(text))] == [
        StderrLine("PySpark daemon failed to flush the output to the worker process:"),
        StderrLine("EOFError", 'File "/x/pyspark/serializers.py", line 9, in load'),
        StderrLine("BrokenPipeError: [Errno 32] Broken pipe", 'File "/x/pyspark/daemon.py", line 93, in worker'),
        StderrLine("after it"),
        StderrLine("  indented"),
    ]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_process_of_sparks_prints_no_trace(as_json: bool, capfd: pytest.CaptureFixture[str]) -> None:
    code = "import sys; print('a line', file=sys.stderr, flush=True); 1 / 0"
    with capture_logs() as logs, spark_session._piped_stderr(as_json) as read_stderr:
        process = subprocess.Popen([sys.executable, "-c", code])
        process.wait()
        assert read_stderr()[-1].startswith("ZeroDivisionError: ")
    entries = [(entry["event"], entry["line"], entry.get("where")) for entry in logs]
    trace = ("spark.stderr", "ZeroDivisionError: division by zero", 'File "<string>", line 1, in <module>')
    assert entries == [*([("spark.stderr", "a line", None)] if as_json else []), trace]
    assert capfd.readouterr().err == ("" if as_json else "a line\n")
