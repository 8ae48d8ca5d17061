"""A data topic as Parquet, by Spark and its from_avro: to_spark.py BROKERS REGISTRY TOPIC DIRECTORY [--once]

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0,org.apache.spark:spark-avro_2.13:4.2.0 \
      to_spark.py localhost:9092 http://localhost:8081 data-shop.orders orders

The packages have Spark's own version, or the newest there is before it. `current` is the table as it is now. A batch
that comes again replaces its files.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro

# The Confluent wire format: a zero byte, four bytes of the schema's id, Avro.
ID = "CAST(conv(hex(substring(value, 2, 4)), 16, 10) AS INT)"
AVRO = "substring({}, 6)"


def schema(registry: str, path: str) -> str:
    """A schema as the registry has it: under `schemas/ids/5`, or `subjects/NAME/versions/latest`."""
    with urllib.request.urlopen(f"{registry}/{path}") as answer:
        return str(json.load(answer)["schema"])


def rows(records: DataFrame, registry: str, topic: str) -> DataFrame:
    """The columns of keys and rows, and `_deleted`, `_partition` and `_offset`.

    Each record is read by the schema that it was written by, and comes in the form of the newest.
    """
    of_key = schema(registry, f"subjects/{topic}-key/versions/latest")
    newest = schema(registry, f"subjects/{topic}-value/versions/latest")
    records = records.where("NOT exists(headers, h -> h.key = 'scope')").withColumn("id", f.expr(ID))
    found = []
    for number in [row.id for row in records.select("id").distinct().collect()]:
        # A row that is gone has no value, and so no schema.
        written = newest if number is None else schema(registry, f"schemas/ids/{number}")
        found.append(
            records.where(f.col("id").eqNullSafe(number)).select(
                from_avro(f.expr(AVRO.format("key")), of_key).alias("key"),
                from_avro(f.expr(AVRO.format("value")), written, {"avroSchema": newest}).alias("row"),
                f.expr("value IS NULL").alias("_deleted"),
                f.col("partition").alias("_partition"),
                f.col("offset").alias("_offset"),
            )
        )
    every = found[0]
    for more in found[1:]:
        every = every.unionByName(more)
    keys = every.select("key.*").columns
    others = [f"row.`{name}`" for name in every.select("row.*").columns if name not in keys]
    # A key with a null in it is that of a partition's static columns.
    return every.select("key.*", *others, "_deleted", "_partition", "_offset").dropna(subset=keys)


def current(spark: SparkSession, directory: str, key: list[str]) -> DataFrame:
    """The table: the last record of each key, unless it is a delete. All records of a key are in one partition."""
    last = Window.partitionBy(*key).orderBy(f.desc("_offset"))
    found = spark.read.option("mergeSchema", True).parquet(directory).withColumn("_n", f.row_number().over(last))
    return found.where("_n = 1 AND NOT _deleted").drop("_n", "_deleted", "_partition", "_offset", "batch")


def store(registry: str, topic: str, directory: str, batch: DataFrame, number: int) -> None:
    """Write a batch."""
    batch.persist()
    if not batch.isEmpty():
        rows(batch, registry, topic).write.mode("overwrite").parquet(f"{directory}/batch={number}")
    batch.unpersist()


def main(brokers: str, registry: str, topic: str, directory: str, *more: str) -> None:
    """Follow the topic; with --once, to its end."""
    spark = SparkSession.builder.appName(topic).getOrCreate()
    source = {
        "kafka.bootstrap.servers": brokers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "includeHeaders": True,
    }
    writer = spark.readStream.format("kafka").options(**source).load().writeStream
    writer = writer.option("checkpointLocation", str(Path(directory, "_checkpoint")))
    how = {"availableNow": True} if "--once" in more else {"processingTime": "5 seconds"}
    query = writer.trigger(**how).foreachBatch(partial(store, registry, topic, directory)).start()
    query.awaitTermination()


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
