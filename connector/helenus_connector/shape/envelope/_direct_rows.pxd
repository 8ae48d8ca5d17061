# C types for _direct_rows.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_connector.interfaces.resolved_key cimport ResolvedKey

cdef object _ROW, _STATIC, _new, _Record

cdef class DirectRows:
    cdef object _direct, _encode_change, _encode_key, _row_headers
    cdef list _more_headers

    @cython.locals(records=list, key=ResolvedKey)
    cpdef list records(self, object resolved, long long now)

    @cython.locals(encoded=tuple, headers=list)
    cpdef object record(self, ResolvedKey resolved, long long now)
