"""Fills a directory with Parquet files from a data topic, by Spark: to_spark.py BROKERS REGISTRY TOPIC DIRECTORY

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0,org.apache.spark:spark-avro_2.13:4.2.0 \
      to_spark.py localhost:9092 http://localhost:8081 data-shop.orders orders

The packages have Spark's own version, or the newest there is before it. `current` is the table as it is now. A batch
that comes again replaces its files. --config has properties of Java's Kafka client, and schema.registry.* as
the other recipes. Needs what batches.py needs on the driver.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from functools import partial, reduce
from pathlib import Path

import pyarrow as pa
from markers import is_in_range, parse_bound
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro
from records import Failure, make_converter, read_columns, to_rows
from registry import Registry
from settings import Notes, Settings, parse_settings

# The Confluent wire format: a zero byte, four bytes of the schema's id, Avro.
ID = "CAST(conv(hex(substring({}, 2, 4)), 16, 10) AS INT)"
AVRO = "substring({}, 6)"
OWN = ["_deleted", "_partition", "_offset"]
MARKER = ["_scope", "_start", "_end"]
RETRY_S = 10.0
REPEATED = 'because the return value of "scala.Option.get()" is null'
"""So Spark 4.1 and 4.2 end a query that begins with a batch that comes again, once it is stored (SPARK-57438)."""
notes = Notes()


def header(name: str) -> Column:
    """A record's header as text; null if it has none of that name."""
    return f.expr(f"CAST(get(filter(headers, h -> h.key = '{name}'), 0).value AS STRING)")


def rows(records: DataFrame, registry: Registry, topic: str) -> DataFrame:
    """The columns of keys and rows, and `_deleted`, `_partition`, `_offset` and the headers of markers.

    Each record is read by the schemas that it was written by, and comes in the form of the newest.
    """
    newest_key, newest = (registry.get_newest(f"{topic}-{part}") for part in ("key", "value"))
    records = records.withColumn("key_id", f.expr(ID.format("key"))).withColumn("id", f.expr(ID.format("value")))
    records = records.withColumn("_scope", header("scope")).where("_scope IS NULL OR _scope != 'table'")
    parts = []
    for key_id, value_id in sorted(records.select("key_id", "id").distinct().collect(), key=repr):
        # A row that is gone has no value, and so no schema.
        written = newest if value_id is None else registry.get_schema(value_id)
        key = from_avro(f.expr(AVRO.format("key")), registry.get_schema(key_id), {"avroSchema": newest_key})
        value = from_avro(f.expr(AVRO.format("value")), written, {"avroSchema": newest})
        parts.append(
            records.where(f.col("id").eqNullSafe(value_id) & (f.col("key_id") == key_id)).select(
                key.alias("key"),
                value.alias("row"),
                f.expr("value IS NULL").alias("_deleted"),
                f.col("partition").alias("_partition"),
                f.col("offset").alias("_offset"),
                "_scope",
                header("start").alias("_start"),
                header("end").alias("_end"),
            )
        )
    if not parts:  # of markers of the whole table alone
        return rows_of_none(records, newest_key, newest)
    every = reduce(DataFrame.unionByName, parts)
    return flatten(every)


def rows_of_none(records: DataFrame, newest_key: str, newest: str) -> DataFrame:
    """No rows, with their columns."""
    none = records.where("false").select(
        from_avro("key", newest_key).alias("key"),
        from_avro("value", newest).alias("row"),
        f.lit(False).alias("_deleted"),
        f.col("partition").alias("_partition"),
        f.col("offset").alias("_offset"),
        "_scope",
        *(f.lit(None).cast("string").alias(name) for name in ("_start", "_end")),
    )
    return flatten(none)


def flatten(records: DataFrame) -> DataFrame:
    """Columns of keys and rows; a table of key columns alone repeats them in its value."""
    keys = records.select("key.*").columns
    others = [f"row.`{name}`" for name in records.select("row.*").columns if name not in keys]
    return records.select("key.*", *others, *OWN, *MARKER)


def wiped(records: DataFrame, markers: DataFrame, stored: DataFrame, key_schema: str) -> list[DataFrame]:
    """Keys that delete markers took, each with the offset of its marker, so that what came after it counts.

    `markers` are those of partitions and ranges as `rows` has them, `records` have those of the whole table, and
    `stored` are the keys that there are.
    """
    columns = read_columns(key_schema)
    partition_key = [name for name in columns.types if name not in columns.nullable]
    clustering = [name for name in columns.types if name in columns.nullable]
    tables = records.where(header("scope") == "table").select(
        f.col("partition").alias("_partition"), f.col("offset").alias("_offset")
    )
    wiped_keys = [stored.join(tables, "_partition").select(*columns.types, "_partition", "_offset")]
    scoped = markers.select(*partition_key, "_offset", *MARKER)
    keys = stored.join(scoped, partition_key)
    wiped_keys.append(keys.where("_scope = 'partition'").select(*columns.types, "_partition", "_offset"))
    candidates = keys.where("_scope = 'range'").toArrow()
    if len(candidates):
        convert = make_converter(json.loads(key_schema), {}) or dict
        kinds = [columns.avro[name] for name in clustering]
        answers = []
        for row in to_rows(candidates):
            key = convert({name: row[name] for name in columns.types})
            bounds = (parse_bound(row[name] and row[name].encode()) for name in ("_start", "_end"))
            answers.append(is_in_range([key[name] for name in clustering], kinds, *bounds))
        if None in answers:
            notes.say("a range delete whose order is not certain: rows stay that it may have deleted", kind="range")
        selected = candidates.filter(pa.array([bool(answer) for answer in answers]))
        if len(selected):
            wiped_keys.append(
                stored.sparkSession.createDataFrame(selected.select([*columns.types, "_partition", "_offset"]))
            )
    return wiped_keys


def current(spark: SparkSession, directory: str, key: list[str]) -> DataFrame:
    """The table: the last record of each key, unless it is a delete. All records of a key are in one partition."""
    last = Window.partitionBy(*key).orderBy(f.desc("_offset"))
    stored = spark.read.option("mergeSchema", True).parquet(directory).withColumn("_n", f.row_number().over(last))
    return stored.where("_n = 1 AND NOT _deleted").drop("_n", "batch", *OWN)


def read_changes(
    registry: Registry, topic: str, batch: DataFrame, stored: Callable[[list[str]], DataFrame | None]
) -> DataFrame:
    """The rows of a batch and the keys that are deleted, with `OWN`, by markers too: a key may come more than once.

    `stored` gives the keys that are stored already, with `_partition`, of the key columns that it is given.
    """
    key_schema = registry.get_newest(f"{topic}-key")
    key = list(read_columns(key_schema).types)
    decoded = rows(batch, registry, topic).persist()
    # A key with a null in it is that of a partition's static columns, or has a value of no bytes.
    records = decoded.where("_scope IS NULL").drop(*MARKER)
    parts = [records.dropna(subset=key)]
    if left_out := records.where(" OR ".join(f"`{name}` IS NULL" for name in key)).count():
        notes.say("left out: records of static columns alone, or with a value of no bytes in the key", left_out)
    if batch.where(header("scope").isNotNull()).limit(1).count():
        keys = parts[0].select(*key, "_partition")
        if (earlier := stored(key)) is not None:
            keys = keys.unionByName(earlier)
        gone = wiped(batch, decoded.where("_scope IS NOT NULL"), keys.distinct(), key_schema)
        parts += [deleted.withColumn("_deleted", f.lit(True)) for deleted in gone]
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), parts)


def store(registry: Registry, topic: str, directory: str, batch: DataFrame, number: int) -> None:
    """Write a batch, with the keys that its markers took."""

    def stored(key: list[str]) -> DataFrame | None:
        if not any(Path(directory).glob("batch=*")):
            return None
        earlier = batch.sparkSession.read.option("mergeSchema", True).parquet(directory)
        return earlier.where(f"batch != {number}").select(*key, "_partition")

    batch.persist()
    if count := batch.count():
        changes = read_changes(registry, topic, batch, stored)
        changes.write.mode("overwrite").parquet(f"{directory}/batch={number}")
        print(f"{count} records", flush=True)
    batch.sparkSession.catalog.clearCache()


def follow(spark: SparkSession, settings: Settings, checkpoint: str, write: Callable[[DataFrame, int], None]) -> None:
    """Run the query until it is stopped; with --once, to the end of the topic. Raises Spark's errors."""
    source = {
        "kafka.isolation.level": "read_committed",
        **{f"kafka.{name}": value for name, value in settings.kafka.items()},
        "kafka.bootstrap.servers": settings.brokers,
        "subscribe": settings.topic,
        "startingOffsets": "earliest",
        "includeHeaders": True,
    }
    writer = spark.readStream.format("kafka").options(**source).load().writeStream
    writer = writer.option("checkpointLocation", checkpoint)
    how = {"availableNow": True} if settings.once else {"processingTime": "5 seconds"}
    writer.trigger(**how).foreachBatch(write).start().awaitTermination()


def cause(error: Exception) -> str:
    """The line of Spark's message that says most."""
    lines = str(error).splitlines()
    telling = [line for line in lines if re.search(r"Failure: |kafka\.common\.|Caused by", line)]
    return (telling or lines or [type(error).__name__])[-1 if telling else 0].strip()


def run(settings: Settings, checkpoint: str, write: Callable[[DataFrame, int], None]) -> None:
    """Follow the topic of the command line; what may pass is tried again, but not with --once."""
    # Spark's own lines at INFO would be dozens for each batch.
    spark = SparkSession.builder.appName(settings.topic).config("spark.log.level", "WARN").getOrCreate()
    name = Path(sys.argv[0]).name
    has_repeated = False
    while True:
        try:
            return follow(spark, settings, checkpoint, write)
        except Failure as failure:
            sys.exit(f"{name}: {failure}")
        except (PySparkException, Py4JJavaError) as error:
            if REPEATED in str(error) and not has_repeated:
                has_repeated = True
                continue
            problem = f"{settings.topic} at {settings.brokers}: {cause(error)}"
            if settings.once:
                sys.exit(f"{name}: {problem}")
            notes.say(f"{problem}; trying again", kind="spark")
            time.sleep(RETRY_S)


def main() -> None:
    settings = parse_settings(__doc__, ["directory"])
    (directory,) = settings.target
    run(settings, str(Path(directory, "_checkpoint")), partial(store, Registry(settings), settings.topic, directory))


if __name__ == "__main__":
    main()
