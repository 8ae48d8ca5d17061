"""Segments in an object store, or wherever else fsspec reads files: `s3://bucket/node1`, `gs://…`, `sftp://…`."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helenus_agent.commitlog.segment_name import index_path, parse_name


class ArchiveSource:
    """A folder at an URL of fsspec's. `config` are the options of its file system, as fsspec's documentation names
    them: `key`, `secret`, `endpoint_url`. Raises ValueError where a package is missing, and whatever fsspec raises.
    """

    def __init__(self, url: str, config: Mapping[str, str]) -> None:
        try:
            fsspec: Any = importlib.import_module("fsspec.core")
            self._files, self._folder = fsspec.url_to_fs(url, **config)
        except ImportError as error:  # fsspec's own says which package reads an URL of this kind
            raise ValueError(f"{error}: pip install 'helenus[archive]', and the package for this kind of URL") from None

    def list_segments(self) -> list[Path]:
        """Return the segments in the folder, not in those below it."""
        return [path for path in map(Path, self._files.ls(self._folder, detail=False)) if parse_name(path.name)]

    def open_segment(self, path: Path) -> _RemoteSegment:
        """Open a segment: fsspec reads ahead of what is asked for, by its `default_block_size`."""
        return _RemoteSegment(self._files.open(path.as_posix(), "rb"), int(self._files.size(path.as_posix())))

    def read_index(self, path: Path) -> str:
        """Return the text of the index beside a segment, empty if there is none."""
        with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
            return bytes(self._files.cat_file(index_path(path).as_posix())).decode("ascii")
        return ""

    def close(self) -> None:
        """Do nothing: fsspec keeps its connections for the process."""


class _RemoteSegment:
    def __init__(self, file: Any, size: int) -> None:
        self._file = file
        self._size = size

    def read(self, size: int, offset: int) -> bytes:
        self._file.seek(offset)
        return bytes(self._file.read(size))

    def size(self) -> int:
        return self._size

    def modified_s(self) -> float:
        return 0.0

    def close(self) -> None:
        self._file.close()
