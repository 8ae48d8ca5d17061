"""`python -m bench [agent|path]`"""

from __future__ import annotations

import importlib
import sys

for name in sys.argv[1:] or ["agent", "path"]:
    print(f"== {name}", flush=True)
    sys.argv = [f"bench.{name}"]
    importlib.import_module(f"bench.{name}").main()
