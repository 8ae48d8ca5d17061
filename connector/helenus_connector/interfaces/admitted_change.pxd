# C types for admitted_change.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_schemas.event.own_format cimport Match

@cython.freelist(1024)
cdef class AdmittedChange:
    cdef public object event
    cdef public tuple values
    cdef public bytes key, id
    cdef public long long copies
    cdef public double pause_s
    cdef public bint is_published, is_released
    cdef public object nodes, verifying
    cdef public Match match
    cdef public object _change
