"""A state's backup by Spark's own client of S3, on a real server: what it refuses, and while it is away."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
import spark_start
from docs.s3_server import BUCKET, PASSWORD, S3Server, running_s3

from helenus_stack.java import spark_java_home
from helenus_stack.progress import Silent

pytestmark = pytest.mark.integration

SCRIPT = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.group._hadoop_files import HadoopFiles
from helenus_connector.group._state_backup import StateBackup, restore
from helenus_connector.query.spark_session import start_session
from helenus_schemas.errors import HelenusError

worker, here = WorkerSettings.load(sys.argv[1]), Path(sys.argv[2])
(here / "run").mkdir()
spark = start_session(worker, here / "run")
files = HadoopFiles(spark, worker.state_url)

def attempt(url, at="x"):
    begun = time.monotonic()
    try:
        HadoopFiles(spark, url).download(f"{url}/{at}", here / "attempt")
    except (FileNotFoundError, HelenusError) as error:
        print(type(error).__name__, f"{time.monotonic() - begun:.1f} s", error, flush=True)
    else:
        print("read", flush=True)

source = here / "source"
for name in ("about", "offsets/0", "commits/0", "state/0/0/1.changelog", "state/0/0/SSTs/a b%41.sst"):
    (source / name).parent.mkdir(parents=True, exist_ok=True)
    (source / name).write_bytes(name.encode() * 1000)
pool, root = ThreadPoolExecutor(8), f"{worker.state_url}/g/1-a/rows/shop%2Fx"
backup = StateBackup(files, root, source, "", pool)
print(files.list_names(root), restore(files, root, here / "none", "", pool), flush=True)
for number in range(3):
    (source / f"offsets/{number}").write_text(str(number))
    begun = time.monotonic()
    backup.save()
    print(f"saved in {1000 * (time.monotonic() - begun):.0f} ms", flush=True)
print(restore(files, root, here / "restored", "", pool), sorted(files.list_names(root)), flush=True)
same = {p.relative_to(source): p.read_bytes() for p in source.rglob("*") if p.is_file()}
there = {p.relative_to(here / "restored"): p.read_bytes() for p in (here / "restored").rglob("*") if p.is_file()}
print(same == there, flush=True)
attempt(worker.state_url, "none")
attempt("s3a://refused/x")
attempt("s3a://missing/x")
attempt("s4://lake/x")
print(HadoopFiles(spark, "s3a://lake").list_names("s3a://lake/none"), flush=True)
try:
    print(HadoopFiles(spark, "s3a://missing").list_names("s3a://missing/none"), flush=True)
except HelenusError as error:
    print(error, flush=True)
print("stop", flush=True); input()
(source / "offsets/3").write_text("3")
begun = time.monotonic()
try:
    backup.save()
except HelenusError as error:
    print(f"{time.monotonic() - begun:.1f} s", error, flush=True)
attempt(worker.state_url, "none")
print("start", flush=True); input()
backup.save()
files.remove(root)
print(files.list_names(root), flush=True)
pool.shutdown()
spark.stop()
"""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


def test_a_server_of_s3(s3: S3Server, tmp_path: Path) -> None:
    properties = {
        "bootstrap.servers": "k:9092",
        "checkpoint.dir": tmp_path / "checkpoint",
        "group.id": "g",
        "state.checkpoint.dir": f"s3a://{BUCKET}/states",
        "spark.master": "local[1]",
        **spark_start.settings(),
        **s3.of_spark,
        "spark.hadoop.fs.s3a.bucket.refused.secret.key": "hunter2",
    }
    file = tmp_path / "worker.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    environment = {**os.environ, "JAVA_HOME": str(spark_java_home(Silent()))}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(file), str(tmp_path)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "stderr").open("w"),
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            before = _until("stop", process.stdout)
            s3.stop()
            _go_on(process.stdin)
            away = _until("start", process.stdout)
            s3.start()
            _go_on(process.stdin)
            after = process.stdout.read().splitlines()
        finally:
            process.kill()
    shown = "\n".join([*before, *away, *after, (tmp_path / "stderr").read_text()[-3000:]])
    assert before[0] == "[] False", shown
    assert before[4:6] == ["True ['files', 'manifests']", "True"], shown
    none, refused, missing, unknown, empty, missing_listing = before[6:]
    assert none.startswith("FileNotFoundError"), shown
    assert "the login is refused" in refused, shown
    assert "no such bucket" in missing or missing.startswith("FileNotFoundError"), shown
    assert "no client for it" in unknown, shown
    assert empty == "[]", shown
    assert "no such bucket" in missing_listing, shown
    assert len(away) == 2, shown
    assert all("can't be reached" in line for line in away), shown
    assert after == ["[]"], shown
    assert "hunter2" not in shown
    assert PASSWORD not in shown


def _until(word: str, lines: IO[str]) -> list[str]:
    read = []
    for line in lines:
        if line.strip() == word:
            return read
        read.append(line.rstrip("\n"))
    raise AssertionError("\n".join(read))


def _go_on(stream: IO[str]) -> None:
    stream.write("\n")
    stream.flush()
