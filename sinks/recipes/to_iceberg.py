"""Fills an Iceberg table from a data topic: python to_iceberg.py BROKERS REGISTRY TOPIC CATALOG TABLE

CATALOG is a name in ~/.pyiceberg.yaml, or of the catalog that --config has as `target.NAME=VALUE`, such as target.uri
and target.warehouse; TABLE is NAMESPACE.NAME. Each batch is one commit, with the offsets among the table's properties.
It writes the files anew that have rows with the same partition keys: that suits tables of some GB. Needs
"pyiceberg[pyarrow]", with sql-sqlite for a catalog in a file, and what batches.py needs.
"""

from __future__ import annotations

import json

import pyarrow as pa
from batches import FORMER_PARTITION, PARTITION, Change, first_values, key_texts, partition_column, run
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, RESTError
from pyiceberg.expressions import AlwaysTrue, BooleanExpression, EqualTo, In
from pyiceberg.table import Table
from records import FOUR_DIGIT_YEARS, has_grown, merge_schemas, widen
from settings import Settings


class Iceberg:
    """A table of a catalog."""

    errors = (CommitFailedException, RESTError, OSError)
    limits = FOUR_DIGIT_YEARS  # PyIceberg makes statistics of columns with Python's dates, which have no others

    def __init__(self, settings: Settings) -> None:
        catalog, self._name = settings.target
        self._property = f"recipe.offsets.{settings.topic}"
        self._catalog = load_catalog(catalog, **settings.target_client)
        try:
            self._table: Table | None = self._catalog.load_table(self._name)
        except NoSuchTableError:
            self._table = None
        if self._table and partition_column(self.read_schema()) == FORMER_PARTITION:
            with self._table.update_schema() as update:  # so that Spark can MERGE, too; no file is written anew
                update.rename_column(FORMER_PARTITION, PARTITION)

    def __enter__(self) -> Iceberg:
        return self

    def __exit__(self, *_: object) -> None:
        self._catalog.close()

    def read_offsets(self, partitions: list[int]) -> dict[int, int]:
        stored = self._table.properties.get(self._property, "{}") if self._table else "{}"
        return {int(partition): offset for partition, offset in json.loads(stored).items()}

    def read_schema(self) -> pa.Schema | None:
        return self._table.schema().as_arrow() if self._table else None

    def read_keys(self, key: pa.Schema, partitions: pa.Table | None, topic_partition: int) -> pa.Table:
        assert self._table
        condition = EqualTo(PARTITION, topic_partition) if partitions is None else _filter(partitions)
        return self._table.scan(condition, selected_fields=tuple(key.names)).to_arrow()

    def store(self, change: Change) -> None:
        """Replace the rows of the partition keys that a change has: the others of them go with it."""
        if self._table is None:
            self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
            self._table = self._catalog.create_table(self._name, schema=change.schema)
        stored = {field.name: field.type for field in self._table.schema().as_arrow()}
        is_wider = any(f.name not in stored or has_grown(stored[f.name], f.type) for f in change.schema)
        keys = pa.concat_tables([change.rows.select(change.key), change.deleted.select(change.key)])
        condition = _filter(keys)
        present = self._table.scan(condition).to_arrow()
        replaced = set(key_texts(keys))
        remaining = present.filter(
            pa.array([text not in replaced for text in key_texts(present.select(change.key))], pa.bool_())
        )
        offsets = json.dumps({**self.read_offsets([]), **change.offsets})
        with self._table.transaction() as transaction:
            if is_wider:
                with transaction.update_schema() as update:
                    update.union_by_name(change.schema)
            schema = merge_schemas(remaining.schema, change.schema)
            rows = pa.concat_tables([widen(remaining, schema), widen(change.rows, schema)])
            if len(present):
                transaction.overwrite(rows, overwrite_filter=condition)
            elif len(rows):
                transaction.append(rows)
            transaction.set_properties({self._property: offsets})


def _filter(keys: pa.Table) -> BooleanExpression:
    """What holds for all rows with these keys, and for few others."""
    values = first_values(keys)
    return In(values[0], values[1].to_pylist()) if values else AlwaysTrue()  # type: ignore[arg-type]


if __name__ == "__main__":
    run(__doc__, ["catalog", "table"], Iceberg)
