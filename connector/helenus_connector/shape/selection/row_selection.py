"""What of one row may leave: whether it does, and its values with their masks.

`where` decides about a row by its values as Cassandra has them. What it can't decide, since a value is null, does not
match: SQL's rule, and nothing leaves by mistake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from helenus_connector.config.column_names import masked_columns
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.row_condition import columns_of
from helenus_connector.shape.selection._conditions import MISSING, Test, bind_condition
from helenus_connector.shape.selection._masks import Mask, mask_function
from helenus_schemas.codec.key import Key
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind

Values = Sequence["bytes | None"]


def make_selection(table: Table, settings: ConnectorSettings) -> RowSelection | None:
    """Return the selection of a table's rows, as `shown_table` gives it; None if all of it is published as it is.

    Raises HelenusError CONFIG for a condition that does not fit the table, or the connector.
    """
    masks = {column.name: mask_function(mask) for mask, column in masked_columns(table, settings)}
    condition = settings.condition
    if condition is None:
        return RowSelection(table, masks) if masks else None
    option = f"where.{table.name}"
    try:
        test = bind_condition(condition, (*table.primary_key, *table.values))
    except ValueError as error:
        problem = f"{option}: {error}"
        raise HelenusError(Kind.CONFIG, problem, table.full_name, "correct it, or publish the column") from None
    names = set(columns_of(condition))
    if table.statics and not names <= {column.name for column in table.partition_key}:
        problem = f"{option}: a static column is of all rows of its partition, whatever their values"
        advice = "leave the static columns out by column.exclude.list, or name columns of the partition key alone"
        raise HelenusError(Kind.CONFIG, problem, table.full_name, advice)
    if settings.resolver == "none" and not names <= {column.name for column in table.primary_key}:
        problem = f"{option}: with resolver=none a change does not say the values of the row that it leaves as they are"
        advice = "name columns of the key alone, or take resolver=reread or state=rows"
        raise HelenusError(Kind.CONFIG, problem, table.full_name, advice)
    return RowSelection(table, masks, test)


class RowSelection:
    """Selects and masks rows of one version of a table. `masks` are by column."""

    def __init__(self, table: Table, masks: Mapping[str, Mask], test: Test | None = None) -> None:
        self.masks = masks
        self._masks = [(index, masks[c.name]) for index, c in enumerate(table.values) if c.name in masks]
        self._test = test
        self._key_width = len(table.primary_key)
        self._value_width = len(table.values)
        self._unknown = (MISSING,) * self._value_width
        self._clustering = range(len(table.partition_key), self._key_width)

    def excludes_key(self, key: Key) -> bool:
        """Return whether the key, or what is given of it, alone decides that no row of it matches."""
        if self._test is None:
            return False
        columns = [*key[: self._key_width], *(MISSING,) * (self._key_width - len(key))]
        for index in self._clustering:  # null where it is the key of a partition
            columns[index] = MISSING if columns[index] is None else columns[index]
        return self._test((*columns, *self._unknown)) is False

    def matches(self, key: Key, values: Values) -> bool:
        """Return whether a row is published; `values` in the order of a record's."""
        return self._test is None or self._test((*key, *values) if self._value_width else key) is True

    def mask(self, values: Values) -> tuple[bytes | None, ...]:
        """Return a row's values with their masks. A null stays null."""
        masked = list(values)
        for index, mask in self._masks:
            value = masked[index]
            if value is not None:
                masked[index] = mask(value)
        return tuple(masked)
