"""Java's names, which PySpark asks for each time it uses one: `jvm.PythonRDD`, in each batch.

Java looks for each in all of Spark's jars, once for each package that it may be of. In a batch of a few events that was
a sixth of what Spark's thread of the query did.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaPackage, JVMView  # type: ignore[import-untyped]

_patched_types: set[type] = set()


def ask_once() -> None:
    """Keep what a name was resolved to, class or package, with the object that was asked for it."""
    for java_type in {JVMView, JavaPackage} - _patched_types:
        _patched_types.add(java_type)
        java_type.__getattr__ = _caching_getattr(java_type.__getattr__)


def _caching_getattr(resolve_name: Any) -> Any:
    def cached_getattr(self: Any, name: str) -> Any:
        resolved = resolve_name(self, name)
        self.__dict__[name] = resolved
        return resolved

    return cached_getattr
