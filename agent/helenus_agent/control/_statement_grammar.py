"""The grammar of CEP-44's statements about data sinks and data sources.

    CREATE DATA_SINK [IF NOT EXISTS] name WITH 'address'
    DROP DATA_SINK [IF EXISTS] name
    CREATE DATA_SOURCE [IF NOT EXISTS] cdc ON TABLE keyspace.table WITH sink
    DROP DATA_SOURCE [IF EXISTS] cdc ON TABLE keyspace.table
    DESCRIBE DATA_SINKS; DESCRIBE DATA_SOURCES

Words are as in CQL: keywords and names in any case, names in double quotes as they are, texts in single quotes, and
comments. A statement ends in a semicolon, the last one of a text may lack it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

_TOKEN = re.compile(
    r"""(?P<blank>\s+|--[^\n]*|//[^\n]*|/\*.*?\*/)
    |(?P<text>'(?:[^']|'')*')
    |(?P<quoted>"(?:[^"]|"")*")
    |(?P<word>[A-Za-z]\w*)
    |(?P<sign>[;.])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_END = "the end of the statement"
_MAX_NAME = 48
"""Characters of a name: Cassandra's own limit for those of keyspaces and tables."""
_OTHER = "these statements are about DATA_SINK and DATA_SOURCE alone: for all others use cqlsh"
_VERBS = ("CREATE", "DROP", "DESCRIBE", "DESC", "SHOW", "HELP")
Plural = Literal["DATA_SINKS", "DATA_SOURCES"]


class StatementError(Exception):
    """What is wrong with a statement: from `start` to `end` of the text that it is in."""

    def __init__(self, reason: str, start: int, end: int) -> None:
        super().__init__(reason)
        self.reason, self.start, self.end = reason, start, end


@dataclass(frozen=True)
class Word:
    """A name or a text, and where it is: its value begins at `start`."""

    value: str
    start: int
    end: int

    def refuse(self, reason: str) -> StatementError:
        """Return the error that this word is wrong."""
        return StatementError(reason, self.start, self.end)


@dataclass(frozen=True)
class CreateSink:
    """CREATE DATA_SINK."""

    name: Word
    address: Word
    if_not_exists: bool


@dataclass(frozen=True)
class DropSink:
    """DROP DATA_SINK."""

    name: Word
    if_exists: bool


@dataclass(frozen=True)
class TableName:
    """A table with its keyspace."""

    keyspace: str
    table: str
    word: Word

    def __str__(self) -> str:
        return f"{self.keyspace}.{self.table}"


@dataclass(frozen=True)
class CreateSource:
    """CREATE DATA_SOURCE."""

    service: Word
    table: TableName
    sink: Word
    if_not_exists: bool


@dataclass(frozen=True)
class DropSource:
    """DROP DATA_SOURCE."""

    service: Word
    table: TableName
    if_exists: bool


@dataclass(frozen=True)
class Describe:
    """DESCRIBE of all."""

    kind: Plural


@dataclass(frozen=True)
class Help:
    """HELP."""


Statement = CreateSink | DropSink | CreateSource | DropSource | Describe | Help


@dataclass(frozen=True)
class _Token:
    """`kind` is a group of the expression for tokens, `end`, or for a character that is none `unclosed` or `wrong`."""

    kind: str
    text: str
    start: int
    end: int

    @property
    def description(self) -> str:
        if self.kind == "end":
            return _END
        return "a text in quotes" if self.kind == "text" else self.text

    def refuse(self, reason: str) -> StatementError:
        return StatementError(reason, self.start, self.end)


def parse_statements(text: str) -> list[Statement]:
    """Return the statements of a text. Raises StatementError for the first thing that is wrong in it."""
    parser = _Parser(list(_tokens(text)))
    statements = []
    while not parser.is_over():
        if not parser.take_sign(";"):
            statements.append(parser.statement())
    return statements


def is_complete(text: str) -> bool:
    """Return whether a text ends where a statement does: at a semicolon, outside quotes and comments."""
    *tokens, _ = _tokens(text)
    return not tokens or tokens[-1].text == ";"


def _tokens(text: str) -> Iterator[_Token]:
    index = 0
    while index < len(text):
        match = _TOKEN.match(text, index)
        if match is None:
            is_unclosed = text[index] in "'\"" or text.startswith("/*", index)
            yield _Token("unclosed" if is_unclosed else "wrong", text[index], index, index + 1)
            index = len(text) if is_unclosed else index + 1
            continue
        kind = str(match.lastgroup)
        if kind != "blank":
            yield _Token(kind, match[0], index, match.end())
        index = match.end()
    yield _Token("end", "", len(text), len(text) + 1)


class _Parser:
    """Reads one token after the other."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._index = 0

    def is_over(self) -> bool:
        return self._token.kind == "end"

    def take_sign(self, sign: str) -> bool:
        is_there = self._token.kind == "sign" and self._token.text == sign
        self._index += is_there
        return is_there

    def statement(self) -> Statement:
        verb = self._keyword(*_VERBS, otherwise=_OTHER)
        parsed: Statement
        if verb == "HELP":
            parsed = Help()
        elif verb == "CREATE":
            is_sink = self._keyword("DATA_SINK", "DATA_SOURCE", otherwise=_OTHER) == "DATA_SINK"
            parsed = self._create_sink() if is_sink else self._create_source()
        elif verb == "DROP":
            is_sink = self._keyword("DATA_SINK", "DATA_SOURCE", otherwise=_OTHER) == "DATA_SINK"
            parsed = self._drop_sink() if is_sink else self._drop_source()
        else:
            is_sinks = self._keyword("DATA_SINKS", "DATA_SOURCES", otherwise=_OTHER) == "DATA_SINKS"
            parsed = Describe("DATA_SINKS" if is_sinks else "DATA_SOURCES")
        if not self.is_over() and not self.take_sign(";"):
            raise self._unexpected("; and the next statement")
        return parsed

    @property
    def _token(self) -> _Token:
        return self._tokens[self._index]

    def _create_sink(self) -> CreateSink:
        if_not_exists = self._condition("IF", "NOT", "EXISTS")
        name = self._name("the name of a data sink")
        self._keyword("WITH")
        return CreateSink(name, self._text(), if_not_exists)

    def _drop_sink(self) -> DropSink:
        if_exists = self._condition("IF", "EXISTS")
        return DropSink(self._name("the name of a data sink"), if_exists)

    def _create_source(self) -> CreateSource:
        if_not_exists = self._condition("IF", "NOT", "EXISTS")
        service, table = self._service_and_table()
        self._keyword("WITH")
        return CreateSource(service, table, self._name("the name of a data sink"), if_not_exists)

    def _drop_source(self) -> DropSource:
        if_exists = self._condition("IF", "EXISTS")
        return DropSource(*self._service_and_table(), if_exists)

    def _service_and_table(self) -> tuple[Word, TableName]:
        service = self._name("cdc")
        if service.value != "cdc":
            raise service.refuse("there is no such service: cdc is the only one")
        self._keyword("ON")
        self._keyword("TABLE")
        keyspace = self._name("keyspace.table")
        if not self.take_sign("."):
            raise keyspace.refuse(f"name its keyspace too: keyspace.{keyspace.value}")
        table = self._name("the name of a table")
        word = Word(f"{keyspace.value}.{table.value}", keyspace.start, table.end)
        return service, TableName(keyspace.value, table.value, word)

    def _condition(self, *words: str) -> bool:
        """Read IF EXISTS or IF NOT EXISTS. Return False if there is none."""
        if self._token.kind != "word" or self._token.text.upper() != "IF":
            return False
        for word in words:
            self._keyword(word)
        return True

    def _keyword(self, *words: str, otherwise: str = "") -> str:
        token = self._token
        if token.kind == "word" and token.text.upper() in words:
            self._index += 1
            return token.text.upper()
        if token.kind == "word" and otherwise:
            similar = difflib.get_close_matches(token.text.upper(), words, 1, 0.75)
            raise token.refuse(f"did you mean {similar[0]}?" if similar else otherwise)
        raise self._unexpected(_alternatives(words))

    def _name(self, description: str) -> Word:
        token = self._token
        if token.kind == "word":
            value = token.text.lower()
        elif token.kind == "quoted":
            value = token.text[1:-1].replace('""', '"')
        else:
            raise self._unexpected(description)
        if not re.fullmatch(r"\w+", value, re.ASCII) or len(value) > _MAX_NAME:
            raise token.refuse(f"a name has letters, digits and '_' alone, and {_MAX_NAME} of them at most")
        self._index += 1
        return Word(value, token.start, token.end)

    def _text(self) -> Word:
        token = self._token
        if token.kind != "text":
            raise self._unexpected("an address in single quotes, 'kafka://host:port'")
        self._index += 1
        return Word(token.text[1:-1].replace("''", "'"), token.start + 1, token.end - 1)

    def _unexpected(self, expected: str) -> StatementError:
        token = self._token
        if token.kind == "unclosed":
            return token.refuse(f"this {'comment' if token.text == '/' else 'quote'} is not closed")
        shown = "this character" if token.kind == "wrong" else token.description
        return token.refuse(f"{expected} is expected, and not {shown}")


def _alternatives(words: tuple[str, ...]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last
