"""A shape that is given only what may leave: rows that match `where`, with masks over their columns, and of operations
those that are not skipped.

    row that matches            → its record, masked              row that does not  → that of its delete
    row whose key alone decides → nothing                         marker             → as it is, and its rows selected

Another shape makes the records. It never sees a value that is hidden: neither do the smaller record of a row that is
too large, nor digests, nor the row before a change. A row that does not match has a delete each time that it changes:
it is not known whether an earlier record said otherwise. Where the row before is known, with `state=rows`, and did not
match either, there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.image import Image, LiveRow
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import Record, Shape, ShapedRecord
from helenus_connector.shape.envelope.parsed_cells import parse_cells
from helenus_connector.shape.selection.row_selection import RowSelection, make_selection
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.values import Malformed
from helenus_schemas.event.cells import Cell, Cells
from helenus_schemas.event.change import Origin, Scope
from helenus_schemas.event.wire import decode, without_frames

_ROW, _STATIC, _TABLE = Scope.ROW, Scope.STATIC, Scope.TABLE  # an enum's members are slow to look up
_NO_LOG = bytes(3)
"""First bytes of an event without digest, node and columns: it is of no commit log, as a repair's."""
_NO_COLUMNS: frozenset[str] = frozenset()
_TEXT = ("text", "ascii")
_new = tuple.__new__


def with_selection(shape: Shape, table: Table, settings: ConnectorSettings) -> Shape:
    """Return the shape itself if all of the table is published as it is. Raises as `make_selection`."""
    selection = make_selection(table, settings)
    if selection is None and not settings.skipped:
        return shape
    return SelectedShape(shape, selection or RowSelection(table, {}), settings.skipped)


class SelectedShape:
    """Gives `shape` what may leave; `skipped` are the operations without records."""

    def __init__(self, shape: Shape, selection: RowSelection, skipped: frozenset[str]) -> None:
        self._shape = shape
        self._selection = selection
        self._skipped = skipped

    def records(self, resolved: ResolvedKey) -> Iterable[ShapedRecord | None]:
        if resolved.scope in (_ROW, _STATIC) and resolved.read_rows is None:
            selected = self._select_row(resolved)
            return () if selected is None else self._shape.records(selected)
        return self._marker_records(resolved)

    def rows(self, resolved: Sequence[ResolvedKey]) -> Sequence[Record | None]:
        selected = [self._select_ordinary(key) for key in resolved]
        made = iter(self._shape.rows([key for key in selected if key is not None]))
        return [None if key is None else next(made) for key in selected]

    def smaller(self, image: Image) -> Iterator[tuple[Image, tuple[str, bytes]]]:
        return self._shape.smaller(image)

    def _select_ordinary(self, resolved: ResolvedKey) -> ResolvedKey | None:
        """Return a row that was read as it may leave; None for what `records` has to look at."""
        is_ordinary = resolved.read_rows is None and resolved.failure is None and resolved.cells is None
        return self._select_row(resolved) if is_ordinary and resolved.scope in (_ROW, _STATIC) else None

    def _select_row(self, resolved: ResolvedKey) -> ResolvedKey | None:
        """Return a row, or static columns, as they may leave; None if nothing does. Raises Malformed for cells that are
        none.
        """
        if self._selection.excludes_key(resolved.values) and not _is_repair(resolved):
            return None
        selected, written = resolved, resolved.written
        if written is not None:
            masked = self._mask_cells(written)
            if masked is not written:
                selected = resolved.copy()
                selected.cells, selected.written = None, masked
        else:
            selected = resolved.copy()
            if not self._select_images(resolved, selected):
                return None
        return None if self._skipped and _operation(selected) in self._skipped else selected

    def _select_images(self, resolved: ResolvedKey, selected: ResolvedKey) -> bool:
        """Set the row before and after the change as they may leave, and the operation; return whether anything is
        left of the change.
        """
        key, before, after = resolved.values, resolved.before, resolved.after
        if resolved.scope is _ROW:
            was_excluded = before is not None and not self._selection.matches(key, before.values)
            if was_excluded:
                before = None
            if after is not None and not self._selection.matches(key, after.values):
                if was_excluded and _is_change(resolved):
                    return False
                after = selected.expires = None
                selected.op = None if resolved.op is None else "d"
            elif was_excluded and resolved.op == "u":
                selected.op = "c"
        self._mask_images(selected, before, after)
        return True

    def _marker_records(self, resolved: ResolvedKey) -> Iterable[ShapedRecord | None]:
        """Return the records of a delete marker and of the rows in its scope."""
        if self._selection.excludes_key(resolved.values) and not _is_repair(resolved):
            return ()
        is_skipped = ("t" if resolved.scope is _TABLE else "d") in self._skipped
        if resolved.read_rows is None:  # it was not read
            return () if is_skipped else self._shape.records(resolved)
        selected = resolved.copy()
        self._mask_images(selected, resolved.before, resolved.after)
        selected.read_rows = self._selected_rows(resolved)
        return self._rows_alone(selected) if is_skipped else self._shape.records(selected)

    def _rows_alone(self, marker: ResolvedKey) -> Iterator[ShapedRecord | None]:
        """Yield the records of what lives in a marker's scope: its partition's static columns, and rows."""
        statics = marker.after
        if statics is not None and any(value is not None for value in statics.values):
            columns = marker.copy()
            columns.scope, columns.read_rows, columns.bounds = _STATIC, None, None
            yield from self._shape.records(columns)
        # The rest of a truncation has rows alone.
        rows = marker.copy()
        rows.scope, rows.continues, rows.after = _TABLE, True, None
        yield from self._shape.records(rows)

    def _selected_rows(self, resolved: ResolvedKey) -> Callable[[ResolvedKey], Iterator[LiveRow]]:
        """Return the function that reads those live rows of a marker that match: the marker deletes the others."""

        def read_rows(_: ResolvedKey) -> Iterator[LiveRow]:
            for row in resolved.rows():
                if self._selection.matches(row.values, row.image.values):
                    yield row._replace(image=self._mask_image(row.image))

        return read_rows

    def _mask_image(self, image: Image) -> Image:
        # By its own constructor, or `_replace`, a named tuple takes several times as long.
        return _new(Image, (self._selection.mask(image.values), *image[1:]))

    def _mask_images(self, resolved: ResolvedKey, before: Image | None, after: Image | None) -> None:
        """Set the row before and after a change as they may leave."""
        resolved.before = None if before is None else self._mask_image(before)
        resolved.after = None if after is None else self._mask_image(after)

    def _mask_cells(self, written: Cells) -> Cells:
        masks = self._selection.masks
        if masks.keys().isdisjoint(written.columns):
            return written
        if wrong := [name for name in masks if name in written.columns and written.columns[name].name not in _TEXT]:
            raise Malformed(f"the column {wrong[0]}, which has a mask, was no text")

        def masked(cell: Cell) -> Cell:
            mask = masks.get(cell.column)
            return cell if mask is None or cell.value is None else cell._replace(value=mask(cell.value))

        return written._replace(cells=tuple(map(masked, written.cells)))


def _operation(resolved: ResolvedKey) -> str | None:
    """Return the operation of a row; None if it is not known."""
    if (written := resolved.written) is not None:
        return parse_cells(written, _NO_COLUMNS).op
    return resolved.op or ("d" if resolved.after is None else None)


def _is_repair(resolved: ResolvedKey) -> bool:
    return _origin(resolved) is Origin.REPAIR


def _is_change(resolved: ResolvedKey) -> bool:
    """Return whether a row is published since it changed; if not, it is not known what the topic has of it."""
    return _origin(resolved) in (Origin.LOG, Origin.STATE)


def _origin(resolved: ResolvedKey) -> Origin:
    value = resolved.event.value if resolved.event else None
    if not value or not value.startswith(_NO_LOG):
        return Origin.LOG
    return decode(without_frames(None, value)[1]).origin
