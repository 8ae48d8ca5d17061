"""The settings of state: what a connector keeps of rows between batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from helenus_schemas.settings.model import Group
from helenus_schemas.settings.shared import CassandraSettings

DIRECTORY = "state"
"""Below `checkpoint.dir`, where those of groups are too."""
_WITHOUT_ROWS = ("debezium-cassandra", "cep44")


class StateSettings(CassandraSettings):
    """`state` and what goes with it."""

    state: Annotated[Literal["none", "keys", "rows"], Group("State", "HIGH")] = "none"
    """What Spark keeps of rows (docs/state.md). `keys`: the keys that live on the data topic, and when their rows
    expire. Then a delete of a partition, of a range or of the table, and a TTL, become a record for each row. `rows`:
    the rows, merged from the events' cells without a read of Cassandra. Then records also have the row before the
    change. It needs events with cells (the agents' `cells.include.list`) and a `query.group` of its own."""
    markers: Annotated[bool, Group("State")] = True
    """Whether delete markers are on the data topic. With `false`, which needs `state`, they are on `markers-` followed
    by its name, and sinks without marker support need no filter."""

    @classmethod
    def conflicts(cls, properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        yield from super().conflicts(properties)
        if properties.get("query.group") == DIRECTORY:
            yield "query.group", f"checkpoint.dir/{DIRECTORY} is where state lies: choose another name"
        if properties.get("state", "none") == "none":
            if properties.get("markers", "true").lower() == "false":
                yield "markers", "without delete markers deleted rows stay on the topic: set state=keys"
            return
        if properties.get("state") == "rows":
            yield from _rows_conflicts(properties)
        else:
            yield from _keys_conflicts(properties)
        if properties.get("schema.on.incompatible") == "new-topic":
            yield "schema.on.incompatible", "with state a table stays on one data topic: set it to fail"
        if properties.get("output.format") in _WITHOUT_ROWS:
            yield "state", f"records of output.format={properties['output.format']} do not say which rows live"


def _keys_conflicts(properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    headers = [name.strip() for name in properties.get("headers", "expires,op").split(",")]
    needed = ["expires", *(["op"] if properties.get("output.format") == "debezium" else [])]
    if missing := [name for name in needed if name not in headers]:
        yield "headers", f"state=keys goes by the header {missing[0]}: add it"
    if properties.get("resolver") == "none":
        yield "state", "the keys that live are those of rows that were read: resolver=none has no rows"


def _rows_conflicts(properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if properties.get("query.group", "default") == "default":
        yield (
            "query.group",
            "a connector with state=rows has a query of its own: give it a name, such as the connector's",
        )
    if "resolver" in properties:
        yield "resolver", "with state=rows records are made of the rows that are kept: leave it out"
    if properties.get("gate", "one") != "one":
        yield (
            "gate",
            "with state=rows a change counts when one replica reports it, and copies merge into nothing: leave it out",
        )


def marker_topic(data: str) -> str:
    """Return the topic for the delete markers that are not on this data topic."""
    namespace, slash, name = data.rpartition("/")
    return f"{namespace}{slash}markers-{name}"


def begin_anew(query_group: str) -> str:
    """Return how to have a connector with state=rows begin anew: its rows and its positions are kept as one."""
    return f"stop the worker, delete the directory {query_group} in its checkpoint.dir, and start it"
