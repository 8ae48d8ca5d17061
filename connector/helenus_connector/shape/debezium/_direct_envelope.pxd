# C types for _direct_envelope.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_schemas.codec.wire_bytes cimport read_long
from helenus_schemas.event.row_cursor cimport RowCursor

cdef bint _compiled
cdef int _OTHER, _INTEGER, _REVERSED, _SIZED, _TEXT, _UUID, _BOOLEAN
cdef Py_ssize_t _MAX_COLUMNS, _MAX_CACHED
cdef long long _NO_DELETION, _MAX_WRITE_TIME
cdef int _WRITTEN, _REPLACED
cdef bytearray _SCRATCH

cdef class EnvelopeColumn:
    cdef public Py_ssize_t width, index, size
    cdef public bint is_many, is_set, takes_none
    cdef public int parts, form
    cdef public object encode

cdef class DirectEnvelopes:
    cdef bytes _head, _middle, _places
    cdef object _encode_written
    cdef RowCursor _cursor
    cdef dict _table, _columns, _names_by_bits, _segments
    cdef list _nothing, _nulls

    cpdef object encode_change(self, bytes event, bytes cells, bytes key, long long write_time, long long now)

    @cython.locals(
        size=cython.longlong, offset=Py_ssize_t, segment=cython.longlong, position=cython.longlong, end=Py_ssize_t,
        header=bytes, columns=tuple, values=list, encoded=list, op=cython.longlong, written=cython.ulonglong,
        replaced=cython.ulonglong, name=tuple, written_names=bytes, file=bytes, value=bytes, _=cython.longlong,
        parsed=(cython.longlong, cython.ulonglong, cython.ulonglong),
    )
    cdef object _encode_change(self, bytes event, bytes cells, bytes key, long long write_time, long long now)

@cython.locals(
    low=cython.longlong, low_deletion=cython.longlong, low_ttl=cython.longlong, size=cython.longlong,
    count=Py_ssize_t, written=cython.ulonglong, replaced=cython.ulonglong, bit=cython.ulonglong, i=Py_ssize_t,
    column=EnvelopeColumn, parts=int, value=bytes,
)
cdef (long long, unsigned long long, unsigned long long) read_row(
    RowCursor cursor, bytes data, Py_ssize_t offset, list columns, list values, list encoded
)

@cython.locals(
    count=cython.ulonglong, deleted=cython.longlong, parts=list, live=Py_ssize_t, _=cython.ulonglong, value=bytes,
    path=bytes,
)
cdef int read_elements(RowCursor cursor, EnvelopeColumn column, list values, list encoded) except? -1

@cython.locals(size=Py_ssize_t, form=int, text=str)
cdef bytes encode_avro(bytes value, EnvelopeColumn column)

@cython.locals(remaining=cython.ulonglong, size=Py_ssize_t, raw=cython.p_uchar)
cdef bytes long_bytes(long long value)

@cython.locals(number=cython.longlong, i=Py_ssize_t, shift=int)
cdef long long signed_integer(bytes value)

@cython.locals(raw=cython.p_uchar)
cdef bytes size_bytes(Py_ssize_t value)
