# C types for _publisher.py, used when Cython compiles it. A name that is new there and missing here is slow.
cimport cython
from helenus_connector.interfaces.resolved_key cimport ResolvedKey

cdef class Publisher:
    cdef object _versions, _appender, _undeliverable

    @cython.locals(ordinary=list, records=list, resolved_key=ResolvedKey, record_count=cython.longlong)
    cpdef object publish(self, object log, object batch, object group, object outcome)
