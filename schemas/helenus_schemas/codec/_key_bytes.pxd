# C types for _key_bytes.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython

cdef bint _compiled
cdef int _INTEGER, _DATE, _REVERSED, _SIZED, _UUID
cdef bytearray _SCRATCH

cdef class KeyBytesReader:
    cdef Py_ssize_t _partition, _count
    cdef list _forms, _sizes

    cpdef tuple key(self, bytes data)

    @cython.locals(
        values=list, at=Py_ssize_t, end=Py_ssize_t, count=Py_ssize_t, partition=Py_ssize_t, i=Py_ssize_t, branch=int,
        form=int, size=int, number=cython.longlong, limit=cython.longlong, found=bytes,
    )
    cdef tuple _key(self, bytes data)

@cython.locals(rest=cython.longlong, byte=cython.longlong, shift=int)
cdef (long long, Py_ssize_t) read_long(bytes d, Py_ssize_t at)

@cython.locals(raw=cython.p_uchar, i=int)
cdef bytes integer(long long value, int size)

@cython.locals(raw=cython.p_uchar, i=int)
cdef bytes turned(bytes d, Py_ssize_t at, int size)

@cython.locals(raw=cython.p_uchar, i=int, high=int, low=int)
cdef bytes uuid(bytes d, Py_ssize_t at)

cdef int digit(int byte) noexcept
