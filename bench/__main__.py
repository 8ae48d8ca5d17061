"""What Helenus costs, and how fast it is, on this machine.

    python -m bench [NAME [its options]]

NAME is one of agent, agent_states, chaos, compare, connector, encryption, executors, history, merged, nodes, path,
public_api, records, snapshot, soak, stage, standby, starts, state, tables, verify, written. Without one all run, one
after the other, but for chaos and history, which measure nothing, compare, which wants a peer's name, and soak, which
takes an hour. `python -m bench NAME --help` tells what one measures.
"""

from __future__ import annotations

import importlib
import sys

from helenus_stack.errors import StackError

NAMES = [
    "agent",
    "agent_states",
    "chaos",
    "compare",
    "connector",
    "encryption",
    "executors",
    "history",
    "merged",
    "nodes",
    "path",
    "public_api",
    "records",
    "snapshot",
    "soak",
    "stage",
    "standby",
    "starts",
    "state",
    "tables",
    "verify",
    "written",
]
name, options = (sys.argv[1], sys.argv[2:]) if sys.argv[1:] else (None, [])
if name is not None and name not in NAMES:
    sys.exit(__doc__)
for each in [n for n in NAMES if n not in ("chaos", "compare", "history", "soak")] if name is None else [name]:
    print(f"== {each}", flush=True)
    sys.argv = [f"bench.{each}", *options]
    try:
        importlib.import_module(f"bench.{each}").main()
    except KeyboardInterrupt:
        sys.exit(130)
    except StackError as error:  # the servers do not start, say
        sys.exit(f"error: {error}")
