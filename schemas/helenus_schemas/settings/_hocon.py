"""Configuration files of Java programs, in HOCON: as much of it as the Java driver's files have.

    datastax-java-driver.basic { contact-points = ["10.0.0.1:9042"], load-balancing-policy.local-datacenter = dc1 }

Objects, lists, texts with and without quotes, comments, `+=`, and `${?NAME}` of what stands above it or of the
environment. Not: `include`, and `${...}` of what stands below.
https://github.com/lightbend/config/blob/main/HOCON.md
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\f\ufeff\xa0]+|(?:\#|//)[^\n]*)|(?P<line>\n)|(?P<mark>\+=|[{}\[\]:=,])"""
    r"""|\$\{(?P<refer>\??[^}]*)\}"""
    r'''|"""(?P<long>.*?)"""(?!")|(?P<quoted>"(?:[^"\\\n]|\\.)*")|(?P<plain>(?:(?!//)[^\s{}\[\]:=,"\#$])+)''',
    re.DOTALL,
)
_ABSENT = object()


def parse(text: str) -> dict[str, Any]:
    """What a file says: an object by keys, lists, and texts. Raises ValueError, which names the line, and no values."""
    return _Parser(text).whole()


def get(found: Mapping[str, Any], path: str) -> Any:
    """What is at a path of keys with dots between; None if it is not there."""
    at: Any = found
    for key in path.split("."):
        at = at.get(key) if isinstance(at, Mapping) else None
    return at


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str, int]] = []
        at = 0
        while at < len(text):
            match, line = _TOKEN.match(text, at), text.count("\n", 0, at) + 1
            if match is None:
                raise ValueError(f"line {line}: it is not understood: is a quote open?")
            self._tokens.append((match.lastgroup or "", match[match.lastgroup or 0], line))
            at = match.end()
        self._tokens.append(("end", "the end of the file", text.count("\n") + 1))
        self._at = 0
        self._root: dict[str, Any] = {}

    def whole(self) -> dict[str, Any]:
        self._skip()
        braces = self._is("{")
        if braces:
            self._at += 1
        self._fields(self._root, "}" if braces else None)
        self._skip()
        if self._tokens[self._at][0] != "end":
            raise self._wrong()
        return self._root

    def _fields(self, into: dict[str, Any], until: str | None) -> None:
        """The fields of an object, and its closing brace."""
        while True:
            self._skip(",")
            if self._is(until):
                self._at += 1
                return
            if self._tokens[self._at][0] == "end" and until is None:
                return
            path = self._path()
            self._skip()
            of, key = into, path[-1]
            for part in path[:-1]:
                if not isinstance(of.get(part), dict):
                    of[part] = {}
                of = of[part]
            if self._is("{"):
                value = self._value(of.get(key))
            elif self._is("+="):
                self._at += 1
                before = of.get(key)
                value = [*(before if isinstance(before, list) else ()), self._value(None)]
            elif self._is(":") or self._is("="):
                self._at += 1
                value = self._value(of.get(key))
            else:
                raise self._wrong()
            if value is not _ABSENT:
                of[key] = value

    def _path(self) -> list[str]:
        parts = [""]
        begun = self._at
        while (kind := self._tokens[self._at][0]) in ("plain", "quoted", "long"):
            text = self._text()
            if kind == "plain":
                first, *more = text.split(".")
                parts[-1] += first
                parts += more
            else:
                parts[-1] += text
            if self._tokens[self._at][0] == "space" and parts == ["include"]:
                raise ValueError(f"line {self._tokens[begun][2]}: include is not followed: write its settings here")
        if self._at == begun or not all(parts):
            raise self._wrong()
        return parts

    def _value(self, before: Any) -> Any:
        """A value; what an object is merged into is given. _ABSENT if it refers to what there is not."""
        self._skip()
        if self._is("{"):
            self._at += 1
            of = before if isinstance(before, dict) else {}
            self._fields(of, "}")
            return of
        if self._is("["):
            self._at += 1
            return self._list()
        return self._concatenated()

    def _list(self) -> list[Any]:
        found: list[Any] = []
        while True:
            self._skip(",")
            if self._is("]"):
                self._at += 1
                return found
            value = self._value(None)
            if value is not _ABSENT:
                found.append(value)

    def _concatenated(self) -> Any:
        """Texts and references on a line, as they stand there; a reference alone is whatever it refers to."""
        found: list[Any] = []
        space = ""
        while (kind := self._tokens[self._at][0]) in ("plain", "quoted", "long", "refer", "space"):
            if kind == "space":
                text = self._text()
                space += "" if text.startswith(("#", "//")) else text
                continue
            if found and space:
                found.append(space)
            space = ""
            found.append(self._referred() if kind == "refer" else self._text())
        if not found:
            raise self._wrong()
        if len(found) == 1:
            return found[0]
        return "".join(str(part) for part in found if part is not _ABSENT)

    def _referred(self) -> Any:
        _, name, line = self._tokens[self._at]
        self._at += 1
        path = name.removeprefix("?").strip()
        value = get(self._root, path)
        if value is None:
            value = os.environ.get(path, _ABSENT)
        if value is _ABSENT and not name.startswith("?"):
            raise ValueError(f"line {line}: ${{{name}}} is neither above nor in the environment")
        return deepcopy(value) if value is not _ABSENT else value

    def _text(self) -> str:
        kind, text, line = self._tokens[self._at]
        self._at += 1
        if kind != "quoted":
            return text
        try:
            return str(json.loads(text))
        except ValueError:
            raise ValueError(f"line {line}: a text has an escape that there is not") from None

    def _is(self, mark: str | None) -> bool:
        kind, text, _ = self._tokens[self._at]
        return kind == "mark" and text == mark

    def _skip(self, *marks: str) -> None:
        while self._tokens[self._at][0] in ("space", "line") or any(map(self._is, marks)):
            self._at += 1

    def _wrong(self) -> ValueError:
        kind, text, line = self._tokens[self._at]
        what = {"mark": text, "end": text, "line": "the end of the line"}.get(kind, "a text")  # which may be a secret
        return ValueError(f"line {line}: {what} was not expected there")
