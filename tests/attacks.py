"""What another user of a machine tries on the ports, sockets and files of a process and of all that it started."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyspark
from bench import processes

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
    """A socket of a process that takes connections: at `host:port`, or at a `path`."""

    pid: int
    command: str
    address: str = ""
    path: str = ""

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2] or 0)


def listeners(pid: int) -> list[Listener]:
    """All of a process and of those below it."""
    sockets = {**_ports("tcp"), **_ports("tcp6"), **_paths()}
    listening = []
    for process in processes.family(pid):
        command = processes.contents(process, "cmdline").split(b"\0")[0].decode()
        for name in _links(process / "fd"):
            listener = sockets.get(name.removeprefix("socket:[").removesuffix("]"))
            if listener is not None:
                listening.append(replace(listener, pid=int(process.name), command=command))
    return listening


def _links(folder: Path) -> Iterator[str]:
    try:
        for link in folder.iterdir():
            yield str(link.readlink())
    except OSError:
        return  # it ended, or closed a file, meanwhile


def _ports(protocol: str) -> dict[str, Listener]:
    """By inode."""
    rows = (line.split() for line in Path("/proc/net", protocol).read_text().splitlines()[1:])
    return {row[9]: Listener(0, "", address=_address(row[1])) for row in rows if row[3] == _LISTEN}


def _address(text: str) -> str:
    """`0100007F:1F90` as `127.0.0.1:8080`, of IPv6 too where it stands for IPv4. One for all is this one too."""
    number, _, port = text.partition(":")
    host = ".".join(str(byte) for byte in reversed(bytes.fromhex(number[-8:])))
    return f"{'127.0.0.1' if host == '0.0.0.0' else host}:{int(port, 16)}"


def _paths() -> dict[str, Listener]:
    rows = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
    accepting = [row for row in rows if int(row[3], 16) & _ACCEPTS]
    return {row[6]: Listener(0, "", path=row[7] if len(row) > 7 else "") for row in accepting}


def call_java(addresses: Iterable[str]) -> list[str]:
    """Call Java as PySpark does, but without its secret; returns what was answered as if to PySpark."""
    answers = []
    for address in addresses:
        host, _, port = address.partition(":")
        with socket.socket() as client:
            client.settimeout(5)
            try:
                client.connect((host, int(port)))
                client.sendall(_CALL)
                answer = client.recv(100)
            except OSError:
                continue
        if answer.startswith(b"!y"):
            answers.append(f"{address} answered {answer!r}")
    return answers


def fetch_blocks(addresses: Iterable[str]) -> list[str]:
    """Read and store blocks, as Spark's own client does, but without a secret: its lines, each a try."""
    jars = str(Path(pyspark.__file__).with_name("jars") / "*")
    java = str(java_home(17, Silent(), newer=True) / "bin/java")
    compiler = next(jar for jar in fetch(read_lock("avro"), Silent(), resolve) if jar.name.startswith("ecj-"))
    paths = os.pathsep.join(str(path) for path in Path(jars).parent.glob("*.jar"))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        options = ["-17", "-nowarn", "-proc:none", "-d", folder, "-cp", paths, str(_CLIENT)]
        main = "org.eclipse.jdt.internal.compiler.batch.Main"
        subprocess.run([java, "-cp", compiler, main, *options], check=True)
        output = as_stranger([java, "-cp", os.pathsep.join([folder, jars]), _CLIENT.stem, *addresses])
    lines = [line for line in output.splitlines() if " taken " in line or " refused " in line]
    assert lines, output
    return lines


def as_stranger(command: Sequence[str]) -> str:
    """Run a command as another user, if this one may; returns what it prints."""
    other = {"user": STRANGER, "group": STRANGER, "extra_groups": []} if IS_ROOT else {}
    process = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd="/", env={"PATH": os.environ["PATH"]}, **other
    )  # type: ignore[call-overload]
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-2000:]
    return str(process.stdout)


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
    readable = []
    for root in roots:
        for path in (root, *root.rglob("*")):
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                continue  # of a batch that ended meanwhile
            if not stat.S_ISLNK(mode) and mode & 0o077:
                readable.append(f"{stat.filemode(mode)} {path}")
    return readable
