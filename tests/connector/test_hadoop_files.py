"""A state's backup by Spark's own client of S3, on a real server: what it refuses, and while it is away."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from docs.s3_server import BUCKET, MINICLUSTER, PASSWORD, S3Server, running_s3

from helenus_stack.jars import fetch, parse_lock
from helenus_stack.java import spark_java_home
from helenus_stack.progress import Silent
from helenus_stack.resolve import resolve

pytestmark = pytest.mark.integration

START = """
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

def attempt(url, at="x"):
    begun = time.monotonic()
    try:
        HadoopFiles(spark, url).download(f"{url}/{at}", here / "attempt")
    except (FileNotFoundError, HelenusError) as error:
        print(type(error).__name__, f"{time.monotonic() - begun:.1f} s", error, flush=True)
    else:
        print("read", flush=True)

def save(backup):
    begun = time.monotonic()
    try:
        backup.save()
    except HelenusError as error:
        print(f"{time.monotonic() - begun:.1f} s", error, flush=True)
    else:
        print(f"saved in {1000 * (time.monotonic() - begun):.0f} ms", flush=True)

source = here / "source"
for name in ("about", "offsets/0", "commits/0", "state/0/0/1.changelog", "state/0/0/SSTs/a b%41.sst"):
    (source / name).parent.mkdir(parents=True, exist_ok=True)
    (source / name).write_bytes(name.encode() * 1000)
pool = ThreadPoolExecutor(8)

def come_back(url):
    files, root = HadoopFiles(spark, url), f"{url}/g/1-a/rows/shop%2Fx"
    backup = StateBackup(files, root, source, "", pool)
    print(files.list_names(root), restore(files, root, here / "none", "", pool), flush=True)
    for number in range(3):
        for log in ("offsets", "commits"):  # what is planned beyond the next batch is no part of a state
            (source / f"{log}/{number}").write_text(str(number))
        save(backup)
    print(restore(files, root, here / "restored", "", pool), sorted(files.list_names(root)), flush=True)
    same = {p.relative_to(source): p.read_bytes() for p in source.rglob("*") if p.is_file()}
    there = {p.relative_to(here / "restored"): p.read_bytes() for p in (here / "restored").rglob("*") if p.is_file()}
    print(same == there, flush=True)
    attempt(url, "none")
    return files, root, backup

def away(backup, url):
    (source / "offsets/3").write_text("3")
    save(backup)
    attempt(url, "none")

def end(files, root, backup):
    save(backup)
    files.remove(root)
    print(files.list_names(root), flush=True)
    pool.shutdown()
    spark.stop()
"""
S3 = """
files, root, backup = come_back(worker.state_url)
attempt("s3a://refused/x")
attempt("s3a://missing/x")
attempt("s4://lake/x")
for url in ("s3a://lake", "s3a://missing"):
    try:
        print(HadoopFiles(spark, url).list_names(f"{url}/none"), flush=True)
    except HelenusError as error:
        print(error, flush=True)
print("stop", flush=True); input()
away(backup, worker.state_url)
print("start", flush=True); input()
end(files, root, backup)
"""
HDFS = """
configuration = spark.sparkContext._jsc.hadoopConfiguration()
configuration.set("hdfs.minidfs.basedir", str(here / "hdfs"))
builder = getattr(spark.sparkContext._jvm.org.apache.hadoop.hdfs, "MiniDFSCluster$Builder")
cluster = builder(configuration).numDataNodes(1).build()
cluster.waitActive()
url = f"{cluster.getFileSystem().getUri()}/states"
try:
    files, root, backup = come_back(url)
    cluster.shutdownNameNode(0)
    away(backup, url)
    cluster.restartNameNode(0)
    cluster.waitActive()
    end(files, root, backup)
finally:
    cluster.shutdown()
"""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


def test_a_server_of_s3(s3: S3Server, tmp_path: Path) -> None:
    more = {**s3.of_spark, "spark.hadoop.fs.s3a.bucket.refused.secret.key": "hunter2"}
    with _running(S3, f"s3a://{BUCKET}/states", more, tmp_path) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        before = _until("stop", process.stdout)
        s3.stop()
        _go_on(process.stdin)
        away = _until("start", process.stdout)
        s3.start()
        _go_on(process.stdin)
        after = process.stdout.read().splitlines()
    shown = "\n".join([*before, *away, *after, (tmp_path / "stderr").read_text()[-3000:]])
    _check_saved(before[:7], shown)
    refused, missing, unknown, empty, missing_listing = before[7:]
    assert "the login is refused" in refused, shown
    assert "no such bucket" in missing or missing.startswith("FileNotFoundError"), shown
    assert "no client for it" in unknown, shown
    assert empty == "[]", shown
    assert "no such bucket" in missing_listing, shown
    assert len(away) == 2, shown
    assert all("can't be reached" in line for line in away), shown
    assert after[0].startswith("saved"), shown
    assert after[1] == "[]", shown
    assert "hunter2" not in shown
    assert PASSWORD not in shown


@pytest.mark.long
def test_a_cluster_of_hdfs(tmp_path: Path) -> None:
    jars = fetch(parse_lock(MINICLUSTER.read_text(), MINICLUSTER.name), Silent(), resolve)
    more = {"spark.driver.extraClassPath": ":".join(map(str, jars)), "spark.hadoop.ipc.client.connect.max.retries": "2"}
    with _running(HDFS, "hdfs:///states", more, tmp_path) as process:
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
    shown = "\n".join([*lines, (tmp_path / "stderr").read_text()[-3000:]])
    _check_saved(lines[:7], shown)
    assert len(lines) == 11, shown
    assert all("can't be reached" in line for line in lines[7:9]), shown
    assert lines[9].startswith("saved"), shown
    assert lines[10] == "[]", shown


def _check_saved(lines: list[str], shown: str) -> None:
    empty, *saved, names, same, missing = lines
    assert empty == "[] False", shown
    assert all(line.startswith("saved in ") for line in saved), shown
    assert (names, same) == ("True ['files', 'manifests']", "True"), shown
    assert missing.startswith("FileNotFoundError"), shown


@contextmanager
def _running(script: str, url: str, more: Mapping[str, str], directory: Path) -> Iterator[subprocess.Popen[str]]:
    properties = {
        "bootstrap.servers": "k:9092",
        "checkpoint.dir": str(directory / "checkpoint"),
        "group.id": "g",
        "state.checkpoint.dir": url,
        "spark.master": "local[1]",
        # No archive of classes (tests/spark_start.py): that is of another class path.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        **more,
    }
    file = directory / "worker.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    with (
        (directory / "stderr").open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-c", START + script, str(file), str(directory)],
            env={**os.environ, "JAVA_HOME": str(spark_java_home(Silent()))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


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
