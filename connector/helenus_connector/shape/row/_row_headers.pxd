# C types for _row_headers.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_connector.interfaces.resolved_key cimport ResolvedKey

cdef bint _compiled
cdef bytes _NO_LOG
cdef Py_ssize_t _OF_SNAPSHOT
cdef bytearray _SCRATCH

cdef class RowHeaders:
    cdef object _origin
    cdef list _table_headers
    cdef bint _write_time, _expires, _shows_origin, _op

    @cython.locals(headers=list, data=bytes)
    cpdef list row_headers(self, ResolvedKey resolved, object op)

@cython.locals(raw=cython.p_uchar, remaining=cython.ulonglong, index=int)
cdef bytes decimal_digits(long long value)
