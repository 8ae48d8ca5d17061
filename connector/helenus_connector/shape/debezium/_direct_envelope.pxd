# C types for _direct_envelope.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython

cdef bint _compiled
cdef int _OTHER, _INTEGER, _REVERSED, _SIZED, _TEXT, _UUID, _BOOLEAN
cdef Py_ssize_t _MOST_COLUMNS, _MOST_KEPT
cdef long long _NEVER, _FURTHEST
cdef bytearray _SCRATCH

cdef class EnvelopeColumn:
    cdef public Py_ssize_t width, place, size
    cdef public bint is_many, is_set, takes_none
    cdef public int parts, form
    cdef public object encode

cdef class DirectEnvelopes:
    cdef bytes _head, _middle, _places
    cdef object _said
    cdef dict _table, _columns, _names, _segments
    cdef list _nothing, _nulls

    cpdef object made(self, bytes event, bytes cells, bytes key, long long write_time, long long now)

    @cython.locals(
        size=cython.longlong, at=Py_ssize_t, segment=cython.longlong, position=cython.longlong, end=Py_ssize_t,
        text=bytes, columns=tuple, values=list, encoded=list, op=cython.longlong, written=cython.ulonglong,
        replaced=cython.ulonglong, name=tuple, said=bytes, file=bytes, value=bytes, _=cython.longlong,
        found=(cython.longlong, cython.ulonglong, cython.ulonglong),
    )
    cdef object _made(self, bytes event, bytes cells, bytes key, long long write_time, long long now)

@cython.locals(
    low=cython.longlong, _=cython.ulonglong, size=cython.longlong, end=Py_ssize_t, flags=int, has_time=bint,
    has_ttl=bint, row_time=cython.longlong, delta=cython.ulonglong, missing=cython.ulonglong,
    written=cython.ulonglong, replaced=cython.ulonglong, bit=cython.ulonglong, count=Py_ssize_t, i=Py_ssize_t,
    column=EnvelopeColumn, many=cython.ulonglong, deleted=cython.longlong, parts=list, live=Py_ssize_t, value=bytes,
    is_gone=bint, cell=int, time=cython.longlong, path=bytes,
)
cdef (long long, unsigned long long, unsigned long long) row(
    bytes d, Py_ssize_t at, list columns, list values, list encoded
)

@cython.locals(size=Py_ssize_t, form=int, text=str)
cdef bytes avro(bytes value, EnvelopeColumn column)

@cython.locals(rest=cython.ulonglong, size=Py_ssize_t, raw=cython.p_uchar)
cdef bytes long_bytes(long long value)

@cython.locals(rest=cython.longlong, byte=cython.longlong, shift=int, end=Py_ssize_t)
cdef (long long, Py_ssize_t) read_long(bytes d, Py_ssize_t at)

@cython.locals(first=int, size=int, value=cython.ulonglong)
cdef (unsigned long long, Py_ssize_t) vint(bytes d, Py_ssize_t at)

@cython.locals(value=cython.ulonglong)
cdef (Py_ssize_t, Py_ssize_t) length(bytes d, Py_ssize_t at)

@cython.locals(total=cython.ulonglong)
cdef long long summed(unsigned long long low, unsigned long long delta)

@cython.locals(number=cython.longlong, i=Py_ssize_t, shift=int)
cdef long long integer(bytes value)

@cython.locals(raw=cython.p_uchar)
cdef bytes uint(Py_ssize_t value)
