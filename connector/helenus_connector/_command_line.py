"""What the commands of `helenus-connector` share: how errors are shown, and options' types."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from helenus_schemas.errors import HelenusError, Kind


class FiniteFloat(click.FloatRange):
    """A number for an option: `nan` and `inf` are floats too, and no number to wait or to count by."""

    name = "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is no number.", param, ctx)
        return number


@contextmanager
def errors_shown() -> Iterator[None]:
    """Ends the process with one clear line for an error of ours."""
    try:
        yield
    except HelenusError as error:
        click.echo(f"helenus-connector: {error}", err=True)
        sys.exit(exit_status(error))


def exit_status(error: HelenusError) -> int:
    """Return 2 for a configuration that cannot work, else 1."""
    return 2 if error.kind is Kind.CONFIG else 1
