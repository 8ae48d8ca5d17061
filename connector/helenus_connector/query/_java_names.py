"""Java's names, which PySpark asks for each time it uses one: `jvm.PythonRDD`, in each batch.

Java looks for each in all of Spark's jars, once for each package that it may be of. In a batch of a few events that was
a sixth of what Spark's thread of the query did.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaPackage, JVMView  # type: ignore[import-untyped]

_kept: set[type] = set()


def ask_once() -> None:
    """Keep what a name was found to be, class or package, with the object that it was asked of."""
    for kind in {JVMView, JavaPackage} - _kept:
        _kept.add(kind)
        kind.__getattr__ = _keeping(kind.__getattr__)


def _keeping(ask: Any) -> Any:
    def found(self: Any, name: str) -> Any:
        answer = ask(self, name)
        self.__dict__[name] = answer
        return answer

    return found
