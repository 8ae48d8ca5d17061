# C types for row_cursor.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython

cdef bint _compiled
cdef long long _NO_DELETION, _SECONDS

@cython.final
cdef class RowCursor:
    cdef public bytes data, path, value
    cdef public Py_ssize_t offset, end
    cdef public long long low, low_deletion, low_ttl, write_time, deletion_time, cell_time, column_deletion, deleted_at
    cdef public bint has_write_time, is_deleted, has_column_deletions, lists_present
    cdef public object ttl, expires, cell_ttl, cell_expires, cell_deleted_at
    cdef public unsigned long long missing
    cdef public set listed

    cpdef int begin_row(
        self, bytes data, Py_ssize_t offset, long long low, long long low_deletion, long long low_ttl
    ) except -1

    @cython.locals(flags=int)
    cpdef int read_head(self, Py_ssize_t columns) except -1

    @cython.locals(present=Py_ssize_t, _=Py_ssize_t)
    cdef int read_listed(self, Py_ssize_t columns) except -1

    cpdef bint is_missing(self, Py_ssize_t column)

    cpdef unsigned long long read_column(self, bint is_many)

    @cython.locals(flags=int, value=bytes)
    cpdef int read_cell(self, Py_ssize_t width, bint is_many) except -1

    cpdef tuple cell_fields(self, str column)

    @cython.locals(seconds=cython.longlong, ttl=cython.longlong)
    cdef int read_expiry(self, int flags) except -1

    @cython.locals(size=cython.ulonglong, remaining=cython.ulonglong, start=Py_ssize_t)
    cdef bytes read_bytes(self, Py_ssize_t width)

    cpdef long long read_deletion(self)

    @cython.locals(time=cython.longlong)
    cdef long long read_time(self)

    @cython.locals(data=bytes, offset=Py_ssize_t, first=int, size=Py_ssize_t, remaining=Py_ssize_t, value=cython.ulonglong, i=Py_ssize_t)
    cdef unsigned long long read_vint(self)

    @cython.locals(offset=Py_ssize_t)
    cdef int read_byte(self) except -1
