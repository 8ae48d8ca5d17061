# C types for _columns.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython

cdef bint _compiled
cdef int _OTHER, _INTEGER, _DATE, _REVERSED, _SIZED, _TEXT, _UUID, _BOOLEAN, _DECIMAL, _ARRAY, _MAP, _VECTOR, _RECORD
cdef bytes _HEX
cdef Py_ssize_t _ROOM

cdef class ColumnPart:
    cdef public object encode
    cdef public bint accepts_empty, rejects_empty
    cdef public int form
    cdef public Py_ssize_t size, count
    cdef public list parts

cdef class Buffer:
    cdef bytearray data
    cdef unsigned char *raw
    cdef Py_ssize_t room, size

    cdef int reserve(self, Py_ssize_t size) except -1

    cdef void put_byte(self, int value) noexcept

    @cython.locals(size=Py_ssize_t)
    cdef void put_varint(self, unsigned long long value) noexcept

    cdef int append(self, bytes data) except -1

    @cython.locals(count=Py_ssize_t, size=Py_ssize_t)
    cdef int copy(self, bytes data, Py_ssize_t offset, Py_ssize_t end) except -1

    cdef bint put_optional(self, ColumnPart part, bytes data, Py_ssize_t offset, Py_ssize_t end) except -1

    @cython.locals(form=int, size=Py_ssize_t, number=cython.longlong, i=Py_ssize_t)
    cdef bint put_value(self, ColumnPart part, bytes data, Py_ssize_t offset, Py_ssize_t end) except -1

    cdef bint put_sized(self, ColumnPart part, bytes data, Py_ssize_t offset, Py_ssize_t end) except -1

    cdef bint put_decimal(self, bytes data, Py_ssize_t offset, Py_ssize_t end) except -1

    @cython.locals(i=int, byte=int)
    cdef bint put_uuid(self, bytes data, Py_ssize_t offset) except -1

    @cython.locals(form=int, inner=ColumnPart, size=cython.longlong, count=cython.longlong, _=cython.longlong)
    cdef bint put_composite(self, ColumnPart part, bytes data, Py_ssize_t offset, Py_ssize_t end) except -1

    @cython.locals(inner=ColumnPart, size=Py_ssize_t, _=Py_ssize_t)
    cdef bint put_vector(self, ColumnPart part, bytes data, Py_ssize_t offset, Py_ssize_t end) except -1

cdef class Columns:
    cdef list _parts
    cdef Py_ssize_t _count
    cdef Buffer _buffer
    cdef object _functions
    cdef bytes _head

    @cython.locals(encoded=bytes)
    cpdef bytes encode(self, object values)

    @cython.locals(buffer=Buffer)
    cpdef bytes try_encode(self, object values)

    @cython.locals(count=Py_ssize_t, i=Py_ssize_t, value=bytes, part=ColumnPart)
    cdef bytes _encode_row(self, Buffer buffer, tuple values)

@cython.locals(raw=cython.p_uchar, size=Py_ssize_t)
cdef bytes written_bytes(Buffer buffer)

@cython.locals(combined=int, i=Py_ssize_t)
cdef int copy_bytes(
    unsigned char *raw, Py_ssize_t size, const unsigned char *data, Py_ssize_t offset, Py_ssize_t count
) noexcept

@cython.locals(number=cython.longlong, i=Py_ssize_t, shift=int)
cdef long long integer(bytes data, Py_ssize_t offset, Py_ssize_t size) except? -1

cdef unsigned long long zigzag(long long value) noexcept
