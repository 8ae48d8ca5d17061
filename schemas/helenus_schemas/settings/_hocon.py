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
    """Return what a file says: an object by keys, lists, and texts. Raises ValueError, which names the line, and no
    values.
    """
    return _Parser(text).parse_all()


def get(settings: Mapping[str, Any], path: str) -> Any:
    """Return what is at a path of keys with dots between; None if it is not there."""
    value: Any = settings
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str, int]] = []
        offset = 0
        while offset < len(text):
            match, line = _TOKEN.match(text, offset), text.count("\n", 0, offset) + 1
            if match is None:
                raise ValueError(f"line {line}: it is not understood: is a quote open?")
            self._tokens.append((match.lastgroup or "", match[match.lastgroup or 0], line))
            offset = match.end()
        self._tokens.append(("end", "the end of the file", text.count("\n") + 1))
        self._index = 0
        self._root: dict[str, Any] = {}

    def parse_all(self) -> dict[str, Any]:
        self._skip()
        braces = self._is("{")
        if braces:
            self._index += 1
        self._fields(self._root, "}" if braces else None)
        self._skip()
        if self._tokens[self._index][0] != "end":
            raise self._wrong()
        return self._root

    def _fields(self, into: dict[str, Any], until: str | None) -> None:
        """Read the fields of an object, and its closing brace."""
        while True:
            self._skip(",")
            if self._is(until):
                self._index += 1
                return
            if self._tokens[self._index][0] == "end" and until is None:
                return
            path = self._path()
            self._skip()
            target, key = into, path[-1]
            for part in path[:-1]:
                if not isinstance(target.get(part), dict):
                    target[part] = {}
                target = target[part]
            if self._is("{"):
                value = self._value(target.get(key))
            elif self._is("+="):
                self._index += 1
                previous = target.get(key)
                value = [*(previous if isinstance(previous, list) else ()), self._value(None)]
            elif self._is(":") or self._is("="):
                self._index += 1
                value = self._value(target.get(key))
            else:
                raise self._wrong()
            if value is not _ABSENT:
                target[key] = value

    def _path(self) -> list[str]:
        parts = [""]
        begun = self._index
        while (kind := self._tokens[self._index][0]) in ("plain", "quoted", "long"):
            text = self._text()
            if kind == "plain":
                first, *more = text.split(".")
                parts[-1] += first
                parts += more
            else:
                parts[-1] += text
            if self._tokens[self._index][0] == "space" and parts == ["include"]:
                raise ValueError(f"line {self._tokens[begun][2]}: include is not followed: write its settings here")
        if self._index == begun or not all(parts):
            raise self._wrong()
        return parts

    def _value(self, previous: Any) -> Any:
        """Read a value; an object is merged into `previous`. Return _ABSENT if it refers to something undefined."""
        self._skip()
        if self._is("{"):
            self._index += 1
            target = previous if isinstance(previous, dict) else {}
            self._fields(target, "}")
            return target
        if self._is("["):
            self._index += 1
            return self._list()
        return self._concatenated()

    def _list(self) -> list[Any]:
        values: list[Any] = []
        while True:
            self._skip(",")
            if self._is("]"):
                self._index += 1
                return values
            value = self._value(None)
            if value is not _ABSENT:
                values.append(value)

    def _concatenated(self) -> Any:
        """Read texts and references on a line, and join them; a reference alone is whatever it refers to."""
        parts: list[Any] = []
        space = ""
        while (kind := self._tokens[self._index][0]) in ("plain", "quoted", "long", "refer", "space"):
            if kind == "space":
                text = self._text()
                space += "" if text.startswith(("#", "//")) else text
                continue
            if parts and space:
                parts.append(space)
            space = ""
            parts.append(self._referred() if kind == "refer" else self._text())
        if not parts:
            raise self._wrong()
        if len(parts) == 1:
            return parts[0]
        return "".join(str(part) for part in parts if part is not _ABSENT)

    def _referred(self) -> Any:
        _, name, line = self._tokens[self._index]
        self._index += 1
        path = name.removeprefix("?").strip()
        value = get(self._root, path)
        if value is None:
            value = os.environ.get(path, _ABSENT)
        if value is _ABSENT and not name.startswith("?"):
            raise ValueError(f"line {line}: ${{{name}}} is neither above nor in the environment")
        return deepcopy(value) if value is not _ABSENT else value

    def _text(self) -> str:
        kind, text, line = self._tokens[self._index]
        self._index += 1
        if kind != "quoted":
            return text
        try:
            return str(json.loads(text))
        except ValueError:
            raise ValueError(f"line {line}: a text has an escape that there is not") from None

    def _is(self, mark: str | None) -> bool:
        kind, text, _ = self._tokens[self._index]
        return kind == "mark" and text == mark

    def _skip(self, *marks: str) -> None:
        while self._tokens[self._index][0] in ("space", "line") or any(map(self._is, marks)):
            self._index += 1

    def _wrong(self) -> ValueError:
        kind, text, line = self._tokens[self._index]
        shown = {"mark": text, "end": text, "line": "the end of the line"}.get(kind, "a text")  # which may be a secret
        return ValueError(f"line {line}: {shown} was not expected there")
