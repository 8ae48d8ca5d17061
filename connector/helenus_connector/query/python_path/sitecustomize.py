"""Connect Spark's Python processes to the driver before they import anything, and end those that nothing needs any
more. Python runs this module at its start.

`query.session` puts this directory on the PYTHONPATH of the driver's Java process, and so of the Python processes that
it starts. Spark gives two kinds of them ten seconds to connect: that which plans the batches of a source, and that
which prepares an operator with state. They import PySpark first. Spark has them import it from a zip file, which holds
no compiled modules, so that this takes more than a second of CPU time: on a busy machine, more than the ten seconds.
Here they connect first, which takes some ten milliseconds, and import PySpark from where pip has installed it.

Before a query starts, Spark asks Python about its source, by three processes that fork one child for each question, and
then stay for as long as Spark does, with 20 MB each. Here they end once they have no child any more. Spark starts
another one for the next question.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any

# Not by pathlib: to import it takes as long as all of this does.
_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
_TIMEOUT_S = 15
"""PySpark's own, where Spark gives none."""
_IDLE_S = 30
"""How often a process looks whether it has a child. Spark ends children that are idle for a minute."""


def is_awaited() -> bool:
    """Return whether Spark waits for this process to connect: it waits for one that has a socket of its own."""
    own = os.environ.get("PYTHON_WORKER_FACTORY_SOCK_PATH") or os.environ.get("PYTHON_WORKER_FACTORY_PORT")
    _, option, module = [*sys.orig_argv, "", "", ""][:3]
    return bool(own) and option == "-m" and module.startswith("pyspark.")


def connect() -> tuple[Any, socket.socket]:
    """Connect to Spark and log in, as `pyspark.util.local_connect_and_auth` does: returns a file and its socket."""
    path = os.environ.get("PYTHON_WORKER_FACTORY_SOCK_PATH")
    timeout = int(os.environ.get("SPARK_AUTH_SOCKET_TIMEOUT", _TIMEOUT_S))
    size = int(os.environ.get("SPARK_BUFFER_SIZE", 65536))
    if path:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout)
        connection.connect(path)
        connection.settimeout(None)
        return connection.makefile("rwb", size), connection
    is_ipv6 = os.environ.get("SPARK_PREFER_IPV6", "false").lower() == "true"
    address = "::1" if is_ipv6 else "127.0.0.1", int(os.environ["PYTHON_WORKER_FACTORY_PORT"])
    connection = socket.create_connection(address, timeout)
    connection.settimeout(None)  # Spark has connected by then, and answers, or its end ends this
    file = connection.makefile("rwb", size)
    secret = os.environ["PYTHON_WORKER_FACTORY_SECRET"].encode()
    file.write(struct.pack("!i", len(secret)) + secret)
    file.flush()
    (length,) = struct.unpack("!i", file.read(4))
    if file.read(length) != b"ok":
        raise ConnectionError("Spark refuses this process's secret")
    return file, connection


def hand_over(connection: tuple[Any, socket.socket]) -> None:
    """Have PySpark use this connection where it would make its first one."""
    import pyspark.util

    connections, connect_anew = [connection], pyspark.util.local_connect_and_auth

    def local_connect_and_auth(*server: Any) -> Any:
        return connections.pop() if connections else connect_anew(*server)

    for module in ("pyspark.util", "pyspark.worker_util"):
        if module in sys.modules:
            vars(sys.modules[module])["local_connect_and_auth"] = local_connect_and_auth


def without_archives(path: list[str], home: str | None) -> list[str]:
    """Return a module path without PySpark's zip files, if PySpark is installed on it: `home` is Spark's."""
    if not home or os.path.dirname(home) not in path:  # noqa: PTH120
        return path
    archives = os.path.join(home, "python", "lib", "")  # noqa: PTH118
    return [entry for entry in path if not entry.startswith(archives)]


def is_forked_for_questions() -> bool:
    """Return whether this process forks children which tell Spark about a source, and run no tasks."""
    _, option, module, worker = [*sys.orig_argv, "", "", "", ""][:4]
    return option == "-m" and module == "pyspark.daemon" and worker.startswith("pyspark.sql.worker.")


def end_without_children(every_s: float) -> None:
    """Have this process ask itself to end, as Spark does by SIGTERM, when it has no child: looked at so often. A child
    is not asked.
    """
    import signal

    def look(*_: object) -> None:
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, every_s, every_s)  # which a fork does not inherit


def run_next(path: list[str]) -> None:
    """Run the `sitecustomize` that Python would have run instead of this one, if there is one."""
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


def main() -> None:
    """Connect if Spark waits for it, and leave everything else of this process as it would be."""
    connection = None
    if is_awaited():
        with suppress(OSError, KeyError, ValueError, struct.error):  # PySpark tries once more, and says what is wrong
            connection = connect()
    if is_forked_for_questions():
        end_without_children(_IDLE_S)
    home = os.environ.get("SPARK_HOME")
    path = [entry for entry in sys.path if entry != _HERE]
    sys.path[:] = without_archives(path, home and os.path.abspath(home))  # noqa: PTH100
    if connection is not None:
        hand_over(connection)
    run_next(sys.path)


if __name__ == "sitecustomize":
    main()
