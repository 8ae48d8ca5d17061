"""Waits for servers: until they answer properly, or one dies or takes too long; that is an error with its log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from helenus_stack import cassandra
from helenus_stack.errors import StackError
from helenus_stack.process import Process
from helenus_stack.progress import Progress
from helenus_stack.server import Server
from helenus_stack.settings import Settings

POLL_SECONDS = 0.2
LOG_LINES = 25


def wait(servers: Sequence[tuple[Server, Process]], progress: Progress) -> None:
    """Returns when every server is ready; raises StackError when one died or missed its limit."""
    begun = time.monotonic()
    waiting = list(servers)
    while waiting:
        for server, process in list(waiting):
            seconds = time.monotonic() - begun
            if process.pid is None:
                raise failure(server, "died while starting")
            if server.answers and server.ready():
                waiting.remove((server, process))
                if seconds > POLL_SECONDS:
                    progress.say(f"{server.name} is ready after {seconds:.1f} s")
            elif seconds > server.ready_seconds:
                raise failure(server, f"was not ready in {server.ready_seconds:.0f} s")
        if waiting:
            progress.waiting(f"waiting for {', '.join(server.name for server, _ in waiting)}")
            time.sleep(POLL_SECONDS)


def wait_united(
    nodes: Sequence[tuple[Server, Process]], settings: Settings, directory: Path, progress: Progress
) -> None:
    """Returns when all Cassandra nodes see each other up; raises StackError as `wait` does."""
    begun = time.monotonic()
    while not cassandra.united(settings, directory):
        for server, process in nodes:
            if process.pid is None:
                raise failure(server, "died while joining the others")
        server, _ = nodes[0]
        if time.monotonic() - begun > server.ready_seconds:
            raise failure(server, f"did not see the other nodes up in {server.ready_seconds:.0f} s")
        progress.waiting("waiting for the nodes to see each other")
        time.sleep(POLL_SECONDS)


def failure(server: Server, problem: str) -> StackError:
    """The error of a server, with the end of its log."""
    end = server.log.read_text(errors="replace").splitlines()[-LOG_LINES:] if server.log.exists() else []
    advice = "read its log; too little memory is the usual cause"
    if any("Address already in use" in line for line in end):
        advice = "another program has taken one of its ports meanwhile: run it again, which finds others"
    elif any("error while processing commit log" in line for line in end):
        advice = (
            "it can't replay its own commit log, as after kill -9 soon after ALTER TABLE; to leave out what it can't "
            "read, start it with JAVA_TOOL_OPTIONS=-Dcassandra.commitlog.ignorereplayerrors=true"
        )
    return StackError(f"{server.name} {problem}", str(server.log), advice, detail="\n".join(end))
