"""`python -m bench [path|agent]`"""

from __future__ import annotations

import importlib
import sys

for name in sys.argv[1:] or ["path", "agent"]:
    print(f"== {name}", flush=True)
    importlib.import_module(f"bench.{name}").main()
