"""`python -m bench [agent|path|records]`"""

from __future__ import annotations

import importlib
import sys

for name in sys.argv[1:] or ["agent", "path", "records"]:
    print(f"== {name}", flush=True)
    sys.argv = [f"bench.{name}"]
    importlib.import_module(f"bench.{name}").main()
