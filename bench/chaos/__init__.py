"""Chaos: random statements on random tables while servers, agents and workers fail, and then a comparison.

`command` is `python -m bench chaos`. `plan` says what will happen, from a seed, with the statements of `random_table`,
to the connectors of `modes`. `run` does it to the `cluster` and its `service`s, with `faults`, and waits until all is
`quiet`. `topic` checks a topic with `compare` and `merge`; `history` tells of a key. `shrink` looks for the smallest
plan that still fails.
"""


def main() -> None:
    """Run the command. It is imported late: tests of the plan need none of the servers' clients."""
    from bench.chaos.command import main as run_command

    run_command()
