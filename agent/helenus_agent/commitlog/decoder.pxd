# C types for decoder.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython

cdef bint _compiled
cdef int _SIZED, _INTEGER, _DATE, _UUID, _BOOLEAN, _REVERSED, _OTHER
cdef Py_ssize_t _VBYTES, _COMPLEX, _NO_BYTES, _NO_COLUMN
cdef Py_ssize_t _HEADERS
cdef unsigned long long _TIMESTAMP_EPOCH, _DELETION_EPOCH
cdef long long _NONE, _NEVER
cdef int _ROW, _STATIC, _PARTITION, _RANGE
cdef int _SCHEMA, _HIDDEN
cdef int _FLAGGED
cdef long long _LIVE, _DELETES, _WRITES_ROW, _GONE, _COUNTER
cdef bytes _OF_RANGE
cdef tuple _SCOPES
cdef bytes _SIZES
cdef tuple _PAIRS, _LAST, _BYTES
cdef list _NONE_EMPTY
cdef bytearray _SCRATCH

cdef class KeyColumn:
    cdef public int form
    cdef public Py_ssize_t width, fixed
    cdef public bint hollow
    cdef public object encode
    cdef public bytes stand_in

cdef class TablePlan:
    cdef public int index
    cdef public str reason
    cdef public bint is_known, schema, view
    cdef public str name
    cdef public tuple partition, clustering
    cdef public dict columns
    cdef public list headers
    cdef public Py_ssize_t malformed
    cdef public bytes cells
    cdef public dict column_texts

@cython.locals(
    changes=list, notes=list, problems=list, decoded=list, schema=bint, met=int, broken=bint, mutations=Py_ssize_t,
    node_bytes=bytes, segment_bytes=bytes, end=Py_ssize_t, p=Py_ssize_t, remaining=Py_ssize_t, size=Py_ssize_t,
    payload=bytes, size_crc=Py_ssize_t, raw=cython.p_const_char, after=Py_ssize_t, mark=Py_ssize_t,
    digest=bytes, position=bytes, parts=bytes,
    part=Py_ssize_t, scope=int, last=bytes, value=bytes, heads=list, head=bytes, problem=str, variable=list,
)
cpdef object decode(
    bytes data, Py_ssize_t base, bint final, dict plans, str node, long long segment, int version,
    Py_ssize_t max_changes, bint live=*, bint padded=*
)

@cython.locals(pieces=list, start=Py_ssize_t, first=Py_ssize_t, end=Py_ssize_t, other=bytes)
cdef bytes replicated(bytes payload, list variable)

@cython.locals(
    updates=cython.ulonglong, p=Py_ssize_t, start=Py_ssize_t, met=int, flagged=bint, plan=TablePlan, table=bytes,
    raw=cython.p_const_char,
)
cdef int mutation(bytes d, int version, dict plans, list decoded, list notes, list variable) except -1

@cython.locals(
    size=Py_ssize_t, partition=bytes, flags=int, low=cython.ulonglong, low_deletion=cython.ulonglong,
    _=cython.ulonglong, statics=tuple, regulars=tuple, header=tuple, emits=bint, prefix=bytes, row_flags=int,
    newest=cython.longlong, expires=cython.longlong, effect=cython.longlong, expired=cython.longlong, values=list,
    key=bytes, last=bytes, raw=cython.p_const_char, opened=list, ranges=list, first=Py_ssize_t, empty=list,
    i=Py_ssize_t, index=int, scope=int, of_statics=bytes, lows=bytes, first_ttl=Py_ssize_t, low_ttl=cython.ulonglong,
    row_start=Py_ssize_t, estimate=cython.ulonglong, rows=cython.ulonglong, before_estimate=Py_ssize_t,
)
cdef Py_ssize_t update(
    bytes d, Py_ssize_t start, Py_ssize_t p, TablePlan plan, list decoded, list notes, list variable
) except -1

@cython.locals(
    headers=list, i=Py_ssize_t, header_met=tuple, first=Py_ssize_t, count=cython.ulonglong, named=list, size=Py_ssize_t,
    name=bytes, names=list, header=tuple, column=tuple, raw=cython.p_const_char,
)
cdef tuple columns(bytes d, Py_ssize_t p, TablePlan plan, Py_ssize_t start)

@cython.locals(
    newest=cython.longlong, first=cython.longlong, several=bint, expires=cython.longlong, expired=cython.longlong,
    effect=cython.longlong, gone=cython.longlong, until=cython.longlong, time=cython.longlong,
    delta=cython.ulonglong, _=cython.ulonglong, code=Py_ssize_t, bit=cython.longlong, cells=cython.ulonglong, cell=int,
    size=Py_ssize_t, column=tuple,
)
cdef (long long, long long, long long, long long, Py_ssize_t) row(
    bytes d, Py_ssize_t p, int flags, unsigned long long low, unsigned long long low_deletion, tuple columns
)

@cython.locals(missing=cython.ulonglong, count=Py_ssize_t, few=bint, listed=cython.ulonglong, column=cython.ulonglong, i=Py_ssize_t)
cdef tuple subset(bytes d, Py_ssize_t p, tuple columns)

@cython.locals(
    kind=int, size=Py_ssize_t, _=cython.longlong, values=list, start=bytes, end=bytes, time=cython.longlong,
    deletion_start=Py_ssize_t, gone=bytes,
)
cdef Py_ssize_t marker(
    bytes d, Py_ssize_t p, TablePlan plan, unsigned long long low, list opened, list ranges
) except -1

@cython.locals(out=list, data=bytes)
cdef bytes bound(list values, bint inclusive)

@cython.locals(bits=cython.ulonglong, i=Py_ssize_t, absence=int, size=Py_ssize_t, part=KeyColumn, raw=cython.p_const_char)
cdef Py_ssize_t clustering(bytes d, Py_ssize_t p, TablePlan plan, Py_ssize_t count, list values) except -1

@cython.locals(delta=cython.ulonglong, _=cython.ulonglong)
cdef (long long, Py_ssize_t) deletion(bytes d, Py_ssize_t p, unsigned long long low)

@cython.locals(out=list, p=Py_ssize_t, part=KeyColumn, size=Py_ssize_t)
cdef bytes partition_key(bytes data, TablePlan plan, list empty)

@cython.locals(out=list, i=Py_ssize_t, value=bytes)
cdef bytes clustering_key(bytes prefix, list values, TablePlan plan)

@cython.locals(form=int, text=str, size=Py_ssize_t)
cdef bytes avro(bytes value, KeyColumn part)

@cython.locals(first=bytes)
cdef bytes tail(long long newest, long long expires, long long effect, long long expired)

cdef bytes cells(TablePlan plan, bytes columns, bytes lows, bytes flags, bytes data)

@cython.locals(written=bytes)
cdef bytes times(long long newest, long long expires)

@cython.locals(zigzag=cython.ulonglong, size=Py_ssize_t, raw=cython.p_uchar)
cdef bytes long_bytes(long long value)

@cython.locals(first=int, size=int, value=cython.ulonglong)
cdef (unsigned long long, Py_ssize_t) vint(bytes d, Py_ssize_t p)

@cython.locals(value=cython.ulonglong)
cdef (Py_ssize_t, Py_ssize_t) length(bytes d, Py_ssize_t p)

cdef long long wrapped(unsigned long long value)

@cython.locals(number=cython.longlong, i=Py_ssize_t, shift=int)
cdef long long integer(bytes value)

@cython.locals(number=Py_ssize_t, i=Py_ssize_t)
cdef Py_ssize_t u32(bytes d, Py_ssize_t p)
