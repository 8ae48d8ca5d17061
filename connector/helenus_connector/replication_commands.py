"""The commands `helenus-connector replicate` and `helenus-connector compare`, as click has them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from helenus_connector._command_line import FiniteFloat, errors_shown
from helenus_schemas.event.placement import token_range


def _parse_range(_: click.Context, option: click.Parameter, value: str) -> tuple[int, int]:
    try:
        return token_range(value)
    except ValueError as error:
        raise click.BadParameter(str(error), param=option) from None


_TOKENS = click.option(
    "--token-range",
    metavar="AFTER:UNTIL",
    default=":",
    callback=_parse_range,
    help="Only partitions with tokens above the first, up to the second.",
)
_REPLICATION = click.argument("replicate_properties", type=click.Path(path_type=Path))


@click.command("replicate", short_help="Write changes of tables into another Cassandra.")
@_REPLICATION
@click.option("--once", is_flag=True, help="End when all events that are there are written; exit status 1 if not.")
@click.option(
    "--snapshot",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Copy the rows that are there too, of --token-range; this file notes how far that is.",
)
@_TOKENS
def replicate(replicate_properties: Path, once: bool, snapshot: Path | None, token_range: tuple[int, int]) -> None:
    """Write the changes of tables into another Cassandra, each cell with its write time and TTL.

    Events come from Kafka, with cells (the agents' cells.include.list). Positions are committed to a consumer group
    when the target has acknowledged a write. It may be killed at any moment, and run in several processes.
    """
    from helenus_connector.replicate_command import run_replicator

    with errors_shown():
        run_replicator(replicate_properties, once, snapshot, token_range)


@click.command("compare", short_help="Compare tables with their copies in another Cassandra.")
@_REPLICATION
@click.option(
    "--consistency",
    type=click.Choice(["LOCAL_ONE", "LOCAL_QUORUM", "QUORUM", "ALL"]),
    default="ALL",
    show_default=True,
    help="The level at which both clusters are read.",
)
@click.option(
    "--patience",
    type=FiniteFloat(min=0),
    default=30.0,
    show_default=True,
    help="For how many seconds to see if a difference passes.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="How many differences to name of a table.",
)
@click.option("--repair", is_flag=True, help="Make rows that differ equal to the source's.")
@_TOKENS
def compare(replicate_properties: Path, **how: Any) -> None:
    """Compare tables with their copies, cell by cell, by value, write time and expiry.

    \b
    missing    a row of the source that the target does not have
    ghost      a row of the target that the source does not have
    cells      a row whose cells differ

    Exit status: 0 if they are equal, 3 if they differ, 1 if they could not be compared.
    """
    from helenus_connector.replicate_command import compare_tables

    with errors_shown():
        sys.exit(compare_tables(replicate_properties, how.pop("consistency"), **how))
