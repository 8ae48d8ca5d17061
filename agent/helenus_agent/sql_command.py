"""`helenus-agent sql`: statements about data sinks and data sources from a prompt, options, files or a pipe."""

from __future__ import annotations

import contextlib
import itertools
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

import click

from helenus_agent.config import AgentSettings
from helenus_agent.control.statements import (
    StatementError,
    StatementResult,
    StatementSession,
    is_complete,
    parse_statements,
)
from helenus_agent.own_properties import OwnProperties
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings.data_sink import hide_values

WIDTH = 80  # columns of what is printed
_LARGEST = 1_000_000  # characters of a file of statements: one that is no such file ends nobody's memory
_PROMPT, _NEXT = "helenus> ", "     ... "
_GREETING = "Statements end in a semicolon. HELP lists them; EXIT or Ctrl-D ends."
_ENDS = ("exit", "quit")


@dataclass(frozen=True)
class StatementText:
    """Statements as they are written, and where: a file's name, or what else they come from."""

    source: str
    text: str


def read_statements(files: Sequence[Path], statements: Sequence[str], piped: TextIO | None) -> list[StatementText]:
    """Return the texts of options, files and a pipe. Raises HelenusError CONFIG for a file that can't be read."""
    texts = [StatementText("-e", text) for text in statements]
    for path in files:
        try:
            with open(path, encoding="utf-8-sig") as file:
                content = file.read(_LARGEST + 1)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            message = f"cannot read statements: {reason}"
            raise HelenusError(Kind.CONFIG, message, str(path), "name a text file") from None
        texts.append(StatementText(str(path), content))
    if piped is not None and not texts:
        texts.append(StatementText("standard input", piped.read(_LARGEST + 1)))
    for text in texts:
        if len(text.text) > _LARGEST:
            advice = "give several smaller ones"
            raise HelenusError(Kind.CONFIG, f"statements have {_LARGEST:,} characters at most", text.source, advice)
    return texts


def log_in(own: OwnProperties, role: str | None, password: str | None) -> OwnProperties:
    """Return the agent's properties with another role. They follow `configs` in Cassandra, since that is what
    statements change. Raises HelenusError CONFIG for those of an agent that does not.
    """
    named = {AgentSettings.key_of(key): text.strip() for key, text in own.properties.items()}
    if named.get("config.store", "cassandra" if own.source == "the environment" else "file") != "cassandra":
        advice = "set config.store=cassandra: docs/control-plane.md"
        message = "an agent with this file follows no configuration in Cassandra"
        raise HelenusError(Kind.CONFIG, message, own.source, advice)
    logins = ("cassandra.username", "cassandra.password")
    properties = {key: text for key, text in own.properties.items() if AgentSettings.key_of(key) not in logins}
    if role is None:
        properties = dict(own.properties)
    else:
        properties |= {"cassandra.username": role, "cassandra.password": password or ""}
    return replace(own, properties={**properties, "config.store": "cassandra"})


def run_statements(session: StatementSession, texts: Iterable[StatementText]) -> int:
    """Parse all statements, and then execute them until one fails. Return the exit status."""
    parsed = []
    for text in texts:
        try:
            parsed.append((text, parse_statements(text.text)))
        except StatementError as error:
            _show_error(text, error, " (nothing was executed)")
            return 1
    for text, statements in parsed:
        for statement in statements:
            try:
                click.echo(format_result(session.execute(statement)))
            except StatementError as error:
                _show_error(text, error)
                return 1
            except HelenusError as error:
                click.echo(f"helenus-agent: {text.source}: {error}", err=True)
                return 1
    return 0


def prompt(session: StatementSession) -> int:
    """Read statements from a terminal until its end. Lines can be edited and recalled, and no file keeps them."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (which gives `input` its editing)
    click.echo(_GREETING)
    lines: list[str] = []
    while True:
        try:
            line = input(_NEXT if lines else _PROMPT)
        except KeyboardInterrupt:
            click.echo()
            lines.clear()
            continue
        except EOFError:
            click.echo()
            return 0
        if not lines and line.strip().rstrip(";").lower() in _ENDS:
            return 0
        lines.append(line)
        text = "\n".join(lines)
        if is_complete(text) or text.strip().upper() == "HELP":
            lines.clear()
            try:
                run_statements(session, [StatementText("", text)])
            except KeyboardInterrupt:
                click.echo("stopped: DESCRIBE shows how far it came, and repeating it with IF [NOT] EXISTS goes on")


def format_result(result: StatementResult) -> str:
    """Return a result as a table of 80 columns; a cell that has no room goes on in the next line."""
    if not result.rows:
        return f"(no {result.columns[0]}s)"
    rows = [tuple(map(_printable, row)) for row in result.rows]
    widths = [max(len(row[index]) for row in (result.columns, *rows)) for index in range(len(result.columns))]
    room = WIDTH - 3 * (len(widths) - 1) - 2
    while sum(widths) > room:
        widest = widths.index(max(widths))
        widths[widest] -= sum(widths) - room if len(widths) == 1 else 1
    lines = [_line(result.columns, widths), "-" + "-+-".join("-" * width for width in widths) + "-"]
    for row in rows:
        cells = [textwrap.wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
        lines += [_line(parts, widths) for parts in itertools.zip_longest(*cells, fillvalue="")]
    return "\n".join(lines)


def format_error(text: StatementText, error: StatementError, then: str = "") -> str:
    """Return an error with its place, and below it the line with a caret under each character of the wrong word.
    Nothing of a value that may be a secret is shown.
    """
    before = text.text[: error.start].split("\n")
    location = f"{text.source}:{len(before)}: " if text.source else ""
    hidden = hide_values(text.text)
    line = hidden.split("\n")[len(before) - 1].replace("\t", " ").rstrip()
    column = len(before[-1])
    length = max(1, min(error.end, error.start + len(line) - column) - error.start)
    room = WIDTH - 2
    # Of a long line as much as shows the word, and what is before it.
    start = max(0, min(column - room // 3, len(line) - room + 1))
    shown = _printable(line)
    shown = ("…" if start else "") + shown[start + bool(start) :]
    shown = shown if len(shown) <= room else f"{shown[: room - 1]}…"
    carets = "^" * min(length, room - (column - start))
    message = _printable(f"helenus-agent: {location}{error.reason}{then}")
    message = textwrap.fill(message, WIDTH, break_on_hyphens=False)
    return f"{message}\n  {shown}\n  {' ' * (column - start)}{carets}"


def _show_error(text: StatementText, error: StatementError, then: str = "") -> None:
    sys.stdout.flush()
    click.echo(format_error(text, error, then if text.source else ""), err=True)


def _printable(text: str) -> str:
    """Return a text without what a terminal would obey: CQL may have written it."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return (" " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))).rstrip()
