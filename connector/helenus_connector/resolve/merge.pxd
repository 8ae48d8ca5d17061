# C types for merge.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_connector.interfaces.resolved_key cimport ResolvedKey
from helenus_schemas.event.own_format cimport match_own_format

cdef object _ROW, _STATIC, _TABLE, _new, _Image
cdef tuple _UNTIMED

cdef class StateResolver:
    cdef object _topic, _codec
    cdef list _names

    @cython.locals(resolved_key=ResolvedKey)
    cpdef ResolvedKey resolved(self, object change)

    cdef bint _is_alike(self, object before, object after, ResolvedKey resolved_key) except -1

    cdef object _image(self, object row, object write_time, object expires)

cdef object _decode_request(bytes event)

cdef bint _is_change(object request) except -1
