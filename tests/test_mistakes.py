"""Some 300 mistakes that people make, and the exact text that each gets: one table, tests/mistakes.txt.

A block is the mistake and, indented, what is said. `agent`, `worker` and `table` take lines that are put into a
properties file that is right otherwise (`-KEY` takes one out) and has it validated; `$` is a command line, in which
WORKER is the address of one that runs, `REST` a call with its body. `python tests/test_mistakes.py` prints the table
as it would be now: read what it says before it replaces the old one.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import structlog
from click.testing import CliRunner
from connector.test_rest import CONFIG, Api, settings

from helenus_agent import cli as agent
from helenus_connector import cli as connector
from helenus_stack import cli as stack

TABLE = Path(__file__).with_name("mistakes.txt")
RIGHT = {
    "agent": {"state.dir": "state", "cdc.raw.dir": "raw", "kafka.bootstrap.servers": "k:9092"},
    "worker": {"bootstrap.servers": "k:9092", "checkpoint.dir": "checkpoint", "listeners": "http://127.0.0.1:0"},
    "table": {"name": "a", "keyspace": "shop", "table": "orders", "output.format": "json"},
}


def blocks(text: str) -> list[tuple[str, str]]:
    mistakes: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("  "):
            mistakes[-1][1].append(line[2:])
        elif line and not line.startswith("#"):
            mistakes.append((line, []))
    return [(mistake, "\n".join(lines)) for mistake, lines in mistakes]


def written(file: str, changes: str) -> str:
    """The file with these changes, which ` ; ` parts."""
    properties = dict(RIGHT[file])
    more = []
    for change in filter(None, changes.split(" ; ")):
        if change.startswith("-"):
            del properties[change[1:]]
        else:
            properties.pop(change.partition("=")[0], None)
            more.append(change)
    return "".join(f"{line}\n" for line in [*(f"{key}={value}" for key, value in properties.items()), *more])


def said_to(mistake: str, api: Api) -> str:
    """What is answered to a mistake, in a directory of its own."""
    who, _, details = mistake.partition(" ")
    Path("raw").mkdir()
    for file in RIGHT:
        Path(f"{file}.properties").write_text(written(file, details if file == who else ""))
    if who == "REST":
        method, path, *body = details.split(" ", 2)
        answer = api.session.request(
            method,
            api.base + path,
            data=body[0].encode() if body else None,
            headers={"Content-Type": "application/json"},
            timeout=10,
        )
        reply = json.loads(answer.text) if answer.text else {}
        return f"{answer.status_code} {reply.get('message') if isinstance(reply, dict) else reply}".rstrip()
    arguments = {
        "agent": ["helenus-agent", "validate", "agent.properties"],
        "worker": ["helenus-connector", "validate", "worker.properties", "table.properties"],
        "table": ["helenus-connector", "validate", "worker.properties", "table.properties"],
    }
    name, *words = arguments.get(who) or details.replace("WORKER", api.base).split()
    result = CliRunner().invoke(
        {"helenus-agent": agent, "helenus-connector": connector}[name].main, words, prog_name=name
    )
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code in (1, 2), result.output
    assert "Traceback" not in result.output
    error_text = re.sub(r"^Usage:.*\n(?: .*\n)*(?:Try .*\n)?\n?", "", result.stderr, flags=re.MULTILINE)
    error_text = re.sub(r"^\d{4}-\d\d-\d\dT\S+ .*\n", "", error_text, flags=re.MULTILINE)
    return error_text.replace(str(Path.cwd()), "HERE").replace(api.base, "WORKER").rstrip()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    api = Api(settings(tmp_path_factory.mktemp("rest")))
    assert api.ask("POST", "/connectors", {"name": "f1", "config": CONFIG})[0] == 201
    yield api
    api.close()


@pytest.mark.parametrize(("mistake", "expected"), blocks(TABLE.read_text()))
def test_what_a_mistake_is_answered(
    mistake: str, expected: str, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said_to(mistake, api) == expected


def test_there_are_enough_of_them() -> None:
    mistakes = [mistake for mistake, _ in blocks(TABLE.read_text())]
    assert len(set(mistakes)) == len(mistakes) >= 300


@pytest.mark.parametrize("command", [agent.main, connector.main, stack.main])
def test_each_command_takes_short_help(command: click.Group) -> None:
    result = CliRunner().invoke(command, ["-h"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("Usage: ")


@pytest.mark.parametrize("command", [agent.main, connector.main, stack.main])
def test_no_line_of_help_is_cut(command: click.Group) -> None:
    for arguments in (["-h"], *([name, "-h"] for name in command.commands)):
        text = CliRunner().invoke(command, arguments, terminal_width=80).stdout
        assert max(map(len, text.splitlines())) <= 80
        assert "..." not in text.partition("\nCommands:")[2]


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory() as directory:
        api = Api(settings(Path(directory, "rest")))
        api.ask("POST", "/connectors", {"name": "f1", "config": CONFIG})
        for line in TABLE.read_text().splitlines():
            if line.startswith("  "):
                continue
            print(line)  # noqa: T201
            if line and not line.startswith("#"):
                folder = Path(tempfile.mkdtemp(dir=directory))
                os.chdir(folder)
                try:
                    message = said_to(line, api)
                except Exception as error:
                    message = f"!! {error!r}"
                print("\n".join(f"  {line_of_message}" for line_of_message in message.splitlines()))  # noqa: T201
        api.close()


if __name__ == "__main__":
    main()
