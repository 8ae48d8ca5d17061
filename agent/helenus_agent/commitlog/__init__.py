"""The bytes of the commit log: how a segment's file is laid out, and which change events its mutations are.

For others: `segment` (a file as sections that can be read) and `decoder` (entries to events).
"""

import importlib.util
import os
import sys
from pathlib import Path

if os.environ.get("HELENUS_PURE", "") not in ("", "0"):
    # Load the plain decoder, though a compiled one is next to it and would be imported.
    _spec = importlib.util.spec_from_file_location(
        "helenus_agent.commitlog.decoder", Path(__file__).with_name("decoder.py")
    )
    assert _spec is not None
    assert _spec.loader is not None
    sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_spec.name])
