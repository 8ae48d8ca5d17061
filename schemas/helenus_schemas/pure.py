"""Modules that may be compiled: `HELENUS_PURE=1` has their plain Python loaded, though a compiled one is next to it."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path


def use_plain(name: str, package: str) -> None:
    """Load a module from its .py, if HELENUS_PURE is set. `package`: the file `__init__.py` of its package."""
    if os.environ.get("HELENUS_PURE", "") in ("", "0"):
        return
    spec = importlib.util.spec_from_file_location(name, Path(package).with_name(f"{name.rpartition('.')[2]}.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
