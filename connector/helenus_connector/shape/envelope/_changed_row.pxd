# C types for _changed_row.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_schemas.codec.wire_bytes cimport read_long
from helenus_schemas.event.row_cursor cimport RowCursor

cdef bint _compiled
cdef bytes _NULL, _NO_PART
cdef long long _NO_DELETION
cdef bytearray _SCRATCH

@cython.final
cdef class ChangedColumn:
    cdef public Py_ssize_t width, index
    cdef public bint is_many, is_set
    cdef public int parts, fields
    cdef public object type

@cython.final
cdef class ChangedRow:
    cdef public list values, expiries, removed
    cdef public bint is_written
    cdef public unsigned long long written, replaced
    cdef public long long ttl, expires
    cdef RowCursor _cursor
    cdef list _no_values, _no_expiries

    @cython.locals(
        cursor=RowCursor, low=cython.longlong, low_deletion=cython.longlong, low_ttl=cython.longlong,
        size=cython.longlong, count=Py_ssize_t, i=Py_ssize_t, column=ChangedColumn,
    )
    cpdef bint read(self, bytes data, Py_ssize_t offset, list columns, bint shows_removed) except -1

    cpdef bint is_cleared(self) except -1

    cdef int note_expiry(self, object ttl, object expires) except -1

    @cython.locals(cursor=RowCursor, value=bytes)
    cdef int read_value(self, ChangedColumn column, unsigned long long number) except -1

    @cython.locals(
        cursor=RowCursor, count=cython.ulonglong, deleted=cython.longlong, parts=list, live=Py_ssize_t,
        _=cython.ulonglong, is_replaced=bint,
    )
    cdef int read_elements(self, ChangedColumn column, unsigned long long number, bint shows_removed) except -1

cdef bytes elements_bytes(ChangedColumn column, list parts, Py_ssize_t live, bint shows_removed)

cdef int add_element(list parts, ChangedColumn column, bytes path, bytes value) except -1

@cython.locals(number=int)
cdef int set_field(list fields, ChangedColumn column, bytes path, bytes value) except -1

@cython.locals(raw=cython.p_uchar)
cdef bytes size_bytes(Py_ssize_t value)
