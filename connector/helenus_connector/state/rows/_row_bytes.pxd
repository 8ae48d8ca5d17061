# C types for _row_bytes.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_schemas.codec.wire_bytes cimport read_long

cdef Py_ssize_t _MUTATION_BYTES
cdef long long _NO_PAGE
cdef int _VERSION
cdef object _new_tuple, _pack_time, _unpack_time
cdef dict _name_fields
cdef Py_ssize_t _MAX_NAMES

@cython.locals(parts=list, flags=int, previous_time=cython.longlong)
cpdef bytes dump_row(object row)

@cython.locals(flags=int, time=cython.longlong)
cdef object _dump_cells(object row, list parts, long long previous_time)

@cython.locals(version=int, offset=Py_ssize_t, flags=int, time=cython.longlong, expires_at=cython.longlong, size=cython.longlong, count=cython.longlong, end=Py_ssize_t, _=cython.longlong)
cpdef object load_row(bytes data)

@cython.locals(cells=dict, time=cython.longlong, flags=int, size=cython.longlong, _=cython.longlong)
cdef object _load_cells(object row, bytes data, Py_ssize_t offset, long long count, long long previous_time)

@cython.locals(size=cython.longlong)
cpdef (long long, Py_ssize_t) read_size(bytes data, Py_ssize_t offset)

@cython.locals(field=bytes, name_bytes=bytes)
cpdef bytes name_field(str name)

cdef bytes _pack_deletion(object deletion)

cpdef bint has_seen(bytes data, bytes mutation)
