"""Choose the source of segments that settings name, and have its errors as ours."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from helenus_agent.commitlog.segment_header import Corrupt
from helenus_agent.commitlog.segment_source import DirectorySource, SegmentBytes, SegmentSource, SegmentSourceFactory
from helenus_agent.config import AgentSettings
from helenus_agent.resend._archive import ArchiveSource
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings.named_class import import_class, is_class_name

_LOGIN = re.compile(r"://[^/@]*:[^/@]*@")
_METHODS = ("list_segments", "open_segment", "read_index", "close")


def open_source(settings: AgentSettings) -> SegmentSource:
    """Return the source that `segment.source` names, by default `segment.archive.dir`. What it raises, whatever it is,
    comes as a HelenusError SEGMENT_SOURCE. Raises HelenusError(CONFIG).
    """
    name, config = settings.segment_source, dict(settings.segment_source_config)
    if not name and settings.segment_archive_dir is not None:
        name = str(settings.segment_archive_dir)
    if not name:
        advice = "set segment.source, or segment.archive.dir"
        raise HelenusError(Kind.CONFIG, "nothing says where archived segments are", advice=advice)
    if _LOGIN.search(name):
        advice = "put what the URL's file system calls them into segment.source.config, as ${env:X} or ${file:X:Y}"
        raise HelenusError(Kind.CONFIG, "segment.source: a login has no place in the URL", advice=advice)
    try:
        if is_class_name(name):
            factory = cast("SegmentSourceFactory", import_class(name, "SegmentSource", _METHODS))
            return _CheckedSource(factory(config))
        if "://" in name:
            return _CheckedSource(ArchiveSource(name, config))
    except Exception as error:  # whatever a class raises when one is made of it
        raise HelenusError(Kind.CONFIG, f"segment.source: {error}", advice="correct the properties file") from None
    if config:
        raise HelenusError(Kind.CONFIG, "segment.source.config: a directory has no options", name, "leave them out")
    if not Path(name).is_dir():
        raise HelenusError(Kind.CONFIG, "segment.source is not a directory, an URL, or package.module:Class", name)
    return _CheckedSource(DirectorySource(Path(name)))


class _CheckedSource:
    """A source, whose errors are a HelenusError SEGMENT_SOURCE."""

    def __init__(self, source: SegmentSource) -> None:
        self._source = source

    def list_segments(self) -> Sequence[Path]:
        with _errors_of("the segments can't be listed"):
            return [Path(path) for path in self._source.list_segments()]

    def open_segment(self, path: Path) -> SegmentBytes:
        with _errors_of("the segment can't be opened", path):
            return _CheckedBytes(self._source.open_segment(path), path)

    def read_index(self, path: Path) -> str:
        with _errors_of("the segment's index can't be read", path):
            return self._source.read_index(path)

    def close(self) -> None:
        with _errors_of("it can't be closed"):
            self._source.close()


class _CheckedBytes:
    def __init__(self, file: SegmentBytes, path: Path) -> None:
        self._file = file
        self._path = path

    def read(self, size: int, offset: int) -> bytes:
        with _errors_of("the segment can't be read", self._path):
            return self._file.read(size, offset)

    def size(self) -> int:
        with _errors_of("the segment's size can't be read", self._path):
            return self._file.size()

    def modified_s(self) -> float:
        return self._file.modified_s()

    def close(self) -> None:
        with _errors_of("the segment can't be closed", self._path):
            self._file.close()


@contextlib.contextmanager
def _errors_of(problem: str, path: Path | None = None) -> Iterator[None]:
    try:
        yield
    except (HelenusError, Corrupt):
        raise
    except Exception as error:  # of any library
        reason = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
        raise HelenusError(Kind.SEGMENT_SOURCE, f"{problem}: {reason}", str(path or "segment.source")) from error
