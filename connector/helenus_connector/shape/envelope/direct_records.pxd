# C types for direct_records.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_connector.shape.envelope.value_writer cimport ValuePart, ValueWriter
from helenus_schemas.codec.wire_bytes cimport read_long
from helenus_schemas.event.row_cursor cimport RowCursor

cdef bint _compiled
cdef int _ROW, _NOW, _WRITE_MS, _WRITE_US, _WRITE_NS, _SEGMENT, _POSITION, _NODE, _OPERATION, _CHANGED, _EXACT, _FIELDS
cdef int _TTL
cdef bytes _NULL, _NO_FIELD
cdef Py_ssize_t _MAX_COLUMNS, _MAX_CACHED
cdef long long _NO_DELETION, _MAX_WRITE_TIME, _MICROSECONDS
cdef int _WRITTEN, _REPLACED
cdef bytearray _SCRATCH

@cython.final
cdef class ColumnSlot:
    cdef public ValuePart part
    cdef public bytes absent, head, tail, expiry_head, expiry_tail
    cdef public bint shows_expiry
    cdef public object exact

@cython.final
cdef class ChangedColumn:
    cdef public Py_ssize_t width, index
    cdef public bint is_many, is_set
    cdef public int parts, fields
    cdef public object type
    cdef public long long ttl, expires

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
        writer=ValueWriter, record_key=bytes, removed=list, columns=list, operation=bytes, sized_row=bytes, i=Py_ssize_t, step=int, _=cython.longlong,
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

@cython.locals(
    low=cython.longlong, low_deletion=cython.longlong, low_ttl=cython.longlong, size=cython.longlong,
    count=Py_ssize_t, written=cython.ulonglong, replaced=cython.ulonglong, bit=cython.ulonglong, i=Py_ssize_t,
    column=ChangedColumn, parts=int, value=bytes, ttl=cython.longlong, expires=cython.longlong,
)
cdef (long long, unsigned long long, unsigned long long, long long, long long) read_row(
    RowCursor cursor, bytes data, Py_ssize_t offset, list columns, list values, list expiries, list removed,
    bint shows_removed
)

@cython.locals(
    count=cython.ulonglong, deleted=cython.longlong, parts=list, live=Py_ssize_t, _=cython.ulonglong, value=bytes,
    path=bytes, is_replaced=bint, fields=list, end=Py_ssize_t, field=Py_ssize_t,
)
cdef int read_elements(
    RowCursor cursor, ChangedColumn column, Py_ssize_t number, list values, list removed, bint shows_removed
) except? -1

@cython.locals(raw=cython.p_uchar)
cdef bytes size_bytes(Py_ssize_t value)
