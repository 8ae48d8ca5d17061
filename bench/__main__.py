"""`python -m bench [agent|connector|path|records|snapshot|tables|verify|written [its options]]`"""

from __future__ import annotations

import importlib
import sys

names, options = (
    (sys.argv[1:2], sys.argv[2:])
    if sys.argv[1:]
    else (["agent", "connector", "path", "records", "snapshot", "tables", "verify", "written"], [])
)
for name in names:
    print(f"== {name}", flush=True)
    sys.argv = [f"bench.{name}", *options]
    importlib.import_module(f"bench.{name}").main()
