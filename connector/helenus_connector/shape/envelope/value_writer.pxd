# C types for value_writer.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython

cdef bint _compiled
cdef int _OTHER, _INTEGER, _DATE, _MILLISECONDS, _REVERSED, _SIZED, _TEXT, _UUID, _BOOLEAN, _ARRAY, _ENTRIES, _RECORD
cdef int _DOUBLE
cdef int _SPECIAL
cdef long long _MAX_MILLISECONDS
cdef object _unpack_double
cdef bytes _HEX, _ESCAPES
cdef Py_ssize_t _ROOM, _MAX_ROOM
cdef bytearray _SCRATCH

@cython.final
cdef class ValuePart:
    cdef public int form
    cdef public object encode
    cdef public Py_ssize_t size
    cdef public bint is_optional, accepts_empty, is_object
    cdef public list parts, heads

@cython.final
cdef class ValueWriter:
    cdef public bint is_json
    cdef bytearray data
    cdef unsigned char *raw
    cdef Py_ssize_t room
    cdef public Py_ssize_t size

    cpdef int clear(self) except -1

    @cython.locals(raw=cython.p_uchar)
    cpdef bytes written(self, Py_ssize_t start)

    cdef int reserve(self, Py_ssize_t size) except -1

    cdef void put_byte(self, int value) noexcept

    cpdef int append(self, bytes data) except -1

    cpdef int append_piece(self, object piece) except -1

    @cython.locals(count=Py_ssize_t)
    cpdef int copy(self, bytes data, Py_ssize_t offset, Py_ssize_t end) except -1

    cpdef int put_number(self, long long value) except -1

    @cython.locals(remaining=cython.ulonglong)
    cdef int put_zigzag(self, long long value) except -1

    @cython.locals(remaining=cython.ulonglong, raw=cython.p_uchar, index=int)
    cdef int put_digits(self, long long value) except -1

    cpdef int put_null(self) except -1

    cpdef int put_part(self, ValuePart part, bytes data, Py_ssize_t offset, Py_ssize_t end) except -1

    @cython.locals(form=int)
    cdef int put_value(self, ValuePart part, bytes data, Py_ssize_t offset, Py_ssize_t end) except -1

    cdef int put_integer(self, int form, long long number) except -1

    cdef int put_bytes(self, bytes data, Py_ssize_t offset, Py_ssize_t end) except -1

    @cython.locals(bits=int)
    cpdef int put_text(self, bytes data, Py_ssize_t offset, Py_ssize_t end) except -1

    @cython.locals(i=Py_ssize_t, byte=int)
    cdef int put_escaped(self, bytes data, Py_ssize_t offset, Py_ssize_t end) except -1

    @cython.locals(i=int, byte=int)
    cdef int put_uuid(self, bytes data, Py_ssize_t offset) except -1

    @cython.locals(has_keys=bint, count=cython.longlong, i=cython.longlong)
    cdef int put_collection(self, ValuePart part, bytes data, Py_ssize_t offset, Py_ssize_t end) except -1

    @cython.locals(is_pair=bint)
    cdef Py_ssize_t put_entry(self, ValuePart part, bytes data, Py_ssize_t offset, Py_ssize_t end) except -1

    @cython.locals(size=cython.longlong)
    cdef Py_ssize_t put_item(self, ValuePart item, bytes data, Py_ssize_t offset, Py_ssize_t end) except -1

    @cython.locals(i=Py_ssize_t, size=cython.longlong)
    cdef int put_record(self, ValuePart part, bytes data, Py_ssize_t offset, Py_ssize_t end) except -1

cdef long long read_size(bytes data, Py_ssize_t offset, Py_ssize_t end) except? -2

@cython.locals(number=cython.longlong, i=Py_ssize_t, shift=int)
cdef long long signed_integer(bytes data, Py_ssize_t offset, Py_ssize_t size) except? -2

@cython.locals(i=Py_ssize_t)
cdef void copy_bytes(
    unsigned char *raw, Py_ssize_t size, const unsigned char *data, Py_ssize_t offset, Py_ssize_t count
) noexcept

@cython.locals(bits=int, i=Py_ssize_t, byte=int)
cdef int text_bits(const unsigned char *data, Py_ssize_t offset, Py_ssize_t count) noexcept
