"""The Spark session: which settings count, and that none of them is seen in a process list."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
import structlog
from bench import processes
from java_classes import HELENUS, SOURCES, compiled, packed

from helenus_connector.config import spark_submit
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.query import internals
from helenus_connector.query import spark_session as module
from helenus_connector.query.spark_session import _lean_jvm_options, _spark_settings
from helenus_schemas.errors import HelenusError, Kind
from helenus_stack.java import spark_java_home
from helenus_stack.progress import Silent

SECRET = "hunter2 \\ \"and\" 'more'"
LEAST = {"bootstrap.servers": "k:9092", "checkpoint.dir": "/tmp/none"}
STANDALONE = {"spark.master": "spark://m:7077", "spark.authenticate.secret": "of the cluster"}


@pytest.mark.parametrize(
    ("properties", "host"),
    [
        ({}, "127.0.0.1"),
        ({"spark.master": "local[2]"}, "127.0.0.1"),
        ({"spark.master": "local[2]", "spark.driver.host": "10.0.0.1"}, "10.0.0.1"),
        (STANDALONE, None),
        ({**STANDALONE, "spark.driver.host": "10.0.0.1"}, "10.0.0.1"),
    ],
)
def test_the_driver_is_on_this_host_alone_only_without_others(properties: dict[str, str], host: str | None) -> None:
    assert (
        _spark_settings(WorkerSettings.from_properties({**LEAST, **properties}, "worker"), Path("/run/mine")).get(
            "spark.driver.host"
        )
        == host
    )


@pytest.mark.parametrize(
    ("properties", "directory", "pattern"),
    [
        ({"spark.master": "local[2]"}, "/run/mine", "/run/mine"),
        ({"spark.master": "local[2]"}, f"/{'long' * 20}", r"/tmp/helenus-run-\w+"),
        (STANDALONE, "/run/mine", "/tmp"),
    ],
)
def test_sockets_lie_in_the_run_s_directory_where_their_path_can_be_so_long(
    properties: dict[str, str], directory: str, pattern: str
) -> None:
    settings = _spark_settings(WorkerSettings.from_properties({**LEAST, **properties}, "worker"), Path(directory))
    assert re.fullmatch(pattern, settings["spark.python.unix.domain.socket.dir"])
    assert settings["spark.python.unix.domain.socket.enabled"] == "true"


@pytest.mark.parametrize(
    ("properties", "authenticates", "warned"),
    [
        ({}, "true", False),
        ({"spark.master": "yarn"}, "true", False),
        ({"spark.master": "k8s://https://k:6443"}, "true", False),
        (STANDALONE, "true", False),
        ({"spark.master": "spark://m:7077", "spark.authenticate": "false"}, "false", True),
        ({"spark.master": "yarn", "spark.authenticate": "False"}, "False", True),
        ({"spark.python.unix.domain.socket.enabled": "false"}, "true", True),  # then by TCP, where a state asks nobody
    ],
)
def test_spark_authenticates_unless_a_cluster_s_operator_decides(
    properties: dict[str, str], authenticates: str, warned: bool
) -> None:
    with structlog.testing.capture_logs() as logs:
        settings = _spark_settings(WorkerSettings.from_properties({**LEAST, **properties}, "worker"), Path("/run/mine"))
    assert settings["spark.authenticate"] == authenticates
    assert [entry["event"] for entry in logs] == ["spark.not_authenticated"] * warned
    assert ("spark.authenticate.secret" in settings) == ("spark.authenticate.secret" in properties), (
        "Spark makes its own"
    )


def test_a_cluster_in_one_process_has_a_secret_of_each_run() -> None:
    worker = WorkerSettings.from_properties({**LEAST, "spark.master": "local-cluster[2,1,1024]"}, "worker")
    first, second = (_spark_settings(worker, Path("/run/mine"))["spark.authenticate.secret"] for _ in range(2))
    assert len(first) == len(second) == 64
    assert first != second


@pytest.mark.parametrize(
    ("properties", "key"),
    [
        ({"spark.authenticate": "false"}, "spark.authenticate"),
        ({"spark.master": "local[4]", "spark.authenticate": " FALSE "}, "spark.authenticate"),
        ({"spark.authenticate": "yes"}, "spark.authenticate"),
        ({"spark.master": "spark://m:7077"}, "spark.authenticate.secret"),
        ({"spark.master": "spark://m:7077", "spark.authenticate": "true"}, "spark.authenticate.secret"),
    ],
)
def test_a_spark_that_would_serve_anybody_is_refused(properties: dict[str, str], key: str) -> None:
    with pytest.raises(HelenusError, match=f"{key}[=:]") as error:
        WorkerSettings.from_properties({**LEAST, **properties}, "worker")
    assert error.value.kind is Kind.CONFIG


def test_spark_s_pages_without_a_login_are_warned_of() -> None:
    worker = {**LEAST, "spark.ui.enabled": "true"}
    with structlog.testing.capture_logs() as logs:
        settings = _spark_settings(WorkerSettings.from_properties(worker, "worker"), Path("/run/mine"))
        _spark_settings(
            WorkerSettings.from_properties({**worker, "spark.ui.filters": "a.Filter"}, "worker"), Path("/run/mine")
        )
    assert [entry["event"] for entry in logs] == ["spark.ui_open"]
    assert settings["spark.ui.killEnabled"] == "false"


@pytest.mark.parametrize(
    ("properties", "made_by", "path"),
    [
        ({}, "helenus.LocalFiles", str(HELENUS)),
        ({"spark.driver.extraClassPath": "/opt/mine.jar"}, "helenus.LocalFiles", f"{HELENUS}:/opt/mine.jar"),
        ({"spark.hadoop.fs.file.impl": "my.Files"}, "my.Files", str(HELENUS)),
        (STANDALONE, None, str(HELENUS)),
        ({"public.spark.api": "true"}, None, None),
        ({"spark.master": "local-cluster[2,1,1024]"}, None, str(HELENUS)),
    ],
)
def test_which_class_makes_files(properties: dict[str, str], made_by: str | None, path: str | None) -> None:
    settings = _spark_settings(WorkerSettings.from_properties({**LEAST, **properties}, "worker"), Path("/run/mine"))
    assert settings.get("spark.hadoop.fs.file.impl") == made_by
    assert settings.get("spark.driver.extraClassPath") == path


def with_submitted(monkeypatch: pytest.MonkeyPatch, submitted: dict[str, str]) -> None:
    """As if Spark's Java process had started this one, with these settings."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(spark_submit, "_submitted_settings", lambda: submitted)


def test_internals_are_used_of_known_versions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else by the public API, and without names of Spark's own that other versions may not have."""
    worker = WorkerSettings.from_properties(LEAST, "worker")
    settings = _spark_settings(worker, Path("/run/mine"))
    manager = "spark.sql.streaming.checkpointFileManagerClass"
    assert (settings["spark.helenus.internals"], manager in settings) == ("true", True)
    for version in ("4.4.0", "5.0.0.dev1", "4.20.1"):
        monkeypatch.setattr(pyspark, "__version__", version)
        settings = _spark_settings(worker, Path("/run/mine"))
        assert (settings.pop("spark.helenus.internals"), manager in settings) == ("false", False)
        assert not [value for value in settings.values() if "helenus." in value or "org.apache.spark" in value]
        assert version in str(internals.obstacle(worker))


def test_what_spark_submit_was_given_counts_as_the_worker_s(monkeypatch: pytest.MonkeyPatch) -> None:
    submitted = {
        **STANDALONE,
        "spark.ui.enabled": "true",
        "spark.app.name": "mine",
        "spark.driver.memory": "2g",
        "spark.submit.deployMode": "client",
    }
    with_submitted(monkeypatch, submitted)
    worker = WorkerSettings.from_properties({**LEAST, "spark.ui.enabled": "false"}, "worker")
    assert (worker.is_local, worker.spark["app.name"]) == (False, "mine")
    settings = spark_submit.settable(_spark_settings(worker, Path("/run/mine")))
    assert settings["spark.ui.enabled"] == "false", "the worker's file takes precedence"
    assert not settings.keys() & {"spark.master", "spark.driver.memory", "spark.driver.extraClassPath"}
    assert "spark.hadoop.fs.file.impl" not in settings


@pytest.mark.parametrize(
    ("properties", "key"),
    [
        ({"spark.master": "local[2]"}, "spark.master=local.2.: leave it out"),
        ({"spark.driver.memory": "4g"}, "spark.driver.memory=4g: give it to spark-submit"),
        ({"group.id": "g", "fence.writers": "true"}, "group.id=g: leave it out with spark-submit"),
    ],
)
def test_what_a_java_process_that_runs_does_not_take(
    monkeypatch: pytest.MonkeyPatch, properties: dict[str, str], key: str
) -> None:
    with_submitted(monkeypatch, {"spark.master": "local[*]", "spark.submit.deployMode": "client"})
    with pytest.raises(HelenusError, match=key) as error:
        WorkerSettings.from_properties({**LEAST, **properties}, "worker")
    assert error.value.kind is Kind.CONFIG


def test_yarn_makes_its_secret_when_a_worker_is_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    submitted = {"spark.master": "yarn", "spark.submit.deployMode": "cluster"}
    for more, warned in (({}, True), ({"spark.authenticate": "true"}, False)):
        with_submitted(monkeypatch, {**submitted, **more})
        with structlog.testing.capture_logs() as logs:
            settings = _spark_settings(WorkerSettings.from_properties(LEAST, "worker"), Path("/run/mine"))
        assert settings.get("spark.authenticate") == more.get("spark.authenticate")
        assert [entry["event"] for entry in logs] == ["spark.not_authenticated"] * warned


def test_where_java_can_t_load_classes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JAR", Path("/opt/a:b/helenus.jar"))
    with pytest.raises(HelenusError, match="/opt/a:b") as error:
        _spark_settings(WorkerSettings.from_properties(LEAST, "worker"), Path("/run/mine"))
    assert error.value.kind is Kind.CONFIG


def test_workers_are_forked_from_our_process_whatever_pyspark_has() -> None:
    """Another version may have none of the functions that it replaces."""
    script = """if True:
        import runpy, sys
        import pyspark.daemon, pyspark.util
        del pyspark.daemon.manager, pyspark.util.handle_worker_exception
        run_module = runpy.run_module
        runpy.run_module = lambda name, **how: print(name) if name == "pyspark.daemon" else run_module(name, **how)
        sys.argv = ["helenus_connector.daemon", "pyspark.worker"]
        run_module("helenus_connector.daemon", run_name="__main__")
    """
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert ended.stdout == "pyspark.daemon\n"


@pytest.mark.integration  # no server, but seconds of Java
@pytest.mark.parametrize("jar", SOURCES)
def test_a_jar_is_what_its_source_says(jar: Path) -> None:
    """`make java-classes` packs it again."""
    assert packed(jar) == compiled(jar)


FILES = """
import sys
from pathlib import Path
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.query.spark_session import start_session

worker = WorkerSettings.load(sys.argv[1])
run = Path(sys.argv[2])
spark = start_session(worker, run)
java, conf = spark.sparkContext._jvm, spark.sparkContext._jsc.hadoopConfiguration()
path = java.org.apache.hadoop.fs.Path
files = path(f"file:{run}").getFileSystem(conf)
jvm = java.java.lang.ProcessHandle.current().pid()

def ended():  # page faults of the processes that it started, and that have ended
    return int(Path(f"/proc/{jvm}/stat").read_text().rpartition(")")[2].split()[8])

before = ended()
for mode in ("644", "600", "751"):
    made = path(f"file:{run}/m{mode}")
    files.create(made, True).close()
    files.setPermission(made, java.org.apache.hadoop.fs.permission.FsPermission(mode))
print(ended() - before)
print(*(f"{(run / f'm{mode}').stat().st_mode & 0o777:o}" for mode in ("644", "600", "751")))
print(sorted(one.name for one in run.glob(".m*.crc")))
spark.stop()
"""


PYTHONS = """
import os, sys
from pathlib import Path
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.query.spark_session import start_session

before = dict(os.environ)
spark = start_session(WorkerSettings.load(sys.argv[1]), Path(sys.argv[2]))
print(before.get("PYTHONPATH") == os.environ.get("PYTHONPATH"))
print(spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("pyspark").__file__).first())
spark.stop()
"""


@pytest.mark.integration
def test_spark_s_python_processes_import_pyspark_from_where_it_is_compiled(tmp_path: Path) -> None:
    """So they have our `sitecustomize`, which has them connect first."""
    ended = start(tmp_path, PYTHONS)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["True", pyspark.__file__]


@pytest.mark.integration
def test_no_process_is_started_to_make_a_file(tmp_path: Path) -> None:
    ended = start(tmp_path, FILES)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["0", "644 600 751", "['.m600.crc', '.m644.crc', '.m751.crc']"]


NAMES = """
import sys
from pathlib import Path
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.query.spark_session import start_session

spark = start_session(WorkerSettings.load(sys.argv[1]), Path(sys.argv[2]))
jvm, client, asked = spark._jvm, spark._jvm._gateway_client, []
send = client.send_command
client.send_command = lambda command, *rest, **more: asked.append(command) or send(command, *rest, **more)
for _ in range(2):
    assert jvm.PythonRDD is jvm.PythonRDD and jvm.java.util.ArrayList is jvm.java.util.ArrayList
    assert jvm.java.util.ArrayList().size() == 0
    assert spark.sparkContext.parallelize([1, 2]).map(lambda n: n + 1).collect() == [2, 3]
    print(sum(command.startswith("r\\nu\\n") for command in asked))  # py4j: reflection, of an unknown name
    asked.clear()
print(*{"pandas", "pyarrow"} & set(sys.modules))
spark.stop()
"""


@pytest.mark.integration
def test_java_is_asked_for_a_name_once(tmp_path: Path) -> None:
    """It looks into all of Spark's jars for each. And no call loads what the driver does not need."""
    ended = start(tmp_path, NAMES)
    assert ended.returncode == 0, ended.stderr
    first, second, loaded = ended.stdout.split("\n")[:3]
    assert int(first) >= 3
    assert int(second) == 0
    assert loaded == ""


JOBS = """
import sys
from functools import partial
from pathlib import Path
from pyspark import TaskContext
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.query._spark_job import SparkJobs, offer, run
from helenus_connector.query.batch_parts import TaskRanges
from helenus_connector.query.spark_session import start_session
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import logs

def several(with_it, size, given):
    for parts in given:
        place = TaskContext.get().getLocalProperty("spark.scheduler.pool")
        yield from [(parts.most_bytes, len(with_it), place, bytes(size))] * parts.most_bytes

def fails(given):
    raise HelenusError(Kind.CASSANDRA_READ, "no host is there", "ks.t")

worker = WorkerSettings.load(sys.argv[1])
logs.configure(worker.log_level, worker.log_format)  # or what Spark says is on standard output
spark = start_session(worker, Path(sys.argv[2]))
spark.sparkContext.setLocalProperty("spark.scheduler.pool", "mine")
client, asked = spark._jvm._gateway_client, []
send = client.send_command
client.send_command = lambda command, *rest, **more: asked.append(command) or send(command, *rest, **more)
jobs, file = SparkJobs(spark.sparkContext), Path(sys.argv[2]) / "parts"

def ran(function):
    offer(file, [TaskRanges([], most) for most in (3, 0, 1)])
    asked.clear()
    return run(jobs, file, lambda topics: function)

for with_it, size in ((b"", 0), (b"", 3 << 20), (bytes(2 << 20), 0)):  # what a task is given, what it yields
    found = ran(partial(several, with_it, size))
    calls = sum(not command.startswith("m") for command in asked)  # but those that let an object go
    same = {tuple(about) for _, *about in found} == {(len(with_it), "mine", bytes(size))}
    print([most for most, *_ in found], same, calls)
try:
    ran(fails)
except HelenusError as error:
    print(error.kind.name, error)
print(file.exists())
spark.stop()
"""


@pytest.mark.integration
@pytest.mark.parametrize("public", ["false", "true"])
def test_a_job_is_one_call_of_java(tmp_path: Path, public: str) -> None:
    """But for a function too large for one, which takes PySpark's own way, as do all by the public API."""
    ended = start(tmp_path, JOBS, public_spark_api=public)
    assert ended.returncode == 0, ended.stderr
    small, large_result, large, failed, offered = ended.stdout.splitlines()
    for line, is_one_call in ((small, public == "false"), (large_result, public == "false"), (large, False)):
        assert line.startswith("[3, 3, 3, 1] True ")
        calls = int(line.split()[-1])
        assert calls == 1 if is_one_call else calls > 20
    assert failed.startswith("CASSANDRA_READ no host is there (ks.t)")
    assert offered == "False"


@pytest.mark.parametrize("arenas", [None, "8"])
def test_java_has_few_arenas_unless_the_environment_says_otherwise(
    arenas: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    if arenas is not None:
        monkeypatch.setenv("MALLOC_ARENA_MAX", arenas)
    before = dict(os.environ)
    with module._start_variables(has_internals=True):
        assert os.environ["MALLOC_ARENA_MAX"] == (arenas or "2")
    assert dict(os.environ) == before


SCRIPT = """
import sys
from pathlib import Path
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.query.spark_session import start_session

worker = WorkerSettings.load(sys.argv[1])
spark = start_session(worker, Path(sys.argv[2]))
conf = spark.sparkContext.getConf()
print(conf.get("spark.hadoop.fs.s3a.secret.key"))
print(spark.sparkContext._jvm.java.lang.Runtime.getRuntime().maxMemory() >> 20)
print(spark.range(3).count(), flush=True)
input()
spark.stop()
"""


STARTS = """
import sys
from pathlib import Path
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.query.spark_session import start_session
from helenus_schemas.service import logs
from helenus_schemas.errors import HelenusError

worker = WorkerSettings.load(sys.argv[1])
logs.configure(worker.log_level, worker.log_format)
try:
    spark = start_session(worker, Path(sys.argv[2]))
except HelenusError as error:
    print(error)
    sys.exit(0)
def fails_once(_):
    print("Traceback: of a worker", file=sys.stderr, flush=True)
    from pyspark import TaskContext
    if TaskContext.get().attemptNumber() == 0:
        raise TypeError("not twice")
spark.sparkContext.parallelize([1], 1).foreach(fails_once)
spark.stop()
"""


def start(directory: Path, script: str = STARTS, **more: str) -> subprocess.CompletedProcess[str]:
    (directory / "run").mkdir()
    keys = {**LEAST, "spark.master": "local[1]", **{key.replace("_", "."): value for key, value in more.items()}}
    worker = directory / "worker.properties"
    worker.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    command = [sys.executable, "-c", script, str(worker), str(directory / "run")]
    java = {"JAVA_HOME": str(spark_java_home(Silent()))}
    return subprocess.run(command, env={**os.environ, **java}, capture_output=True, text=True, timeout=120)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"spark_driver_memory": "99999999999g"}, "Invalid maximum heap size"),
        pytest.param({"spark_master": "yarn"}, "HADOOP_CONF_DIR", marks=pytest.mark.long),  # the same path as the first
    ],
)
def test_settings_that_spark_does_not_take(tmp_path: Path, properties: dict[str, str], why: str) -> None:
    ended = start(tmp_path, **properties)
    assert (ended.returncode, ended.stdout.count("\n")) == (0, 1)
    assert why in ended.stdout
    assert ended.stdout.endswith("[config]\n")
    assert "Traceback" not in ended.stderr
    assert "\tat " not in ended.stderr


@pytest.mark.integration
def test_with_json_every_line_is_json(tmp_path: Path) -> None:
    """Also what Spark's Java and Python processes write by themselves."""
    ended = start(tmp_path, log_format="json", spark_master="local[1,2]")
    assert ended.returncode == 0, ended.stderr
    entries = [json.loads(line) for line in ended.stderr.splitlines()]
    lines = [entry["line"] for entry in entries if entry["event"] == "spark.stderr"]
    assert "Traceback: of a worker" in lines
    assert any("log level" in line for line in lines)
    # A task that fails is done again without a word of Spark.
    assert len([line for line in lines if "spark.task_failed" in line and "not twice" in line]) == 1


@pytest.mark.integration
@pytest.mark.long  # integration/test_secure_connector.py looks at all processes of a worker
def test_no_secret_in_a_process_list(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "secrets").write_text("key=" + SECRET.replace("\\", "\\\\") + "\n")
    keys = {**LEAST, "spark.hadoop.fs.s3a.secret.key": f"${{file:{tmp_path}/secrets:key}}"}
    keys |= {"spark.master": "local[1]", "spark.driver.memory": "600m"}
    worker = tmp_path / "worker.properties"
    worker.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    command = [sys.executable, "-c", SCRIPT, str(worker), str(run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            lines = [process.stdout.readline().rstrip("\n") for _ in range(3)]
            seen = b"".join(processes.contents(path, "cmdline", "environ") for path in processes.family(process.pid))
            assert b"java" in seen
            mode = (run / "spark.properties").stat().st_mode & 0o777
        finally:
            process.communicate("\n", timeout=60)
    assert lines[0] == SECRET
    assert 550 <= int(lines[1]) <= 600  # it counted before the JVM was there
    assert lines[2] == "3"
    assert b"hunter2" not in seen
    assert mode == 0o600


SERIAL = ["-XX:+UseSerialGC"]
SMALL = [*SERIAL, "-XX:InitialHeapSize=96m", "-XX:MinHeapFreeRatio=15", "-XX:MaxHeapFreeRatio=25"]
FIRST = ["-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m"]


@pytest.mark.parametrize(
    ("properties", "has_state", "light"),
    [
        ({}, False, SMALL + FIRST),
        ({}, True, SERIAL),
        ({"driver.memory": "4g"}, False, FIRST),
        ({"driver.extraJavaOptions": "-XX:+UseG1GC -Dx=y"}, False, FIRST),
        ({"driver.defaultJavaOptions": "-XX:+UseZGC -XX:-TieredCompilation"}, False, []),
        ({"driver.extraJavaOptions": "-XX:TieredStopAtLevel=3"}, False, SMALL),
        ({"driver.extraJavaOptions": "-Xms256m"}, False, SERIAL + FIRST),
        ({"driver.defaultJavaOptions": "-XX:InitialRAMPercentage=1"}, False, SERIAL + FIRST),
        ({"driver.extraJavaOptions": "-XX:MaxHeapFreeRatio=70"}, False, SERIAL + FIRST),
    ],
)
def test_a_jvm_does_little_unless_an_operator_decides(
    properties: dict[str, str], has_state: bool, light: list[str]
) -> None:
    """Two collectors on a command line keep a JVM from starting."""
    assert _lean_jvm_options(properties, has_state) == light


def test_a_collector_of_the_environment_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseG1GC")
    assert _lean_jvm_options({}, False) == FIRST
