# C types for _key_bytes.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_schemas.codec.wire_bytes cimport read_long

cdef bint _compiled
cdef int _INTEGER, _DATE, _REVERSED, _SIZED, _UUID
cdef bytearray _SCRATCH

cdef class KeyBytesReader:
    cdef Py_ssize_t _partition, _count
    cdef list _forms, _sizes

    cpdef tuple read_key(self, bytes data)

    @cython.locals(
        values=list, offset=Py_ssize_t, end=Py_ssize_t, count=Py_ssize_t, partition=Py_ssize_t, i=Py_ssize_t, branch=int,
        form=int, size=int, number=cython.longlong, limit=cython.longlong, uuid_bytes=bytes,
    )
    cdef tuple _read_key(self, bytes data)

@cython.locals(raw=cython.p_uchar, i=int)
cdef bytes integer(long long value, int size)

@cython.locals(raw=cython.p_uchar, i=int)
cdef bytes reversed_bytes(bytes data, Py_ssize_t offset, int size)

@cython.locals(raw=cython.p_uchar, i=int, high=int, low=int)
cdef bytes uuid(bytes data, Py_ssize_t offset)

cdef int hex_digit(int byte) noexcept
