"""Loads libraries without others that they load where they find them: NumPy, which the driver of Cassandra would make
rows of, and rich, in which structlog would show tracebacks. An agent beside a connector's libraries would have both, a
sixth of its memory, and has use for neither. To be imported before all that imports them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType

_UNUSED = {"cassandra.protocol": "numpy", "structlog.dev": "rich"}
"""Modules, and what they try to import."""


def load_without(unused: Mapping[str, str]) -> None:
    """Import modules, each as if there were not the other library. Who imports that library later gets it."""
    modules: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]
    for name, library in unused.items():
        if library in modules:
            continue
        modules[library] = None  # which Python takes for a library that is not there
        try:
            import_module(name)
        finally:
            del modules[library]


load_without(_UNUSED)
