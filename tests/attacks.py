"""What another user of a machine tries on the ports, sockets and files of a process and of all that it started."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import processes
import pyspark

from helenus_stack.jars import fetch, read_lock
from helenus_stack.java import java_home
from helenus_stack.progress import Silent
from helenus_stack.resolve import resolve

STRANGER = 65534
IS_ROOT = os.geteuid() == 0
"""Otherwise the attacks are those of this user: without a secret, as well, but sockets and files are its own."""
_LISTEN, _ACCEPTS = "0A", 0x10000  # states of /proc/net/tcp, flags of /proc/net/unix
_CALL = b"r\nu\njava.lang.System\nrj\ne\n"  # py4j: reflection, of a name
_CLIENT = Path(__file__).with_name("BlockClient.java")


@dataclass(frozen=True)
class Listener:
    """A socket of a process that takes connections: on a `port`, or at a `path`."""

    pid: int
    command: str
    port: int = 0
    path: str = ""


def listeners(pid: int) -> list[Listener]:
    """All of a process and of those below it."""
    sockets = {**_ports("tcp"), **_ports("tcp6"), **_paths()}
    found = []
    for process in processes.family(pid):
        command = processes.contents(process, "cmdline").split(b"\0")[0].decode()
        for name in _links(process / "fd"):
            at = sockets.get(name.removeprefix("socket:[").removesuffix("]"))
            if isinstance(at, int):
                found.append(Listener(int(process.name), command, port=at))
            elif at is not None:
                found.append(Listener(int(process.name), command, path=at))
    return found


def _links(folder: Path) -> Iterator[str]:
    try:
        for link in folder.iterdir():
            yield str(link.readlink())
    except OSError:
        return  # it ended, or closed a file, meanwhile


def _ports(protocol: str) -> dict[str, int]:
    """By inode."""
    rows = (line.split() for line in Path("/proc/net", protocol).read_text().splitlines()[1:])
    return {row[9]: int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == _LISTEN}


def _paths() -> dict[str, str]:
    rows = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
    return {row[6]: (row[7] if len(row) > 7 else "") for row in rows if int(row[3], 16) & _ACCEPTS}


def call_java(ports: Iterable[int]) -> list[str]:
    """Call Java over ports as PySpark does, but without its secret; returns what was answered as if to PySpark."""
    taken = []
    for port in ports:
        with socket.socket() as client:
            client.settimeout(5)
            try:
                client.connect(("127.0.0.1", port))
                client.sendall(_CALL)
                answer = client.recv(100)
            except OSError:
                continue
        if answer.startswith(b"!y"):
            taken.append(f"port {port} answered {answer!r}")
    return taken


def fetch_blocks(ports: Iterable[int]) -> list[str]:
    """Read and store blocks over ports, as Spark's own client does, but without a secret: its lines, each a try."""
    jars = str(Path(pyspark.__file__).with_name("jars") / "*")
    java = str(java_home(17, Silent(), newer=True) / "bin/java")
    compiler = next(jar for jar in fetch(read_lock("avro"), Silent(), resolve) if jar.name.startswith("ecj-"))
    paths = os.pathsep.join(str(path) for path in Path(jars).parent.glob("*.jar"))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        options = ["-17", "-nowarn", "-proc:none", "-d", folder, "-cp", paths, str(_CLIENT)]
        main = "org.eclipse.jdt.internal.compiler.batch.Main"
        subprocess.run([java, "-cp", compiler, main, *options], check=True)
        done = as_stranger([java, "-cp", os.pathsep.join([folder, jars]), _CLIENT.stem, *map(str, ports)])
    lines = [line for line in done.splitlines() if " taken " in line or " refused " in line]
    assert lines, done
    return lines


def as_stranger(command: Sequence[str]) -> str:
    """Run a command as another user, if this one may; returns what it prints."""
    other = {"user": STRANGER, "group": STRANGER, "extra_groups": []} if IS_ROOT else {}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd="/", env={"PATH": os.environ["PATH"]}, **other
    )  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return str(done.stdout)


_REACH = """
import socket, sys
for path in sys.argv[1:]:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
            print(path)
        except OSError:
            pass
"""


def reach_sockets(paths: Sequence[str]) -> list[str]:
    """Those that another user can connect to. Without root all of them are this user's: then none is tried."""
    if not IS_ROOT or not paths:
        return []
    return as_stranger(["/usr/bin/env", "python3", "-c", _REACH, *paths]).splitlines()


def open_to_others(*roots: Path) -> list[str]:
    """Files and directories below these that their group or others may read or write, with their modes."""
    found = []
    for root in roots:
        for path in (root, *root.rglob("*")):
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                continue  # of a batch that ended meanwhile
            if not stat.S_ISLNK(mode) and mode & 0o077:
                found.append(f"{stat.filemode(mode)} {path}")
    return found
