"""A schema registry in memory: in place of the connector's `Registry`, and of the client that this one asks."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import fastavro
from confluent_kafka.schema_registry import SchemaRegistryError

from helenus_connector.schema_store.contract import SchemaId
from helenus_connector.shape.encoding.registry import Registry, SchemaType


class MemoryRegistry(Registry):
    """Takes every schema. `subjects` are the ids of the latest ones, `schemas` all of them by id."""

    def __init__(self) -> None:
        self.schemas: dict[int, Any] = {}
        self._texts: dict[int, str] = {}
        self.subjects: dict[str, int] = {}

    def register(self, subject: str, schema: str) -> int:
        number = len(self.schemas) + 1
        self.schemas[number] = fastavro.parse_schema(json.loads(schema))
        self.subjects[subject] = number
        self._texts[number] = schema
        return number

    def schema(self, schema_id: SchemaId) -> str | None:
        return self._texts.get(schema_id) if isinstance(schema_id, int) else None

    def keep(self, subject: str, schema: str, value: str) -> int:  # noqa: ARG002
        return self.register(subject, schema)

    def register_as(
        self,
        schema_type: SchemaType,  # noqa: ARG002
        subject: str,
        schema: str,
        may_register: bool,  # noqa: ARG002
        normalizes: bool,  # noqa: ARG002
    ) -> int:
        number = len(self.schemas) + 1
        self.schemas[number] = self._texts[number] = schema
        self.subjects[subject] = number
        return number

    def close(self) -> None:
        """There is nothing to close."""

    def read(self, data: bytes) -> Any:
        """The key or value of a record, which has the id of its schema in front."""
        source = io.BytesIO(data[5:])
        value = fastavro.schemaless_reader(source, self.schemas[int.from_bytes(data[1:5], "big")])
        if data[0] or source.read():
            raise AssertionError(f"not one framed value: {data.hex()}")
        return value


class RegistryClient:
    """Stands for confluent-kafka's SchemaRegistryClient. `versions` are the schemas of each subject, which a test may
    set, and `references` what a schema refers to, by its text: subjects and versions. `levels` are their compatibility
    levels, `level` that of the registry, `asked` the number of questions. `may_set` says whether the login may set
    levels.
    """

    def __init__(self) -> None:
        self.versions: defaultdict[str, list[str]] = defaultdict(list)
        self.references: dict[str, list[tuple[str, int]]] = {}
        self.levels: dict[str, str] = {}
        self.level = "NONE"
        self.may_set = True
        self.asked = 0

    def get_latest_version(self, subject: str, fmt: str | None = None) -> Any:  # noqa: ARG002
        if not self.versions[subject]:
            self.asked += 1
            raise SchemaRegistryError(404, 40401, "no such subject")
        return self.get_version(subject, len(self.versions[subject]))

    def get_version(self, subject: str, version: int, deleted: bool = False) -> Any:  # noqa: ARG002
        self.asked += 1
        if not 0 < version <= len(self.versions[subject]):
            raise SchemaRegistryError(404, 40402, "no such version")
        return SimpleNamespace(schema=self._schema(self.versions[subject][version - 1]), schema_id=version)

    def get_schema(self, schema_id: int) -> Any:
        """Return a schema by its id: the version of the subject without a name."""
        return self.get_version("", schema_id).schema

    def _schema(self, text: str) -> Any:
        references = [
            SimpleNamespace(name=subject, subject=subject, version=version)
            for subject, version in self.references.get(text, ())
        ]
        return SimpleNamespace(schema_str=text, schema_type="AVRO", references=references)

    def lookup_schema(self, subject: str, schema: Any, normalize_schemas: bool = False) -> Any:  # noqa: ARG002
        self.asked += 1
        if schema.schema_str not in self.versions[subject]:
            raise SchemaRegistryError(404, 40403, "no such schema")
        return SimpleNamespace(schema_id=self.versions[subject].index(schema.schema_str) + 1)

    def register_schema(self, subject: str, schema: Any, normalize_schemas: bool = False) -> int:  # noqa: ARG002
        self.versions[subject].append(schema.schema_str)
        return len(self.versions[subject])

    def get_compatibility(self, subject: str | None = None) -> str:
        self.asked += 1
        if subject is None:
            return self.level
        if subject not in self.levels:
            raise SchemaRegistryError(404, 40408, "no level of its own")
        return self.levels[subject]

    def set_compatibility(self, subject: str, level: str) -> None:
        if not self.may_set:
            raise SchemaRegistryError(403, 40301, "no right")
        self.levels[subject] = level

    def close(self) -> None:
        """There is nothing to close."""
