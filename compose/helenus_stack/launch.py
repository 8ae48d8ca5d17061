"""Starts a server that lives on its own: `python -m helenus_stack.launch PID_FILE LOG FOLDER COMMAND...`.

The server's process writes its own pid file before it turns into the server, so there is no moment in which it runs
and can't be found. The launcher ends when the file is there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def start_time(pid: int) -> str:
    """When the process started, as an opaque text that no later process with the same pid shares; raises OSError."""
    if sys.platform == "linux":
        with open(f"/proc/{pid}/stat") as file:
            # After the name in parentheses, which may hold anything: state is field 3, start time field 22.
            return file.read().rpartition(")")[2].split()[19]
    shown = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    if not shown:
        raise ProcessLookupError(pid)
    return shown


def main(pid_file: str, log: str, folder: str, *command: str) -> None:
    """Forks the process that becomes `command`, and returns when its pid file is written."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        os.read(reader, 1)
        return
    os.setsid()  # its own session and process group: no terminal's Ctrl-C, and one signal reaches its children
    temporary = f"{pid_file}.{os.getpid()}"
    with open(temporary, "w") as file:
        file.write(f"{os.getpid()} {start_time(os.getpid())}\n")
    Path(temporary).replace(pid_file)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    try:
        os.execvp(command[0], command)  # closes the pipe: Python's descriptors close on exec
    except OSError as error:
        os.write(2, f"{command[0]}: {error}\n".encode())
        os._exit(127)


if __name__ == "__main__":
    main(*sys.argv[1:])
