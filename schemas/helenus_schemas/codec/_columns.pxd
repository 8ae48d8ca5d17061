# C types for _columns.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython

cdef bint _compiled
cdef int _OTHER, _INTEGER, _DATE, _REVERSED, _SIZED, _TEXT, _UUID, _BOOLEAN, _DECIMAL, _ARRAY, _MAP, _VECTOR, _RECORD
cdef bytes _HEX
cdef Py_ssize_t _ROOM

cdef class ColumnPart:
    cdef public object encode
    cdef public bint takes_none, needs_some
    cdef public int form
    cdef public Py_ssize_t size, count
    cdef public list parts

cdef class Buffer:
    cdef bytearray data
    cdef unsigned char *raw
    cdef Py_ssize_t room, size

    cdef int reserve(self, Py_ssize_t size) except -1

    cdef void byte(self, int value) noexcept

    @cython.locals(size=Py_ssize_t)
    cdef void unsigned(self, unsigned long long value) noexcept

    cdef int whole(self, bytes d) except -1

    @cython.locals(count=Py_ssize_t, size=Py_ssize_t)
    cdef int copy(self, bytes d, Py_ssize_t at, Py_ssize_t end) except -1

    cdef bint optional(self, ColumnPart part, bytes d, Py_ssize_t at, Py_ssize_t end) except -1

    @cython.locals(form=int, size=Py_ssize_t, number=cython.longlong, i=Py_ssize_t)
    cdef bint value(self, ColumnPart part, bytes d, Py_ssize_t at, Py_ssize_t end) except -1

    @cython.locals(i=int, byte=int)
    cdef bint uuid(self, bytes d, Py_ssize_t at) except -1

    @cython.locals(form=int, inner=ColumnPart, size=cython.longlong, count=cython.longlong, _=cython.longlong)
    cdef bint many(self, ColumnPart part, bytes d, Py_ssize_t at, Py_ssize_t end) except -1

    @cython.locals(inner=ColumnPart, size=Py_ssize_t, _=Py_ssize_t)
    cdef bint vector(self, ColumnPart part, bytes d, Py_ssize_t at, Py_ssize_t end) except -1

cdef class Columns:
    cdef list _parts
    cdef Py_ssize_t _count
    cdef Buffer _buffer
    cdef object _functions
    cdef bytes _head

    @cython.locals(made=bytes)
    cpdef bytes encode(self, object values)

    @cython.locals(buffer=Buffer)
    cpdef bytes row(self, object values)

    @cython.locals(count=Py_ssize_t, i=Py_ssize_t, value=bytes, part=ColumnPart)
    cdef bytes _made(self, Buffer buffer, tuple values)

@cython.locals(raw=cython.p_uchar, size=Py_ssize_t)
cdef bytes taken(Buffer buffer)

@cython.locals(seen=int, i=Py_ssize_t)
cdef int copied(unsigned char *raw, Py_ssize_t size, const unsigned char *d, Py_ssize_t at, Py_ssize_t count) noexcept

@cython.locals(number=cython.longlong, i=Py_ssize_t, shift=int)
cdef long long integer(bytes d, Py_ssize_t at, Py_ssize_t size) except? -1

cdef unsigned long long zigzag(long long value) noexcept
