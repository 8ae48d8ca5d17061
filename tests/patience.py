"""Waiting for what real servers will do: one way, with one limit that a busy machine does not reach."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 240


def eventually(check: Callable[[], Any], description: str | Callable[[], str] = "", every: float = 0.5) -> Any:
    """Ask until `check` answers with something true, `every` so many seconds; returns that answer.

    An AssertionError says what did not come, or what `description` returns then, such as the end of a log.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(
                f"not within {PATIENCE_S} s: {description if isinstance(description, str) else description()}"
            )
        time.sleep(every)


def wait_for_error(process: subprocess.Popen[str], text: str) -> str:
    """Read what a process writes to its stderr until that has `text`, and return it. `communicate` has what follows.

    Unlike `readline`, it does not wait for ever for a process that writes nothing.
    """
    assert process.stderr is not None
    stderr, chunks = process.stderr.fileno(), [b""]

    def has_text() -> bool:
        if not select.select([stderr], [], [], 0.1)[0]:
            return False
        chunks.append(os.read(stderr, 1 << 16))
        assert chunks[-1], f"it closed its stderr without {text!r}: {b''.join(chunks).decode()}"
        return text.encode() in b"".join(chunks)

    eventually(has_text, lambda: f"{text!r} in {b''.join(chunks).decode()}", every=0)
    return b"".join(chunks).decode()
