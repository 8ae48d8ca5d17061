"""Ends transactions that the broker left open, as docs/failures.md has operators do."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Collection

from helenus_sinks.kafka.open_transactions import HeldBack, find_held_back
from helenus_stack.jars import fetch, read_lock
from helenus_stack.java import java_home
from helenus_stack.progress import Silent
from helenus_stack.resolve import resolve

_COMMAND = "org.apache.kafka.tools.TransactionsCommand"
_LONGEST_S = 30.0
"""No transaction of a worker takes so long, once nothing disturbs it: one that is open then has nobody who ends it."""
_TIMEOUT_S = 120.0


def end_open_transactions(brokers: str, topics: Collection[str]) -> list[HeldBack]:
    """End the transactions in topics that nobody ends, with Kafka's own tool, and return where they began. Raises
    CalledProcessError if it refuses.
    """
    config = {"bootstrap.servers": brokers}
    first = find_held_back(config, topics)
    if not first:
        return []
    time.sleep(_LONGEST_S)
    begun = {each[:3] for each in first}
    left_open = [each for each in find_held_back(config, topics) if each[:3] in begun]
    for topic, partition, offset, _ in left_open:
        jars = fetch(read_lock("kafka"), Silent(), resolve)
        java = java_home(17, Silent(), newer=True) / "bin/java"
        command = [str(java), "-Xmx128m", "-cp", os.pathsep.join(map(str, jars)), _COMMAND]
        command += ["--bootstrap-server", brokers, "abort", "--topic", topic]
        command += ["--partition", str(partition), "--start-offset", str(offset)]
        subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S)
    return left_open
