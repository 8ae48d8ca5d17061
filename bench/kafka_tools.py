"""Kafka's own command-line tools, as operators use them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from helenus_stack.jars import fetch, parse_lock
from helenus_stack.java import java_home
from helenus_stack.progress import Silent
from helenus_stack.resolve import resolve

_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
_TIMEOUT_S = 120
_LOCK = Path(__file__).with_suffix(".lock")


def describe_group(brokers: str, group: str) -> list[dict[str, str]]:
    """What `kafka-consumer-groups --describe` says: by column, a row for each partition."""
    return _table(_run(_GROUPS, "--bootstrap-server", brokers, "--describe", "--group", group), "GROUP")


def list_transactions(brokers: str) -> list[dict[str, str]]:
    """What `kafka-transactions list` says: by column, a row for each transactional id."""
    return _table(_run(_TRANSACTIONS, "--bootstrap-server", brokers, "list"), "TransactionalId")


def abort_transaction(brokers: str, topic: str, partition: int, offset: int) -> None:
    """End the transaction that begins at an offset, as `kafka-transactions abort` does."""
    options = ["--topic", topic, "--partition", str(partition), "--start-offset", str(offset)]
    _run(_TRANSACTIONS, "--bootstrap-server", brokers, "abort", *options)


def _run(main: str, *arguments: str) -> str:
    jars = fetch(parse_lock(_LOCK.read_text(), _LOCK.name), Silent(), resolve)
    java = java_home(17, Silent(), newer=True) / "bin/java"
    command = [str(java), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", os.pathsep.join(map(str, jars)), main]
    tool = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S)
    assert tool.returncode == 0, tool.stdout + tool.stderr
    return tool.stdout


def _table(text: str, first_column: str) -> list[dict[str, str]]:
    """The rows below the line that begins with a column's name."""
    lines = [line.split() for line in text.splitlines()]
    head = next((index for index, line in enumerate(lines) if line[:1] == [first_column]), None)
    assert head is not None, text
    return [dict(zip(lines[head], line, strict=False)) for line in lines[head + 1 :] if line]
