"""The Spark session of a worker."""

from __future__ import annotations

import functools
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import javaproperties
import structlog

from helenus_connector.config.run_directory import socket_directory
from helenus_connector.config.spark_submit import is_submitted, settable
from helenus_connector.config.worker import WorkerSettings, is_local_master
from helenus_connector.query._java_calls import make_calls_cheaper
from helenus_connector.query._spark_security import security_settings
from helenus_connector.query._spark_stderr import StderrLines
from helenus_connector.query.class_archive import (
    JAVA_OPTION_VARIABLES,
    ClassArchive,
    list_option,
    make_later,
    spark_home,
    use_option,
    warn_if_unused,
    warn_of,
)
from helenus_connector.query.internals import JAR, SETTING, has_internals, obstacle, warn_of_public_api
from helenus_schemas.errors import HelenusError, Kind

_log = structlog.get_logger(__name__)
_REASON = re.compile(r"Exception: |Error: |^Invalid|^Unrecognized|^Could not")
_THREAD = 'Exception in thread "main" '
_LAST_WORDS_S = 2.0
_EXECUTORS_S, _STEADY_S, _POLL_S = 30.0, 3.0, 0.2
_DEFAULTS = {
    # Four attempts a task: a Python worker that dies takes one task with it, not the batch.
    "spark.master": "local[*,4]",
    "spark.driver.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.speculation": "false",
    # Queries take turns: a long batch of one holds up no other.
    "spark.scheduler.mode": "FAIR",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    "spark.sql.adaptive.enabled": "false",
    "spark.python.daemon.module": "helenus_connector.daemon",
}
_INTERNALS = {
    # Saves about 60 ms a batch against the default, on a local disk and on anything with atomic rename.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Names of Spark's own that other versions may not have."""
_S3 = {
    "spark.hadoop.fs.s3a.attempts.maximum": "3",
    "spark.hadoop.fs.s3a.retry.limit": "3",
    "spark.hadoop.fs.s3a.connection.establish.timeout": "5s",
    "spark.hadoop.fs.s3a.connection.timeout": "30s",
}
"""For a state in S3: a batch waits for it, and so does a worker that is to end. By itself the client tries for minutes;
we try again as well, and say why.
"""
# With executors elsewhere, they have to reach the driver: Spark takes the machine's name then.
_LOCAL_ADDRESSES = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_FIRST_HEAP = "96m"
"""Java's own is 1/64 of the machine's memory, a third of which it fills before it looks for garbage. Some 55 MB are in
use.
"""
_FREE_HEAP = ("-XX:MinHeapFreeRatio=15", "-XX:MaxHeapFreeRatio=25")
"""How much of the old generation may be free, %: Java's own 40 to 70 are memory that an idle worker keeps."""
_FILES, _CLASS_PATH = "spark.hadoop.fs.file.impl", "spark.driver.extraClassPath"
_PYTHON_PATH = Path(__file__).with_name("python_path")
"""With a `sitecustomize`, which says what for."""
_SOCKETS = "spark.python.unix.domain.socket."
_START_VARIABLES = ("SPARK_HOME", "SPARK_LAUNCHER_OPTS", "PYTHONPATH", "MALLOC_ARENA_MAX")
_EXECUTOR_SOCKET_DIRECTORY = "/tmp"  # on hosts of executors; java.io.tmpdir is too long a path there with YARN
_LOGGING = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{0}
# Failed batches are logged by the worker, once and with advice.
logger.executor.name = org.apache.spark
logger.executor.level = off
"""


def start_session(worker: WorkerSettings, directory: Path, has_state: bool = False) -> Any:
    """Start Spark with the worker's `spark.*` over our defaults, for queries of which some may have state: by its own
    Java process, or in the one that `spark-submit` has started. Raises HelenusError if there is no Java 17, or Spark
    does not start.
    """
    reason = obstacle(worker)
    # Its traces are of batches that failed or were interrupted: the worker logs the former, the latter are intended.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    if reason is None:
        make_calls_cheaper()
    settings = _spark_settings(worker, directory)
    spark = _start_in_java(worker, settings) if is_submitted() else _start_java(worker, settings, directory, has_state)
    spark.sparkContext.setLogLevel("OFF")
    _silence_shutdown_errors(spark)
    warn_of_public_api(spark.sparkContext, reason)
    return spark


def _start_in_java(worker: WorkerSettings, settings: Mapping[str, str]) -> Any:
    """Start Spark in the Java process that `spark-submit` has started."""
    from pyspark.sql import SparkSession

    python = worker.spark.get("pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    os.environ["PYSPARK_PYTHON"] = python
    builder = SparkSession.builder.appName(worker.spark.get("app.name", "helenus"))
    for key, value in settable(settings).items():
        builder = builder.config(key, value)  # a call of Java, no command line
    with _start_errors(settings, list):
        return builder.getOrCreate()


def _start_java(worker: WorkerSettings, settings: dict[str, str], directory: Path, has_state: bool) -> Any:
    """Start Spark in a Java process of this worker's own."""
    java = check_java()
    # Otherwise the workers take whatever `python3` is first in PATH.
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = worker.spark.get("pyspark.python", sys.executable)
    log4j = directory / "log4j2.properties"
    log4j.write_text(_LOGGING)
    # When a query is stopped within foreachBatch, Spark matches the long Python error with a regular expression that
    # needs more than the default stack.
    java_options = ["-Xss8m", f"-Dlog4j.configurationFile={log4j}", *_lean_jvm_options(worker.spark, has_state)]
    settings[_JAVA_OPTIONS] = " ".join([*java_options, settings.get(_JAVA_OPTIONS, "")]).strip()
    archive = ClassArchive.for_java(Path(java), settings.get(_CLASS_PATH, ""), _operator_options(worker.spark))
    if archive is None:
        return _launch(worker, settings, directory)
    settings[_CLASS_PATH] = os.pathsep.join(map(str, archive.class_path))
    file = archive.find()
    option = list_option(directory) if file is None else use_option(file)
    try:
        spark = _launch(worker, {**settings, _JAVA_OPTIONS: f"{option} {settings[_JAVA_OPTIONS]}"}, directory)
    except HelenusError as error:
        if file is None or "JAVA_GATEWAY_EXITED" not in str(error.__context__):
            raise
        spark = _launch(worker, settings, directory)  # a damaged archive may be why
        warn_of(file, "Java ended with it")
        return spark
    if file is None:
        make_later(archive, directory)
    else:
        with suppress(AttributeError):  # of PySpark's own, which another version may not have
            warn_if_unused(file, spark.sparkContext._gateway.proc.pid)
    return spark


def class_archive(worker: WorkerSettings, directory: Path) -> ClassArchive | None:
    """Return the archive of classes that a worker's Java process takes, or makes; None if there is to be none."""
    class_path = _spark_settings(worker, directory).get(_CLASS_PATH, "")
    return ClassArchive.for_java(Path(check_java()), class_path, _operator_options(worker.spark))


def _launch(worker: WorkerSettings, settings: Mapping[str, str], directory: Path) -> Any:
    """Start Spark in a new Java process."""
    from pyspark.sql import SparkSession

    # The driver's memory and Java options count only if they are there before the JVM is. In a file, because everybody
    # on the machine may read a command line.
    file = directory / "spark.properties"
    with open(
        os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w", encoding="utf-8"
    ) as out:
        javaproperties.dump(settings, out, timestamp=None)
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {shlex.quote(str(file))} pyspark-shell"
    with (
        _start_variables(settings[SETTING] == "true"),
        _piped_stderr(worker.log_format == "json") as read_stderr,
        _start_errors(settings, read_stderr),
    ):
        return SparkSession.builder.appName("helenus").getOrCreate()  # its config() would go onto the command line


def load_modules(spark: Any) -> None:
    """Begin to load our modules in what Spark's Python workers are forked from, which takes seconds."""

    def load() -> None:
        with suppress(Exception):  # the worker may end meanwhile; what is wrong shows in the first batch
            run_task(spark)

    if is_local_master(spark.sparkContext.master):
        threading.Thread(target=load, name="warm", daemon=True).start()


def run_task(spark: Any) -> None:
    """Run a task of nothing, in a Python worker."""
    spark.sparkContext.parallelize([0], 1).mapPartitions(list).count()


@contextmanager
def _start_variables(has_internals: bool) -> Iterator[None]:
    """Have Java processes that start meanwhile put our `sitecustomize`, which knows PySpark's internals, before others
    for their Python processes; and Spark's script neither ask Python where Spark is, nor compile what builds Java's
    command line. Java's hundred threads share two of malloc's arenas, of which each keeps memory.
    """
    before = {name: os.environ.get(name) for name in _START_VARIABLES}
    os.environ["SPARK_HOME"] = str(spark_home())
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    os.environ["SPARK_LAUNCHER_OPTS"] = f"-XX:TieredStopAtLevel=1 {before['SPARK_LAUNCHER_OPTS'] or ''}"
    if has_internals:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_PYTHON_PATH), before["PYTHONPATH"]]))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def _start_errors(settings: Mapping[str, str], read_stderr: Callable[[], list[str]]) -> Iterator[None]:
    """Raise why Spark does not start, as our error: what it raises, or what its Java process wrote before it ended,
    which `read_stderr` returns.
    """
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        lines = str(error.java_exception).splitlines() if isinstance(error, Py4JJavaError) else read_stderr()
        reason = next((line for line in lines if _REASON.search(line)), (lines or [str(error)])[0])
        problem = f"Spark does not start: {reason.removeprefix(_THREAD)}: check spark.* in the worker's file"
        # A master that does not answer now may answer later.
        kind = Kind.BATCH_FAILED if "unresponsive" in reason else Kind.CONFIG
        raise HelenusError(kind, problem, f"spark.master={settings['spark.master']}") from None


@contextmanager
def _piped_stderr(as_json: bool) -> Iterator[Callable[[], list[str]]]:
    """Let processes that start meanwhile, such as Spark's JVM and its children, write to a pipe instead of standard
    error. Until this process ends, the pipe is copied to standard error, each line as JSON if so configured.

    Yields a function that returns the lines of the start. Of Java traces only the first lines are copied; a Python
    trace is logged as one line.
    """
    source, sink = os.pipe()
    saved_stderr, out = os.dup(2), os.dup(2)
    os.dup2(sink, 2)
    os.close(sink)
    starting, start_lines, stderr_lines = threading.Event(), list[str](), StderrLines()
    starting.set()

    def forward() -> None:
        with os.fdopen(source, "rb") as lines:
            for line in lines:
                text = line.decode(errors="replace").rstrip()
                if starting.is_set():
                    start_lines.append(text)
                    if text.startswith("\tat "):
                        continue
                picked = stderr_lines.pick(text)
                if picked is None:
                    continue
                if picked.where:
                    _log.warning("spark.stderr", line=text, where=picked.where)
                elif not as_json or text.startswith("{"):  # JSON already, of our own processes
                    os.write(out, line)
                else:
                    _log.warning("spark.stderr", line=text)

    thread = threading.Thread(target=forward, name="stderr", daemon=True)
    thread.start()

    def read_stderr() -> list[str]:
        os.dup2(saved_stderr, 2)  # or this process itself keeps the pipe open
        thread.join(_LAST_WORDS_S)
        return list(filter(None, start_lines))

    try:
        yield read_stderr
    finally:
        os.dup2(saved_stderr, 2)
        os.close(saved_stderr)
        starting.clear()


def is_spark_alive(spark: Any) -> bool:
    """Return whether Spark's Java process is running."""
    try:
        return bool(spark.sparkContext.defaultParallelism)  # which a context that is stopped refuses
    except Exception:  # Py4J's, of some kinds
        return False


def task_slots(spark: Any) -> int:
    """Return how many tasks Spark runs at once now: on a cluster executors come and go."""
    return int(spark.sparkContext.defaultParallelism)


def settled_task_slots(spark: Any, is_over: Callable[[], bool]) -> int:
    """Return how many tasks Spark runs at once, for what cannot change later. On a cluster executors register one by
    one once the session is there: this waits until their number stays the same, half a minute at most, or until it
    `is_over`.
    """
    context = spark.sparkContext
    if is_local_master(context.master):
        return task_slots(spark)
    begun = since = time.monotonic()
    executors, slots = -1, 0
    _log.info("spark.waiting", reason="executors register", at_most_s=_EXECUTORS_S)
    count_executors = _executor_counter(context)
    while not is_over() and time.monotonic() < begun + _EXECUTORS_S:
        executors_now, slots_now = count_executors(), task_slots(spark)
        if (executors_now, slots_now) != (executors, slots):
            executors, slots, since = executors_now, slots_now, time.monotonic()
        elif executors > 0 and time.monotonic() > since + _STEADY_S:
            break
        time.sleep(_POLL_S)
    slots = task_slots(spark)
    fields = {"executors": max(executors, 0), "slots": slots, "waited_s": round(time.monotonic() - begun, 1)}
    if executors > 0:
        _log.info("spark.executors", **fields)
    else:
        _log.warning("spark.executors", **fields)
    return slots


def _executor_counter(context: Any) -> Callable[[], int]:
    """Return a function that counts executors. PySpark's public API does not tell how many there are: by that, it is 1
    from when a task has run.
    """
    if has_internals(context):
        return lambda: int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1  # the driver is one of them
    has_run = threading.Event()

    def run_task() -> None:
        with suppress(Exception):  # the worker may end meanwhile
            context.parallelize([0], 1).count()
            has_run.set()

    threading.Thread(target=run_task, name="executors", daemon=True).start()
    return lambda: int(has_run.is_set())


def _silence_shutdown_errors(spark: Any) -> None:
    """Drop what Py4J and PySpark print when the Java process ends while they read from it: the worker logs it once."""
    logging.getLogger().addFilter(lambda record: record.module not in ("java_gateway", "clientserver"))
    with suppress(AttributeError):
        spark.sparkContext._accumulatorServer.handle_error = lambda *_: None


def _spark_settings(worker: WorkerSettings, directory: Path) -> dict[str, str]:
    configured = {f"spark.{key}": value for key, value in worker.spark.items()}
    master = configured.get("spark.master", _DEFAULTS["spark.master"])
    local = is_local_master(master)
    defaults = security_settings(master, configured) | (_LOCAL_ADDRESSES if local else {})
    has_internals = obstacle(worker) is None
    defaults[SETTING] = str(has_internals).lower()
    if (worker.state_url or "").startswith("s3a:"):
        defaults |= _S3
    if has_internals:
        defaults |= _INTERNALS
    if has_internals and not is_submitted():  # or Java's class path is the operator's
        if local:
            # Hadoop's own starts a process for each file that it makes: a fifth of the time of a batch of a few events.
            defaults[_FILES] = "helenus.LocalFiles"
        if os.pathsep in str(JAR):
            problem = f"Java can't load classes from a directory with '{os.pathsep}' in its name"
            raise HelenusError(Kind.CONFIG, problem, str(JAR.parent), "install Helenus elsewhere")
        configured[_CLASS_PATH] = os.pathsep.join(filter(None, [str(JAR), configured.get(_CLASS_PATH)]))
    if not local:
        # A stage that Spark repeats may run beside tasks of its first attempt, which only the query's next run fences.
        defaults["spark.stage.maxConsecutiveAttempts"] = "1"
    # By TCP a task waits 40 ms for the kernel, which delays an ACK, and the port of an operator's state takes whoever
    # comes first. Executors on other hosts have no directory of ours; a socket is its owner's alone there too.
    defaults |= {
        f"{_SOCKETS}enabled": "true",
        f"{_SOCKETS}dir": str(socket_directory(directory)) if local else _EXECUTOR_SOCKET_DIRECTORY,
    }
    return {**_DEFAULTS, **defaults, **configured}


def _lean_jvm_options(configured: Mapping[str, str], has_state: bool) -> list[str]:
    """Return options of a JVM that does little, except those that an operator has set: without threads that collect a
    large heap, with a heap that begins small and gives back what is free, and without the second compiler, which takes
    more than it saves where batches are short and Python does the work.
    """
    options = _operator_options(configured)
    added = []
    if "driver.memory" not in configured and not re.search(r"-XX:\+Use\w+GC", options):
        added.append("-XX:+UseSerialGC")
        if not has_state and not re.search(r"-Xms|-XX:Initial(HeapSize|RAMPercentage)|HeapFreeRatio", options):
            added += [f"-XX:InitialHeapSize={_FIRST_HEAP}", *_FREE_HEAP]
    if not has_state and "Tiered" not in options:
        added.append("-XX:TieredStopAtLevel=1")
        if "ReservedCodeCacheSize" not in options:
            added.append("-XX:ReservedCodeCacheSize=240m")  # Java's own, which would be a fifth of that
    return added


def _operator_options(configured: Mapping[str, str]) -> str:
    """Return the options that an operator has given Java, in settings or in variables."""
    java_options = [configured.get(f"driver.{which}JavaOptions", "") for which in ("default", "extra")]
    return " ".join(java_options + [os.environ.get(name, "") for name in JAVA_OPTION_VARIABLES])


_RELEASE = re.compile(r'^JAVA_VERSION="', re.MULTILINE)
_JAVA = "install a Java 17 or later, and put java on the PATH or set JAVA_HOME"


def check_java() -> str:
    """Return Java's program. Raises HelenusError CONFIG if there is no Java 17 or later where Spark looks for it."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        raise HelenusError(Kind.CONFIG, "Spark needs Java 17 or later, and there is no java", advice=_JAVA)
    try:
        version = _java_version(java)
    except (OSError, subprocess.SubprocessError, IndexError, ValueError) as error:
        raise HelenusError(Kind.CONFIG, f"cannot run Java: {error}", java, _JAVA) from None
    if version < 17:
        raise HelenusError(Kind.CONFIG, f"Spark needs Java 17 or later, this is {version}", java, _JAVA)
    return java


@functools.cache
def _java_version(java: str) -> int:
    program = Path(java).resolve()
    with suppress(OSError, IndexError, ValueError):  # where its home says so, no process has to
        if os.access(program, os.X_OK):
            return int(_RELEASE.split((program.parents[1] / "release").read_text(), 1)[1].split(".")[0])
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=30).stderr
    return int(answer.split('"')[1].split(".")[0])
