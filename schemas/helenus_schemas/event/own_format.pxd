# C types for own_format.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_schemas.codec.wire_bytes cimport read_long

cdef bint _compiled
cdef Py_ssize_t _HEAD
cdef tuple _SCOPES
cdef Py_ssize_t _DIGEST, _DIGEST_END, _NODE, _NODE_END, _SCOPE

cdef class Match:
    cdef public bytes value, cells
    cdef public object regex_match
    cdef public long long segment, position, write_time, expires_at, effect, all_expired_at
    cdef public int present_times

    cpdef object decode_scope(self)

@cython.locals(match=Match, scanned=Match)
cpdef Match match_own_format(bytes value)

@cython.locals(present_times=int, cells=bytes, value=bytes, ids=tuple, times=tuple)
cpdef parse_match(Match match)

@cython.locals(cells=bytes)
cpdef bytes match_cells(Match match)

@cython.locals(byte=int, offset=Py_ssize_t, present_times=int, is_present=int, match=Match, _=cython.longlong)
cpdef Match scan(bytes value)

@cython.locals(value=cython.longlong)
cdef (long long, Py_ssize_t, int) _read_optional(bytes data, Py_ssize_t offset)

@cython.locals(i=Py_ssize_t, byte=int)
cdef bint are_hex_digits(const unsigned char *data, Py_ssize_t start, Py_ssize_t end) noexcept

@cython.locals(i=Py_ssize_t, bits=int)
cdef bint are_ascii(const unsigned char *data, Py_ssize_t start, Py_ssize_t end) noexcept

cpdef bint is_of_node(Match match, bytes node) except -1

@cython.locals(i=Py_ssize_t, bits=int)
cdef bint are_equal(const unsigned char *data, Py_ssize_t start, const unsigned char *other, Py_ssize_t count) noexcept
