# C types for resolved_key.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython

@cython.freelist(1024)
cdef class ResolvedKey:
    cdef public object topic, partition, scope, bounds, parts, event
    cdef public bytes key, digest
    cdef public tuple values
    cdef public long long events, records
    cdef public object newest, write_time, expires
    cdef public object before, after, read_rows, last_digest, failure, cells, op, _written
    cdef public bint continues, is_confirmed, is_released, published, dead_lettered
