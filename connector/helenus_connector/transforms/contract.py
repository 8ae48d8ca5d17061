"""The contract of a transform and of a predicate, the keys of their settings, and their errors.

transforms=mask
transforms.mask.type=my_package.masks:Mask      a class as `Transform`, made with {"fields": ["a"]}
transforms.mask.fields=a
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from helenus_connector.connect_data.record import ConnectRecord
from helenus_connector.connect_data.schema import ConnectSchema

ValueType = Literal["STRING", "LIST", "BOOLEAN", "INT"]
Importance = Literal["HIGH", "MEDIUM", "LOW"]
REQUIRED: Any = object()
"""Default of a key that has none."""


class TransformError(ValueError):
    """A record that a transform can't change: it is treated as one that can't be published."""


@dataclass(frozen=True)
class ConfigKey:
    """A key of a transform's settings: what Kafka Connect calls a configuration definition.

    A LIST is a list of text, separated by commas. `choices` are the only values, in any case if `ignores_case`.
    `check` raises ValueError for a value that is wrong.
    """

    name: str
    type: ValueType
    documentation: str
    default: Any = REQUIRED
    importance: Importance = "MEDIUM"
    choices: Sequence[str] = ()
    ignores_case: bool = False
    check: Callable[[Any], object] | None = None

    def parse(self, text: str) -> Any:
        """Return the value that a text stands for. Raises ValueError."""
        value: Any = text.strip() if self.type != "STRING" else text
        if self.type == "LIST":
            value = [part for part in re.split(r"\s*,\s*", value) if part]
        elif self.type == "BOOLEAN":
            if value.lower() not in ("true", "false"):
                raise ValueError("give true or false")
            value = value.lower() == "true"
        elif self.type == "INT":
            if not re.fullmatch(r"[+-]?\d+", value):
                raise ValueError("give a whole number")
            value = int(value)
        choices = [choice.lower() for choice in self.choices] if self.ignores_case else self.choices
        if choices and (value.lower() if self.ignores_case else value) not in choices:
            raise ValueError(f"give one of {', '.join(self.choices)}")
        if self.check is not None:
            self.check(value)
        return value


class Transform(Protocol):
    """A transform of records: one for each `transforms.NAME`, written as `package.module:Class`.

    - **Where and how often.** Each of Spark's Python workers makes its own for each table that it publishes, again when
      the table's definition changes. One thread calls `apply` for each record, in the order of a key's records. The
      package has to be installed, or on PYTHONPATH, wherever the worker and Spark's executors run.
    - **What it may keep.** Caches. No state that decides on later records: a batch may be repeated, a record may be
      made twice, and another process may have the next one.
    - **What it returns.** The record, another one made by `dataclasses.replace`, or None, which drops it. It changes no
      value in place: copy a dict first. The schemas describe what it returns; a new schema is made once for each schema
      that comes in, and the same object is returned after that. `partition` stays: order per key depends on it.
    - **Errors.** Whatever `apply` raises makes the record unpublishable: the connector stops, or with
      `errors.tolerance=all` the event goes to the dead letter topic. A HelenusError of a transient kind is retried.
    """

    KEYS: ClassVar[Sequence[ConfigKey]]
    """The keys below `transforms.NAME.` that it has, besides `type`, `predicate` and `negate`."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Take the values of KEYS by name, parsed, with defaults. Raises ValueError for values that do not go together:
        `validate`, which makes one to see, shows the message. So this opens nothing.
        """
        ...

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        """Return the changed record; None drops it."""
        ...


class RecordPredicate(Protocol):
    """A predicate, one for each `predicates.NAME`: decides which records a transform applies to. As `Transform`."""

    KEYS: ClassVar[Sequence[ConfigKey]]

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Take the values of KEYS by name. Raises ValueError."""
        ...

    def test(self, record: ConnectRecord) -> bool:
        """Return whether the transform applies to the record."""
        ...


class TypeConverter(Protocol):
    """Decides in what type columns are published, as a custom converter of Debezium's does.

    transforms=isbn
    transforms.isbn.type=helenus.ConvertColumns
    transforms.isbn.converter=my_package.types:Isbn     a class as this one, made with {"prefix": "978"}
    transforms.isbn.config=prefix=978

    It converts values alone: a key keeps its type, which its partition and the topic's compaction depend on. The rest,
    where, how often and what errors do, is as with `Transform`; `Class(config)` raises ValueError for a config that is
    wrong, and opens nothing.
    """

    def convert_schema(self, column: str, schema: ConnectSchema) -> ConnectSchema | None:
        """Return the schema in which a column is published, by its name and the schema that it has; None leaves the
        column as it is. Called once for each definition of the table. Whether it may be null stays as it was.
        """
        ...

    def convert_value(self, column: str, value: Any) -> Any:
        """Return the value, in that schema, of a column that `convert_schema` has one for. Not called for null, which
        stays null.
        """
        ...


def check_not_empty(value: Any) -> None:
    """Raise ValueError for an empty list, or text."""
    if not value:
        raise ValueError("give it a value")
