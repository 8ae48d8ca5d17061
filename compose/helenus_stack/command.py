"""The entry point of `helenus-stack`: says what is missing where only the agent is installed."""

from __future__ import annotations

import sys


def main() -> None:
    """Run `helenus_stack.cli`."""
    try:
        from helenus_stack.cli import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("helenus"):
            raise
        print(
            f"helenus-stack: only the agent is installed here: pip install . ./compose in a checkout ({error.msg})",
            file=sys.stderr,
        )
        sys.exit(2)
    run()
