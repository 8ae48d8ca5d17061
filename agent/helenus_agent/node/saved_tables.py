"""The tables of the keyspaces that are followed, as last known: one that is dropped while no agent runs may be named in
the log, and Cassandra does not know its definition any more.

`state.dir/tables.json` holds them, replaced as a whole.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from helenus_agent.node.tables import Stamp
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import durable

_FILE = "tables.json"
_FORMAT = 1
_DAMAGED = (
    "restore it, or delete it: then changes of tables that were dropped while no agent ran can't be decoded and are "
    "skipped, and it goes unnoticed if CDC was off for a while in that time"
)


def load(directory: Path) -> tuple[list[Table], dict[uuid.UUID, Stamp]]:
    """Return what was saved, if anything: the tables, and when they were last altered. Raises HelenusError(STATE)."""
    path = directory / _FILE
    try:
        saved = durable.parse_with_checksum(path.read_text("utf-8"))
        if saved["format"] != _FORMAT:
            raise ValueError(f"format {saved['format']}, this agent knows {_FORMAT}")
        stamps = {
            uuid.UUID(table): Stamp(int(time), str(options)) for table, (time, options) in saved["stamps"].items()
        }
        return [_table(table) for table in saved["tables"]], stamps
    except FileNotFoundError:
        return [], {}
    except OSError as error:
        raise HelenusError(Kind.STATE, f"cannot read the tables: {error.strerror}", str(path)) from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        message = f"the tables are damaged ({type(error).__name__}: {error})"
        raise HelenusError(Kind.STATE, message, str(path), _DAMAGED) from None


def load_others(directory: Path) -> tuple[uuid.UUID, ...]:
    """Return the ids of all other tables and views that there were. Raises HelenusError(STATE)."""
    path = directory / _FILE
    try:
        return tuple(uuid.UUID(table) for table in json.loads(path.read_text("utf-8")).get("others", ()))
    except (OSError, ValueError, AttributeError) as error:
        raise HelenusError(Kind.STATE, f"cannot read the tables: {error}", str(path)) from None


def read_text(directory: Path) -> str:
    """Return the file as it is, empty if there is none. Raises HelenusError(STATE)."""
    path = directory / _FILE
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise HelenusError(Kind.STATE, f"cannot read the tables: {error}", str(path)) from None


def write_text(directory: Path, text: str) -> None:
    """Replace the file durably by what `read_text` returned. Raises HelenusError(STATE)."""
    durable.write(directory / _FILE, text, "the tables", "tables.after-write")


def file_stamp(directory: Path) -> tuple[int, int]:
    """Return what is another pair once the file is replaced, (0, 0) if there is none."""
    try:
        status = (directory / _FILE).stat()
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


def save(
    directory: Path,
    tables: Sequence[Table],
    stamps: Mapping[uuid.UUID, Stamp],
    other_ids: Sequence[uuid.UUID] = (),
) -> None:
    """Replace the file durably: after this returns, no crash brings the old ones back. Raises HelenusError(STATE).

    `other_ids` are the ids of tables and views whose definitions are not needed: their mutations are skipped.
    """
    content = {
        "format": _FORMAT,
        "others": [str(table) for table in other_ids],
        "tables": [asdict(table) for table in tables],
        "stamps": {str(table): stamp for table, stamp in stamps.items()},
    }
    write_text(directory, durable.with_checksum(content))


def _table(saved: Any) -> Table:
    return Table(
        saved["keyspace"],
        saved["name"],
        uuid.UUID(saved["id"]),
        tuple(_column(column) for column in saved["columns"]),
        saved["cdc"],
        {name: _column(column) for name, column in saved["dropped"].items()},
        bool(saved.get("hides_columns", False)),
    )


def _column(saved: Any) -> Column:
    return Column(saved["name"], _type(saved["type"]), saved["kind"], saved["position"], saved["reversed"])


def _type(saved: Any) -> CqlType:
    args = tuple(_type(arg) for arg in saved["args"])
    return CqlType(saved["name"], args, saved["frozen"], saved["label"], tuple(saved["fields"]), saved["dimension"])
