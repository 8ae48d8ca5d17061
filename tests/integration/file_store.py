"""A store of schemas as an operator may write one: all of them in a directory, a file each."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


class FileStore:
    """See `helenus_connector.schema_store.contract.AvroSchemaStore`. `path` is a JSON file that all processes reach."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._path = Path(config["path"])

    def register(self, subject: str, schema: str) -> int:
        with self._locked():
            schemas = self._read()
            for number, (other_subject, other) in enumerate(schemas):
                if (other_subject, other) == (subject, schema):
                    return number
            if "forbidden" in schema:
                raise ValueError("a column is forbidden")
            self._path.write_text(json.dumps([*schemas, (subject, schema)]))
            return len(schemas)

    def latest(self, subject: str) -> tuple[int, str] | None:
        with self._locked():
            of_subject = [(n, text) for n, (other, text) in enumerate(self._read()) if other == subject]
        return of_subject[-1] if of_subject else None

    def schema(self, schema_id: object) -> str | None:
        with self._locked():
            schemas = self._read()
        return schemas[schema_id][1] if isinstance(schema_id, int) and schema_id < len(schemas) else None

    def close(self) -> None:
        """There is nothing to close."""

    def _read(self) -> list[tuple[str, str]]:
        return [(subject, text) for subject, text in json.loads(self._path.read_text())] if self._path.exists() else []

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
