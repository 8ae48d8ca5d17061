# C types for packing.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython

cdef bint _compiled
cdef Py_ssize_t _SHORT, _LENGTH_BYTES
cdef list _SHORT_LENGTHS
cdef object _pack_length, _unpack_length

@cython.locals(parts=list, item=bytes, size=Py_ssize_t)
cpdef bytes pack_items(object items)

@cython.locals(items=list, end=Py_ssize_t, size=cython.longlong)
cpdef list unpack_items(bytes data, Py_ssize_t offset=*)
