"""PySpark's internals, and our classes in Spark's Java process: whether batches may use them.

They save some ms of CPU a batch (docs/decisions/0048-any-spark.md), and are never needed: where PySpark is of a
version whose internals nobody has looked at, where the classes are not on Java's class path, or where an operator says
so, PySpark's public API does the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from helenus_connector.query._callback_port import guard

if TYPE_CHECKING:
    from helenus_connector.config.worker import WorkerSettings

_log = structlog.get_logger(__name__)
JAR = Path(__file__).with_name("helenus.jar")
SETTING = "spark.helenus.internals"
"""The setting of a session that says whether its queries may use PySpark's internals."""
_KNOWN_VERSIONS = ("4.2", "4.3")
_NEEDED = ("_jsc", "_jvm", "_python_includes", "_javaAccumulator", "_encryption_enabled", "_temp_dir")


def obstacle(worker: WorkerSettings) -> str | None:
    """Return why PySpark's internals are not to be used, or None."""
    import pyspark

    if worker.public_spark_api:
        return "public.spark.api=true"
    if not is_known_version():
        return f"PySpark is {pyspark.__version__}; internals are known of {', '.join(_KNOWN_VERSIONS)}"
    return None


def is_known_version() -> bool:
    """Return whether the internals of this process's PySpark are known."""
    import pyspark

    return ".".join(pyspark.__version__.split(".")[:2]) in _KNOWN_VERSIONS


def own_classes(context: Any) -> Any | None:
    """Return our package of Java as Py4J has it, or None if batches are to go by the public API."""
    if missing_classes(context) is not None:
        return None
    return context._jvm.helenus


def has_internals(context: Any) -> bool:
    """Return whether PySpark's internals may be used in a session."""
    return str(context.getConf().get(SETTING)) != "false"


def missing_classes(context: Any) -> str | None:
    """Return why our classes of Java can't be used in a session, or None."""
    if not has_internals(context):
        return "PySpark's internals are not to be used"
    if missing := [name for name in _NEEDED if not hasattr(context, name)]:
        return f"PySpark has no {', '.join(missing)}"
    from py4j.java_gateway import JavaPackage  # type: ignore[import-untyped]

    # What Java has no class for is a package to Py4J.
    if isinstance(context._jvm.helenus.Job, JavaPackage):
        return f"{JAR.name} is not on the class path of Spark's driver"
    return None


def warn_of_public_api(context: Any, reason: str | None) -> None:
    """Log, once for each session, if its batches go by the public API, and why."""
    reason = reason or missing_classes(context)
    if reason is None:
        return
    _log.info("spark.public_api", reason=reason, effect="batches cost more CPU")
    if not guard(context):
        effect = "any user of this machine can call a port of PySpark's, and give a query batches"
        _log.warning(
            "spark.not_authenticated", reason=effect, advice="use a version of PySpark whose internals are known"
        )
