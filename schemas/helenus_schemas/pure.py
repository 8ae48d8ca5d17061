"""Modules that may be compiled: `HELENUS_PURE=1` has their plain Python loaded, though a compiled one is next to it."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path


def use_plain(name: str, package: str) -> None:
    """If it is asked for, load a module of the package whose `__init__.py` is the file `package`, from its .py."""
    if os.environ.get("HELENUS_PURE", "") in ("", "0"):
        return
    spec = importlib.util.spec_from_file_location(name, Path(package).with_name(f"{name.rpartition('.')[2]}.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
