# C types for direct_records.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_connector.shape.envelope._changed_row cimport ChangedColumn, ChangedRow
from helenus_connector.shape.envelope.value_writer cimport ValuePart, ValueWriter
from helenus_schemas.codec.wire_bytes cimport read_long

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
    cdef ChangedRow _row
    cdef list _steps, _constants, _keys, _row_keys, _slots
    cdef bytes _end, _key_head, _key_tail, _update, _insert, _removal, _clearing, _no_exact
    cdef bint _sizes_row, _shows_removed, _has_exact
    cdef dict _indexes, _columns, _names, _segments
    cdef long long _segment_number, _position

    cpdef object encode_change(
        self, bytes event, bytes cells, object key, long long write_time, long long now, bint is_static
    )

    @cython.locals(
        size=cython.longlong, offset=Py_ssize_t, header=bytes, header_columns=tuple, columns=list, row=ChangedRow,
        name=tuple, names=tuple, record_key=bytes, sized_row=bytes, writer=ValueWriter, i=Py_ssize_t, step=int,
    )
    cdef object _encode_change(
        self, bytes event, bytes cells, tuple key, long long write_time, long long now, bint is_static
    )

    @cython.locals(_=cython.longlong, offset=Py_ssize_t, segment=cython.longlong, position=cython.longlong)
    cdef bint _read_place(self, bytes event, Py_ssize_t size) except -1

    @cython.locals(writer=ValueWriter)
    cdef bytes _encode_key(self, tuple key)

    cdef bytes _encode_row(self, tuple key)

    @cython.locals(writer=ValueWriter)
    cdef int _put_of_change(self, int step, long long write_time, long long now) except -1

    @cython.locals(row=ChangedRow, is_clearing=bint)
    cdef bytes _operation(self)

    @cython.locals(writer=ValueWriter, i=Py_ssize_t, slot=ColumnSlot, value=bytes)
    cdef int _put_key(self, list slots, tuple key) except -1

    @cython.locals(
        writer=ValueWriter, i=Py_ssize_t, slot=ColumnSlot, value=bytes, values=list, expiries=list,
        expiry=cython.longlong,
    )
    cdef int _put_row(self, tuple key) except -1

    cdef bytes _exact(self)

    @cython.locals(file=bytes)
    cdef bytes _segment(self, long long segment)
