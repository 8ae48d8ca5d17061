"""Says whether the target's table can take the cells of a change, and what to do if it can't."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from helenus_schemas.cql.table import Table
from helenus_schemas.cql.types import CqlType, has_more_fields, quote
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.cells import Cells


def check_keys(source: Table, target: Table) -> None:
    """Raise HelenusError TABLE_UNSUPPORTED if the two tables have different primary keys."""
    keys = [[(c.name, str(c.type), c.kind, c.reversed) for c in table.primary_key] for table in (source, target)]
    if keys[0] != keys[1]:
        problem = "the primary keys of source and target differ in columns, types or clustering order"
        raise HelenusError(
            Kind.TABLE_UNSUPPORTED, problem, f"target {target.full_name}", "recreate the target as the source is"
        )


def check_kinds(source: Table, target: Table) -> None:
    """Raise HelenusError TABLE_UNSUPPORTED if a column is static in one of the two tables alone: no statement could
    write its cells.
    """
    kinds = {column.name: column.kind for column in target.values}
    for column in source.values:
        if kinds.get(column.name, column.kind) != column.kind:
            problem = f"column {column.name} is {column.kind} in the source and {kinds[column.name]} in the target"
            advice = "recreate the target as the source is"
            raise HelenusError(Kind.TABLE_UNSUPPORTED, problem, f"target {target.full_name}", advice)


def check_columns(types: Mapping[str, CqlType], columns: Collection[str], target: Table) -> None:
    """Raise HelenusError SCHEMA_BEHIND if the target lacks one of the columns, or a field of a type, and
    TABLE_UNSUPPORTED if a column has another type there. `types` are those of the change.
    """
    by_name = {column.name: column for column in target.values}
    where, table = f"target {target.full_name}", f"{quote(target.keyspace)}.{quote(target.name)}"
    for name in columns:
        column, kind = by_name.get(name), types[name]
        if column is None:
            raise HelenusError(
                Kind.SCHEMA_BEHIND,
                f"the target has no column {name}",
                where,
                f"ALTER TABLE {table} ADD {quote(name)} {kind}; with static, if it is so in the source",
            )
        if _fits(kind, column.type):
            continue
        if has_more_fields(kind, column.type):
            problem = f"a type of column {name} has fewer fields in the target"
            raise HelenusError(
                Kind.SCHEMA_BEHIND, problem, where, "ALTER TYPE … ADD the fields that the source's type has, in order"
            )
        raise HelenusError(
            Kind.TABLE_UNSUPPORTED,
            f"column {name} is {kind} in the source and {column.type} in the target",
            where,
            "recreate the target's column with the source's type",
        )


def without_dropped(cells: Cells, source: Table) -> Cells:
    """Return a change without the cells that a DROP of their column took: its values come back with no column of the
    same name. Raises HelenusError SCHEMA_BEHIND for a column that the source neither has nor had: the node that was
    asked for the definition does not know it yet.
    """
    present = {column.name for column in source.values}
    dropped_at, gone = source.dropped_at, cells.columns.keys() - present
    if unknown := sorted(gone - source.dropped.keys()):
        problem = f"the source does not show columns that were written: {unknown}"
        advice = "see whether all nodes of the source have the same schema version (nodetool describecluster)"
        raise HelenusError(Kind.SCHEMA_BEHIND, problem, f"source {source.full_name}", advice)
    if not dropped_at and not gone:
        return cells

    def is_hidden(name: str, write_time: int) -> bool:
        return name in gone or write_time <= dropped_at.get(name, write_time - 1)

    return cells._replace(
        deletions={n: d for n, d in cells.deletions.items() if not is_hidden(n, d.write_time)},
        cells=tuple(cell for cell in cells.cells if not is_hidden(cell.column, cell.write_time)),
    )


def _fits(kind: CqlType, target: CqlType) -> bool:
    """Return whether values of a type are values of the target's: a user-defined type may have more fields there."""
    if (kind.name, kind.frozen, kind.dimension) != (target.name, target.frozen, target.dimension):
        return False
    if kind.name == "udt":
        count = len(kind.fields)
        return kind.fields == target.fields[:count] and all(map(_fits, kind.args, target.args[:count]))
    if kind.name == "custom" and kind.label != target.label:
        return False
    return len(kind.args) == len(target.args) and all(map(_fits, kind.args, target.args))
