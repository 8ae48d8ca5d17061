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
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("  "):
            found[-1][1].append(line[2:])
        elif line and not line.startswith("#"):
            found.append((line, []))
    return [(mistake, "\n".join(said)) for mistake, said in found]


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
    who, _, what = mistake.partition(" ")
    Path("raw").mkdir()
    for file in RIGHT:
        Path(f"{file}.properties").write_text(written(file, what if file == who else ""))
    if who == "REST":
        method, path, *body = what.split(" ", 2)
        answer = api.session.request(
            method,
            api.base + path,
            data=body[0].encode() if body else None,
            headers={"Content-Type": "application/json"},
            timeout=10,
        )
        said = json.loads(answer.text) if answer.text else {}
        return f"{answer.status_code} {said.get('message') if isinstance(said, dict) else said}".rstrip()
    arguments = {
        "agent": ["helenus-agent", "validate", "agent.properties"],
        "worker": ["helenus-connector", "validate", "worker.properties", "table.properties"],
        "table": ["helenus-connector", "validate", "worker.properties", "table.properties"],
    }
    name, *rest = arguments.get(who) or what.replace("WORKER", api.base).split()
    done = CliRunner().invoke({"helenus-agent": agent, "helenus-connector": connector}[name].main, rest, prog_name=name)
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code in (1, 2), done.output
    assert "Traceback" not in done.output
    said = re.sub(r"^Usage:.*\n(?: .*\n)*(?:Try .*\n)?\n?", "", done.stderr, flags=re.MULTILINE)
    said = re.sub(r"^\d{4}-\d\d-\d\dT\S+ .*\n", "", said, flags=re.MULTILINE)
    return said.replace(str(Path.cwd()), "HERE").replace(api.base, "WORKER").rstrip()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    api = Api(settings(tmp_path_factory.mktemp("rest")))
    assert api.ask("POST", "/connectors", {"name": "f1", "config": CONFIG})[0] == 201
    yield api
    api.close()


@pytest.mark.parametrize(("mistake", "said"), blocks(TABLE.read_text()))
def test_what_a_mistake_is_answered(
    mistake: str, said: str, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said_to(mistake, api) == said


def test_there_are_enough_of_them() -> None:
    mistakes = [mistake for mistake, _ in blocks(TABLE.read_text())]
    assert len(set(mistakes)) == len(mistakes) >= 300


@pytest.mark.parametrize("command", [agent.main, connector.main, stack.main])
def test_each_command_takes_short_help(command: click.Group) -> None:
    done = CliRunner().invoke(command, ["-h"])
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: ")


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
                work = Path(tempfile.mkdtemp(dir=directory))
                os.chdir(work)
                try:
                    said = said_to(line, api)
                except Exception as error:
                    said = f"!! {error!r}"
                print("\n".join(f"  {one}" for one in said.splitlines()))  # noqa: T201
        api.close()


if __name__ == "__main__":
    main()
