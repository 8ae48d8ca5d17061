"""Conditions that rows have to meet to be published, as `where.TABLE` has them: parsed, never evaluated as code.

    status = 'active' AND (amount > 10 OR country IN ('DE', 'FR')) AND NOT name LIKE 'test%' AND deleted IS NULL

Names and keywords are in any case; a name with capitals is in double quotes, as in CQL. Values are text in single
quotes, numbers, `true` and `false`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

Literal = str | int | Decimal | bool
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?)(?![\w.])"""
    r"""|(?P<quoted>"(?:[^"]|"")+")|(?P<word>[A-Za-z_]\w*)|(?P<sign><=|>=|<>|!=|[=<>(),]))""",
    re.ASCII,
)
_KEYWORDS = frozenset(("and", "or", "not", "in", "is", "null", "like", "true", "false"))
_COMPARISONS = {"=": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_MAX_DEPTH = 50  # of parentheses and NOT: far from the depth of Python's own stack


@dataclass(frozen=True)
class ColumnComparison:
    """A column compared with a literal: `operator` is one of = != < <= > >=."""

    column: str
    operator: str
    literal: Literal


@dataclass(frozen=True)
class InList:
    """That a column's value is one of the literals."""

    column: str
    literals: tuple[Literal, ...]


@dataclass(frozen=True)
class IsNull:
    """That a column is null."""

    column: str


@dataclass(frozen=True)
class Like:
    """That a column's text matches a pattern, in which % is any text and _ any character."""

    column: str
    pattern: str


@dataclass(frozen=True)
class Not:
    """The opposite of a condition."""

    condition: Condition


@dataclass(frozen=True)
class AllOf:
    """That all conditions hold."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True)
class AnyOf:
    """That a condition of several holds."""

    conditions: tuple[Condition, ...]


Condition = ColumnComparison | InList | IsNull | Like | Not | AllOf | AnyOf


@functools.lru_cache(100)
def parse_condition(text: str) -> Condition:
    """Parse a condition. Raises ValueError that says where it is wrong."""
    return _Parser(text).parse()


def columns_of(condition: Condition) -> Iterator[str]:
    """Yield the columns that a condition names."""
    match condition:
        case Not(inner):
            yield from columns_of(inner)
        case AllOf(conditions) | AnyOf(conditions):
            for inner in conditions:
                yield from columns_of(inner)
        case _:
            yield condition.column


def check_conditions(conditions: dict[str, str]) -> dict[str, str]:
    """Return conditions by table. Raises ValueError for one that can't be parsed."""
    for table, text in conditions.items():
        try:
            parse_condition(text)
        except ValueError as error:
            raise ValueError(f"where.{table}: {error}") from None
    return conditions


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    offset: int

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.lower() in words


class _Parser:
    """A recursive descent parser: OR binds less than AND, AND less than NOT."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._index = self._depth = 0

    def parse(self) -> Condition:
        condition = self._any()
        if self._token.kind != "end":
            raise self._error("AND, OR or the end")
        return condition

    @property
    def _token(self) -> _Token:
        return self._tokens[self._index]

    def _error(self, expected: str) -> ValueError:
        token = self._token
        where = "at its end" if token.kind == "end" else f"at character {token.offset + 1}, {token.text[:20]}"
        return ValueError(f"{where}: {expected} is expected")

    def _takes(self, *words: str) -> bool:
        """Return whether the next token is one of these keywords, and pass it."""
        is_next = self._token.is_word(*words)
        self._index += is_next
        return is_next

    def _sign(self, sign: str) -> None:
        if self._token.kind != "sign" or self._token.text != sign:
            raise self._error(sign)
        self._index += 1

    def _any(self) -> Condition:
        conditions = [self._all()]
        while self._takes("or"):
            conditions.append(self._all())
        return conditions[0] if len(conditions) == 1 else AnyOf(tuple(conditions))

    def _all(self) -> Condition:
        conditions = [self._condition()]
        while self._takes("and"):
            conditions.append(self._condition())
        return conditions[0] if len(conditions) == 1 else AllOf(tuple(conditions))

    def _condition(self) -> Condition:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
        try:
            if self._takes("not"):
                return Not(self._condition())
            if self._token.kind == "sign" and self._token.text == "(":
                self._index += 1
                condition = self._any()
                self._sign(")")
                return condition
            return self._test(self._column())
        finally:
            self._depth -= 1

    def _test(self, column: str) -> Condition:
        """Parse what follows a column's name."""
        token = self._token
        if token.kind == "sign" and token.text in _COMPARISONS:
            self._index += 1
            return ColumnComparison(column, _COMPARISONS[token.text], self._literal())
        if self._takes("is"):
            is_not = self._takes("not")
            if not self._takes("null"):
                raise self._error("NULL")
            return Not(IsNull(column)) if is_not else IsNull(column)
        is_not = self._takes("not")
        if self._takes("in"):
            condition: Condition = InList(column, self._literals())
        elif self._takes("like"):
            pattern = self._literal()
            if not isinstance(pattern, str):
                raise ValueError(f"the pattern of {column} LIKE is text in single quotes")
            condition = Like(column, pattern)
        else:
            raise self._error("a comparison, IN, LIKE or IS NULL")
        return Not(condition) if is_not else condition

    def _column(self) -> str:
        token = self._token
        if token.kind == "quoted":
            name = token.text[1:-1].replace('""', '"')
        elif token.kind == "word" and token.text.lower() not in _KEYWORDS:
            name = token.text.lower()
        else:
            raise self._error("a column")
        self._index += 1
        return name

    def _literals(self) -> tuple[Literal, ...]:
        self._sign("(")
        literals = [self._literal()]
        while self._token.kind == "sign" and self._token.text == ",":
            self._index += 1
            literals.append(self._literal())
        self._sign(")")
        return tuple(literals)

    def _literal(self) -> Literal:
        token = self._token
        literal: Literal
        if token.kind == "text":
            literal = token.text[1:-1].replace("''", "'")
        elif token.kind == "number":
            literal = int(token.text) if re.fullmatch(r"[+-]?[0-9]+", token.text) else Decimal(token.text)
        elif token.is_word("true", "false"):
            literal = token.text.lower() == "true"
        else:
            raise self._error("text in single quotes, a number, true or false")
        self._index += 1
        return literal


def _tokens(text: str) -> Iterator[_Token]:
    """Yield the tokens of a condition, and at last one of the kind `end`. Raises ValueError."""
    offset = 0
    while text[offset:].strip():
        match = _TOKEN.match(text, offset)
        if match is None:
            start = len(text) - len(text[offset:].lstrip())
            raise ValueError(f"at character {start + 1}: {text[start : start + 20]} is no part of a condition")
        kind = match.lastgroup or ""
        yield _Token(kind, match[kind], match.start(kind))
        offset = match.end()
    yield _Token("end", "", len(text))
