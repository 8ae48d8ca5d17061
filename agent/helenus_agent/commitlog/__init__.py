"""The bytes of the commit log: files of segments, their compression, and the mutations in them."""

import importlib.util
import os
import sys
from pathlib import Path

if os.environ.get("HELENUS_PURE", "") not in ("", "0"):
    # The plain decoder, though a compiled one lies beside it and would be taken.
    _spec = importlib.util.spec_from_file_location(
        "helenus_agent.commitlog.decoder", Path(__file__).with_name("decoder.py")
    )
    assert _spec is not None
    assert _spec.loader is not None
    sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_spec.name])
