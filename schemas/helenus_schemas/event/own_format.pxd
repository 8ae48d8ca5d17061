# C types for own_format.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython

cdef bint _compiled
cdef Py_ssize_t _HEAD
cdef int _MOST
cdef tuple _SCOPES
cdef Py_ssize_t _DIGEST, _DIGEST_END, _NODE, _NODE_END, _SCOPE

cdef class Match:
    cdef public bytes value, cells
    cdef public object found
    cdef public long long segment, position, written, expires, effect, expired
    cdef public int has

    cpdef object concerns(self)

@cython.locals(match=Match, scanned=Match)
cpdef Match match_own_format(bytes value)

@cython.locals(has=int, cells=bytes, value=bytes, ids=tuple, times=tuple)
cpdef parse_match(Match match)

@cython.locals(i=Py_ssize_t, byte=int, at=Py_ssize_t, has=int, there=int, match=Match, _=cython.longlong)
cpdef Match scan(bytes value)

@cython.locals(rest=cython.ulonglong, shift=int, byte=cython.ulonglong)
cdef (long long, Py_ssize_t) _long(bytes d, Py_ssize_t at)

@cython.locals(value=cython.longlong)
cdef (long long, Py_ssize_t, int) _optional(bytes d, Py_ssize_t at)
