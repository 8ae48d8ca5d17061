"""The files of a file system of Spark's, such as S3's, by its client in Spark's Java process: `spark.hadoop.*` says how
that logs in.

No more is asked of it than an object store can do: a file is written once, whole, under a name that nobody else writes.
There is no rename, no lock, and no file that is written again while another one may read it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings import masking

KEY = "state.checkpoint.dir"
_LONGEST_REASON = 400  # characters: clients quote whole answers
_MISSING = ("FileNotFoundException", "NoSuchFileException")
_REFUSED = (
    "AccessDeniedException",
    "AccessControlException",
    "NoAuthWithAWSException",
    "NoAwsCredentialsException",
    "CredentialInitializationException",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
)
_NO_STORE = ("UnknownStoreException", "NoSuchBucket")
_NO_CLIENT = ("ClassNotFoundException", "NoClassDefFoundError", "UnsupportedFileSystemException", "No FileSystem for")
# The last four: a server that ends while it is asked.
_CONNECTION = re.compile(
    r"ConnectException|UnknownHost|Timeout|NoRouteToHost|Connection (refused|reset)"
    r"|End of File Exception between|Broken pipe|ClosedChannelException|NoHttpResponseException",
    re.IGNORECASE,
)


class StateFiles(Protocol):
    """Files by their whole names. Any thread may call a method, which returns once the file system has answered.

    All raise FileNotFoundError where a file to read is missing, and HelenusError: CONFIG for a login that is refused, a
    bucket that is missing or a client that is not there, BATCH_FAILED for what may pass.
    """

    def list_names(self, directory: str) -> list[str]:
        """Return the names in a directory; none if it is not there."""

    def upload(self, source: Path, target: str) -> None:
        """Write a local file there. Another one of this name is replaced."""

    def download(self, source: str, target: Path) -> None:
        """Write a file from there to a local one, in a directory that exists."""

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with all that is in it, if it is there."""


class HadoopFiles:
    """`StateFiles` of one file system, by its `url` in a Spark session."""

    def __init__(self, spark: Any, url: str) -> None:
        context = spark.sparkContext
        if not hasattr(context, "_jvm") or not hasattr(context, "_jsc"):
            problem = "this PySpark shows nothing of its Java process, by whose client the file system is used"
            raise HelenusError(Kind.CONFIG, f"{KEY}: {problem}", url, "name a mounted directory")
        self._java = context._jvm
        self._configuration = context._jsc.hadoopConfiguration()
        self._url = url

    def list_names(self, directory: str) -> list[str]:
        """Return as `StateFiles.list_names`."""
        try:
            with _errors_as_ours(directory):
                return [entry.getPath().getName() for entry in self._system().listStatus(self._path(directory))]
        except FileNotFoundError:
            return []

    def upload(self, source: Path, target: str) -> None:
        """Write as `StateFiles.upload`."""
        with _errors_as_ours(target):
            self._system().copyFromLocalFile(False, True, self._local_path(source), self._path(target))

    def download(self, source: str, target: Path) -> None:
        """Write as `StateFiles.download`."""
        with _errors_as_ours(source):
            # By the raw local file system: no file of checksums beside it, which another writer of it would not know.
            self._system().copyToLocalFile(False, self._path(source), self._local_path(target), True)

    def remove(self, name: str) -> None:
        """Remove as `StateFiles.remove`."""
        with _errors_as_ours(name):
            self._system().delete(self._path(name), True)

    def _system(self) -> Any:
        """Return the client, which Hadoop keeps after the first time."""
        return self._path(self._url).getFileSystem(self._configuration)

    def _path(self, name: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(name)

    def _local_path(self, path: Path) -> Any:
        return self._path(f"file://{path.absolute()}")


@contextmanager
def _errors_as_ours(name: str) -> Iterator[None]:
    """Have errors of Java raised as ours, for the file `name`. Py4J's own stay: without Java the worker ends."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    try:
        yield
    except Py4JJavaError as error:
        raise error_of_java(_causes(error.java_exception), name) from None


@contextmanager
def repeated(has_run: bool = True) -> Iterator[None]:
    """Have what is refused raised as BATCH_FAILED, which is tried again, if the file system has answered before: a
    login that expired, or a service that gives none for a while, ends no connector that `has_run`.
    """
    try:
        yield
    except HelenusError as error:
        if not has_run or error.kind is not Kind.CONFIG:
            raise
        raise HelenusError(Kind.BATCH_FAILED, error.what, error.where, error.advice) from None


def _causes(exception: Any) -> list[str]:
    """Return an exception of Java's and its causes, each as `class: message`."""
    texts: list[str] = []
    while exception is not None and len(texts) < 10:  # a cause may be its own
        texts.append(str(exception.toString()))
        exception = exception.getCause()
    return texts


def error_of_java(causes: list[str], name: str) -> Exception:
    """Return the error for an exception of Java's, given as `class: message` with its causes, about the file `name`."""
    text = " / ".join(causes)
    if any(cause.partition(":")[0].endswith(_MISSING) for cause in causes[:1]) and not _has(text, _NO_STORE):
        return FileNotFoundError(2, "No such file", name)
    reason = masking.shown(" ".join(causes[0].split())[:_LONGEST_REASON], secret=False) if causes else "no reason given"
    problem, kind = "the file system does not answer as it should", Kind.BATCH_FAILED
    advice = "see whether it is up and reachable from here; this is tried again"
    if _has(text, _NO_CLIENT):
        problem, kind = "Spark has no client for it", Kind.CONFIG
        advice = "put its jar on spark.driver.extraClassPath, as hadoop-aws of Spark's Hadoop version for s3a"
    elif _has(text, _NO_STORE):
        problem, kind, advice = "there is no such bucket", Kind.CONFIG, "make it: it is never made by a worker"
    elif _has(text, _REFUSED) or "Status Code: 403" in text:
        problem, kind = "the login is refused, or may not do this", Kind.CONFIG
        advice = (
            "check spark.hadoop.*, such as spark.hadoop.fs.s3a.access.key, and the rights: list, read, write, delete"
        )
    elif _CONNECTION.search(text):
        problem = "the file system can't be reached"
    return HelenusError(kind, f"{KEY}: {problem}: {reason}", name, advice)


def _has(text: str, names: tuple[str, ...]) -> bool:
    return any(name in text for name in names)
