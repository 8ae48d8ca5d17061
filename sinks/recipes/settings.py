"""Command lines and properties files of the recipes, and what they say on standard error."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from records import Failure

_REFERENCE = re.compile(r"\$\{(?:env:([^}]+)|file:([^}]+):([^}:]+))\}")
_NOTE_INTERVAL_S = 30.0  # what goes on being wrong is said twice a minute, as an operator reads it
_REGISTRY = "schema.registry."


@dataclass(frozen=True)
class Settings:
    """What a recipe was asked: the words of its command line, and the properties of `--config`."""

    brokers: str
    registry: str
    topic: str
    target: list[str]
    """The words that are the recipe's own, in their order."""
    once: bool = False
    """End at the end of the topic."""
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def kafka(self) -> dict[str, str]:
        """The properties of the Kafka client."""
        return {name: value for name, value in self.properties.items() if not name.startswith((_REGISTRY, "target."))}

    @property
    def registry_client(self) -> dict[str, str]:
        """The properties `schema.registry.*`, by the names that the registry's client has for them."""
        return self._under(_REGISTRY)

    @property
    def target_client(self) -> dict[str, str]:
        """The properties `target.*`, by the names that the store's client has for them."""
        return self._under("target.")

    def _under(self, prefix: str) -> dict[str, str]:
        properties = self.properties.items()
        return {name.removeprefix(prefix): value for name, value in properties if name.startswith(prefix)}


def parse_settings(doc: str | None, names: Sequence[str], arguments: Sequence[str] | None = None) -> Settings:
    """Read the command line BROKERS REGISTRY TOPIC NAMES… [--once] [--config FILE]. Ends with 2 if it is another."""
    usage = f"%(prog)s BROKERS REGISTRY TOPIC {' '.join(names)} [--once] [--config FILE]"
    parser = argparse.ArgumentParser(
        usage=usage, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    for name in ("brokers", "registry", "topic", *names):
        parser.add_argument(name, metavar=name.upper())
    parser.add_argument("--once", action="store_true", help="end at the end of the topic, with status 0")
    parser.add_argument("--config", metavar="FILE", help="properties of the Kafka client, the registry and the store")
    parsed = vars(parser.parse_args(arguments))
    try:
        properties = read_properties(Path(parsed["config"])) if parsed["config"] else {}
    except Failure as failure:
        sys.exit(f"{parser.prog}: {failure}")
    target = [parsed[name] for name in names]
    return Settings(
        parsed["brokers"], parsed["registry"].rstrip("/"), parsed["topic"], target, parsed["once"], properties
    )


def read_properties(path: Path) -> dict[str, str]:
    """Read `name=value` lines, with `${env:NAME}` and `${file:PATH:KEY}` in their values resolved. Raises Failure."""
    properties = {}
    for number, line in enumerate(_lines(path), start=1):
        name, equals, value = line.strip().partition("=")
        if not name or name.startswith(("#", "!")):
            continue
        if not equals:
            raise Failure(f"{path}, line {number}: not name=value")
        properties[name.strip()] = _REFERENCE.sub(_resolve, value.strip())
    return properties


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{path} can't be read: {error}") from None


def _resolve(reference: re.Match[str]) -> str:
    variable, file, key = reference.groups()
    if variable:
        if variable not in os.environ:
            raise Failure(f"the environment variable {variable} is not set, which --config refers to")
        return os.environ[variable]
    pairs = (line.strip().partition("=") for line in _lines(Path(file)))
    secrets = {name.strip(): value.strip() for name, _, value in pairs}
    if key not in secrets:
        raise Failure(f"{file} has no {key}, which --config refers to")
    return secrets[key]


def without_login(address: str) -> str:
    """Give an address without the user and password in it: what may be printed."""
    return re.sub(r"//[^/\s]*@", "//", address)


class Notes:
    """Lines on standard error. What is said again within half a minute is counted, and said once with its number."""

    def __init__(self) -> None:
        self._said_at: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def say(self, note: str, count: int = 1, kind: Any = None) -> None:
        """Say something of so many records or events; of one `kind`, by default its text, twice a minute at most."""
        kind = str(kind or note)
        self._counts[kind] = self._counts.get(kind, 0) + count
        now = time.monotonic()
        if now - self._said_at.get(kind, -_NOTE_INTERVAL_S) < _NOTE_INTERVAL_S:
            return
        total = self._counts.pop(kind)
        self._said_at[kind] = now
        print(
            f"{Path(sys.argv[0]).name}: {note}" + (f" ({total} times)" if total > 1 else ""),
            file=sys.stderr,
            flush=True,
        )
