"""Merges a data topic into a table by Spark: to_spark_table.py BROKERS REGISTRY TOPIC FORMAT TABLE CHECKPOINT

FORMAT is iceberg or delta. TABLE is one of a catalog that outlives Spark, such as lake.shop.orders, or for Delta a
directory, as delta.`/lake/orders`. CHECKPOINT is a directory of Spark's, on any file system. Each batch is one MERGE,
merge on read: deletes and old rows are only marked, and maintenance of the table's own writes files anew. A batch that
comes again changes nothing. The program makes the table, or fills one that has at least the key's columns,
`_topic_partition INT` and `_offset BIGINT`. docs/sinks.md has the spark-submit for each format. Needs what to_spark.py
needs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, MapType, StructType
from records import read_columns
from registry import Registry
from settings import parse_settings
from to_spark import read_changes, run

PARTITION, FORMER_PARTITION = "_topic_partition", "_partition"
"""The column for the topic partition, and its name in tables that to_delta.py and to_iceberg.py made earlier: in Spark
that is a column of Iceberg's own.
"""
PROPERTIES = {
    "format-version": "2",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "delta.enableDeletionVectors": "true",
}
"""Iceberg's and Delta's properties of a table: each takes its own, and keeps or ignores the others."""


def new_fields(stored: DataType, needed: DataType, path: str) -> Iterator[str]:
    """Give the fields of types that a table lacks, by Iceberg's and Delta's paths, each with its type."""
    if isinstance(needed, StructType) and isinstance(stored, StructType):
        for field in needed.fields:
            name = f"{path}.`{field.name}`" if path else f"`{field.name}`"
            if field.name in stored.names:
                yield from new_fields(stored[field.name].dataType, field.dataType, name)
            else:
                yield f"{name} {field.dataType.simpleString()}"
    elif isinstance(needed, ArrayType) and isinstance(stored, ArrayType):
        yield from new_fields(stored.elementType, needed.elementType, f"{path}.element")
    elif isinstance(needed, MapType) and isinstance(stored, MapType):
        yield from new_fields(stored.valueType, needed.valueType, f"{path}.value")


def read_table(spark: SparkSession, table: str) -> DataFrame | None:
    """Give the table; None if it can't be found. One that is there all the same is not made anew: CREATE refuses it."""
    try:
        return spark.table(table)
    except AnalysisException:
        return None


def partition_column(spark: SparkSession, table: str, table_format: str) -> str:
    """Give the name of the table's column for the topic partition. In Iceberg's the former one is renamed: no MERGE
    takes a table with it.
    """
    stored = read_table(spark, table)
    if stored is None or PARTITION in stored.columns or FORMER_PARTITION not in stored.columns:
        return PARTITION
    if table_format == "delta":
        return FORMER_PARTITION
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN {FORMER_PARTITION} TO {PARTITION}")
    return PARTITION


def make_table(changes: DataFrame, table: str, table_format: str) -> None:
    """Make the table, or give it the columns and the fields of types that it lacks."""
    spark, needed = changes.sparkSession, changes.drop("_deleted").schema
    stored = read_table(spark, table)
    if stored is None:
        columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in needed)
        own = {n: v for n, v in PROPERTIES.items() if n.startswith("delta.") == (table_format == "delta")}
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in own.items())
        spark.sql(f"CREATE TABLE {table} ({columns}) USING {table_format} TBLPROPERTIES ({properties})")
    elif fields := ", ".join(new_fields(stored.schema, needed, "")):
        spark.sql(f"ALTER TABLE {table} ADD COLUMNS ({fields})")


def store(registry: Registry, topic: str, table: str, table_format: str, batch: DataFrame, _number: int) -> None:
    """Merge a batch, with the keys that its markers took. Rows that are newer than a change stay."""
    spark = batch.sparkSession
    partition = partition_column(spark, table, table_format)

    def stored(key: list[str]) -> DataFrame | None:
        rows = read_table(spark, table)
        return None if rows is None else rows.select(*key, f.col(partition).alias("_partition"))

    batch.persist()
    if count := batch.count():
        key = list(read_columns(registry.get_newest(f"{topic}-key")).types)
        newest = Window.partitionBy(*key).orderBy(f.desc("_offset"))
        changes = read_changes(registry, topic, batch, stored).withColumn("_n", f.row_number().over(newest))
        changes = changes.where("_n = 1").drop("_n").withColumnRenamed("_partition", partition)
        changes = changes.localCheckpoint()  # as they read the table, which the MERGE changes
        make_table(changes, table, table_format)
        for field in spark.table(table).schema:
            if field.name not in changes.columns:  # dropped in Cassandra
                changes = changes.withColumn(field.name, f.lit(None).cast(field.dataType))
        changes.createOrReplaceTempView("changes")
        equal = " AND ".join(f"t.`{name}` = s.`{name}`" for name in key)
        names = [name for name in changes.columns if name != "_deleted"]
        # A batch that comes again, after a kill, finds its own rows: they are not older than it.
        spark.sql(
            f"MERGE INTO {table} t USING changes s ON {equal}"
            " WHEN MATCHED AND s._deleted AND s._offset >= t._offset THEN DELETE"
            f" WHEN MATCHED AND s._offset >= t._offset THEN UPDATE SET {', '.join(f't.`{n}` = s.`{n}`' for n in names)}"
            f" WHEN NOT MATCHED AND NOT s._deleted THEN INSERT ({', '.join(f'`{n}`' for n in names)})"
            f" VALUES ({', '.join(f's.`{n}`' for n in names)})"
        )
        print(f"{count} records", flush=True)
    spark.catalog.clearCache()


def main() -> None:
    settings = parse_settings(__doc__, ["format", "table", "checkpoint"])
    table_format, table, checkpoint = settings.target
    if table_format not in ("iceberg", "delta"):
        sys.exit(f"to_spark_table.py: FORMAT is iceberg or delta, not {table_format}")
    run(settings, checkpoint, partial(store, Registry(settings), settings.topic, table, table_format))


if __name__ == "__main__":
    main()
