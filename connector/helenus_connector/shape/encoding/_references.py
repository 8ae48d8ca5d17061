"""An Avro schema of a registry in one piece: with the schemas that it refers to, and those that they refer to."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from helenus_connector.shape.encoding._answer_limit import MAX_ANSWER_BYTES
from helenus_schemas.avro.references import inline_types
from helenus_schemas.errors import HelenusError, Kind

_MAX_REFERENCES = 100
"""Most schemas that one may refer to, directly or not: a table has a few types. It limits their depth, too."""
_MAX_READ_S = 30.0
"""Longest time for all of them: as long as for one answer, which has one of these for each of its schemas."""
_CONTEXT = re.compile(r":\.[^:]*:")
"""How a subject of another context than the address's begins, as in `:.ctx:orders-value`."""

GetVersion = Callable[[str, int], Any]
"""Gives the version of a subject, as confluent-kafka's client does; None if the registry does not have it."""


def avro_text(schema: Any, subject: str, get_version: GetVersion) -> str:
    """Return the text of an Avro schema of a subject, with the types of the schemas that it refers to in their places.

    Raises ValueError for a reference that leads to no Avro schema, or back to where it comes from, for too many, and
    for types that are not defined; HelenusError REGISTRY_UNREACHABLE for a registry that takes too long, and as
    `get_version`.
    """
    text = str(schema.schema_str)
    if not schema.references:
        return text
    reader = _ReferenceReader(get_version)
    try:
        reader.read(schema, subject)
    except ValueError as error:
        raise ValueError(f"it refers to {error}") from None
    try:
        return inline_types(text, reader.texts)
    except ValueError as error:
        raise ValueError(f"with the schemas that it refers to: {error}") from None


class _ReferenceReader:
    def __init__(self, get_version: GetVersion) -> None:
        self._get_version = get_version
        self._deadline = time.monotonic() + _MAX_READ_S
        self._open: set[tuple[str, int]] = set()
        self._read: set[tuple[str, int]] = set()
        self._size = 0
        self.texts: list[str] = []

    def read(self, schema: Any, subject: str) -> None:
        """Read what a schema refers to; the innermost ones are the first of `texts`."""
        for reference in schema.references or ():
            version = _subject_version(reference, subject)
            if version in self._open:
                raise ValueError(f"{_shown(version)}, which refers to itself")
            if version not in self._read:
                self._open.add(version)
                self._read_version(version)
                self._open.remove(version)

    def _read_version(self, version: tuple[str, int]) -> None:
        if len(self._read) == _MAX_REFERENCES:
            raise ValueError(f"more than {_MAX_REFERENCES} schemas")
        if time.monotonic() > self._deadline:
            problem = f"the schemas that another refers to are not read within {_MAX_READ_S:.0f} s"
            raise HelenusError(Kind.REGISTRY_UNREACHABLE, problem, f"subject {version[0]}")
        self._read.add(version)
        registered = self._get_version(*version)
        if registered is None:
            raise ValueError(f"{_shown(version)}, which the registry does not have")
        schema = registered.schema
        if (schema_type := schema.schema_type or "AVRO") != "AVRO":
            raise ValueError(f"{_shown(version)}, which is {schema_type}")
        text = str(schema.schema_str)
        self._size += len(text)
        if self._size > MAX_ANSWER_BYTES:
            raise ValueError(f"schemas of more than {MAX_ANSWER_BYTES} bytes")
        self.read(schema, version[0])
        self.texts.append(text)


def _subject_version(reference: Any, parent: str) -> tuple[str, int]:
    """Return the subject and version that a schema of the subject `parent` refers to: in its context, unless the
    reference names another.
    """
    subject, version = getattr(reference, "subject", None), getattr(reference, "version", None)
    if not isinstance(subject, str) or not subject or not isinstance(version, int):
        raise ValueError("one without a subject or version")
    context = _CONTEXT.match(parent)
    return (subject if context is None or _CONTEXT.match(subject) else context[0] + subject), version


def _shown(version: tuple[str, int]) -> str:
    return f"version {version[1]} of {version[0][:200]}"
