# C types for _replica_reports.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_schemas.event.own_format cimport Match, match_own_format

cdef bytes _ROW_INT, _STATIC_INT, _ROW_PREFIX
cdef Py_ssize_t _MUTATION_BYTES
cdef object _new

cdef class ReplicaReports:
    cdef object _codec
    cdef bint _has_partitions, _keeps_keys

    @cython.locals(match=Match, scope=bytes, prefix=bytes, digest=bytes, mutation=bytes)
    cpdef object for_event(self, object event)
