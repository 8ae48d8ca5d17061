# C types for direct_records.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_connector.shape.envelope._changed_row cimport ChangedColumn, is_cleared, read_row
from helenus_connector.shape.envelope.value_writer cimport ValuePart, ValueWriter
from helenus_schemas.codec.wire_bytes cimport read_long
from helenus_schemas.event.row_cursor cimport RowCursor

cdef int _ROW, _NOW, _WRITE_MS, _WRITE_US, _WRITE_NS, _SEGMENT, _POSITION, _NODE, _OPERATION, _CHANGED, _EXACT, _FIELDS
cdef int _TTL
cdef bytes _NULL
cdef Py_ssize_t _MAX_COLUMNS, _MAX_CACHED
cdef long long _MAX_WRITE_TIME, _MICROSECONDS

@cython.final
cdef class ColumnSlot:
    cdef public ValuePart part
    cdef public bytes absent, head, tail, expiry_head, expiry_tail
    cdef public bint shows_expiry
    cdef public object exact

@cython.final
cdef class DirectRecords:
    cdef object _layout
    cdef ValueWriter _writer
    cdef list _steps, _constants, _keys, _row_keys, _slots, _nothing, _never, _values
    cdef bytes _end, _key_head, _key_tail, _update, _insert, _removal, _clearing, _no_exact
    cdef bint _sizes_row, _shows_removed, _has_exact
    cdef RowCursor _cursor
    cdef dict _indexes, _columns, _names, _segments

    cpdef object encode_change(
        self, bytes event, bytes cells, object key, long long write_time, long long now, bint is_static
    )

    @cython.locals(
        size=cython.longlong, offset=Py_ssize_t, segment=cython.longlong, position=cython.longlong, end=Py_ssize_t,
        header=bytes, header_columns=tuple, values=list, expiries=list, is_row=cython.longlong, written=cython.ulonglong,
        replaced=cython.ulonglong, ttl=cython.longlong, expires=cython.longlong, name=tuple, names=tuple,
        writer=ValueWriter, record_key=bytes, removed=list, columns=list, operation=bytes,
        sized_row=bytes, i=Py_ssize_t, step=int, _=cython.longlong,
        row=(cython.longlong, cython.ulonglong, cython.ulonglong, cython.longlong, cython.longlong),
    )
    cdef object _encode_change(
        self, bytes event, bytes cells, tuple key, long long write_time, long long now, bint is_static
    )

    @cython.locals(writer=ValueWriter, i=Py_ssize_t, slot=ColumnSlot, value=bytes)
    cdef int _put_key(self, list slots, tuple key) except -1

    @cython.locals(writer=ValueWriter, i=Py_ssize_t, slot=ColumnSlot, value=bytes, expiry=cython.longlong)
    cdef int _put_row(self, tuple key, list values, list expiries) except -1

    cdef bytes _exact(self, list values)

    @cython.locals(file=bytes)
    cdef bytes _segment(self, long long segment)
