"""What PySpark does for each call of Java, and need not.

- It asks Java for each name each time it uses one: `jvm.PythonRDD`, in each batch. Java looks for it in all of Spark's
  jars, once for each package that it may be of. In a batch of a few events that was a sixth of what Spark's thread of
  the query did.
- It asks whether an argument is of NumPy, and loads its helpers for tests to know whether there is a NumPy: with these
  come pandas and Arrow, 57 to 95 MB and a third of a second of CPU time. We hand Java nothing of NumPy.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from py4j import protocol  # type: ignore[import-untyped]
from py4j.java_gateway import JavaPackage, JVMView  # type: ignore[import-untyped]

_patched_types: set[type] = set()


def make_calls_cheaper() -> None:
    """Have the Java calls of this process do without both."""
    for java_type in {JVMView, JavaPackage} - _patched_types:
        _patched_types.add(java_type)
        java_type.__getattr__ = _caching_getattr(java_type.__getattr__)
    with suppress(ImportError, AttributeError):  # another version of either may have other names
        from pyspark.sql.types import NumpyArrayConverter, NumpyScalarConverter

        of_numpy = NumpyArrayConverter, NumpyScalarConverter
        protocol.INPUT_CONVERTER[:] = [each for each in protocol.INPUT_CONVERTER if not isinstance(each, of_numpy)]


def _caching_getattr(resolve_name: Any) -> Any:
    def cached_getattr(self: Any, name: str) -> Any:
        resolved = resolve_name(self, name)
        self.__dict__[name] = resolved
        return resolved

    return cached_getattr
