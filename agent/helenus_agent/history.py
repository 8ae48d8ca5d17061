"""The tables of the keyspaces that are followed, as last known: one that is dropped while no agent runs may be named in
the log, and Cassandra can't tell any more what it looks like.

`state.dir/tables.json` holds them, replaced as a whole.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from helenus_agent.tables import Stamp
from helenus_schemas.cql import CqlType
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.table import Column, Table

_FILE = "tables.json"
_FORMAT = 1


def load(directory: Path) -> tuple[list[Table], dict[uuid.UUID, Stamp]]:
    """What was saved, if anything: the tables, and when they were last altered. Raises HelenusError(STATE)."""
    path = directory / _FILE
    try:
        saved = json.loads(path.read_text("utf-8"))
        if saved["format"] != _FORMAT:
            raise ValueError(f"format {saved['format']}, this agent knows {_FORMAT}")
        stamps = {
            uuid.UUID(table): Stamp(int(time), str(options)) for table, (time, options) in saved["stamps"].items()
        }
        return [_table(table) for table in saved["tables"]], stamps
    except FileNotFoundError:
        return [], {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HelenusError(Kind.STATE, f"cannot read the tables: {error}", str(path)) from None


def save(directory: Path, tables: Sequence[Table], stamps: Mapping[uuid.UUID, Stamp]) -> None:
    """Write them down. Raises HelenusError(STATE)."""
    path = directory / _FILE
    new = path.with_suffix(".new")
    saved = {
        "format": _FORMAT,
        "tables": [asdict(table) for table in tables],
        "stamps": {str(table): stamp for table, stamp in stamps.items()},
    }
    try:
        with open(new, "w", encoding="utf-8") as file:
            json.dump(saved, file, default=str)
        new.replace(path)
    except OSError as error:
        raise HelenusError(Kind.STATE, f"cannot save the tables: {error.strerror}", str(path)) from None


def _table(saved: Any) -> Table:
    return Table(
        saved["keyspace"],
        saved["name"],
        uuid.UUID(saved["id"]),
        tuple(_column(column) for column in saved["columns"]),
        saved["cdc"],
        {name: _column(column) for name, column in saved["dropped"].items()},
    )


def _column(saved: Any) -> Column:
    return Column(saved["name"], _type(saved["type"]), saved["kind"], saved["position"], saved["reversed"])


def _type(saved: Any) -> CqlType:
    args = tuple(_type(arg) for arg in saved["args"])
    return CqlType(saved["name"], args, saved["frozen"], saved["label"], tuple(saved["fields"]), saved["dimension"])
