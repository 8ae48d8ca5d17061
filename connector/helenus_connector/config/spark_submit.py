"""A worker that `spark-submit` has started: the settings that came with that command.

Spark's Java process is there before the worker is, so that some settings are decided. The others count as if they were
in the worker's file, which takes precedence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from helenus_schemas.settings.properties import ConfigError, Problem

_STARTED_BY = "PYSPARK_GATEWAY_PORT"
"""The variable by which a Java process tells PySpark that it has started it."""
_DECIDED = ("spark.master", "spark.submit.deployMode")
_OF_JAVA = (
    *("spark.driver.memory", "spark.driver.memoryOverhead", "spark.driver.cores", "spark.driver.extraClassPath"),
    *("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions", "spark.driver.extraLibraryPath"),
)
"""What a Java process that runs can't be given any more."""


def is_submitted() -> bool:
    """Return whether Spark's Java process has started this one, and not the other way round."""
    return _STARTED_BY in os.environ


def with_submitted(properties: Mapping[str, str], source: str) -> dict[str, str]:
    """Return a worker's properties, with the settings that `spark-submit` was given, or `spark-defaults.conf` has,
    where they have none. Raises ConfigError for those that this start can't follow.
    """
    submitted = _submitted_settings()
    problems = [Problem(source, key, properties[key], reason) for key, reason in _conflicts(properties, submitted)]
    if problems:
        raise ConfigError(problems)
    return {**submitted, **properties}


def _submitted_settings() -> dict[str, str]:
    from pyspark import SparkConf, SparkContext

    # What connects PySpark to the Java process: without that, SparkConf has no settings.
    SparkContext.setSystemProperty("helenus.worker", "true")
    return {key: value for key, value in SparkConf().getAll() if key.startswith("spark.")}


def _conflicts(properties: Mapping[str, str], submitted: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (key, reason) for what a worker's file has and a start by `spark-submit` can't follow."""
    for key in _DECIDED:
        if properties.get(key, submitted.get(key)) != submitted.get(key):
            yield key, f"leave it out: spark-submit has started Spark with {submitted.get(key, 'none')}"
    for key in _OF_JAVA:
        if properties.get(key, submitted.get(key)) != submitted.get(key):
            yield key, "give it to spark-submit, by --conf: Spark's Java process has started without it"
    if properties.get("group.id"):
        yield "group.id", "leave it out with spark-submit: a worker that stands by again would need a new Java process"


def settable(settings: Mapping[str, str]) -> dict[str, str]:
    """Return those of Spark's settings that a Java process which runs takes."""
    return {key: value for key, value in settings.items() if key not in (*_DECIDED, *_OF_JAVA)}
