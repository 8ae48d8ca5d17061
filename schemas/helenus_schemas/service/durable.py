"""Files that are replaced durably: after a crash or a power cut, the old content or the new one is there, whole."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.failpoints import reach


class Damaged(Exception):
    """A file is damaged, or has another version than the expected one; the message says which."""


def replace(path: Path, content: Any, subject: str, failpoint: str) -> None:
    """Make `content`, as JSON, the file at `path`. If the process dies on the way, the old file is still there, whole.

    Objects that JSON has no form for are written as their `str`. Raises HelenusError(STATE), which says that `subject`
    could not be saved.
    """
    write(path, json.dumps(content, default=str), subject, failpoint)


def save(path: Path, content: Any, version: int, subject: str, failpoint: str) -> None:
    """Save `content` as `replace` does, after a first line with its version and checksum. `load` reads it."""
    write(path, sealed(json.dumps(content), version), subject, failpoint)


def sealed(text: str, version: int) -> str:
    """Return a text after a line that has its version and checksum."""
    return f"{json.dumps({'version': version, 'crc32': zlib.crc32(text.encode())})}\n{text}\n"


def load(path: Path, version: int) -> Any:
    """Return the content that `save` wrote. Raises FileNotFoundError, Damaged, or HelenusError(STATE) if it cannot be
    read.
    """
    try:
        first, _, text = path.read_text(encoding="utf-8").partition("\n")
        head = json.loads(first)
        written, checksum = head["version"], head["crc32"]
    except FileNotFoundError:
        raise
    except OSError as error:
        raise HelenusError(Kind.STATE, f"cannot read a file: {error.strerror}", str(path)) from None
    except (ValueError, KeyError, TypeError):
        raise Damaged("it does not begin with a version and a checksum") from None
    if written != version:
        raise Damaged(f"it is of version {written}, and this program reads version {version}")
    text = text.removesuffix("\n")
    if zlib.crc32(text.encode()) != checksum:
        raise Damaged("it does not have the checksum that it begins with")
    return json.loads(text)


def with_checksum(content: Mapping[str, Any]) -> str:
    """Return a JSON object with the checksum of its other fields as the first one, `crc32`: for a file that earlier
    versions go on reading, to which `sealed` would be none.
    """
    text = json.dumps(content, default=str)
    assert content, "an object without fields has nothing to check"
    return f'{{"crc32": {zlib.crc32(text.encode())}, {text[1:]}'


def parse_with_checksum(text: str) -> Any:
    """Return the content of a text that `with_checksum` returned, or of other JSON as it is. Raises ValueError."""
    content = json.loads(text)
    checksum = content.pop("crc32", None) if isinstance(content, dict) else None
    # A text that was damaged and means the same has the same checksum once it is written anew.
    if checksum is not None and checksum != zlib.crc32(json.dumps(content).encode()):
        raise ValueError("it does not have its checksum")
    return content


def write(path: Path, text: str, subject: str, failpoint: str, mode: int = 0o600) -> None:
    """Make `text` the file at `path`, as `replace` does; `mode` is that of a new file, by default its user's alone."""
    new = path.with_suffix(".new")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        reach(failpoint)
        new.replace(path)
        sync(path.parent)
    except OSError as error:
        raise HelenusError(Kind.STATE, f"cannot save {subject}: {error.strerror}", str(path)) from None


def make_directory(directory: Path) -> None:
    """Make a directory, if it is missing. Raises HelenusError(STATE)."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HelenusError(Kind.STATE, f"cannot make a directory: {error.strerror}", str(directory)) from None


def sync(path: Path) -> None:
    """Flush a file's content, or a directory's list of files, to disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
