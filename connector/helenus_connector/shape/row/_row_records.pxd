# C types for _row_records.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_connector.interfaces.resolved_key cimport ResolvedKey
from helenus_connector.shape.row._row_headers cimport RowHeaders

cdef object _new, _Record

cdef class RowRecords:
    cdef bytes _key_frame
    cdef object _encode
    cdef RowHeaders _headers

    cpdef list records(self, object resolved)

    @cython.locals(columns=tuple, values=tuple)
    cdef object row_record(self, ResolvedKey resolved)
