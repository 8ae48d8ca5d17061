"""The alternatives of a regular expression for names: each should match one, or, where it excludes names, exclude one.

`id|name|(?!(email|phone)$).*` has five: `id`, `name`, the rest of it, and, excluding, `email` and `phone`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_NEGATIVE = ("(?!", "(?<!")


@dataclass(frozen=True)
class Alternative:
    """One alternative: `pattern` is the expression with this one alone in its place.

    An excluding one is in a negative look-around, without which the expression is `wider`.
    """

    text: str
    pattern: str
    wider: str | None = None

    @property
    def is_excluding(self) -> bool:
        return self.wider is not None

    def matches(self, names: Iterable[str]) -> list[str]:
        """Return those names that it matches, or, if it is excluding, those that it excludes."""
        if self.wider is None:
            return [name for name in names if re.fullmatch(self.pattern, name)]
        return [name for name in names if re.fullmatch(self.wider, name) and not re.fullmatch(self.pattern, name)]


@dataclass
class _Group:
    """A group of an expression, or all of it: where it and each of its alternatives begin and end."""

    start: int
    parent: _Group | None
    negative: _Group | None  # the outermost negative look-around that it is, or is in
    parts: list[int] = field(default_factory=list)  # where alternatives begin, and after the last: where that ends, + 1
    end: int = 0

    def alternatives(self) -> list[tuple[int, int]]:
        return [(start, after - 1) for start, after in zip(self.parts, self.parts[1:], strict=False)]

    def replaced(self, expression: str, text: str) -> str:
        """Return the expression with this text as the body of the group."""
        return expression[: self.parts[0]] + text + expression[self.parts[-1] - 1 :]


@functools.lru_cache(1000)  # asked for each table and definition
def alternatives(expression: str) -> tuple[Alternative, ...]:
    """Return the alternatives of an expression that compiles. An empty one stands for something optional: not returned,
    as those whose group others refer to.
    """
    named = []
    flags = re.match(r"(?:\(\?[aimsux]+\))?", expression)[0]  # type: ignore[index] # of all alternatives
    expression = expression[len(flags) :]
    for group in _groups(expression):
        parts = group.alternatives()
        if len(parts) == 1 and group.parent is not None and group is not group.negative:
            continue  # a group alone is a part of what is around it
        negative = group.negative
        wider = None if negative is None else flags + expression[: negative.start] + expression[negative.end :]
        for start, end in parts:
            text = expression[start:end]
            pattern = flags + _narrowed(expression, group, text)
            if text and _compiles(pattern) and (wider is None or _compiles(wider)):
                named.append(Alternative(text, pattern, wider))
    return tuple(named)


def _narrowed(expression: str, group: _Group, text: str) -> str:
    """Return the expression with one alternative of a group alone, and of the groups around it the alternatives that
    lead to it. What is around a negative look-around stays: what the whole expression excludes counts.
    """
    while group.parent is not None and group is not group.negative:
        start, end = next((s, e) for s, e in group.parent.alternatives() if s <= group.start < e)
        text = expression[start : group.parts[0]] + text + expression[group.parts[-1] - 1 : end]
        group = group.parent
    return group.replaced(expression, text)


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _groups(expression: str) -> list[_Group]:
    """Return the groups of an expression, the whole as the first."""
    whole = _Group(0, None, None, [0])
    groups, open_groups = [whole], [whole]
    index = 0
    while index < len(expression):
        char = expression[index]
        if char == "\\":
            index += 1
        elif char == "[":
            index = _class_end(expression, index)
        elif char == "(":
            prefix = re.compile(r"\(\?(?:P<\w+>|<?[=!]|P[=>]\w+|\(\w+\)|[aiLmsux-]*:|>|#[^)]*)?|\(").match(
                expression, index
            )
            assert prefix is not None
            group = _Group(index, open_groups[-1], open_groups[-1].negative, [prefix.end()])
            if prefix[0] in _NEGATIVE and group.negative is None:
                group.negative = group
            groups.append(group)
            open_groups.append(group)
            index = prefix.end() - 1
        elif char == "|":
            open_groups[-1].parts.append(index + 1)
        elif char == ")" and len(open_groups) > 1:
            group = open_groups.pop()
            group.parts.append(index + 1)
            group.end = index + 1
        index += 1
    whole.parts.append(len(expression) + 1)
    return groups


def _class_end(expression: str, start: int) -> int:
    """Return where a class of characters, which begins at `start`, has its closing bracket."""
    index = start + 1
    if expression[index : index + 1] == "^":
        index += 1
    if expression[index : index + 1] == "]":
        index += 1
    while expression[index] != "]":
        index += 2 if expression[index] == "\\" else 1
    return index
