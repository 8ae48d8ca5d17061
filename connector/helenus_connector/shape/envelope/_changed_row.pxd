# C types for _changed_row.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_schemas.codec.wire_bytes cimport read_long
from helenus_schemas.event.row_cursor cimport RowCursor

cdef bint _compiled
cdef bytes _NULL, _NO_PART
cdef long long _NO_DELETION
cdef int _WRITTEN, _REPLACED
cdef bytearray _SCRATCH

@cython.final
cdef class ChangedColumn:
    cdef public Py_ssize_t width, index
    cdef public bint is_many, is_set
    cdef public int parts, fields
    cdef public object type
    cdef public long long ttl, expires

@cython.locals(
    low=cython.longlong, low_deletion=cython.longlong, low_ttl=cython.longlong, size=cython.longlong,
    count=Py_ssize_t, written=cython.ulonglong, replaced=cython.ulonglong, bit=cython.ulonglong, i=Py_ssize_t,
    column=ChangedColumn, parts=int, value=bytes, ttl=cython.longlong, expires=cython.longlong,
)
cpdef (long long, unsigned long long, unsigned long long, long long, long long) read_row(
    RowCursor cursor, bytes data, Py_ssize_t offset, list columns, list values, list expiries, list removed,
    bint shows_removed
)

cpdef bint is_cleared(list values) except -1

@cython.locals(
    count=cython.ulonglong, deleted=cython.longlong, parts=list, live=Py_ssize_t, _=cython.ulonglong, value=bytes,
    path=bytes, is_replaced=bint, fields=list, end=Py_ssize_t, field=Py_ssize_t,
)
cdef int read_elements(
    RowCursor cursor, ChangedColumn column, Py_ssize_t number, list values, list removed, bint shows_removed
) except? -1

@cython.locals(raw=cython.p_uchar)
cdef bytes size_bytes(Py_ssize_t value)
